"""Jagged layouts by index arithmetic: no loop over rows, exports with any number of rows and values."""

import torch
from torch import Tensor


def size_of(count: Tensor) -> int:
    """Return a zero-dimensional integer tensor as a size (a symbolic one under `torch.export`)."""
    size = count.item()
    if torch.compiler.is_compiling():
        torch._check(size >= 0)
    return size  # pyright: ignore[reportReturnType]


def offsets_of_lengths(lengths: Tensor) -> Tensor:
    """Return the offsets `(R + 1,)` of rows with `lengths (R,)`."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def row_and_position(offsets: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Return the row of each of `total` values and its place in that row, both `(total,)`."""
    place = torch.arange(total, device=offsets.device)
    row = torch.searchsorted(offsets[1:], place, right=True)
    return row, place - offsets[row]


def _slots(offsets: Tensor, length: int, newest_last: bool) -> tuple[Tensor, Tensor]:
    """Return for each place of the padded tensor the value that it holds, and whether it holds one."""
    lengths = offsets[1:] - offsets[:-1]
    place = torch.arange(length, device=offsets.device)
    from_end = (length - 1 - place)[None] if newest_last else lengths[:, None].clamp(max=length) - 1 - place
    held = (from_end >= 0) & (from_end < lengths[:, None])
    return offsets[1:, None] - 1 - from_end, held


def pad(values: Tensor, offsets: Tensor, length: int, newest_last: bool) -> Tensor:
    """See `api.pad`."""
    index, held = _slots(offsets, length, newest_last)
    tail = values.shape[1:]
    # one zero row behind the values is what empty places read; it also serves when there are no values
    source = torch.cat([values, values.new_zeros(1, *tail)])
    index = torch.where(held, index, values.shape[0])
    return source.index_select(0, index.reshape(-1)).reshape(held.shape + tail)


def pad_mask(offsets: Tensor, length: int, newest_last: bool) -> Tensor:
    """See `api.pad_mask`."""
    return _slots(offsets, length, newest_last)[1]


def unpad(dense: Tensor, offsets: Tensor, newest_last: bool) -> Tensor:
    """See `api.unpad`."""
    length = dense.shape[1]
    row, position = row_and_position(offsets, size_of(offsets[-1]))
    lengths = offsets[1:] - offsets[:-1]
    shift = (length if newest_last else lengths.clamp(max=length)) - lengths
    place = position + (shift[row] if isinstance(shift, Tensor) else shift)
    flat = dense.reshape(-1, *dense.shape[2:])
    out = flat.index_select(0, row * length + place.clamp(min=0))
    kept = (place >= 0).reshape(-1, *[1] * (out.dim() - 1))
    return torch.where(kept, out, out.new_zeros(()))


def concat(a: Tensor, a_offsets: Tensor, b: Tensor, b_offsets: Tensor) -> tuple[Tensor, Tensor]:
    """See `api.concat`."""
    offsets = a_offsets + b_offsets
    row, position = row_and_position(offsets, a.shape[0] + b.shape[0])
    a_lengths = (a_offsets[1:] - a_offsets[:-1])[row]
    from_a = a_offsets[row] + position
    from_b = a.shape[0] + b_offsets[row] + position - a_lengths
    return torch.cat([a, b]).index_select(0, torch.where(position < a_lengths, from_a, from_b)), offsets


def split(values: Tensor, offsets: Tensor, newest: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `api.split`."""
    lengths = offsets[1:] - offsets[:-1]
    recent_offsets = offsets_of_lengths(lengths.clamp(max=newest))
    older_offsets = offsets - recent_offsets
    row, position = row_and_position(older_offsets, size_of(older_offsets[-1]))
    older = values.index_select(0, offsets[row] + position)
    row, position = row_and_position(recent_offsets, size_of(recent_offsets[-1]))
    recent = values.index_select(
        0, offsets[row + 1] - (recent_offsets[row + 1] - recent_offsets[row]) + position
    )
    return older, older_offsets, recent, recent_offsets


def gather(values: Tensor, offsets: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """See `api.gather`."""
    out_offsets = offsets_of_lengths((offsets[1:] - offsets[:-1])[rows])
    row, position = row_and_position(out_offsets, size_of(out_offsets[-1]))
    return values.index_select(0, offsets[rows[row]] + position), out_offsets


def segment_reduce(values: Tensor, offsets: Tensor, how: str) -> Tensor:
    """See `api.segment_reduce`."""
    row, _ = row_and_position(offsets, values.shape[0])
    rows = offsets.shape[0] - 1
    zero = values.new_zeros(rows, *values.shape[1:])
    if how == "max":
        index = row.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
        return zero.scatter_reduce(0, index, values, "amax", include_self=False)
    total = zero.index_add(0, row, values)
    if how == "sum":
        return total
    lengths = (offsets[1:] - offsets[:-1]).clamp(min=1).to(values.dtype)
    return total / lengths.reshape(-1, *[1] * (values.dim() - 1))
