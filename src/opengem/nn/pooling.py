"""Pooling of a token sequence into a few tokens."""

import torch
from torch import Tensor, nn

from opengem.nn.token_linear import TokenLinear


class PMA(nn.Module):
    """Pooling by multi-head attention: k learned queries attend over the tokens.

    This module holds the queries; the attention that they ask is shared with other queries of the same sequence.

    Args:
        width: D.
        tokens: k, tokens given.

    Source: InterFormer (2411.09852); Set Transformer (1810.00825). With a sink, so that no token gives zeros.
    """

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, tokens, width))

    def forward(self, answers_BMD: Tensor) -> Tensor:
        """Return the tokens, given what the attention answered to the seeds, `(B, k, D)`."""
        return answers_BMD

    def flops(self, rows: float) -> float:
        """Return forward FLOPs of `rows` sequences behind the attention."""
        return 0.0


class HSP(nn.Module):
    """Hierarchical seed pooling: more seeds than needed attend, then a low-rank map reduces them.

    `Y = sum_i Z_i^T H W_i` with H the answers to m seeds, Z_i `(m, k)`, W_i `(D, D)`.

    Args:
        width: D.
        tokens: k, tokens given.
        seeds: m, at least k.
        terms: Number of terms of the sum, at least 1.

    Source: Kunlun (2602.10016), read through third-party notes.
    """

    def __init__(self, width: int, tokens: int, seeds: int, terms: int = 2) -> None:
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, seeds, width))
        self.reduce = nn.ModuleList(TokenLinear(seeds, tokens) for _ in range(terms))
        self.maps = nn.Linear(width, terms * width, bias=False)
        nn.init.normal_(self.maps.weight, std=(terms * width) ** -0.5)

    def forward(self, answers_BMD: Tensor) -> Tensor:
        """Return the tokens `(B, k, D)`, given what the attention answered to the seeds, `(B, m, D)`."""
        mapped = self.maps(answers_BMD).chunk(len(self.reduce), dim=2)
        parts = [reduce(h) for reduce, h in zip(self.reduce, mapped, strict=True)]
        return torch.stack(parts).sum(0)

    def flops(self, rows: float) -> float:
        """Return forward FLOPs of `rows` sequences behind the attention."""
        seeds, width = self.seeds.shape[1:]
        total = 2 * rows * seeds * self.maps.weight.numel()
        return total + sum(r.flops(rows, width) for r in self.reduce)  # type: ignore[operator]
