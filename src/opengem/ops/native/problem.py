"""What the compiled library is asked to compute."""

import ctypes
from ctypes import c_double, c_int64, c_void_p

ACTIVATIONS = ("identity", "gelu", "gelu_tanh", "gelu_taylor", "relu", "relu_squared", "silu", "hardswish")
"""In the order of the library's own list."""

UNLIMITED = 2**30
"""A window that hides nothing."""


class Problem(ctypes.Structure):
    """What to compute, field by field as in `attention.c`."""

    _fields_ = [
        *((name, c_void_p) for name in ("q", "k", "v")),
        *((name, c_int64) for name in ("q_row", "k_row", "v_row", "q_head", "k_head", "v_head")),
        *((name, c_void_p) for name in ("rotation", "q_offsets", "k_offsets", "request")),
        *((name, c_int64) for name in ("q_rows", "k_rows", "q_len", "k_len", "shared_q", "total_q")),
        *((name, c_int64) for name in ("heads", "width", "block", "shift", "back", "ahead")),
        ("activation", c_void_p),
        ("scale", c_double),
        *((name, c_void_p) for name in ("out", "lse", "grad", "dq", "dk", "dv")),
        *((name, c_int64) for name in ("dq_row", "dk_row", "dv_row", "dq_head", "dk_head", "dv_head")),
    ]
