"""GDPA on CPU by the compiled library."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from opengem.ops import native
from opengem.ops.native.library import flat_rows, int64
from opengem.ops.native.problem import ACTIVATIONS, UNLIMITED


def obstacle(q: Tensor, *_rest) -> str:
    """Say why this backend cannot run here, or return an empty string."""
    return native.obstacle(q)


def suits(*_args) -> bool:
    """Whether `auto` may choose it: not in an exported program, which should run on any machine."""
    return not torch.compiler.is_exporting()


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
    kinds = [ACTIVATIONS.index(a) for a in activation]
    kinds = kinds * q.shape[-2] if len(kinds) == 1 else kinds
    return _attention(q, k, v, q_offsets, k_offsets, request_of_row, kinds, alpha)


@torch.library.custom_op("opengem::gdpa", mutates_args=(), device_types="cpu")
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    k_offsets: Tensor | None,
    request_of_row: Tensor | None,
    kinds: Sequence[int],
    alpha: float,
) -> Tensor:
    out = _like(q, k, v, q_offsets, k_offsets, request_of_row, kinds, alpha)
    fields = _fields(q, k, v, q_offsets, k_offsets, request_of_row, kinds, alpha)
    native.run({**fields, "out": out}, backward=False)
    return out


@_attention.register_fake
def _like(q, k, v, q_offsets, k_offsets, request_of_row, kinds, alpha):
    if q_offsets is not None or q.dim() == 4:
        return q.new_empty(q.shape)
    return q.new_empty(_rows(k, k_offsets) if request_of_row is None else request_of_row.shape[0], *q.shape)


@torch.library.custom_op("opengem::gdpa_backward", mutates_args=(), device_types="cpu")
def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    k_offsets: Tensor | None,
    request_of_row: Tensor | None,
    kinds: Sequence[int],
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:
    # seeds that all rows share collect one gradient a row
    dq, dk, dv = grad.new_empty(grad.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    fields = _fields(q, k, v, q_offsets, k_offsets, request_of_row, kinds, alpha)
    gradients = {name: flat_rows(x) for name, x in (("dq", dq), ("dk", dk), ("dv", dv))}
    native.run({**fields, **gradients, "grad": grad.contiguous()}, backward=True)
    return dq if dq.dim() == q.dim() else dq.sum(0), dk, dv


@_gradients.register_fake
def _(grad, q, k, v, q_offsets, k_offsets, request_of_row, kinds, alpha):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx, inputs, output) -> None:
    *tensors, kinds, alpha = inputs
    ctx.save_for_backward(*tensors)
    ctx.settings = kinds, alpha


def _backward(ctx, grad):
    return *_gradients(grad, *ctx.saved_tensors, *ctx.settings), None, None, None, None, None


_attention.register_autograd(_backward, setup_context=_keep)


def _rows(x: Tensor, offsets: Tensor | None) -> int:
    return x.shape[0] if offsets is None else offsets.shape[0] - 1


def _fields(q, k, v, q_offsets, k_offsets, request_of_row, kinds, alpha) -> dict:
    shared = q_offsets is None and q.dim() == 3
    k_rows = _rows(k, k_offsets)
    q_len = q.shape[-3]
    q_rows = _rows(q, q_offsets)
    if shared:
        q_rows = k_rows if request_of_row is None else request_of_row.shape[0]
    return {
        "q": flat_rows(q),
        "k": flat_rows(k),
        "v": flat_rows(v),
        "q_offsets": None if q_offsets is None else int64(q_offsets),
        "k_offsets": None if k_offsets is None else int64(k_offsets),
        "request": None if request_of_row is None else int64(request_of_row),
        "q_rows": q_rows,
        "k_rows": k_rows,
        "q_len": q_len,
        "k_len": k.shape[-3],
        "shared_q": int(shared),
        "total_q": q.shape[0] if q_offsets is not None else q_rows * q_len,
        "heads": q.shape[-2],
        "width": q.shape[-1],
        "back": UNLIMITED,
        "ahead": UNLIMITED,
        "activation": (ctypes.c_int32 * len(kinds))(*kinds),
        "scale": alpha,
    }
