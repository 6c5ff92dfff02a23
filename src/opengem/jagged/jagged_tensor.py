"""A jagged tensor: rows of different lengths, flat in memory, without padding."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree

from opengem.errors import ConfigError


@dataclass
class JaggedTensor:
    """Flat `values` and the `offsets` at which each row begins and ends.

    Row i is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: Shape `(L, ...)`.
        offsets: Shape `(R + 1,)`, int64, monotone, from 0 to L.

    Raises:
        ConfigError: The offsets are not such; a `ValueError`. Not checked on an accelerator or while a model is traced.
    """

    values: Tensor
    offsets: Tensor

    def __post_init__(self) -> None:
        """Check the offsets against the values."""
        check_offsets(self.offsets, self.values)

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


def check_offsets(offsets: Tensor, values: Tensor, name: str = "offsets") -> None:
    """Check that `offsets` cut `values` into rows; on CPU alone, since elsewhere it would wait for the device.

    Args:
        offsets: `(R + 1,)` int64.
        values: `(L, ...)`.
        name: What the offsets are called in the error.

    Raises:
        ConfigError: They do not begin at 0, fall, or do not end at L; names the position and the number.
    """
    if type(offsets) is not Tensor or type(values) is not Tensor or offsets.device.type != "cpu":
        return  # traced, or a placeholder of a tree of tensors
    if offsets.dtype != torch.int64 or offsets.dim() != 1 or not len(offsets):
        raise ConfigError(
            f"{name} must be R + 1 numbers of type int64. Received: {tuple(offsets.shape)} of {offsets.dtype}"
        )
    total = values.shape[0]
    fall = torch.nonzero(offsets[1:] < offsets[:-1])
    if int(offsets[0]) == 0 and not len(fall) and int(offsets[-1]) == total:
        return
    place = 0 if int(offsets[0]) else int(fall[0]) + 1 if len(fall) else len(offsets) - 1
    before = f" after {name}[{place - 1}] = {int(offsets[place - 1])}" if place else ""
    raise ConfigError(
        f"{name} must rise from 0 to the end of {total} values. "
        f"Received: {name}[{place}] = {int(offsets[place])}{before}"
    )


def offsets_of(lengths: Tensor) -> Tensor:
    """Return the offsets `(R + 1,)` int64 of rows with `lengths (R,)`."""
    zero = torch.zeros(1, dtype=torch.int64, device=lengths.device)
    return torch.cat([zero, lengths.to(torch.int64).cumsum(0)])


def row_of_value(offsets: Tensor, total: int) -> Tensor:
    """Return for each of `total` flat values the index of its row, shape `(L,)` int64."""
    # searchsorted, not repeat_interleave: its output size does not depend on values, so it exports
    return torch.searchsorted(offsets[1:], torch.arange(total, device=offsets.device), right=True)


_pytree.register_dataclass(JaggedTensor)
