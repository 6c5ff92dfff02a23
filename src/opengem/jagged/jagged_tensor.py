"""A jagged tensor: rows of different lengths, flat in memory, without padding."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree


@dataclass
class JaggedTensor:
    """Flat `values` and the `offsets` at which each row begins and ends.

    Row i is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: Shape `(L, ...)`.
        offsets: Shape `(R + 1,)`, int64, monotone, from 0 to L.
    """

    values: Tensor
    offsets: Tensor

    @staticmethod
    def from_lengths(values: Tensor, lengths: Tensor) -> "JaggedTensor":
        """Build from `lengths (R,)`, whose sum must be the number of values."""
        return JaggedTensor(values, offsets_of(lengths))

    @property
    def lengths(self) -> Tensor:
        """Lengths of the rows, shape `(R,)`."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def rows(self) -> int:
        """Number of rows R."""
        return self.offsets.shape[0] - 1

    def to_list(self) -> list[list]:
        """Return the rows as Python lists."""
        bounds = self.offsets.tolist()
        return [self.values[a:b].tolist() for a, b in itertools.pairwise(bounds)]


def offsets_of(lengths: Tensor) -> Tensor:
    """Return the offsets `(R + 1,)` int64 of rows with `lengths (R,)`."""
    zero = torch.zeros(1, dtype=torch.int64, device=lengths.device)
    return torch.cat([zero, lengths.to(torch.int64).cumsum(0)])


def row_of_value(offsets: Tensor, total: int) -> Tensor:
    """Return for each of `total` flat values the index of its row, shape `(L,)` int64."""
    # searchsorted, not repeat_interleave: its output size does not depend on values, so it exports
    return torch.searchsorted(offsets[1:], torch.arange(total, device=offsets.device), right=True)


_pytree.register_dataclass(JaggedTensor)
