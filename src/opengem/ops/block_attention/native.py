"""Block attention with rotation on CPU by the compiled library."""

import torch
from torch import Tensor

from opengem.ops import native
from opengem.ops.native.library import int64, unit_stride
from opengem.ops.native.problem import UNLIMITED


def obstacle(qkv_L3HK: Tensor, _offsets: Tensor, rotation_LP2: Tensor | None, *_rest) -> str:
    """Say why this backend cannot run here, or return an empty string."""
    if rotation_LP2 is not None and rotation_LP2.requires_grad:
        return "it gives the rotation no gradient"
    return native.obstacle(qkv_L3HK)


def suits(*_args) -> bool:
    """Whether `auto` may choose it: not in an exported program, which should run on any machine."""
    return not torch.compiler.is_exporting()


def block_attention(
    qkv_L3HK: Tensor, offsets: Tensor, rotation_LP2: Tensor | None, block: int, shift: int, scale: float
) -> Tensor:
    """See `api.block_attention`."""
    return _attention(qkv_L3HK, offsets, rotation_LP2, block, shift, scale)[0]


@torch.library.custom_op("opengem::block_attention", mutates_args=(), device_types="cpu")
def _attention(
    qkv: Tensor, offsets: Tensor, rotation: Tensor | None, block: int, shift: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the answers `(L, H, K)` and log2 of each query's sum of exponentials `(H, L)`."""
    out, log_sum = _like(qkv, offsets, rotation, block, shift, scale)
    native.run(_fields(qkv, offsets, rotation, block, shift, scale, out, log_sum), backward=False)
    return out, log_sum


@_attention.register_fake
def _like(qkv, offsets, rotation, block, shift, scale):
    L, _, H, K = qkv.shape
    return qkv.new_empty(L, H, K), qkv.new_empty(H, L)


@torch.library.custom_op("opengem::block_attention_backward", mutates_args=(), device_types="cpu")
def _gradients(
    grad: Tensor,
    out: Tensor,
    log_sum: Tensor,
    qkv: Tensor,
    offsets: Tensor,
    rotation: Tensor | None,
    block: int,
    shift: int,
    scale: float,
) -> Tensor:
    d_qkv = qkv.new_empty(qkv.shape)
    dq, dk, dv = d_qkv.unbind(1)
    fields = _fields(qkv, offsets, rotation, block, shift, scale, out, log_sum)
    native.run({**fields, "grad": grad.contiguous(), "dq": dq, "dk": dk, "dv": dv}, backward=True)
    return d_qkv


@_gradients.register_fake
def _(grad, out, log_sum, qkv, offsets, rotation, block, shift, scale):
    return qkv.new_empty(qkv.shape)


def _keep(ctx, inputs, output) -> None:
    qkv, offsets, rotation, *ctx.settings = inputs
    ctx.save_for_backward(*output, qkv, offsets, rotation)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad, _log_sum):
    return _gradients(grad, *ctx.saved_tensors, *ctx.settings), None, None, None, None, None


_attention.register_autograd(_backward, setup_context=_keep)


def _fields(qkv, offsets, rotation, block, shift, scale, out, log_sum) -> dict:
    q, k, v = unit_stride(qkv).unbind(1)
    offsets = int64(offsets)
    return {
        "q": q,
        "k": k,
        "v": v,
        "rotation": None if rotation is None else rotation.to(torch.float32).contiguous(),
        "q_offsets": offsets,
        "k_offsets": offsets,
        "q_rows": offsets.shape[0] - 1,
        "k_rows": offsets.shape[0] - 1,
        "total_q": qkv.shape[0],
        "heads": qkv.shape[2],
        "width": qkv.shape[3],
        "block": block,
        "shift": shift,
        "back": UNLIMITED,
        "ahead": UNLIMITED,
        "scale": scale,
        "out": out,
        "lse": log_sum,
    }
