"""DIN: the candidate weighs each event of the history, then an MLP."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opengem.jagged import Batch
from opengem.models.baselines.tokens import feature_tokens, mlp, num_tokens
from opengem.models.output import ModelConfig, Output
from opengem.nn.heads import DomainHeads, HeadsConfig
from opengem.nn.inputs import InputArch, InputConfig
from opengem.nn.names import module_key
from opengem.nn.recent import recent_events
from opengem.schema.inputs import InputSpec


@dataclass(frozen=True, kw_only=True)
class DINConfig(ModelConfig, type="din"):
    """Settings of DIN.

    Attributes:
        width: Width of embeddings and tokens.
        attention: Hidden width of the attention unit.
        layers: Widths of the over arch.
        dropout: In the over arch, 0 to 1.
        history: Most events a stream that are read.
    """

    width: int = 16
    attention: int = 32
    layers: tuple[int, ...] = (128, 64)
    dropout: float = 0.1
    history: int = 50

    def build(self, inputs: InputSpec) -> "DIN":
        """Return the model for these inputs."""
        return DIN(self, inputs)


class DIN(nn.Module):
    """`sum_j a(e_j, c) e_j` for each stream, `a = MLP([c, e, c - e, c * e])` without softmax, then an MLP.

    Source: Zhou et al. 2018 (1706.06978). Events carry item and attributes, as there, and no time encoding.
    """

    def __init__(self, config: DINConfig, inputs: InputSpec) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        D = config.width
        arch = InputConfig(width=D, embedding_width=D, time_encodings=False)
        self.arch = InputArch(arch, inputs)
        self.attention = nn.ModuleDict(
            {
                module_key(s.name): nn.Sequential(
                    nn.Linear(4 * D, config.attention), nn.PReLU(), nn.Linear(config.attention, 1)
                )
                for s in inputs.streams
            }
        )
        width = (num_tokens(self.arch) + 2 * len(inputs.streams) + 1) * D
        self.over = mlp(width, config.layers, config.dropout)
        self.heads = DomainHeads(HeadsConfig(hidden=0, per_surface=False), inputs, config.layers[-1])

    def forward(self, batch: Batch) -> Output:
        """Score a batch."""
        e = self.arch(batch)
        parts = [feature_tokens(batch, e).flatten(1), e.candidate_BD]
        for stream in self.inputs.streams:
            interest = self._interest(batch, e.events[stream.name], e.candidate_BD, stream.name)
            parts += [interest, interest * e.candidate_BD]
        trunk = self.over(torch.cat(parts, dim=1))
        return Output(self.heads(trunk, batch.surface), trunk)

    def _interest(self, batch: Batch, x_LD: Tensor, candidate_BD: Tensor, stream: str) -> Tensor:
        x_RND, mask_RN = recent_events(x_LD, batch.history[stream].offsets, self.config.history)
        x_BND = x_RND[batch.request_of_example]
        c_BND = candidate_BD[:, None].expand_as(x_BND)
        weight = self.attention[module_key(stream)](
            torch.cat([c_BND, x_BND, c_BND - x_BND, c_BND * x_BND], dim=2)
        )
        weight = weight * mask_RN[batch.request_of_example, :, None]
        # events differ in number: scaled by the square root, so that long histories do not drown the rest
        return (weight * x_BND).sum(1) / self.config.history**0.5
