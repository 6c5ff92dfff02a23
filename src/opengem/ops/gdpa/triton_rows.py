"""Which queries meet which keys in each form of GDPA, as work for the device kernels."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from opengem.ops.tiles import Rows, Tiles, piece_list, tile_list


class Sides(NamedTuple):
    """Both sides of the operation.

    Attributes:
        queries: Rows of queries and the keys that they meet.
        request: `(B,)`, the row of keys that each row of queries meets.
        k_first: `(R,)`, place of the first key of each row of keys.
        k_length: `(R,)`, its keys.
        answers: Number of answers.
        in_order: `request` falls nowhere for sure.
    """

    queries: Rows
    request: Tensor
    k_first: Tensor
    k_length: Tensor
    answers: int
    in_order: bool


def sides(
    q: Tensor, k: Tensor, q_offsets: Tensor | None, k_offsets: Tensor | None, request_of_row: Tensor | None
) -> Sides:
    """Return the rows of `api.gdpa`'s operands, flat places counting over `(rows, N)`.

    Rows of queries that stand side by side and meet one row of keys become one row.
    """
    k_offsets = _even(k.shape[0], k.shape[1], k) if k_offsets is None else k_offsets
    k_first, k_length = k_offsets[:-1], k_offsets.diff()
    every = torch.arange(k_first.shape[0], device=q.device)
    request = every if request_of_row is None else request_of_row
    if q_offsets is None and q.dim() == 3:
        B, N = request.shape[0], q.shape[0]
        out = _even(B, N, q)[:-1]
        first, length, answers = torch.zeros_like(out), torch.full_like(out, N), B * N
    else:
        offsets = _even(q.shape[0], q.shape[1], q) if q_offsets is None else q_offsets
        length = offsets.diff()
        if request_of_row is not None:
            # the nth run of one request holds the rows for which that many changes were counted
            run = pad(request[1:] != request[:-1], (1, 0)).cumsum(0)[: request.shape[0]]
            request = torch.zeros_like(request).scatter(0, run, request)
            length = torch.zeros_like(length).scatter_add(0, run, length)
        first = out = length.cumsum(0) - length
        answers = q.shape[0] if q_offsets is not None else q.shape[0] * q.shape[1]
    queries = Rows(first, out, length, k_first[request], k_length[request])
    return Sides(queries, request, k_first, k_length, answers, request_of_row is None)


def key_work(side: Sides, keys: int, own: int, other: int) -> tuple[Tiles, Tensor]:
    """Return tiles of up to `own` of all `keys` keys, and the pieces of up to `other` queries that their rows list."""
    readers = side.k_first.shape[0]
    pieces, begin = piece_list(
        side.queries, side.request, readers, side.answers, other, in_order=side.in_order
    )
    rows = Rows(side.k_first, side.k_first, side.k_length, begin[:-1], begin.diff())
    return tile_list(rows, keys, own, step=other), pieces


def _even(rows: int, length: int, like: Tensor) -> Tensor:
    return torch.arange(rows + 1, device=like.device) * length
