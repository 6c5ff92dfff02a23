"""Rotary self-attention on CPU as one autograd function: no copies between rotation and attention."""

from typing import Any

import torch
from torch import Tensor

from opengem.ops.rotary_attention.composed import bias
from opengem.ops.rotary_attention.rotation import as_complex

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


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
    mask, turn = bias(seen_BN, band_NN, qkv_BN3HK.dtype), None
    if rotation_NP2 is not None:
        turn = torch.view_as_complex(rotation_NP2.to(qkv_BN3HK.dtype).contiguous())[..., None, None, :]
    return _Attention.apply(qkv_BN3HK, turn, mask, scale)  # pyright: ignore[reportReturnType]


class _Attention(torch.autograd.Function):
    """Rotation and attention, forward and backward."""

    @staticmethod
    def forward(ctx: Any, qkv, turn, mask, scale):
        # the fused call needs the values of a head side by side
        x = qkv if qkv.stride(-1) == 1 else qkv.contiguous()
        if turn is not None:
            x = torch.view_as_real(as_complex(x) * turn).flatten(-2)
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
        out, log_sum = flash(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
        # the fused call answers 0 to a query that is not finite: show it instead
        out.add_(q, alpha=0)
        ctx.save_for_backward(x, out, log_sum)
        ctx.settings = turn, mask, scale
        return out.transpose(1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad):
        x, out, log_sum = ctx.saved_tensors
        turn, mask, scale = ctx.settings
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        parts = flash_backward(
            grad.transpose(1, 2), q, k, v, out, log_sum, 0.0, False, attn_mask=mask, scale=scale
        )
        d = torch.stack([p.transpose(1, 2) for p in parts], dim=2)
        if turn is not None:
            torch.view_as_complex(d.unflatten(-1, (-1, 2))).mul_(turn.conj())
        return d, None, None, None
