"""Jagged softmax attention on CPU by the compiled library."""

import torch
from torch import Tensor

from opengem.ops import native
from opengem.ops.native.library import flat_rows, int64
from opengem.ops.native.problem import UNLIMITED


def obstacle(q_LHK: Tensor, *_rest) -> str:
    """Say why this backend cannot run here, or return an empty string."""
    return native.obstacle(q_LHK)


def suits(*_args) -> bool:
    """Whether `auto` may choose it: not in an exported program, which should run on any machine."""
    return not torch.compiler.is_exporting()


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
    back = UNLIMITED if window is None else min(window, UNLIMITED)
    ahead = 0 if causal else back
    return _attention(q_LHK, k_MHK, v_MHK, q_offsets, k_offsets, back, ahead, scale)[0]


@torch.library.custom_op("opengem::jagged_attention", mutates_args=(), device_types="cpu")
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor,
    k_offsets: Tensor,
    back: int,
    ahead: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the answers `(L, H, K)` and log2 of each query's sum of exponentials `(H, L)`."""
    out, log_sum = _like(q, k, v, q_offsets, k_offsets, back, ahead, scale)
    native.run(_fields(q, k, v, q_offsets, k_offsets, back, ahead, scale, out, log_sum), backward=False)
    return out, log_sum


@_attention.register_fake
def _like(q, k, v, q_offsets, k_offsets, back, ahead, scale):
    return q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0])


@torch.library.custom_op("opengem::jagged_attention_backward", mutates_args=(), device_types="cpu")
def _gradients(
    grad: Tensor,
    out: Tensor,
    log_sum: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor,
    k_offsets: Tensor,
    back: int,
    ahead: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    fields = _fields(q, k, v, q_offsets, k_offsets, back, ahead, scale, out, log_sum)
    native.run({**fields, "grad": grad.contiguous(), "dq": dq, "dk": dk, "dv": dv}, backward=True)
    return dq, dk, dv


@_gradients.register_fake
def _(grad, out, log_sum, q, k, v, q_offsets, k_offsets, back, ahead, scale):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx, inputs, output) -> None:
    *tensors, back, ahead, scale = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.settings = back, ahead, scale
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad, _log_sum):
    return *_gradients(grad, *ctx.saved_tensors, *ctx.settings), None, None, None, None, None


_attention.register_autograd(_backward, setup_context=_keep)


def _fields(q, k, v, q_offsets, k_offsets, back, ahead, scale, out, log_sum) -> dict:
    return {
        "q": flat_rows(q),
        "k": flat_rows(k),
        "v": flat_rows(v),
        "q_offsets": int64(q_offsets),
        "k_offsets": int64(k_offsets),
        "q_rows": q_offsets.shape[0] - 1,
        "k_rows": k_offsets.shape[0] - 1,
        "total_q": q.shape[0],
        "heads": q.shape[1],
        "width": q.shape[2],
        "back": back,
        "ahead": ahead,
        "scale": scale,
        "out": out,
        "lse": log_sum,
    }
