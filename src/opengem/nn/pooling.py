"""Pooling of a token sequence into a few tokens."""

import torch
from torch import Tensor, nn

from opengem.nn.sink_attention import SinkAttention
from opengem.nn.token_linear import TokenLinear


class PMA(nn.Module):
    """Pooling by multi-head attention: k learned queries attend over the tokens.

    Args:
        width: D.
        heads: H, divides D.
        tokens: k, tokens given.

    Source: InterFormer (2411.09852); Set Transformer (1810.00825). With a sink, so that no token gives zeros.
    """

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, tokens, width))
        self.attention = SinkAttention(width, heads)

    def forward(self, x_RSD: Tensor, mask_RS: Tensor) -> Tensor:
        """Pool `(R, S, D)` to `(R, k, D)`."""
        return self.attention(self.seeds.to(x_RSD.dtype), x_RSD, mask_RS)

    def flops(self, rows: float, length: int) -> float:
        """Return forward FLOPs of `rows` sequences of `length` tokens."""
        seeds = self.seeds.shape[1]
        return self.attention.flops(rows * seeds, seeds, rows * seeds * length)


class HSP(nn.Module):
    """Hierarchical seed pooling: more seeds than needed attend, then a low-rank map reduces them.

    `H = PMA(X)` with m seeds; `Y = sum_i Z_i^T H W_i`, Z_i `(m, k)`, W_i `(D, D)`.

    Args:
        width: D.
        heads: H, divides D.
        tokens: k, tokens given.
        seeds: m, at least k.
        terms: Number of terms of the sum, at least 1.

    Source: Kunlun (2602.10016), read through third-party notes.
    """

    def __init__(self, width: int, heads: int, tokens: int, seeds: int, terms: int = 2) -> None:
        super().__init__()
        self.pool = PMA(width, heads, seeds)
        self.reduce = nn.ModuleList(TokenLinear(seeds, tokens) for _ in range(terms))
        self.maps = nn.Linear(width, terms * width, bias=False)
        nn.init.normal_(self.maps.weight, std=(terms * width) ** -0.5)

    def forward(self, x_RSD: Tensor, mask_RS: Tensor) -> Tensor:
        """Pool `(R, S, D)` to `(R, k, D)`."""
        mapped = self.maps(self.pool(x_RSD, mask_RS)).chunk(len(self.reduce), dim=2)
        parts = [reduce(h) for reduce, h in zip(self.reduce, mapped, strict=True)]
        return torch.stack(parts).sum(0)

    def flops(self, rows: float, length: int) -> float:
        """Return forward FLOPs of `rows` sequences of `length` tokens."""
        seeds, width = self.pool.seeds.shape[1:]
        total = self.pool.flops(rows, length) + 2 * rows * seeds * self.maps.weight.numel()
        return total + sum(r.flops(rows, width) for r in self.reduce)  # type: ignore[operator]
