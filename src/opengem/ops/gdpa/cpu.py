"""GDPA on CPU with torch alone: a few rows, or a piece of a long one, at a time, so that scores stay in the cache."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opengem.ops.gdpa.activations import activate, activate_, activate_backward

SCORES = 2**18
"""Scores of a tile: 1 MiB in float32."""
MEAN_LENGTH = 32
"""Mean length of jagged rows from which the loop beats padded rows."""


def obstacle(q: Tensor, *_rest) -> str:
    """Say why this backend cannot run here, or return an empty string."""
    if q.device.type != "cpu":
        return f"it runs on CPU tensors only, got {q.device.type}"
    if torch.compiler.is_compiling():
        return "a loop over rows cannot be compiled or exported"
    return ""


def suits(
    q: Tensor, k: Tensor, _v: Tensor, q_offsets: Tensor | None, k_offsets: Tensor | None, *_rest
) -> bool:
    """Whether rows are long enough, on average, to repay a few calls each."""
    offsets, total = (q_offsets, q.shape[0]) if q_offsets is not None else (k_offsets, k.shape[0])
    return offsets is None or total >= MEAN_LENGTH * (offsets.shape[0] - 1)


def gdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    k_offsets: Tensor | None,
    request_of_row: Tensor | None,
    activation: tuple[str, ...],
    alpha: float,
    max_q: int | None,
    max_k: int | None,
) -> Tensor:
    """See `api.gdpa`; the longest lengths are not needed here."""
    k_bounds = _bounds(k, k_offsets)
    keys = list(range(len(k_bounds) - 1)) if request_of_row is None else request_of_row.tolist()
    shape = q.shape
    if q_offsets is None and q.dim() == 3:  # seeds that all rows share
        shape = (len(keys), *q.shape)
        q = q.expand(shape)
    q_bounds = _bounds(q, q_offsets)
    rows = [
        (q_bounds[i], q_bounds[i + 1] - q_bounds[i], k_bounds[j], k_bounds[j + 1] - k_bounds[j])
        for i, j in enumerate(keys)
    ]
    flat = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    tiles = _tiles(rows, q.shape[-2])
    out = _Loop.apply(*flat, tiles, activation, alpha, request_of_row is not None)
    return out.view(shape)  # pyright: ignore[reportAttributeAccessIssue]


class _Tile(NamedTuple):
    """`count` rows side by side: each `n` queries from `q0` on, against `m` keys from `k0` on."""

    count: int
    q0: int
    n: int
    k0: int
    m: int

    def queries(self, x_LHK: Tensor) -> Tensor:
        """Return these rows of queries, `(count * H, n, K)`: a view where `count` is 1."""
        return _heads_first(x_LHK[self.q0 : self.q0 + self.count * self.n], self.count)

    def keys(self, x_MHK: Tensor) -> Tensor:
        """Return these rows of keys, `(count * H, m, K)`: a view where `count` is 1."""
        return _heads_first(x_MHK[self.k0 : self.k0 + self.count * self.m], self.count)

    def split(self, x: Tensor) -> Tensor:
        """Return `(count * H, ., .)` as `(count, H, ., .)`."""
        return x[None] if self.count == 1 else x.unflatten(0, (self.count, -1))

    def rows(self, x: Tensor) -> Tensor:
        """Return `(count * H, n, K)` as rows `(count * n, H, K)`: the way back."""
        return x.transpose(0, 1) if self.count == 1 else self.split(x).transpose(1, 2).flatten(0, 1)


def _heads_first(x_LHK: Tensor, count: int) -> Tensor:
    if count == 1:
        return x_LHK.transpose(0, 1)
    return x_LHK.unflatten(0, (count, -1)).transpose(1, 2).flatten(0, 1)


def _bounds(x: Tensor, offsets: Tensor | None) -> list[int]:
    return [i * x.shape[1] for i in range(x.shape[0] + 1)] if offsets is None else offsets.tolist()


def _tiles(rows: list[tuple[int, int, int, int]], heads: int) -> list[_Tile]:
    tiles: list[_Tile] = []
    for q0, n, k0, m in rows:
        if n == 0 or m == 0:
            continue
        last = tiles[-1] if tiles else None
        if last and last.q0 + last.count * last.n == q0:
            scores = heads * last.count * last.n * m
            if last.count == 1 and (last.k0, last.m) == (k0, m) and scores < SCORES:  # the same keys again
                tiles[-1] = last._replace(n=last.n + n)
                continue
            if (last.n, last.m) == (n, m) and last.k0 + last.count * m == k0 and scores < SCORES:
                tiles[-1] = last._replace(count=last.count + 1)
                continue
        # pieces of one size, a multiple of 16 queries
        pieces = -(-heads * n * m // SCORES)
        step = -(-n // pieces // 16) * 16
        tiles += [_Tile(1, q0 + i, min(step, n - i), k0, m) for i in range(0, n, step)]
    return tiles


class _Workspace:
    """Memory for the scores of one tile after another: fresh memory would be cold."""

    def __init__(self, tiles: list[_Tile], heads: int, like: Tensor) -> None:
        self.heads = heads
        self.memory = like.new_empty(max((heads * t.count * t.n * t.m for t in tiles), default=0))

    def product(self, t: _Tile, a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:
        """Return `alpha a b^T`, `(count, H, n, m)`; it lives until the next call."""
        shape = (t.count * self.heads, t.n, t.m)
        out = self.memory[: math.prod(shape)].view(shape)
        return t.split(torch.baddbmm(out, a, b.mT, beta=0, alpha=alpha, out=out))


class _Loop(torch.autograd.Function):
    """The loop over tiles, forward and backward; scores are computed anew in the second."""

    @staticmethod
    def forward(ctx: Any, q, k, v, tiles, activation, alpha, shared):
        out = _space(q, {t.q0: t.count * t.n for t in tiles})
        space = _Workspace(tiles, q.shape[1], q)
        for t in tiles:
            scores = space.product(t, t.queries(q), t.keys(k), alpha)
            weights = activate_(scores, activation, 1).flatten(0, 1)
            out[t.q0 : t.q0 + t.count * t.n] = t.rows(torch.bmm(weights, t.keys(v)))
        ctx.save_for_backward(q, k, v)
        ctx.settings = tiles, activation, alpha, shared
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad):
        q, k, v = ctx.saved_tensors
        tiles, activation, alpha, shared = ctx.settings
        dq = _space(q, {t.q0: t.count * t.n for t in tiles})
        # with a map keys can be read by several rows; without one, by pieces of one row at most
        written = {} if shared else {t.k0: t.count * t.m for t in tiles}
        dk, dv = (_space(x, written) for x in (k, v))
        one, two = (_Workspace(tiles, q.shape[1], q) for _ in range(2))
        for t in tiles:
            queries, keys, d_out = t.queries(q), t.keys(k), t.queries(grad)
            scores = one.product(t, queries, keys, alpha)
            d_weights = two.product(t, d_out, t.keys(v))
            weights = activate(scores, activation, 1).flatten(0, 1)
            d_scores = activate_backward(d_weights, scores, activation, 1).flatten(0, 1)
            dq[t.q0 : t.q0 + t.count * t.n] = t.rows(torch.bmm(d_scores, keys).mul_(alpha))
            add = written.pop(t.k0, None) is None
            parts = torch.bmm(weights.mT, d_out), torch.bmm(d_scores.mT, queries).mul_(alpha)
            for to, part in zip((dv, dk), parts, strict=True):
                rows = to[t.k0 : t.k0 + t.count * t.m]
                if add:
                    rows += t.rows(part)
                else:
                    rows.copy_(t.rows(part))
        return dq, dk, dv, None, None, None, None


def _space(like: Tensor, written: dict[int, int]) -> Tensor:
    """Return memory for an answer: zeros unless all of its rows, `first -> count`, will be written."""
    return (
        like.new_empty(like.shape) if sum(written.values()) == like.shape[0] else like.new_zeros(like.shape)
    )
