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
        if window is None:
            tiles.append(_Tile(q0, q1, k0, k1))
            continue
        step = max(64, window)
        for start in range(q0, q1, step):
            end = min(q1, start + step)
            ahead = 0 if causal else window
            tiles.append(_Tile(start, end, max(k0, start - window), min(k1, end + ahead)))
    return tiles


def _band(tile: _Tile, causal: bool, window: int | None, dtype: torch.dtype) -> Tensor | None:
    if window is None:
        return None
    ahead = torch.arange(tile.k0, tile.k1) - torch.arange(tile.q0, tile.q1)[:, None]
    unseen = (ahead.abs() > window) | (ahead > 0) if causal else ahead.abs() > window
    return torch.zeros(unseen.shape, dtype=dtype).masked_fill(unseen, float("-inf"))


def _heads_first(x_NHK: Tensor) -> Tensor:
    return x_NHK.transpose(0, 1)[None]


class _Loop(torch.autograd.Function):
    """The loop over tiles, forward and backward."""

    @staticmethod
    def forward(ctx, q, k, v, tiles, causal, window, scale):
        out = torch.zeros_like(q)
        sums = []
        for t in tiles:
            part, log_sum = _flash(
                _heads_first(q[t.q0 : t.q1]),
                _heads_first(k[t.k0 : t.k1]),
                _heads_first(v[t.k0 : t.k1]),
                0.0,
                causal and window is None,
                attn_mask=_band(t, causal, window, q.dtype),
                scale=scale,
            )
            out[t.q0 : t.q1] = part[0].transpose(0, 1)
            sums.append(log_sum)
        # the fused call answers 0 to a query that is not finite: show it instead
        out.add_(q, alpha=0)
        ctx.save_for_backward(q, k, v, out, *sums)
        ctx.settings = tiles, causal, window, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        q, k, v, out, *sums = ctx.saved_tensors
        tiles, causal, window, scale = ctx.settings
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for t, log_sum in zip(tiles, sums, strict=True):
            parts = _flash_backward(
                _heads_first(grad[t.q0 : t.q1]),
                _heads_first(q[t.q0 : t.q1]),
                _heads_first(k[t.k0 : t.k1]),
                _heads_first(v[t.k0 : t.k1]),
                _heads_first(out[t.q0 : t.q1]),
                log_sum,
                0.0,
                causal and window is None,
                attn_mask=_band(t, causal, window, q.dtype),
                scale=scale,
            )
            dq[t.q0 : t.q1] = parts[0][0].transpose(0, 1)
            dk[t.k0 : t.k1] += parts[1][0].transpose(0, 1)
            dv[t.k0 : t.k1] += parts[2][0].transpose(0, 1)
        return dq, dk, dv, None, None, None, None
