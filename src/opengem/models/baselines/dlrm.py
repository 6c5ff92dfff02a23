"""DLRM: dot products of all pairs of embeddings, then an MLP."""

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
class DLRMConfig(ModelConfig, type="dlrm"):
    """Settings of DLRM.

    Attributes:
        width: Width of embeddings and tokens.
        layers: Widths of the over arch.
        dropout: In the over arch, 0 to 1.
        history: Most events a stream that are averaged into one token.
    """

    width: int = 16
    layers: tuple[int, ...] = (128, 64)
    dropout: float = 0.1
    history: int = 50

    def build(self, inputs: InputSpec) -> "DLRM":
        """Return the model for these inputs."""
        return DLRM(self, inputs)


class DLRM(nn.Module):
    """`MLP([<t_i, t_j> for i < j || numbers' token])` over feature tokens and one mean token a stream.

    Source: Naumov et al. 2019; histories enter as sum-pooled multi-valued features did there (here: their mean).
    """

    def __init__(self, config: DLRMConfig, inputs: InputSpec) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        arch = InputConfig(width=config.width, embedding_width=config.width, time_encodings=False)
        self.arch = InputArch(arch, inputs)
        tokens = num_tokens(self.arch) + len(inputs.streams) + 1
        first, second = torch.triu_indices(tokens, tokens, offset=1)
        self.register_buffer("pairs", torch.stack([first, second]), persistent=False)
        width = tokens * (tokens - 1) // 2 + tokens * config.width
        self.over = mlp(width, config.layers, config.dropout)
        self.heads = DomainHeads(HeadsConfig(hidden=0, per_surface=False), inputs, config.layers[-1])

    def forward(self, batch: Batch) -> Output:
        """Score a batch."""
        e = self.arch(batch)
        parts = [feature_tokens(batch, e), mean_history(batch, e, self.inputs), e.candidate_BD[:, None]]
        x_BFD = torch.cat(parts, dim=1)
        dots = torch.bmm(x_BFD, x_BFD.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]  # type: ignore[index]
        trunk = self.over(torch.cat([x_BFD.flatten(1), dots], dim=1))
        return Output(self.heads(trunk, batch.surface), trunk)
