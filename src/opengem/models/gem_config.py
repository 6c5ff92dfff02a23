"""Settings of GEM, and what each size means."""

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from opengem.errors import ConfigError
from opengem.models.output import ModelConfig
from opengem.nn.heads import HeadsConfig
from opengem.nn.interformer import InterFormerConfig
from opengem.nn.pyramid import StreamTowerConfig
from opengem.nn.wukong import WukongConfig
from opengem.schema.inputs import InputSpec

if TYPE_CHECKING:
    from opengem.models.gem import GEM

Size = Literal["tiny", "small", "medium", "large"]


@dataclass(frozen=True, kw_only=True)
class GEMConfig(ModelConfig, type="gem"):
    """Settings of GEM. A number left at 0 (or `over` left empty) is filled by `size` when the model is built.

    Attributes:
        size: `tiny` (the demo; thousands of examples a second on two CPU cores), `small`, `medium` or `large`.
        width: Token width D, a multiple of 2 x `interformer.heads`.
        embedding_width: Width E of the embedding tables, 1 or more.
        layers: Layers of the interaction and the sequence arch, 1 or more.
        wukong: False puts a plain MLP in the place of each Wukong layer.
        interaction: Sizes and switches of the interaction arch.
        interformer: How feature tokens and sequence tokens meet.
        pyramid: False switches the towers off: the newest events pass as they are.
        tower: Tower of every stream that `streams` does not name.
        streams: Stream name -> its own tower.
        over: Widths of the over arch; the last is the width of the trunk.
        heads: Heads of tasks and surfaces.
        time_encodings: Whether events carry encodings of time and position.
        linear_hours: Width in hours of a linear time bucket, above 0.
        history: Most events a stream that are read, 1 or more.
        dropout: In the MLPs of the interaction and the over arch, 0 to 1; what is held once an event has none.
    """

    size: Size = "tiny"
    width: int = 0
    embedding_width: int = 0
    layers: int = 0
    wukong: bool = True
    interaction: WukongConfig = field(default_factory=WukongConfig)
    interformer: InterFormerConfig = field(default_factory=InterFormerConfig)
    pyramid: bool = True
    tower: StreamTowerConfig = field(default_factory=StreamTowerConfig)
    streams: dict[str, StreamTowerConfig] = field(default_factory=dict)
    over: tuple[int, ...] = ()
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    time_encodings: bool = True
    linear_hours: float = 12.0
    history: int = 100
    dropout: float = 0.1

    def resolved(self) -> "GEMConfig":
        """Return the same settings with every number that was left at 0 filled by `size`.

        Raises:
            ConfigError: A setting is out of range.
        """
        _check(self)
        fill = SIZES[self.size]
        tower = _filled(self.tower, fill["tower"])
        return replace(
            _filled(self, fill["model"]),
            interaction=_filled(self.interaction, fill["interaction"]),
            interformer=_filled(self.interformer, fill["interformer"]),
            tower=tower,
            streams={name: _filled(c, fill["tower"]) for name, c in self.streams.items()},
        )

    def build(self, inputs: InputSpec) -> "GEM":
        """Return the model for these inputs."""
        from opengem.models.gem import GEM

        return GEM(self, inputs)


SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "tiny": {
        "model": {"width": 32, "embedding_width": 16, "layers": 2, "over": (128, 64)},
        "interaction": {"fm_tokens": 8, "lcb_tokens": 8, "rank": 8, "hidden": 128},
        "interformer": {"heads": 2, "summary": 4},
        "tower": {"width": 32, "heads": 2, "depth": 1, "recent": 48, "group": 8, "tokens": 64, "block": 32},
    },
    "small": {
        "model": {"width": 64, "embedding_width": 32, "layers": 3, "over": (256, 128)},
        "interaction": {"fm_tokens": 12, "lcb_tokens": 12, "rank": 12, "hidden": 256},
        "interformer": {"heads": 4, "summary": 4},
        "tower": {"width": 64, "heads": 4, "depth": 2, "recent": 48, "group": 8, "tokens": 64, "block": 64},
    },
    "medium": {
        "model": {"width": 128, "embedding_width": 64, "layers": 4, "over": (512, 256)},
        "interaction": {"fm_tokens": 16, "lcb_tokens": 16, "rank": 16, "hidden": 512},
        "interformer": {"heads": 4, "summary": 8},
        "tower": {"width": 128, "heads": 4, "depth": 2, "recent": 48, "group": 8, "tokens": 64, "block": 64},
    },
    "large": {
        "model": {"width": 256, "embedding_width": 128, "layers": 6, "over": (1024, 512, 256)},
        "interaction": {"fm_tokens": 32, "lcb_tokens": 32, "rank": 24, "hidden": 1024},
        "interformer": {"heads": 8, "summary": 8},
        "tower": {"width": 256, "heads": 8, "depth": 3, "recent": 96, "group": 8, "tokens": 128, "block": 64},
    },
}
"""Size -> part -> settings that it fills."""


def _filled(config: Any, values: dict[str, Any]) -> Any:
    return replace(config, **{k: v for k, v in values.items() if not getattr(config, k)})


def _check(config: GEMConfig) -> None:
    if config.size not in SIZES:
        raise ConfigError(f'size must be one of {list(SIZES)}, got "{config.size}"')
    if config.history < 1:
        raise ConfigError(f"history must be at least 1 event a stream, got {config.history}")
    if not 0 <= config.dropout < 1:
        raise ConfigError(f"dropout must be from 0 to below 1, got {config.dropout}")
    parts = {"": config, "interaction.": config.interaction, "interformer.": config.interformer}
    parts |= {"tower.": config.tower} | {f"streams.{n}.": c for n, c in config.streams.items()}
    for path, part in parts.items():
        for f in fields(part):
            value = getattr(part, f.name)
            if isinstance(value, int) and value < 0:
                raise ConfigError(f"{path}{f.name} must not be negative, got {value}")
    full = SIZES[config.size]
    width = config.width or full["model"]["width"]
    heads = config.interformer.heads or full["interformer"]["heads"]
    if width % (2 * heads):
        raise ConfigError(
            f"width must be a multiple of 2 * interformer.heads, got width {width} and {heads} heads"
        )
