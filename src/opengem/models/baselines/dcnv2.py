"""DCNv2: cross layers beside a deep network."""

from dataclasses import dataclass

import torch
from torch import nn

from opengem.jagged import Batch
from opengem.models.baselines.tokens import feature_tokens, mean_history, mlp, num_tokens
from opengem.models.output import ModelConfig, Output
from opengem.nn.heads import DomainHeads, HeadsConfig
from opengem.nn.inputs import InputArch, InputConfig
from opengem.schema.inputs import InputSpec


@dataclass(frozen=True, kw_only=True)
class DCNv2Config(ModelConfig, type="dcnv2"):
    """Settings of DCNv2 in its parallel form.

    Attributes:
        width: Width of embeddings and tokens.
        cross_layers: Number of cross layers.
        rank: Rank of each cross layer's matrix.
        layers: Widths of the deep network.
        dropout: In the deep network, 0 to 1.
        history: Most events a stream that are averaged into one token.
    """

    width: int = 16
    cross_layers: int = 3
    rank: int = 64
    layers: tuple[int, ...] = (128, 64)
    dropout: float = 0.1
    history: int = 50

    def build(self, inputs: InputSpec) -> "DCNv2":
        """Return the model for these inputs."""
        return DCNv2(self, inputs)


class DCNv2(nn.Module):
    """`x_{l+1} = x_0 * (U_l V_l x_l + b_l) + x_l` beside an MLP of `x_0`; both read the flattened tokens.

    Source: Wang et al. 2021 (2008.13535), low-rank, parallel form.
    """

    def __init__(self, config: DCNv2Config, inputs: InputSpec) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        arch = InputConfig(width=config.width, embedding_width=config.width, time_encodings=False)
        self.arch = InputArch(arch, inputs)
        width = (num_tokens(self.arch) + len(inputs.streams) + 1) * config.width
        self.down = nn.ModuleList(
            nn.Linear(width, config.rank, bias=False) for _ in range(config.cross_layers)
        )
        self.up = nn.ModuleList(nn.Linear(config.rank, width) for _ in range(config.cross_layers))
        self.deep = mlp(width, config.layers, config.dropout)
        self.heads = DomainHeads(HeadsConfig(hidden=0, per_surface=False), inputs, width + config.layers[-1])

    def forward(self, batch: Batch) -> Output:
        """Score a batch."""
        e = self.arch(batch)
        parts = [feature_tokens(batch, e), mean_history(batch, e, self.inputs), e.candidate_BD[:, None]]
        x0 = x = torch.cat(parts, dim=1).flatten(1)
        for down, up in zip(self.down, self.up, strict=True):
            x = x0 * up(down(x)) + x
        trunk = torch.cat([x, self.deep(x0)], dim=1)
        return Output(self.heads(trunk, batch.surface), trunk)
