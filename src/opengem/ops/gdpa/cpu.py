"""GDPA on CPU with torch alone: a few rows, or a piece of a long one, at a time, so that scores stay in the cache."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from opengem.ops.gdpa.activations import activate

SCORES = 2**17
"""Scores of a tile: 0.5 MiB in float32."""
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
    out = _Loop.apply(*flat, _tiles(rows, q.shape[-2]), activation, alpha)
    return out.view(shape)  # pyright: ignore[reportAttributeAccessIssue]


class _Tile(NamedTuple):
    """`count` rows side by side: each `n` queries from `q0` on, against `m` keys from `k0` on."""

    count: int
    q0: int
    n: int
    k0: int
    m: int

    def queries(self, x_LHK: Tensor) -> Tensor:
        """Return these rows of queries, `(count, H, n, K)`: a view."""
        return _heads_first(x_LHK[self.q0 : self.q0 + self.count * self.n], self.count)

    def keys(self, x_MHK: Tensor) -> Tensor:
        """Return these rows of keys, `(count, H, m, K)`: a view."""
        return _heads_first(x_MHK[self.k0 : self.k0 + self.count * self.m], self.count)


def _heads_first(x_LHK: Tensor, count: int) -> Tensor:
    return x_LHK.unflatten(0, (count, -1)).transpose(1, 2)


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


def _product(a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:
    """Return `alpha a b` for `(count, H, ., .)` each."""
    a, b = a.flatten(0, 1), b.flatten(0, 1)
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=alpha)


class _Loop(torch.autograd.Function):
    """The loop over tiles, forward and backward; scores are computed anew in the second."""

    @staticmethod
    def forward(ctx: Any, q, k, v, tiles, activation, alpha):
        out = q.new_zeros(q.shape)
        for t in tiles:
            scores = _product(t.queries(q), t.keys(k).mT, alpha).unflatten(0, (t.count, -1))
            weights = activate(scores, activation, 1)
            t.queries(out).copy_(_product(weights, t.keys(v)).unflatten(0, (t.count, -1)))
        ctx.save_for_backward(q, k, v)
        ctx.settings = tiles, activation, alpha
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad):
        q, k, v = ctx.saved_tensors
        tiles, activation, alpha = ctx.settings
        dq, dk, dv = (x.new_zeros(x.shape) for x in (q, k, v))
        for t in tiles:
            split = (t.count, -1)
            queries, keys, d_out = t.queries(q), t.keys(k), t.queries(grad)
            with torch.enable_grad():
                scores = _product(queries, keys.mT, alpha).unflatten(0, split).detach().requires_grad_()
                weights = activate(scores, activation, 1)
            d_weights = _product(d_out, t.keys(v).mT).unflatten(0, split)
            (d_scores,) = torch.autograd.grad(weights, scores, d_weights)
            t.keys(dv).add_(_product(weights.detach().mT, d_out).unflatten(0, split))
            t.queries(dq).copy_(_product(d_scores, keys, alpha).unflatten(0, split))
            t.keys(dk).add_(_product(d_scores.mT, queries, alpha).unflatten(0, split))
        return dq, dk, dv, None, None, None
