"""A tiny problem with a known answer, solved before the compiled library is trusted."""

import ctypes
import math

import numpy as np
from numpy.typing import NDArray

from opengem.ops.native.problem import ACTIVATIONS, UNLIMITED, Problem

_LENGTHS = (3, 0, 75)
_HEADS, _WIDTH = 2, 16
_WINDOW = 40
_SCALE = 0.3
_TOLERANCE = 1e-4


def fault_of(library: ctypes.CDLL) -> str:
    """Say what the library gets wrong on a tiny problem, or return an empty string.

    Softmax with a window and GELU, forward and backward, on rows that are short, empty and longer than a tile. Made
    of numpy alone, so that no mode that torch is in (tracing, autocast, no gradients) can bear on it.
    """
    total = sum(_LENGTHS)
    q, k, v, grad = np.random.default_rng(0).standard_normal((4, total, _HEADS, _WIDTH))
    for activation in (None, "gelu"):
        expected = _expected(q, k, v, grad, activation)
        got = _got(library, q, k, v, grad, activation)
        if got is None:
            return "it found no memory"
        for name, left, right in zip(("output", "dq", "dk", "dv"), got, expected, strict=True):
            error = np.abs(left - right).max()
            if not error <= _TOLERANCE * np.abs(right).max():
                return f"{activation or 'softmax'}: {name} is off by {error:.1e}"
    return ""


def _expected(q, k, v, grad, activation: str | None) -> list[NDArray]:
    out, dq, dk, dv = (np.zeros_like(q) for _ in range(4))
    end = 0
    for length in _LENGTHS:
        row = slice(end, end := end + length)
        for h in range(_HEADS):
            scores = _SCALE * q[row, h] @ k[row, h].T
            d_weights = grad[row, h] @ v[row, h].T
            if activation is None:
                place = np.arange(length)
                near = np.abs(place[:, None] - place) <= _WINDOW
                weights = np.where(near, np.exp(scores), 0.0)
                weights /= weights.sum(1, keepdims=True)
                d_scores = weights * (d_weights - (weights * d_weights).sum(1, keepdims=True))
            else:
                phi = 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(scores / math.sqrt(2)))
                weights = scores * phi
                density = np.exp(-(scores**2) / 2) / math.sqrt(2 * math.pi)
                d_scores = d_weights * (phi + scores * density)
            out[row, h] = weights @ v[row, h]
            dv[row, h] = weights.T @ grad[row, h]
            dq[row, h] = _SCALE * d_scores @ k[row, h]
            dk[row, h] = _SCALE * d_scores.T @ q[row, h]
    return [out, dq, dk, dv]


def _got(library: ctypes.CDLL, q, k, v, grad, activation: str | None) -> list[NDArray] | None:
    total = sum(_LENGTHS)
    offsets = np.cumsum([0, *_LENGTHS], dtype=np.int64)
    arrays = {n: x.astype(np.float32) for n, x in (("q", q), ("k", k), ("v", v), ("grad", grad))}
    arrays |= {n: np.empty_like(arrays["q"]) for n in ("out", "dq", "dk", "dv")}
    arrays["lse"] = np.empty((_HEADS, total), dtype=np.float32)
    problem = Problem(
        q_offsets=offsets.ctypes.data,
        k_offsets=offsets.ctypes.data,
        q_rows=len(_LENGTHS),
        k_rows=len(_LENGTHS),
        total_q=total,
        heads=_HEADS,
        width=_WIDTH,
        back=UNLIMITED if activation else _WINDOW,
        ahead=UNLIMITED if activation else _WINDOW,
        scale=_SCALE,
        **{name: x.ctypes.data for name, x in arrays.items()},
    )
    for name in ("q", "k", "v", "dq", "dk", "dv"):
        setattr(problem, f"{name}_row", _HEADS * _WIDTH)
        setattr(problem, f"{name}_head", _WIDTH)
    if activation is not None:
        kinds = np.full(_HEADS, ACTIVATIONS.index(activation), dtype=np.int32)
        problem.activation = kinds.ctypes.data
    for backward in (0, 1):
        if library.opengem_attention(ctypes.byref(problem), backward, 1):
            return None
    return [arrays[name] for name in ("out", "dq", "dk", "dv")]
