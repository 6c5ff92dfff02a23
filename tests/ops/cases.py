"""Every form of every attention operation, and how to run it on a backend."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from opengem.ops.block_attention import api as block_api
from opengem.ops.gdpa import ACTIVATIONS
from opengem.ops.gdpa import api as gdpa_api
from opengem.ops.jagged_attention import api as jagged_api
from opengem.ops.native.library import unavailable
from opengem.ops.triton_target import INTERPRETED
from tests.ops.rows import offsets_of, rotation


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Case:
    """One form of an operation: `call(tensors, backend)` on `tensors(lengths, heads, width)`."""

    name: str
    backends: tuple[str, ...]
    tensors: Callable[..., list[Tensor]]
    call: Callable[..., Tensor]


def names(api):
    return tuple(
        b.name for b in api.BACKENDS if b.name != "reference" and (b.name != "triton" or INTERPRETED)
    )


def rows_of(lengths, heads, width):
    return [random(sum(lengths), heads, width, seed=s) for s in range(3)]


def packed_rows_of(lengths, heads, width):
    return [random(sum(lengths), 3, heads, width)]


def jagged(**form):
    def call(tensors, lengths, backend):
        return jagged_api.jagged_attention(*tensors, offsets_of(lengths), backend=backend, **form)

    return Case(f"jagged {form}", names(jagged_api), rows_of, call)


def cross():
    """Keys on the same rows in reversed order of length."""

    def call(tensors, lengths, backend):
        q, k, v = tensors
        return jagged_api.jagged_attention(
            q, k, v, offsets_of(lengths), offsets_of(lengths[::-1]), backend=backend
        )

    return Case("jagged cross", names(jagged_api), rows_of, call)


def blocks(turned, **form):
    def call(tensors, lengths, backend):
        turn = rotation(sum(lengths), tensors[0].shape[-1] // 2, tensors[0].dtype) if turned else None
        return block_api.block_attention(tensors[0], offsets_of(lengths), turn, backend=backend, **form)

    return Case(f"block {'turned ' if turned else ''}{form}", names(block_api), packed_rows_of, call)


def gdpa_self(activation):
    def call(tensors, lengths, backend):
        offsets = offsets_of(lengths)
        return gdpa_api.gdpa(
            *tensors, q_offsets=offsets, k_offsets=offsets, activation=activation, alpha=0.1, backend=backend
        )

    return Case(f"gdpa self {activation}", names(gdpa_api), rows_of, call)


def gdpa_requests():
    """Rows of queries share two requests' keys; a third request is read by nobody."""

    def tensors(lengths, heads, width):
        keys = [random(3, 21, heads, width, seed=s) for s in (1, 2)]
        return [random(sum(lengths), heads, width), *keys]

    def call(tensors, lengths, backend):
        request = torch.arange(len(lengths)) % 2
        return gdpa_api.gdpa(
            *tensors, q_offsets=offsets_of(lengths), request_of_row=request, alpha=0.2, backend=backend
        )

    return Case("gdpa cross, requests", names(gdpa_api), tensors, call)


def gdpa_dense():
    def tensors(lengths, heads, width):
        n = len(lengths)
        return [random(n, 7, heads, width), *(random(n, 5, heads, width, seed=s) for s in (1, 2))]

    def call(tensors, lengths, backend):
        return gdpa_api.gdpa(*tensors, activation="silu", backend=backend)

    return Case("gdpa cross, dense", names(gdpa_api), tensors, call)


def gdpa_pooled():
    def tensors(lengths, heads, width):
        return [
            random(5, heads, width),
            *(random(sum(lengths), heads, width, seed=s) for s in (1, 2)),
        ]

    def call(tensors, lengths, backend):
        return gdpa_api.gdpa(
            *tensors, k_offsets=offsets_of(lengths), activation=("gelu", "relu"), alpha=0.1, backend=backend
        )

    return Case("gdpa pooled", names(gdpa_api), tensors, call)


CASES = [
    jagged(),
    jagged(causal=True),
    jagged(window=0),
    jagged(window=9),
    jagged(window=70),
    jagged(window=9, causal=True),
    jagged(window=500),
    jagged(scale=0.02),
    cross(),
    blocks(True),
    blocks(True, shift=32),
    blocks(False, block=100, shift=99),
    blocks(True, block=3, shift=1),
    *(gdpa_self(a) for a in ACTIVATIONS),
    gdpa_self(("gelu", "identity")),
    gdpa_requests(),
    gdpa_dense(),
    gdpa_pooled(),
]
PAIRS = [
    pytest.param(
        case,
        backend,
        id=f"{case.name}-{backend}",
        marks=pytest.mark.skipif(backend == "native" and bool(unavailable()), reason=unavailable()),
    )
    for case in CASES
    for backend in case.backends
    if backend != "triton"
    or "'block': 100" not in case.name  # the kernel keeps a block of at most 64 on the chip
]


def solve(case, tensors, lengths, backend):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = case.call(leaves, lengths, backend)
    if out.requires_grad:
        factor = torch.arange(out.numel(), dtype=torch.float64).view_as(out).sin()
        (out * factor.to(out.dtype)).sum().backward()
    return [out.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)]


def assert_near(got, expected, tolerance=2e-5):
    for left, right in zip(got, expected, strict=True):
        assert left.shape == right.shape
        if right.numel():
            scale = max(1.0, float(right.abs().max()))
            error = float((left.double() - right).abs().max())
            assert error <= tolerance * scale, f"off by {error:.2e} where the largest is {scale:.2e}"
