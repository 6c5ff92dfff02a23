"""Device kernels of jagged softmax attention: persistent programs over a list of tiles.

Scores are kept in base 2. A tile meets its other side in two loops: over the steps in which every pair is seen, and
over the steps at both ends of them, in which some pairs are masked.
"""

import triton
import triton.language as tl

from opengem.ops.triton_parts import item_of, load_values, read_tile, store_values, turns

# long lists of arguments stay on few lines
# fmt: off


@triton.jit
def _spans(at, length, before, after, OWN: tl.constexpr, OTHER: tl.constexpr):
    """Return where the other side begins, where every pair is seen from and until, and where it ends."""
    low = tl.maximum(at - before, 0) // OTHER * OTHER
    high = tl.maximum(tl.minimum(length, at + OWN + after), low)
    full = tl.cdiv(tl.maximum(at + OWN - 1 - before, 0), OTHER) * OTHER
    full = tl.minimum(tl.maximum(full, low), tl.cdiv(high, OTHER) * OTHER)
    last = tl.maximum(tl.minimum(at + after + 1, length) // OTHER * OTHER, full)
    return low, full, last, high


@triton.jit
def _steps(low, full, last, high, MASKED: tl.constexpr, OTHER: tl.constexpr):
    """Return the number of steps of a loop."""
    if MASKED:
        return (full - low) // OTHER + tl.cdiv(tl.maximum(high - last, 0), OTHER)
    return (last - full) // OTHER


@triton.jit
def _step(n, low, full, last, MASKED: tl.constexpr, OTHER: tl.constexpr):
    """Return the place on the other side at which step n begins."""
    if MASKED:
        left = (full - low) // OTHER
        return n * OTHER + tl.where(n < left, low, last - left * OTHER)
    return full + n * OTHER


@triton.jit
def _seen(own, other, length, before, after):
    """Return which of the places `other` each of the places `own` meets; the two broadcast."""
    return (other < length) & (other - own <= after) & (own - other <= before)


@triton.jit
def _forward_loop(
    acc, top, total, q, k_ptr, k_stride, v_ptr, v_stride, at, length, before, after, scale,
    MASKED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    low, full, last, high = _spans(at, length, before, after, OWN, OTHER)
    for n in range(0, _steps(low, full, last, high, MASKED, OTHER)):
        j = _step(n, low, full, last, MASKED, OTHER)
        k = load_values(k_ptr, k_stride, j, length, MASKED, OTHER, D)
        score = tl.dot(q, tl.trans(k))
        if MASKED:
            own = at + tl.arange(0, OWN)[:, None]
            seen = _seen(own, j + tl.arange(0, OTHER)[None, :], length, before, after)
            score = tl.where(seen, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1) * scale)
        # a query that has seen nothing yet keeps minus infinity, less which nothing can be taken
        base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
        weight = tl.exp2(score * scale - base[:, None])
        keep = tl.exp2(top - base)
        total = total * keep + tl.sum(weight, 1)
        v = load_values(v_ptr, v_stride, j, length, MASKED, OTHER, D)
        acc = tl.dot(weight.to(v.dtype), v, acc * keep[:, None])
        top = new_top
    return acc, top, total


@triton.jit(do_not_specialize=["H", "before", "after"])
def forward(
    q_ptr, k_ptr, v_ptr, out_ptr, log_sum_ptr, entries, count, scale, L, H, before, after,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, out_stride, out_head,
    OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    """Answer the queries of each tile; own side: queries, other side: keys."""
    items = tl.load(count) * H
    for turn in range(0, turns(items)):
        item = item_of(turn)
        head = item % H
        first, answer, at, own_length, other, length = read_tile(entries, item // H)
        q = load_values(q_ptr + first * q_stride + head * q_head, q_stride, at, own_length, True, OWN, D)
        k_row = k_ptr + other * k_stride + head * k_head
        v_row = v_ptr + other * v_stride + head * v_head
        top = tl.full([OWN], float("-inf"), tl.float32)
        total = tl.zeros([OWN], tl.float32)
        acc = tl.zeros([OWN, D], tl.float32)
        for MASKED in tl.static_range(2):
            acc, top, total = _forward_loop(
                acc, top, total, q, k_row, k_stride, v_row, v_stride, at, length, before, after, scale,
                MASKED == 1, OWN, OTHER, D,
            )
        place = at + tl.arange(0, OWN)
        # a row without keys answers zero; any other sum of zero is a bad input and shows as NaN
        total = tl.where((length == 0) | (place >= own_length), 1.0, total)
        acc = acc * (1.0 / total)[:, None]
        store_values(
            acc, out_ptr + answer * out_stride + head * out_head, out_stride, at, own_length, OWN, D
        )
        tl.store(log_sum_ptr + head * L + first + place, top + tl.log2(total), mask=place < own_length)


@triton.jit
def _query_loop(
    dq, q, do, log_sum, delta, k_ptr, k_stride, v_ptr, v_stride, at, length, before, after, scale,
    MASKED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    low, full, last, high = _spans(at, length, before, after, OWN, OTHER)
    for n in range(0, _steps(low, full, last, high, MASKED, OTHER)):
        j = _step(n, low, full, last, MASKED, OTHER)
        k = load_values(k_ptr, k_stride, j, length, MASKED, OTHER, D)
        v = load_values(v_ptr, v_stride, j, length, MASKED, OTHER, D)
        weight = tl.exp2(tl.dot(q, tl.trans(k)) * scale - log_sum[:, None])
        if MASKED:
            own = at + tl.arange(0, OWN)[:, None]
            seen = _seen(own, j + tl.arange(0, OTHER)[None, :], length, before, after)
            weight = tl.where(seen, weight, 0.0)
        d_score = weight * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dq = tl.dot(d_score.to(k.dtype), k, dq)
    return dq


@triton.jit(do_not_specialize=["H", "before", "after"])
def backward_queries(
    q_ptr, k_ptr, v_ptr, out_ptr, do_ptr, log_sum_ptr, delta_ptr, dq_ptr, entries, count, scale, factor, L, H,
    before, after, q_stride, q_head, k_stride, k_head, v_stride, v_head, out_stride, out_head, do_stride, do_head,
    dq_stride, dq_head,
    OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    """Gradient of the queries of each tile, and the sum of answer times gradient that the keys need."""
    items = tl.load(count) * H
    for turn in range(0, turns(items)):
        item = item_of(turn)
        head = item % H
        first, answer, at, own_length, other, length = read_tile(entries, item // H)
        place = at + tl.arange(0, OWN)
        held = place < own_length
        do = load_values(
            do_ptr + answer * do_stride + head * do_head, do_stride, at, own_length, True, OWN, D
        )
        out_row = out_ptr + answer * out_stride + head * out_head
        out = load_values(out_row, out_stride, at, own_length, True, OWN, D)
        delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
        tl.store(delta_ptr + head * L + first + place, delta, mask=held)
        log_sum = tl.load(log_sum_ptr + head * L + first + place, mask=held, other=0.0)
        q = load_values(q_ptr + first * q_stride + head * q_head, q_stride, at, own_length, True, OWN, D)
        k_row = k_ptr + other * k_stride + head * k_head
        v_row = v_ptr + other * v_stride + head * v_head
        dq = tl.zeros([OWN, D], tl.float32)
        for MASKED in tl.static_range(2):
            dq = _query_loop(
                dq, q, do, log_sum, delta, k_row, k_stride, v_row, v_stride, at, length, before, after, scale,
                MASKED == 1, OWN, OTHER, D,
            )
        store_values(
            dq * factor, dq_ptr + answer * dq_stride + head * dq_head, dq_stride, at, own_length, OWN, D
        )


@triton.jit
def _key_loop(
    dk, dv, k, v, q_ptr, q_stride, do_ptr, do_stride, log_sum_ptr, delta_ptr, at, length, before, after, scale,
    MASKED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    low, full, last, high = _spans(at, length, before, after, OWN, OTHER)
    for n in range(0, _steps(low, full, last, high, MASKED, OTHER)):
        i = _step(n, low, full, last, MASKED, OTHER)
        q = load_values(q_ptr, q_stride, i, length, MASKED, OTHER, D)
        do = load_values(do_ptr, do_stride, i, length, MASKED, OTHER, D)
        place = i + tl.arange(0, OTHER)
        if MASKED:
            log_sum = tl.load(log_sum_ptr + place, mask=place < length, other=0.0)
            delta = tl.load(delta_ptr + place, mask=place < length, other=0.0)
        else:
            log_sum = tl.load(log_sum_ptr + place)
            delta = tl.load(delta_ptr + place)
        weight = tl.exp2(tl.dot(k, tl.trans(q)) * scale - log_sum[None, :])
        if MASKED:
            own = at + tl.arange(0, OWN)[:, None]
            weight = tl.where(_seen(own, place[None, :], length, before, after), weight, 0.0)
        dv = tl.dot(weight.to(do.dtype), do, dv)
        d_score = weight * (tl.dot(v, tl.trans(do)) - delta[None, :])
        dk = tl.dot(d_score.to(q.dtype), q, dk)
    return dk, dv


@triton.jit(do_not_specialize=["H", "before", "after"])
def backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, log_sum_ptr, delta_ptr, dk_ptr, dv_ptr, entries, count, scale, factor, L, H,
    before, after, q_stride, q_head, k_stride, k_head, v_stride, v_head, do_stride, do_head, dk_stride, dk_head,
    dv_stride, dv_head,
    OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):
    """Gradients of the keys and values of each tile; own side: keys, other side: queries."""
    items = tl.load(count) * H
    for turn in range(0, turns(items)):
        item = item_of(turn)
        head = item % H
        first, answer, at, own_length, other, length = read_tile(entries, item // H)
        k = load_values(k_ptr + first * k_stride + head * k_head, k_stride, at, own_length, True, OWN, D)
        v = load_values(v_ptr + first * v_stride + head * v_head, v_stride, at, own_length, True, OWN, D)
        q_row = q_ptr + other * q_stride + head * q_head
        do_row = do_ptr + other * do_stride + head * do_head
        dk = tl.zeros([OWN, D], tl.float32)
        dv = tl.zeros([OWN, D], tl.float32)
        for MASKED in tl.static_range(2):
            dk, dv = _key_loop(
                dk, dv, k, v, q_row, q_stride, do_row, do_stride, log_sum_ptr + head * L + other,
                delta_ptr + head * L + other, at, length, before, after, scale,
                MASKED == 1, OWN, OTHER, D,
            )
        store_values(
            dk * factor, dk_ptr + answer * dk_stride + head * dk_head, dk_stride, at, own_length, OWN, D
        )
        store_values(dv, dv_ptr + answer * dv_stride + head * dv_head, dv_stride, at, own_length, OWN, D)
