"""Rotary self-attention on CPU as one autograd function: no copies between rotation, attention and packing."""

from typing import Any

import torch
from torch import Tensor

from opengem.ops.rotary_attention.composed import bias

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def obstacle(qkv: Tensor, *_rest) -> str:
    """Say why this backend cannot run here, or return an empty string."""
    if qkv.device.type != "cpu":
        return f"it runs on CPU tensors only, got {qkv.device.type}"
    if torch.compiler.is_compiling():
        return "its backward is written by hand and cannot be compiled or exported"
    if qkv.dtype not in (torch.float32, torch.float64):
        return f"it computes in float32 or float64, got {qkv.dtype}"
    return ""


def rotary_attention(
    qkv_BN3HK: Tensor,
    rotation_NP2: Tensor | None,
    seen_BN: Tensor | None,
    band_NN: Tensor | None,
    scale: float,
) -> Tensor:
    """See `api.rotary_attention`."""
    return packed_attention(qkv_BN3HK, rotation_NP2, bias(seen_BN, band_NN, qkv_BN3HK.dtype), scale, None)


def packed_attention(
    qkv: Tensor,
    rotation: Tensor | None,
    mask: Tensor | None,
    scale: float,
    places: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Rotate, pack into dense rows, attend, and unpack.

    Args:
        qkv: `(B, N, 3, H, K)`, or `(L, 3, H, K)` with `places`.
        rotation: `(B or 1, N, K / 2, 2)` or `(N, K / 2, 2)`; `(L, K / 2, 2)` with `places`.
        mask: Added to the scores, `(B or 1, 1, N or 1, N)`.
        scale: Factor on the scores.
        places: For packing: the value in each dense place `(B, N)`, and the one place that each value owns `(L,)`.

    Returns:
        `(B, N, H, K)`, or `(L, H, K)`.
    """
    turn = None if rotation is None else torch.view_as_complex(rotation.to(qkv.dtype).contiguous())
    if turn is not None:
        turn = turn[..., None, None, :]
    return _Attention.apply(qkv, turn, mask, scale, places)  # pyright: ignore[reportReturnType]


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)


class _Attention(torch.autograd.Function):
    """Rotation, packing, attention and unpacking, forward and backward."""

    @staticmethod
    def forward(ctx: Any, qkv, turn, mask, scale, places):
        x = qkv if turn is None else _turned(qkv, turn)
        H, K = qkv.shape[-2:]
        if places is not None:
            index, slot = places
            x = x.reshape(-1, 3 * H * K).index_select(0, index.flatten()).view(*index.shape, 3, H, K)
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
        out, log_sum = _flash(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
        # the fused call answers 0 to a query that is not finite: show it instead
        out.add_(q, alpha=0)
        ctx.save_for_backward(x, out, log_sum)
        ctx.settings = turn, mask, scale, places
        out = out.transpose(1, 2)
        return out if places is None else out.reshape(-1, H * K).index_select(0, slot).view(-1, H, K)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad):
        x, out, log_sum = ctx.saved_tensors
        turn, mask, scale, places = ctx.settings
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
        B, N, _, H, K = x.shape
        if places is not None:
            # each value owns one place; places that only repeat a value answer nobody and get no gradient
            grad = (
                grad.new_zeros(B * N, H * K)
                .index_copy_(0, places[1], grad.reshape(-1, H * K))
                .view(B, N, H, K)
            )
        parts = _flash_backward(
            grad.transpose(1, 2), q, k, v, out, log_sum, 0.0, False, attn_mask=mask, scale=scale
        )
        # a key in a place that only repeats a value is masked, so its gradient is zero and need not be added
        d = torch.stack([p.transpose(1, 2) for p in parts], dim=2)
        if places is not None:
            d = d.view(B * N, 3 * H * K).index_select(0, places[1]).view(-1, 3, H, K)
        if turn is not None:
            torch.view_as_complex(d.unflatten(-1, (-1, 2))).mul_(turn.conj())
        return d, None, None, None, None
