"""Rotary encodings: angles by position."""

import torch
from torch import Tensor, nn


class Rotary(nn.Module):
    """Cosines and sines of `position * base ** (-2p / K)` for the pairs p of a head.

    Args:
        head_width: K, even.
        length: Positions of the table; later ones read the last.
        base: Ratio between the longest and the shortest period, above 1.

    Source: rotary position encoding (2104.09864).
    """

    def __init__(self, head_width: int, length: int, base: float = 10_000.0) -> None:
        super().__init__()
        periods = base ** (torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
        angle = torch.arange(length, dtype=torch.float64)[:, None] / periods
        table = torch.stack([angle.cos(), angle.sin()], dim=-1).float()
        self.register_buffer("table_NP2", table, persistent=False)
        self.table_NP2: Tensor

    def forward(self, positions: Tensor) -> Tensor:
        """Return `(L, K / 2, 2)` for positions `(L,)` int64, at least 0."""
        return self.table_NP2.index_select(0, positions.clamp(max=self.table_NP2.shape[0] - 1))
