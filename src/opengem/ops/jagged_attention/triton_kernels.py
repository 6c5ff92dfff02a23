"""Device kernels of jagged softmax attention: persistent programs over a list of tiles.

A tile is up to BLOCK values of one row. Program g of G takes the items (tile, head) number g of each round of
G, in turn from the front and from the back, so that falling costs even out. Scores are kept in base 2. A row
meets its other side in three spans: a masked one, one in which every pair is seen, and a masked one.
"""

import triton
import triton.language as tl


@triton.jit
def _spans(at, length, before, after, BANDED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr):
    """Return where the first masked span begins, where it ends, where the last begins, and where it ends."""
    low = 0
    full = 0
    last = length // OTHER * OTHER
    high = length
    if BANDED:
        low = tl.maximum(at - before, 0) // OTHER * OTHER
        high = tl.minimum(length, at + OWN + after)
        high = tl.maximum(high, low)
        full = tl.cdiv(tl.maximum(at + OWN - 1 - before, 0), OTHER) * OTHER
        full = tl.minimum(tl.maximum(full, low), high)
        last = tl.minimum(at + after + 1, length) // OTHER * OTHER
        last = tl.maximum(tl.minimum(last, high), full)
    return low, full, last, high


@triton.jit
def _load(pointer, stride, begin, length, MASKED: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """Load values `begin` to `begin + N` of a row, zeros from `length` on."""
    place = begin + tl.arange(0, N)
    pointers = pointer + place[:, None] * stride + tl.arange(0, D)[None, :]
    if MASKED:
        return tl.load(pointers, mask=place[:, None] < length, other=0.0)
    return tl.load(pointers)


@triton.jit
def _seen(own, other, length, before, after, BANDED: tl.constexpr):
    """Return which of the places `other` each of the places `own` meets; the two broadcast."""
    seen = other < length
    if BANDED:
        seen = seen & (other - own <= after) & (own - other <= before)
    return seen


@triton.jit
def _forward_span(
    acc, top, total, q, k_ptr, k_stride, v_ptr, v_stride, begin, end, at, length, before, after, scale,
    MASKED: tl.constexpr, BANDED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    for j in range(begin, end, OTHER):
        k = _load(k_ptr, k_stride, j, length, MASKED, OTHER, D)
        score = tl.dot(q, tl.trans(k))
        if MASKED:
            own = at + tl.arange(0, OWN)[:, None]
            seen = _seen(own, j + tl.arange(0, OTHER)[None, :], length, before, after, BANDED)
            score = tl.where(seen, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1) * scale)
        # a query that has seen nothing yet keeps minus infinity, less which nothing can be taken
        base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
        weight = tl.exp2(score * scale - base[:, None])
        keep = tl.exp2(top - base)
        total = total * keep + tl.sum(weight, 1)
        v = _load(v_ptr, v_stride, j, length, MASKED, OTHER, D)
        acc = tl.dot(weight.to(v.dtype), v, acc * keep[:, None])
        top = new_top
    return acc, top, total


@triton.jit(do_not_specialize=["H", "before", "after"])
def forward(
    q_ptr, k_ptr, v_ptr, out_ptr, log_sum_ptr, entries, count, scale, L, H, before, after,
    q_stride, q_head, k_stride, k_head, v_stride, v_head, out_stride, out_head,
    BANDED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Answer the queries of each tile; own side: queries, other side: keys."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    items = tl.load(count) * H
    for turn in range(0, tl.cdiv(items, programs)):
        item = turn * programs + tl.where(turn % 2 == 0, program, programs - 1 - program)
        if item < items:
            entry = entries + item // H * 6
            head = item % H
            first = tl.load(entry)
            at = tl.load(entry + 2)
            own_length = tl.load(entry + 3)
            other = tl.load(entry + 4)
            length = tl.load(entry + 5)
            q = _load(q_ptr + first * q_stride + head * q_head, q_stride, at, own_length, True, OWN, D)
            k_row = k_ptr + other * k_stride + head * k_head
            v_row = v_ptr + other * v_stride + head * v_head
            top = tl.full([OWN], float("-inf"), tl.float32)
            total = tl.zeros([OWN], tl.float32)
            acc = tl.zeros([OWN, D], tl.float32)
            low, full, last, high = _spans(at, length, before, after, BANDED, OWN, OTHER)
            if BANDED:
                acc, top, total = _forward_span(
                    acc, top, total, q, k_row, k_stride, v_row, v_stride, low, full, at, length, before, after, scale,
                    True, BANDED, OWN, OTHER, D,
                )  # fmt: skip
            acc, top, total = _forward_span(
                acc, top, total, q, k_row, k_stride, v_row, v_stride, full, last, at, length, before, after, scale,
                False, BANDED, OWN, OTHER, D,
            )  # fmt: skip
            acc, top, total = _forward_span(
                acc, top, total, q, k_row, k_stride, v_row, v_stride, last, high, at, length, before, after, scale,
                True, BANDED, OWN, OTHER, D,
            )  # fmt: skip
            # a row without keys answers zero; any other sum of zero is a bad input and shows as NaN
            total = tl.where(length == 0, 1.0, total)
            place = at + tl.arange(0, OWN)
            held = place < own_length
            out = out_ptr + (first + place)[:, None] * out_stride + head * out_head + tl.arange(0, D)[None, :]
            tl.store(out, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=held[:, None])
            tl.store(log_sum_ptr + head * L + first + place, top + tl.log2(total), mask=held)


@triton.jit
def _query_span(
    dq, q, do, log_sum, delta, k_ptr, k_stride, v_ptr, v_stride, begin, end, at, length, before, after, scale,
    MASKED: tl.constexpr, BANDED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    for j in range(begin, end, OTHER):
        k = _load(k_ptr, k_stride, j, length, MASKED, OTHER, D)
        v = _load(v_ptr, v_stride, j, length, MASKED, OTHER, D)
        weight = tl.exp2(tl.dot(q, tl.trans(k)) * scale - log_sum[:, None])
        if MASKED:
            own = at + tl.arange(0, OWN)[:, None]
            seen = _seen(own, j + tl.arange(0, OTHER)[None, :], length, before, after, BANDED)
            weight = tl.where(seen, weight, 0.0)
        d_score = weight * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dq = tl.dot(d_score.to(k.dtype), k, dq)
    return dq


@triton.jit(do_not_specialize=["H", "before", "after"])
def backward_queries(
    q_ptr, k_ptr, v_ptr, out_ptr, do_ptr, log_sum_ptr, delta_ptr, dq_ptr, entries, count, scale, factor, L, H,
    before, after, q_stride, q_head, k_stride, k_head, v_stride, v_head, out_stride, out_head, do_stride, do_head,
    dq_stride, dq_head,
    BANDED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Gradient of the queries of each tile, and the sum of answer times gradient that the keys need."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    items = tl.load(count) * H
    for turn in range(0, tl.cdiv(items, programs)):
        item = turn * programs + tl.where(turn % 2 == 0, program, programs - 1 - program)
        if item < items:
            entry = entries + item // H * 6
            head = item % H
            first = tl.load(entry)
            at = tl.load(entry + 2)
            own_length = tl.load(entry + 3)
            other = tl.load(entry + 4)
            length = tl.load(entry + 5)
            place = at + tl.arange(0, OWN)
            held = place < own_length
            do = _load(do_ptr + first * do_stride + head * do_head, do_stride, at, own_length, True, OWN, D)
            out = _load(out_ptr + first * out_stride + head * out_head, out_stride, at, own_length, True, OWN, D)
            delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
            tl.store(delta_ptr + head * L + first + place, delta, mask=held)
            log_sum = tl.load(log_sum_ptr + head * L + first + place, mask=held, other=0.0)
            q = _load(q_ptr + first * q_stride + head * q_head, q_stride, at, own_length, True, OWN, D)
            k_row = k_ptr + other * k_stride + head * k_head
            v_row = v_ptr + other * v_stride + head * v_head
            dq = tl.zeros([OWN, D], tl.float32)
            low, full, last, high = _spans(at, length, before, after, BANDED, OWN, OTHER)
            if BANDED:
                dq = _query_span(
                    dq, q, do, log_sum, delta, k_row, k_stride, v_row, v_stride, low, full, at, length, before, after,
                    scale, True, BANDED, OWN, OTHER, D,
                )  # fmt: skip
            dq = _query_span(
                dq, q, do, log_sum, delta, k_row, k_stride, v_row, v_stride, full, last, at, length, before, after,
                scale, False, BANDED, OWN, OTHER, D,
            )  # fmt: skip
            dq = _query_span(
                dq, q, do, log_sum, delta, k_row, k_stride, v_row, v_stride, last, high, at, length, before, after,
                scale, True, BANDED, OWN, OTHER, D,
            )  # fmt: skip
            pointers = dq_ptr + (first + place)[:, None] * dq_stride + head * dq_head + tl.arange(0, D)[None, :]
            tl.store(pointers, (dq * factor).to(dq_ptr.dtype.element_ty), mask=held[:, None])


@triton.jit
def _key_span(
    dk, dv, k, v, q_ptr, q_stride, do_ptr, do_stride, log_sum_ptr, delta_ptr, begin, end, at, length, before, after,
    scale,
    MASKED: tl.constexpr, BANDED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    for i in range(begin, end, OTHER):
        q = _load(q_ptr, q_stride, i, length, MASKED, OTHER, D)
        do = _load(do_ptr, do_stride, i, length, MASKED, OTHER, D)
        place = i + tl.arange(0, OTHER)
        # behind the row's end q and do are zeros, so whatever finite weight stands there adds nothing
        if MASKED:
            log_sum = tl.load(log_sum_ptr + place, mask=place < length, other=0.0)
            delta = tl.load(delta_ptr + place, mask=place < length, other=0.0)
        else:
            log_sum = tl.load(log_sum_ptr + place)
            delta = tl.load(delta_ptr + place)
        weight = tl.exp2(tl.dot(k, tl.trans(q)) * scale - log_sum[None, :])
        if MASKED:
            own = at + tl.arange(0, OWN)[:, None]
            weight = tl.where(_seen(own, place[None, :], length, before, after, BANDED), weight, 0.0)
        dv = tl.dot(weight.to(do.dtype), do, dv)
        d_score = weight * (tl.dot(v, tl.trans(do)) - delta[None, :])
        dk = tl.dot(d_score.to(q.dtype), q, dk)
    return dk, dv


@triton.jit(do_not_specialize=["H", "before", "after"])
def backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, log_sum_ptr, delta_ptr, dk_ptr, dv_ptr, entries, count, scale, factor, L, H,
    before, after, q_stride, q_head, k_stride, k_head, v_stride, v_head, do_stride, do_head, dk_stride, dk_head,
    dv_stride, dv_head,
    BANDED: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Gradients of the keys and values of each tile; own side: keys, other side: queries."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    items = tl.load(count) * H
    for turn in range(0, tl.cdiv(items, programs)):
        item = turn * programs + tl.where(turn % 2 == 0, program, programs - 1 - program)
        if item < items:
            entry = entries + item // H * 6
            head = item % H
            first = tl.load(entry)
            at = tl.load(entry + 2)
            own_length = tl.load(entry + 3)
            other = tl.load(entry + 4)
            length = tl.load(entry + 5)
            k = _load(k_ptr + first * k_stride + head * k_head, k_stride, at, own_length, True, OWN, D)
            v = _load(v_ptr + first * v_stride + head * v_head, v_stride, at, own_length, True, OWN, D)
            q_row = q_ptr + other * q_stride + head * q_head
            do_row = do_ptr + other * do_stride + head * do_head
            log_sum_row = log_sum_ptr + head * L + other
            delta_row = delta_ptr + head * L + other
            dk = tl.zeros([OWN, D], tl.float32)
            dv = tl.zeros([OWN, D], tl.float32)
            low, full, last, high = _spans(at, length, before, after, BANDED, OWN, OTHER)
            if BANDED:
                dk, dv = _key_span(
                    dk, dv, k, v, q_row, q_stride, do_row, do_stride, log_sum_row, delta_row, low, full, at, length,
                    before, after, scale, True, BANDED, OWN, OTHER, D,
                )  # fmt: skip
            dk, dv = _key_span(
                dk, dv, k, v, q_row, q_stride, do_row, do_stride, log_sum_row, delta_row, full, last, at, length,
                before, after, scale, False, BANDED, OWN, OTHER, D,
            )  # fmt: skip
            dk, dv = _key_span(
                dk, dv, k, v, q_row, q_stride, do_row, do_stride, log_sum_row, delta_row, last, high, at, length,
                before, after, scale, True, BANDED, OWN, OTHER, D,
            )  # fmt: skip
            place = at + tl.arange(0, OWN)
            held = place[:, None] < own_length
            column = tl.arange(0, D)[None, :]
            dk_pointers = dk_ptr + (first + place)[:, None] * dk_stride + head * dk_head + column
            dv_pointers = dv_ptr + (first + place)[:, None] * dv_stride + head * dv_head + column
            tl.store(dk_pointers, (dk * factor).to(dk_ptr.dtype.element_ty), mask=held)
            tl.store(dv_pointers, dv.to(dv_ptr.dtype.element_ty), mask=held)
