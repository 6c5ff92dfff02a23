"""Jagged softmax attention on the device through Triton: persistent programs over tiles, nothing padded."""

from typing import Any

import torch
from torch import Tensor

from opengem.ops import triton_target as target
from opengem.ops.tiles import UNBOUNDED, Tiles, rows_of_offsets, tile_list
from opengem.ops.triton_target import Launch, programs

LAUNCHES: dict[tuple[str, int, int], Launch] = {
    ("forward", 8, 32): Launch(own=128, other=32, warps=8, stages=3),
    ("forward", 8, 64): Launch(own=128, other=64, warps=8, stages=3),
    ("forward", 8, 128): Launch(own=64, other=64, warps=4, stages=2, programs=2),
    ("forward", 9, 32): Launch(own=128, other=128, warps=8, stages=3),
    ("forward", 9, 64): Launch(own=128, other=128, warps=8, stages=3),
    ("forward", 9, 128): Launch(own=128, other=64, warps=8, stages=3),
    ("forward", 10, 32): Launch(own=128, other=128, warps=8, stages=2),
    ("forward", 10, 64): Launch(own=128, other=128, warps=8, stages=2),
    ("forward", 10, 128): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_queries", 8, 32): Launch(own=128, other=64, warps=8, stages=3),
    ("backward_queries", 8, 64): Launch(own=128, other=64, warps=8, stages=3),
    ("backward_queries", 8, 128): Launch(own=64, other=64, warps=4, stages=2, programs=2),
    ("backward_queries", 9, 32): Launch(own=128, other=128, warps=8, stages=2),
    ("backward_queries", 9, 64): Launch(own=128, other=128, warps=8, stages=2),
    ("backward_queries", 9, 128): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_queries", 10, 32): Launch(own=128, other=64, warps=8, stages=3),
    ("backward_queries", 10, 64): Launch(own=128, other=64, warps=8, stages=3),
    ("backward_queries", 10, 128): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_keys", 8, 32): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_keys", 8, 64): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_keys", 8, 128): Launch(own=64, other=64, warps=8, stages=2),
    ("backward_keys", 9, 32): Launch(own=128, other=64, warps=8, stages=3),
    ("backward_keys", 9, 64): Launch(own=128, other=64, warps=8, stages=3),
    ("backward_keys", 9, 128): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_keys", 10, 32): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_keys", 10, 64): Launch(own=128, other=64, warps=8, stages=2),
    ("backward_keys", 10, 128): Launch(own=64, other=64, warps=8, stages=2),
}
"""Launch by kernel, major compute capability and largest width of a head; chosen for what compiles without
spilling and fits into shared memory, not yet tuned by time."""


def launch_of(kernel: str, generation: int, width: int) -> Launch:
    """Return how `kernel` is launched for heads of `width` values."""
    return LAUNCHES[kernel, generation, max(width, 32)] if generation else target.INTERPRETER


def obstacle(q_LHK: Tensor, *rest: Any) -> str:
    """Say why the kernels cannot run here, or return an empty string."""
    scale = rest[6]
    if scale <= 0:
        return f"scale must be above 0, got {scale}"
    return target.obstacle(q_LHK)


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
    before = UNBOUNDED if window is None else window
    after = 0 if causal else before
    queries = _tiles("forward", q_LHK, q_offsets, k_offsets, before, after)
    out, _ = _forward(q_LHK, k_MHK, v_MHK, *queries, q_offsets, k_offsets, float(scale), before, after)
    return out


def _tiles(kernel: str, own_LHK: Tensor, own: Tensor, other: Tensor, before: int, after: int) -> Tiles:
    launch = launch_of(kernel, target.generation(own_LHK.device), own_LHK.shape[2])
    rows = rows_of_offsets(own, other)
    return tile_list(rows, own_LHK.shape[0], launch.own, before=before, after=after)


def _run(kernel: str, pointers: list[Tensor], numbers: tuple, strided: list[Tensor]) -> None:
    from opengem.ops.jagged_attention import triton_kernels

    device, K = pointers[0].device, pointers[0].shape[2]
    launch = launch_of(kernel, target.generation(device), K)
    strides = [s for x in strided for s in x.stride()[:2]]
    with target.on(device):
        getattr(triton_kernels, kernel)[(programs(launch, device),)](
            *pointers,
            *numbers,
            *strides,
            OWN=launch.own,
            OTHER=launch.other,
            D=K,
            num_warps=launch.warps,
            num_stages=launch.stages,
        )


_LOG2_E = 1.4426950408889634


@torch.library.custom_op("opengem::jagged_attention_triton", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    count: Tensor,
    q_offsets: Tensor,
    k_offsets: Tensor,
    scale: float,
    before: int,
    after: int,
) -> tuple[Tensor, Tensor]:
    q, k, v = (target.addressable(x) for x in (q, k, v))
    L, H, K = q.shape
    out = q.new_empty(L, H, K)
    log_sum = q.new_empty(H, L, dtype=torch.float32)
    numbers = (scale * _LOG2_E, L, H, before, after)
    _run("forward", [q, k, v, out, log_sum, entries, count], numbers, [q, k, v, out])
    return out, log_sum


@_forward.register_fake
def _(q, k, v, entries, count, q_offsets, k_offsets, scale, before, after):
    return q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@torch.library.custom_op("opengem::jagged_attention_triton_backward", mutates_args=())
def _backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum: Tensor,
    entries: Tensor,
    count: Tensor,
    key_entries: Tensor,
    key_count: Tensor,
    scale: float,
    before: int,
    after: int,
) -> tuple[Tensor, Tensor, Tensor]:
    do, q, k, v, out = (target.addressable(x) for x in (do, q, k, v, out))
    L, H, _ = q.shape
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    delta = torch.empty_like(log_sum)
    numbers = (scale * _LOG2_E, scale, L, H)
    pointers = [q, k, v, out, do, log_sum, delta, dq, entries, count]
    _run("backward_queries", pointers, (*numbers, before, after), [q, k, v, out, do, dq])
    pointers = [q, k, v, do, log_sum, delta, dk, dv, key_entries, key_count]
    # a key meets the queries that meet it: the reaches change sides
    _run("backward_keys", pointers, (*numbers, after, before), [q, k, v, do, dk, dv])
    return dq, dk, dv


@_backward.register_fake
def _(do, q, k, v, out, log_sum, entries, count, key_entries, key_count, scale, before, after):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    q, k, v, entries, count, q_offsets, k_offsets, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, *output, entries, count, q_offsets, k_offsets)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, do: Tensor | None, _d_log_sum: Tensor | None) -> tuple:
    if do is None:
        return (None,) * 10
    q, k, v, out, log_sum, entries, count, q_offsets, k_offsets = ctx.saved_tensors
    scale, before, after = ctx.settings
    keys = _tiles("backward_keys", k, k_offsets, q_offsets, after, before)
    grads = _backward(do, q, k, v, out, log_sum, entries, count, *keys, scale, before, after)
    return (*grads, *(None,) * 7)


_forward.register_autograd(_gradients, setup_context=_save)
