"""Jagged softmax attention on CPU as a loop over rows inside one autograd function: best for long rows."""

from typing import NamedTuple

import torch
from torch import Tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

MEAN_LENGTH = 64
"""Mean row length from which the loop beats one padded call."""


class _Tile(NamedTuple):
    """Queries `[q0, q1)` against keys `[k0, k1)`, places in the flat values."""

    q0: int
    q1: int
    k0: int
    k1: int


def obstacle(q_LHK: Tensor, *_rest) -> str:
    """Say why the loop cannot run here, or return an empty string."""
    if q_LHK.device.type != "cpu":
        return f"it runs on CPU tensors only, got {q_LHK.device.type}"
    if torch.compiler.is_compiling():
        return "a loop over rows cannot be compiled or exported"
    return ""


def suits(q_LHK: Tensor, _k, _v, q_offsets: Tensor, *_rest) -> bool:
    """Whether rows are long enough, on average, to repay one call each."""
    return q_LHK.shape[0] >= MEAN_LENGTH * (q_offsets.shape[0] - 1)


def jagged_attention(
    q_LHK: Tensor,
    k_MHK: Tensor,
    v_MHK: Tensor,
    q_offsets: Tensor,
    k_offsets: Tensor,
    causal: bool,
    window: int | None,
    scale: float,
    max_q: int | None,
    max_k: int | None,
) -> Tensor:
    """See `api.jagged_attention`; the longest lengths are not needed here."""
    tiles = _tiles(q_offsets.tolist(), k_offsets.tolist(), causal, window)
    # autograd of slices in a loop would make a full tensor of zeros per slice: one function holds the loop
    return _Loop.apply(q_LHK, k_MHK, v_MHK, tiles, causal, window, scale)  # pyright: ignore[reportReturnType]


def _tiles(q_bounds: list[int], k_bounds: list[int], causal: bool, window: int | None) -> list[_Tile]:
    tiles = []
    for row in range(len(q_bounds) - 1):
        q0, q1, k0, k1 = q_bounds[row], q_bounds[row + 1], k_bounds[row], k_bounds[row + 1]
        if q0 == q1 or k0 == k1:
            continue
        if window is None or q1 - q0 <= window + 1:
            tiles.append(_Tile(q0, q1, k0, k1))
            continue
        step = max(128, window)
        for start in range(q0, q1, step):
            end = min(q1, start + step)
            ahead = 0 if causal else window
            tiles.append(_Tile(start, end, max(k0, start - window), min(k1, end + ahead)))
    return tiles


class _Bands:
    """What is added to a tile's scores to hide what a window hides; inner tiles of all rows share one."""

    def __init__(self, causal: bool, window: int | None, dtype: torch.dtype) -> None:
        self.causal, self.window, self.dtype = causal, window, dtype
        self.made: dict[tuple[int, int, int], Tensor] = {}

    def __call__(self, t: _Tile) -> Tensor | None:
        if self.window is None or ((t.q0, t.q1) == (t.k0, t.k1) and t.q1 - t.q0 <= self.window + 1):
            return None  # nothing to hide, or nothing but what comes after
        key = (t.k0 - t.q0, t.q1 - t.q0, t.k1 - t.k0)
        if key not in self.made:
            ahead = torch.arange(t.k0, t.k1) - torch.arange(t.q0, t.q1)[:, None]
            unseen = ahead.abs() > self.window
            unseen = unseen | (ahead > 0) if self.causal else unseen
            self.made[key] = torch.zeros(unseen.shape, dtype=self.dtype).masked_fill_(unseen, float("-inf"))
        return self.made[key]


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    # the fused call needs the values of a head side by side
    return [(x if x.stride(-1) == 1 else x.contiguous()).transpose(0, 1)[None] for x in tensors]


def _space(like: Tensor, whole: bool) -> Tensor:
    """Return memory for an answer: zeros unless every row will be written once."""
    return like.new_empty(like.shape) if whole else like.new_zeros(like.shape)


class _Loop(torch.autograd.Function):
    """The loop over tiles, forward and backward."""

    @staticmethod
    def forward(ctx, q, k, v, tiles, causal, window, scale):
        out = _space(q, sum(t.q1 - t.q0 for t in tiles) == q.shape[0])
        bands, sums = _Bands(causal, window, q.dtype), []
        qs, ks, vs, outs = _heads_first(q, k, v, out)
        for t in tiles:
            band, n, m = bands(t), t.q1 - t.q0, t.k1 - t.k0
            queries = qs.narrow(2, t.q0, n)
            part, log_sum = _flash(
                queries,
                ks.narrow(2, t.k0, m),
                vs.narrow(2, t.k0, m),
                0.0,
                causal and band is None,
                attn_mask=band,
                scale=scale,
            )
            # the fused call answers 0 to a query that is not finite: show it instead
            torch.add(part, queries, alpha=0, out=outs.narrow(2, t.q0, n))
            sums.append(log_sum)
        ctx.save_for_backward(q, k, v, out, *sums)
        ctx.settings = tiles, causal, window, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        q, k, v, out, *sums = ctx.saved_tensors
        tiles, causal, window, scale = ctx.settings
        bands = _Bands(causal, window, q.dtype)
        dq = _space(q, sum(t.q1 - t.q0 for t in tiles) == q.shape[0])
        # windows of one row overlap: their keys collect a sum
        once = sum(t.k1 - t.k0 for t in tiles) == k.shape[0]
        dk, dv = _space(k, once), _space(v, once)
        of_queries, of_keys = _heads_first(grad, q, out, dq), _heads_first(k, v, dk, dv)
        for t, log_sum in zip(tiles, sums, strict=True):
            band, n, m = bands(t), t.q1 - t.q0, t.k1 - t.k0
            d_out, queries, answers, d_queries = (x.narrow(2, t.q0, n) for x in of_queries)
            keys, values, *d_keys = (x.narrow(2, t.k0, m) for x in of_keys)
            of_q, *parts = _flash_backward(
                d_out,
                queries,
                keys,
                values,
                answers,
                log_sum,
                0.0,
                causal and band is None,
                attn_mask=band,
                scale=scale,
            )
            d_queries.copy_(of_q)
            for to, part in zip(d_keys, parts, strict=True):
                to.copy_(part) if once else to.add_(part)
        return dq, dk, dv, None, None, None, None
