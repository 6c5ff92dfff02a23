"""Jagged layouts row by row: the meaning of each function, readable and slow."""

from itertools import pairwise

import torch
from torch import Tensor


def _rows(values: Tensor, offsets: Tensor) -> list[Tensor]:
    bounds = offsets.tolist()
    return [values[a:b] for a, b in pairwise(bounds)]


def _joined(rows: list[Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([0] + [row.shape[0] for row in rows], device=like.device)
    values = torch.cat(rows) if rows else like[:0]
    return values, lengths.cumsum(0)


def pad(values: Tensor, offsets: Tensor, length: int, newest_last: bool) -> Tensor:
    """See `api.pad`."""
    out = []
    for row in _rows(values, offsets):
        kept = row[max(0, row.shape[0] - length) :]
        empty = values.new_zeros(length - kept.shape[0], *values.shape[1:])
        out.append(torch.cat([empty, kept] if newest_last else [kept, empty]))
    return torch.stack(out) if out else values.new_zeros(0, length, *values.shape[1:])


def pad_mask(offsets: Tensor, length: int, newest_last: bool) -> Tensor:
    """See `api.pad_mask`."""
    ones = torch.ones(int(offsets[-1]), 1, dtype=torch.float64, device=offsets.device)
    return pad(ones, offsets, length, newest_last).squeeze(-1) > 0


def unpad(dense: Tensor, offsets: Tensor, newest_last: bool) -> Tensor:
    """See `api.unpad`."""
    length = dense.shape[1]
    bounds = offsets.tolist()
    rows = []
    for row, a, b in zip(dense, bounds, bounds[1:], strict=False):
        kept = min(b - a, length)
        lost = dense.new_zeros(b - a - kept, *dense.shape[2:])
        rows += [lost, row[length - kept :] if newest_last else row[:kept]]
    return torch.cat(rows) if rows else dense.new_zeros(0, *dense.shape[2:])


def concat(a: Tensor, a_offsets: Tensor, b: Tensor, b_offsets: Tensor) -> tuple[Tensor, Tensor]:
    """See `api.concat`."""
    pairs = zip(_rows(a, a_offsets), _rows(b, b_offsets), strict=True)
    return _joined([torch.cat(pair) for pair in pairs], a)


def split(values: Tensor, offsets: Tensor, newest: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `api.split`."""
    rows = _rows(values, offsets)
    cuts = [max(0, row.shape[0] - newest) for row in rows]
    older = _joined([row[:cut] for row, cut in zip(rows, cuts, strict=True)], values)
    recent = _joined([row[cut:] for row, cut in zip(rows, cuts, strict=True)], values)
    return *older, *recent


def gather(values: Tensor, offsets: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """See `api.gather`."""
    all_rows = _rows(values, offsets)
    return _joined([all_rows[i] for i in rows.tolist()], values)


def segment_reduce(values: Tensor, offsets: Tensor, how: str) -> Tensor:
    """See `api.segment_reduce`."""
    out = []
    for row in _rows(values, offsets):
        if row.shape[0] == 0:
            out.append(row.sum(0))  # zeros, and part of the graph
        else:
            out.append({"sum": row.sum, "mean": row.mean, "max": row.amax}[how](0))
    return torch.stack(out) if out else values.new_zeros(0, *values.shape[1:])
