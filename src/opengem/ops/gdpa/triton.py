"""GDPA on the device through Triton: persistent programs over tiles, nothing padded, one launch an activation."""

from typing import Any

import torch
from torch import Tensor

from opengem.ops import triton_target as target
from opengem.ops.gdpa.triton_rows import key_work, sides
from opengem.ops.tiles import tile_list
from opengem.ops.triton_target import Launch, programs

LAUNCHES: dict[tuple[str, int, int], Launch] = {
    ("forward", 8, 32): Launch(own=128, other=64, warps=8, stages=3),
    ("forward", 8, 64): Launch(own=128, other=64, warps=8, stages=3),
    ("forward", 8, 128): Launch(own=64, other=64, warps=4, stages=2, programs=2),
    ("forward", 9, 32): Launch(own=128, other=128, warps=8, stages=3),
    ("forward", 9, 64): Launch(own=128, other=128, warps=8, stages=3),
    ("forward", 9, 128): Launch(own=128, other=64, warps=8, stages=3),
    ("forward", 10, 32): Launch(own=128, other=64, warps=8, stages=3),
    ("forward", 10, 64): Launch(own=128, other=128, warps=8, stages=2),
    ("forward", 10, 128): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_queries", 8, 32): Launch(own=128, other=32, warps=8, stages=3),
    ("backward_queries", 8, 64): Launch(own=128, other=64, warps=8, stages=3),
    ("backward_queries", 8, 128): Launch(own=64, other=64, warps=4, stages=2, programs=2),
    ("backward_queries", 9, 32): Launch(own=128, other=32, warps=8, stages=3),
    ("backward_queries", 9, 64): Launch(own=128, other=64, warps=8, stages=3),
    ("backward_queries", 9, 128): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_queries", 10, 32): Launch(own=128, other=32, warps=8, stages=3),
    ("backward_queries", 10, 64): Launch(own=128, other=64, warps=8, stages=3),
    ("backward_queries", 10, 128): Launch(own=128, other=32, warps=8, stages=3),
    ("backward_keys", 8, 32): Launch(own=128, other=32, warps=8, stages=2),
    ("backward_keys", 8, 64): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_keys", 8, 128): Launch(own=64, other=64, warps=8, stages=2),
    ("backward_keys", 9, 32): Launch(own=128, other=32, warps=8, stages=2),
    ("backward_keys", 9, 64): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_keys", 9, 128): Launch(own=128, other=32, warps=8, stages=2),
    ("backward_keys", 10, 32): Launch(own=128, other=32, warps=8, stages=2),
    ("backward_keys", 10, 64): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_keys", 10, 128): Launch(own=64, other=64, warps=8, stages=2),
}
"""Launch by kernel, major compute capability and largest width of a head; chosen for what compiles without
spilling and fits into shared memory, not yet tuned by time."""


def launch_of(kernel: str, generation: int, width: int) -> Launch:
    """Return how `kernel` is launched for heads of `width` values."""
    return LAUNCHES[kernel, generation, max(width, 32)] if generation else target.INTERPRETER


def obstacle(q: Tensor, *_rest: Any) -> str:
    """Say why the kernels cannot run here, or return an empty string."""
    return target.obstacle(q)


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
    """See `api.gdpa`."""
    generation, K = target.generation(q.device), q.shape[-1]
    by_query, by_key = (launch_of(kernel, generation, K) for kernel in ("forward", "backward_keys"))
    seeds = q_offsets is None and q.dim() == 3
    longest_q = q.shape[-3] if q_offsets is None else max_q
    longest_k = k.shape[-3] if k_offsets is None else max_k
    own_q = by_query.own_for(longest_q if request_of_row is None or seeds else None)
    own_k = by_key.own_for(longest_k)
    side = sides(q, k, q_offsets, k_offsets, request_of_row)
    q_LHK, k_MHK, v_MHK = (x.flatten(0, 1) if x.dim() == 4 else x for x in (q, k, v))
    queries = tile_list(side.queries, side.answers, own_q)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        keys, pieces = key_work(side, k_MHK.shape[0], own_k, by_key.other)
    else:
        keys, pieces = (None, None), None
    names = ",".join(activation if len(activation) > 1 else activation * q.shape[-2])
    out = _forward(
        q_LHK, k_MHK, v_MHK, *queries, *keys, pieces, side.answers, seeds, names, float(alpha), own_q, own_k
    )
    return out if q_offsets is not None else out.unflatten(0, (-1, q.shape[-3]))


def _run(
    kernel: str, pointers: list[Tensor], alpha: float, strided: list[Tensor], names: str, own: int
) -> None:
    from opengem.ops.gdpa import triton_kernels

    device, K = pointers[0].device, pointers[0].shape[2]
    launch = launch_of(kernel, target.generation(device), K)
    strides = [s for x in strided for s in x.stride()[:2]]
    each = names.split(",")
    for name in dict.fromkeys(each):
        with target.on(device):
            getattr(triton_kernels, kernel)[(programs(launch, device),)](
                *pointers,
                alpha,
                *strides,
                ACTIVATION=name,
                HEADS=tuple(i for i, other in enumerate(each) if other == name),
                OWN=own,
                OTHER=launch.other,
                D=K,
                num_warps=launch.warps,
                num_stages=launch.stages,
            )


@torch.library.custom_op("opengem::gdpa_triton", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    count: Tensor,
    key_entries: Tensor | None,
    key_count: Tensor | None,
    pieces: Tensor | None,
    answers: int,
    seeds: bool,
    names: str,
    alpha: float,
    own_q: int,
    own_k: int,
) -> Tensor:
    q, k, v = (target.addressable(x) for x in (q, k, v))
    # shared queries are few, their answers are not
    target.check_count(answers * q.shape[1] * q.shape[2])
    out = q.new_empty(answers, *q.shape[1:])
    _run("forward", [q, k, v, out, entries, count], alpha, [q, k, v, out], names, own_q)
    return out


@_forward.register_fake
def _(q, k, v, entries, count, key_entries, key_count, pieces, answers, seeds, names, alpha, own_q, own_k):
    return q.new_empty(answers, *q.shape[1:])


@torch.library.custom_op("opengem::gdpa_triton_backward", mutates_args=())
def _backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    count: Tensor,
    key_entries: Tensor,
    key_count: Tensor,
    pieces: Tensor,
    seeds: bool,
    names: str,
    alpha: float,
    own_q: int,
    own_k: int,
) -> tuple[Tensor, Tensor, Tensor]:
    do, q, k, v = (target.addressable(x) for x in (do, q, k, v))
    dk, dv = k.new_empty(k.shape), v.new_empty(v.shape)
    # shared queries get a gradient from each row: it is summed afterwards, in a fixed order
    dq = q.new_empty(do.shape, dtype=torch.float32 if seeds else q.dtype)
    _run("backward_queries", [q, k, v, do, dq, entries, count], alpha, [q, k, v, do, dq], names, own_q)
    pointers = [q, k, v, do, dk, dv, key_entries, key_count, pieces]
    _run("backward_keys", pointers, alpha, [q, k, v, do, dk, dv], names, own_k)
    if seeds:
        dq = dq.unflatten(0, (-1, q.shape[0])).sum(0).to(q.dtype)
    return dq, dk, dv


@_backward.register_fake
def _(do, q, k, v, entries, count, key_entries, key_count, pieces, seeds, names, alpha, own_q, own_k):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    q, k, v, entries, count, key_entries, key_count, pieces, _, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, entries, count, key_entries, key_count, pieces)


def _gradients(ctx: Any, do: Tensor) -> tuple:
    return (*_backward(do, *ctx.saved_tensors, *ctx.settings), *(None,) * 11)


_forward.register_autograd(_gradients, setup_context=_save)
