"""Block attention on the device through Triton: one program a block and head, rotation fused forward and backward."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from opengem.ops import triton_target as target
from opengem.ops.tiles import Tiles, cut
from opengem.ops.triton_target import INTERPRETER, Launch, programs

LONGEST_BLOCK = 64
"""Events of the longest block that one program holds."""

LAUNCHES: dict[tuple[str, int, int], Launch] = {
    ("forward", 8, 64): Launch(own=64, other=64, warps=4, stages=2, programs=2),
    ("forward", 8, 128): Launch(own=64, other=64, warps=8, stages=2),
    ("forward", 9, 64): Launch(own=64, other=64, warps=4, stages=2, programs=3),
    ("forward", 9, 128): Launch(own=64, other=64, warps=8, stages=2),
    ("forward", 10, 64): Launch(own=64, other=64, warps=4, stages=2, programs=3),
    ("forward", 10, 128): Launch(own=64, other=64, warps=8, stages=2),
    ("backward", 8, 64): Launch(own=64, other=64, warps=8, stages=2),
    ("backward", 8, 128): Launch(own=64, other=64, warps=8, stages=1),
    ("backward", 9, 64): Launch(own=64, other=64, warps=8, stages=2),
    ("backward", 9, 128): Launch(own=64, other=64, warps=8, stages=2),
    ("backward", 10, 64): Launch(own=64, other=64, warps=8, stages=1, programs=2),
    ("backward", 10, 128): Launch(own=64, other=64, warps=8, stages=2),
}
"""Launch by kernel, major compute capability and largest width of a head; chosen for what compiles without
spilling and fits into shared memory, not yet tuned by time."""

_LOG2_E = 1.4426950408889634


def launch_of(kernel: str, generation: int, width: int, block: int) -> Launch:
    """Return how `kernel` is launched for heads of `width` values and blocks of `block` events."""
    launch = LAUNCHES[kernel, generation, max(width, 64)] if generation else INTERPRETER
    return replace(launch, own=launch.own_for(block))


def obstacle(
    qkv_L3HK: Tensor, _offsets: Tensor, rotation_LP2: Tensor | None, block: int, _shift: int, scale: float
) -> str:
    """Say why the kernels cannot run here, or return an empty string."""
    if block > LONGEST_BLOCK:
        return f"a block may hold at most {LONGEST_BLOCK} events, got {block}"
    if scale <= 0:
        return f"scale must be above 0, got {scale}"
    if rotation_LP2 is not None and rotation_LP2.requires_grad:
        return "rotation gets no gradient: it must not require one"
    return target.obstacle(qkv_L3HK)


def block_attention(
    qkv_L3HK: Tensor, offsets: Tensor, rotation_LP2: Tensor | None, block: int, shift: int, scale: float
) -> Tensor:
    """See `api.block_attention`."""
    rotation = None if rotation_LP2 is None else rotation_LP2.flatten(1).to(torch.float32)
    places = _places(offsets, qkv_L3HK.shape[0], block, shift)
    return _forward(qkv_L3HK, rotation, *places, block, float(scale))


def _places(offsets: Tensor, total: int, block: int, shift: int) -> Tiles:
    """Return the place of the first value and the number of values of each block, `(T, 2)`."""
    length = offsets.diff()
    R = length.shape[0]
    moved = torch.where(length > 0, length + shift, 0)
    row, at, held, count = cut(moved, total + R * shift, block)
    begin = (at - shift).clamp(min=0)
    end = torch.minimum(at - shift + block, pad(length, (0, 1))[row])
    entries = torch.stack([offsets[row] + begin, torch.where(held, end - begin, 0)], dim=1)
    return Tiles(entries.to(torch.int32), count)


def _run(
    kernel: str,
    pointers: Sequence[Tensor | None],
    numbers: tuple,
    strides: list[int],
    rotated: bool,
    block: int,
) -> None:
    from opengem.ops.block_attention import triton_kernels

    device, K = pointers[0].device, pointers[0].shape[3]  # type: ignore[union-attr]
    launch = launch_of(kernel, target.generation(device), K, block)
    with target.on(device):
        getattr(triton_kernels, kernel)[(programs(launch, device),)](
            *pointers,
            *numbers,
            *strides,
            ROTATED=rotated,
            N=launch.own,
            D=K,
            num_warps=launch.warps,
            num_stages=launch.stages,
        )


@torch.library.custom_op("opengem::block_attention_triton", mutates_args=())
def _forward(
    qkv: Tensor, rotation: Tensor | None, entries: Tensor, count: Tensor, block: int, scale: float
) -> Tensor:
    qkv = target.addressable(qkv)
    L, _, H, K = qkv.shape
    out = qkv.new_empty(L, H, K)
    pointers = [qkv, _or_any(rotation, qkv), out, entries, count]
    strides = [*qkv.stride()[:3], *out.stride()[:2]]
    _run("forward", pointers, (scale * _LOG2_E, 1.0, H), strides, rotation is not None, block)
    return out


@_forward.register_fake
def _(qkv, rotation, entries, count, block, scale):
    return qkv.new_empty(qkv.shape[0], *qkv.shape[2:])


@torch.library.custom_op("opengem::block_attention_triton_backward", mutates_args=())
def _backward(
    do: Tensor, qkv: Tensor, rotation: Tensor | None, entries: Tensor, count: Tensor, block: int, scale: float
) -> Tensor:
    do, qkv = target.addressable(do), target.addressable(qkv)
    grad = qkv.new_empty(qkv.shape)
    pointers = [qkv, _or_any(rotation, qkv), do, grad, entries, count]
    strides = [*qkv.stride()[:3], *do.stride()[:2], *grad.stride()[:3]]
    numbers = (scale * _LOG2_E, scale, 1.0, qkv.shape[2])
    _run("backward", pointers, numbers, strides, rotation is not None, block)
    return grad


@_backward.register_fake
def _(do, qkv, rotation, entries, count, block, scale):
    return qkv.new_empty(qkv.shape)


def _or_any(rotation: Tensor | None, other: Tensor) -> Tensor:
    # without rotation the kernel does not read it, but a pointer has to be there
    return other if rotation is None else rotation.contiguous()


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    qkv, rotation, entries, count, *ctx.settings = inputs
    ctx.save_for_backward(qkv, rotation, entries, count)


def _gradients(ctx: Any, do: Tensor) -> tuple:
    return (_backward(do, *ctx.saved_tensors, *ctx.settings), *(None,) * 5)


_forward.register_autograd(_gradients, setup_context=_save)
