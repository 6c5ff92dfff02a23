"""Device kernels of block attention: one tile holds a block, so nothing is kept between forward and backward.

Rotation, attention and, backward, the rotation back are one kernel; programs are persistent over a list of blocks.
"""

import triton
import triton.language as tl

from opengem.ops.triton_parts import item_of, load_values, store_values, turns

# long lists of arguments stay on few lines
# fmt: off


@triton.jit
def _turned(x, rotation, sign, N: tl.constexpr, D: tl.constexpr):
    """Turn the pairs (2p, 2p + 1) of `x` by the angles of `rotation` `(N, D)`, cosine and sine side by side.

    `sign` is 1 or, to turn back, -1. It must not be a constant: where the rotation depends on loads and constants
    alone, Triton 3.8 moves it behind the change to the layout of Ampere's matrix operands, of which each warp holds
    a whole copy, and spills kilobytes.
    """
    a, b = tl.split(tl.reshape(x.to(tl.float32), (N, D // 2, 2)))
    cos, sin = tl.split(tl.reshape(rotation, (N, D // 2, 2)))
    return tl.reshape(tl.join(a * cos - b * (sin * sign), a * (sin * sign) + b * cos), (N, D))


@triton.jit
def _load_turned(
    pointer, stride, rotation, sign, held, ROTATED: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    x = load_values(pointer, stride, 0, held, True, N, D)
    if ROTATED:
        x = _turned(x, rotation, sign, N, D).to(x.dtype)
    return x


@triton.jit
def _store_turned(
    grad, pointer, stride, rotation, sign, held, ROTATED: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    if ROTATED:
        grad = _turned(grad, rotation, -sign, N, D)
    store_values(grad, pointer, stride, 0, held, N, D)


@triton.jit
def _weights(q, k, held, scale, N: tl.constexpr):
    """Return softmax numerators in base 2, and their sums."""
    score = tl.where(tl.arange(0, N)[None, :] < held, tl.dot(q, tl.trans(k)), float("-inf"))
    weight = tl.exp2(score * scale - (tl.max(score, 1) * scale)[:, None])
    return weight, tl.sum(weight, 1)


@triton.jit(do_not_specialize=["H"])
def forward(
    qkv_ptr, rotation_ptr, out_ptr, entries, count, scale, sign, H,
    qkv_stride, part_stride, qkv_head, out_stride, out_head,
    ROTATED: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):
    """Answer each block; an entry of `entries` is the place of its first value, and its values."""
    items = tl.load(count) * H
    for turn in range(0, turns(items)):
        item = item_of(turn)
        head = item % H
        first = tl.load(entries + item // H * 2)
        held = tl.load(entries + item // H * 2 + 1)
        row = qkv_ptr + first * qkv_stride + head * qkv_head
        rotation = load_values(rotation_ptr + first * D, D, 0, held, True, N, D) if ROTATED else 0
        q = _load_turned(row, qkv_stride, rotation, sign, held, ROTATED, N, D)
        k = _load_turned(row + part_stride, qkv_stride, rotation, sign, held, ROTATED, N, D)
        v = _load_turned(row + 2 * part_stride, qkv_stride, rotation, sign, held, ROTATED, N, D)
        weight, total = _weights(q, k, held, scale, N)
        out = tl.dot(weight.to(v.dtype), v) / total[:, None]
        store_values(out, out_ptr + first * out_stride + head * out_head, out_stride, 0, held, N, D)


@triton.jit(do_not_specialize=["H"])
def backward(
    qkv_ptr, rotation_ptr, do_ptr, grad_ptr, entries, count, scale, factor, sign, H,
    qkv_stride, part_stride, qkv_head, do_stride, do_head, grad_stride, grad_part_stride, grad_head,
    ROTATED: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):
    """Gradient of queries, keys and values of each block, turned back."""
    items = tl.load(count) * H
    for turn in range(0, turns(items)):
        item = item_of(turn)
        head = item % H
        first = tl.load(entries + item // H * 2)
        held = tl.load(entries + item // H * 2 + 1)
        row = qkv_ptr + first * qkv_stride + head * qkv_head
        grad = grad_ptr + first * grad_stride + head * grad_head
        rotation = load_values(rotation_ptr + first * D, D, 0, held, True, N, D) if ROTATED else 0
        q = _load_turned(row, qkv_stride, rotation, sign, held, ROTATED, N, D)
        k = _load_turned(row + part_stride, qkv_stride, rotation, sign, held, ROTATED, N, D)
        v = _load_turned(row + 2 * part_stride, qkv_stride, rotation, sign, held, ROTATED, N, D)
        do = load_values(do_ptr + first * do_stride + head * do_head, do_stride, 0, held, True, N, D)
        weight, total = _weights(q, k, held, scale, N)
        weight = weight / total[:, None]
        # queries behind the end have no gradient, so they add nothing to keys and values
        dv = tl.dot(tl.trans(weight.to(do.dtype)), do)
        _store_turned(dv, grad + 2 * grad_part_stride, grad_stride, rotation, sign, held, ROTATED, N, D)
        d_weight = tl.dot(do, tl.trans(v))
        d_score = weight * (d_weight - tl.sum(weight * d_weight, 1)[:, None]) * factor
        d_score = d_score.to(k.dtype)
        dq = tl.dot(d_score, k)
        _store_turned(dq, grad, grad_stride, rotation, sign, held, ROTATED, N, D)
        dk = tl.dot(tl.trans(d_score), q)
        _store_turned(dk, grad + grad_part_stride, grad_stride, rotation, sign, held, ROTATED, N, D)
