"""Work lists for persistent device programs: tiles of jagged rows, the heaviest first."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

UNBOUNDED = 1 << 30
"""A reach that no row exceeds."""


class Rows(NamedTuple):
    """Which values of one side meet which of the other, an entry a row; all `(R,)` integers.

    Attributes:
        first: Place of the row's first value on its own side.
        out: Place of the row's first answer.
        length: Values of the row.
        other: Place of the first value it meets, or of the first entry of a list of them.
        other_length: Values that it meets, or entries.
    """

    first: Tensor
    out: Tensor
    length: Tensor
    other: Tensor
    other_length: Tensor


class Tiles(NamedTuple):
    """Tiles in order of falling cost.

    Attributes:
        entries: `(T, 6)` int32: `Rows.first`, `Rows.out`, place of the tile's first value in its row,
            `Rows.length`, `Rows.other`, `Rows.other_length`. Those behind `count` are empty.
        count: `(1,)` int32, how many there are.
    """

    entries: Tensor
    count: Tensor


def rows_of_offsets(own: Tensor, other: Tensor) -> Rows:
    """Return rows where the values of row r on `own` meet those of row r on `other`, both `(R + 1,)`."""
    return Rows(own[:-1], own[:-1], own.diff(), other[:-1], other.diff())


def tile_list(
    rows: Rows, total: int, block: int, *, before: int = UNBOUNDED, after: int = UNBOUNDED, step: int = 1
) -> Tiles:
    """Cut rows into tiles of up to `block` values and sort them, so that programs finish together.

    Nothing is read from the device: the list is as long as it can become for this many values and rows, and
    the number of tiles stays on the device.

    Args:
        rows: The rows.
        total: At least the values of all rows together.
        block: Values a tile, at least 1.
        before: Value i of a row meets none of the other side before place i - before.
        after: Value i meets none after place i + after.
        step: Values that one entry of the other side stands for.

    Returns:
        The tiles. A program that takes every G-th of them, there and back in turn, is behind or ahead of
        another by less than the heaviest tile.
    """
    row, at, held, count = cut(rows.length, total, block)
    first, out, length, other, other_length = (pad(x, (0, 1)) for x in rows)
    seen = torch.minimum(other_length[row] * step, at + (block + after)) - (at - before).clamp(min=0)
    # a tile costs its own loads and stores too
    cost = torch.where(held, seen.clamp(min=0) + block, 0)
    order = cost.argsort(descending=True, stable=True)
    columns = (first[row], out[row], at, length[row], other[row], other_length[row])
    return Tiles(torch.stack(columns, dim=1).index_select(0, order).to(torch.int32), count)


def piece_list(
    rows: Rows, reader: Tensor, readers: int, total: int, block: int, *, in_order: bool
) -> tuple[Tensor, Tensor]:
    """Cut rows into pieces of up to `block` values and lay those of one reader side by side.

    Args:
        rows: The rows.
        reader: `(R,)`, 0 to `readers` - 1, who reads the row.
        readers: Number of readers.
        total: At least the values of all rows together.
        block: Values a piece, at least 1.
        in_order: `reader` falls nowhere, so nothing needs sorting.

    Returns:
        `(P, 3)` int32, place of a piece's first value, place of its first answer, and its values; and
        `(readers + 1,)`, where the pieces of each reader begin.
    """
    row, at, held, _ = cut(rows.length, total, block)
    first, out, length = (pad(x, (0, 1))[row] for x in rows[:3])
    pieces = torch.stack([first + at, out + at, (length - at).clamp(max=block)], dim=1).to(torch.int32)
    owner = torch.where(held, pad(reader, (0, 1))[row], readers)
    if not in_order:
        owner, order = owner.sort(stable=True)
        pieces = pieces.index_select(0, order)
    return pieces, torch.searchsorted(owner, torch.arange(readers + 1, device=owner.device))


def cut(length: Tensor, total: int, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut rows into tiles of up to `block` values, in order.

    Args:
        length: `(R,)`, values of each row.
        total: At least the values of all rows together.
        block: Values a tile, at least 1.

    Returns:
        Each tile's row, place in the row and whether there is one `(total // block + R,)`, behind the last
        row R and place 0; and the number of tiles `(1,)` int32.
    """
    # an empty row at the end answers for the places behind the last tile
    ends = pad((length + block - 1) // block, (0, 1)).cumsum(0)
    nth = torch.arange(total // block + length.shape[0], device=length.device)
    row = torch.searchsorted(ends, nth, right=True).clamp(max=length.shape[0])
    held = nth < ends[-1]
    at = torch.where(held, (nth - pad(ends, (1, 0))[row]) * block, 0)
    return row, at, held, ends[-1:].to(torch.int32)
