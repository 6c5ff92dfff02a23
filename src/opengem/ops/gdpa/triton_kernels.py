"""Device kernels of GDPA: persistent programs over a list of tiles.

No score is masked: behind the end of a row keys, values, queries and gradients read as zeros, `Act(0) = 0`, and so
they add nothing. A launch serves the heads of one activation.
"""

import triton
import triton.language as tl

from opengem.ops.triton_parts import item_of, load_values, read_tile, store_values, turns

# long lists of arguments stay on few lines
# fmt: off


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    """Return `Act(x)` and its slope. A bad value comes through: comparisons are false for it."""
    if ACTIVATION == "identity":
        value = x
        slope = tl.full(x.shape, 1.0, tl.float32)
    elif ACTIVATION == "gelu":
        below = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
        value = x * below
        slope = below + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(u)) / 2 = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
        below = tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
        value = x * below
        slope = below + value * (1.0 - below) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    elif ACTIVATION == "gelu_taylor":
        square = x * x
        below = 0.5 + x * 0.3989422804014327 * (1.0 - square / 6.0 * (1.0 - 0.15 * square))
        value = x * below
        slope = 0.5 + x * 0.3989422804014327 * (2.0 - square * (4.0 / 6.0) * (1.0 - 0.225 * square))
    elif ACTIVATION == "relu":
        value = tl.where(x <= 0.0, 0.0, x)
        slope = tl.where(x <= 0.0, 0.0, 1.0)
    elif ACTIVATION == "relu_squared":
        positive = tl.where(x <= 0.0, 0.0, x)
        value = positive * positive
        slope = 2.0 * positive
    elif ACTIVATION == "silu":
        below = tl.sigmoid(x)
        value = x * below
        slope = below + value * (1.0 - below)
    else:
        tl.static_assert(ACTIVATION == "hardswish")
        value = tl.where(x <= -3.0, 0.0, tl.where(x >= 3.0, x, x * (x + 3.0) * (1.0 / 6.0)))
        slope = tl.where(x <= -3.0, 0.0, tl.where(x >= 3.0, 1.0, x * (1.0 / 3.0) + 0.5))
    return value, slope


@triton.jit
def _steps(length, MASKED: tl.constexpr, OTHER: tl.constexpr):
    """Return where the other side's whole steps, or the masked step behind them, begin and end."""
    full = length // OTHER * OTHER
    if MASKED:
        return full, length
    return 0, full


@triton.jit
def _head(nth, HEADS: tl.constexpr):
    """Return `HEADS[nth]`."""
    head = nth * 0 + HEADS[0]
    for i in tl.static_range(1, len(HEADS)):
        head = tl.where(nth == i, HEADS[i], head)
    return head


@triton.jit
def _forward_loop(
    acc, q, k_ptr, k_stride, v_ptr, v_stride, length, alpha,
    MASKED: tl.constexpr, ACTIVATION: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    begin, end = _steps(length, MASKED, OTHER)
    for j in range(begin, end, OTHER):
        k = load_values(k_ptr, k_stride, j, length, MASKED, OTHER, D)
        weight, _ = _activated(tl.dot(q, tl.trans(k)) * alpha, ACTIVATION)
        v = load_values(v_ptr, v_stride, j, length, MASKED, OTHER, D)
        acc = tl.dot(weight.to(v.dtype), v, acc)
    return acc


@triton.jit
def forward(
    q_ptr, k_ptr, v_ptr, out_ptr, entries, count, alpha,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, out_stride, out_head,
    ACTIVATION: tl.constexpr, HEADS: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    """Answer the queries of each tile; own side: queries, other side: keys."""
    items = tl.load(count) * len(HEADS)
    for turn in range(0, turns(items)):
        item = item_of(turn)
        head = _head(item % len(HEADS), HEADS)
        first, answer, at, own_length, other, length = read_tile(entries, item // len(HEADS))
        q = load_values(q_ptr + first * q_stride + head * q_head, q_stride, at, own_length, True, OWN, D)
        k_row = k_ptr + other * k_stride + head * k_head
        v_row = v_ptr + other * v_stride + head * v_head
        acc = tl.zeros([OWN, D], tl.float32)
        for MASKED in tl.static_range(2):
            acc = _forward_loop(
                acc, q, k_row, k_stride, v_row, v_stride, length, alpha, MASKED == 1, ACTIVATION, OTHER, D
            )
        store_values(acc, out_ptr + answer * out_stride + head * out_head, out_stride, at, own_length, OWN, D)


@triton.jit
def _query_loop(
    dq, q, do, k_ptr, k_stride, v_ptr, v_stride, length, alpha,
    MASKED: tl.constexpr, ACTIVATION: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    begin, end = _steps(length, MASKED, OTHER)
    for j in range(begin, end, OTHER):
        k = load_values(k_ptr, k_stride, j, length, MASKED, OTHER, D)
        v = load_values(v_ptr, v_stride, j, length, MASKED, OTHER, D)
        _, slope = _activated(tl.dot(q, tl.trans(k)) * alpha, ACTIVATION)
        d_score = tl.dot(do, tl.trans(v)) * slope
        dq = tl.dot(d_score.to(k.dtype), k, dq)
    return dq


@triton.jit
def backward_queries(
    q_ptr, k_ptr, v_ptr, do_ptr, dq_ptr, entries, count, alpha,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, do_stride, do_head, dq_stride, dq_head,
    ACTIVATION: tl.constexpr, HEADS: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    """Gradient of the queries of each tile, stored where its answers stand."""
    items = tl.load(count) * len(HEADS)
    for turn in range(0, turns(items)):
        item = item_of(turn)
        head = _head(item % len(HEADS), HEADS)
        first, answer, at, own_length, other, length = read_tile(entries, item // len(HEADS))
        q = load_values(q_ptr + first * q_stride + head * q_head, q_stride, at, own_length, True, OWN, D)
        do = load_values(do_ptr + answer * do_stride + head * do_head, do_stride, at, own_length, True, OWN, D)
        k_row = k_ptr + other * k_stride + head * k_head
        v_row = v_ptr + other * v_stride + head * v_head
        dq = tl.zeros([OWN, D], tl.float32)
        for MASKED in tl.static_range(2):
            dq = _query_loop(
                dq, q, do, k_row, k_stride, v_row, v_stride, length, alpha, MASKED == 1, ACTIVATION, OTHER, D
            )
        store_values(dq * alpha, dq_ptr + answer * dq_stride + head * dq_head, dq_stride, at, own_length, OWN, D)


@triton.jit
def backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, dk_ptr, dv_ptr, entries, count, pieces, alpha,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, do_stride, do_head, dk_stride, dk_head, dv_stride, dv_head,
    ACTIVATION: tl.constexpr, HEADS: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    """Gradients of the keys and values of each tile, over the pieces of queries that read them.

    A tile's other side are entries of `pieces` `(P, 3)`: place of the first query, place of its answer, queries.
    """
    items = tl.load(count) * len(HEADS)
    for turn in range(0, turns(items)):
        item = item_of(turn)
        head = _head(item % len(HEADS), HEADS)
        first, answer, at, own_length, other, length = read_tile(entries, item // len(HEADS))
        k = load_values(k_ptr + first * k_stride + head * k_head, k_stride, at, own_length, True, OWN, D)
        v = load_values(v_ptr + first * v_stride + head * v_head, v_stride, at, own_length, True, OWN, D)
        dk = tl.zeros([OWN, D], tl.float32)
        dv = tl.zeros([OWN, D], tl.float32)
        for piece in range(other, other + length):
            q_first = tl.load(pieces + piece * 3)
            do_first = tl.load(pieces + piece * 3 + 1)
            held = tl.load(pieces + piece * 3 + 2)
            q = load_values(q_ptr + q_first * q_stride + head * q_head, q_stride, 0, held, True, OTHER, D)
            do = load_values(do_ptr + do_first * do_stride + head * do_head, do_stride, 0, held, True, OTHER, D)
            weight, slope = _activated(tl.dot(k, tl.trans(q)) * alpha, ACTIVATION)
            dv = tl.dot(weight.to(do.dtype), do, dv)
            d_score = tl.dot(v, tl.trans(do)) * slope
            dk = tl.dot(d_score.to(q.dtype), q, dk)
        store_values(dk * alpha, dk_ptr + answer * dk_stride + head * dk_head, dk_stride, at, own_length, OWN, D)
        store_values(dv, dv_ptr + answer * dv_stride + head * dv_head, dv_stride, at, own_length, OWN, D)
