"""The compiled attention library: which level this machine can run, and calls into it."""

import ctypes
import functools
import platform
from ctypes import POINTER, c_int, c_int64
from pathlib import Path

import torch
from torch import Tensor

from opengem.ops.native.problem import Problem
from opengem.ops.native.self_test import fault_of

WIDTHS = (16, 32, 64, 128)
"""Widths of a head that the library serves."""

_LEVELS = {
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma"},
    "portable": {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"},
}
"""Level -> flags that an x86 processor must have; elsewhere `portable` asks for nothing."""


def obstacle(operand: Tensor) -> str:
    """Say why the library cannot serve an operand `(..., K)` here, or return an empty string."""
    if operand.device.type != "cpu":
        return f"it runs on CPU tensors only, got {operand.device.type}"
    if operand.dtype != torch.float32:
        return f"it computes in float32, got {operand.dtype}"
    if operand.shape[-1] not in WIDTHS:
        return f"a head must be one of {WIDTHS} wide, got {operand.shape[-1]}"
    return unavailable()


def unavailable() -> str:
    """Say why there is no library here, or return an empty string."""
    return loaded()[1]


# what torch.compiler.assume_constant_result sets, without its import of the compiler: the answer never changes
unavailable._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def problem(**fields: Tensor | ctypes.Array | float | None) -> tuple[Problem, list]:
    """Return a problem and what must outlive it.

    Args:
        **fields: Fields of `Problem`; for a tensor of rows `(rows, H, K)` its two strides are filled as well.
    """
    filled, kept = Problem(), []
    for name, value in fields.items():
        if isinstance(value, Tensor):
            kept.append(value)
            if name in ("q", "k", "v", "dq", "dk", "dv"):
                setattr(filled, f"{name}_row", value.stride(0))
                setattr(filled, f"{name}_head", value.stride(1))
            setattr(filled, name, value.data_ptr())
        elif isinstance(value, ctypes.Array):
            kept.append(value)
            setattr(filled, name, ctypes.addressof(value))
        elif value is not None:
            setattr(filled, name, value)
    return filled, kept


def unit_stride(x: Tensor) -> Tensor:
    """Return `(..., K)` with its last dimension side by side in memory: itself where it can be."""
    return x if x.stride(-1) == 1 and x.numel() else x.contiguous()


def flat_rows(x: Tensor) -> Tensor:
    """Return `(..., H, K)` as `(rows, H, K)`: a view where it can be."""
    return unit_stride(x).reshape(-1, *x.shape[-2:])


def int64(x: Tensor) -> Tensor:
    """Return offsets or indices as the library reads them."""
    return x.to(torch.int64).contiguous()


def run(fields: dict, *, backward: bool) -> None:
    """Solve a problem in place.

    Args:
        fields: As for `problem`, float32 with unit stride along K, and int64; outputs among them.
        backward: Whether to compute gradients.

    Raises:
        MemoryError: There is no memory for the workspace.
    """
    library, reason = loaded()
    assert library is not None, reason
    filled, kept = problem(**fields)
    code = library.opengem_attention(ctypes.byref(filled), int(backward), torch.get_num_threads())
    del kept
    assert code != 1, f"width {filled.width}"
    if code:
        raise MemoryError("native attention: no memory for the workspace of a thread")


@functools.cache
def loaded() -> tuple[ctypes.CDLL | None, str]:
    """Return the library at the best level that this machine runs, or why there is none."""
    folder = Path(__file__).parent
    flags = _processor_flags()
    built = [level for level in _LEVELS if (folder / f"attention_{level}.so").exists()]
    fit = [level for level in built if flags is None or _LEVELS[level] <= flags]
    if not built:
        return None, "the library was not built: no C compiler was found when opengem was installed"
    if not fit:
        return None, f"this processor runs none of the levels that were built: {', '.join(built)}"
    path = folder / f"attention_{fit[0]}.so"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"{path.name} cannot be loaded: {error}"
    library.opengem_problem_size.restype = c_int64
    if library.opengem_problem_size() != ctypes.sizeof(Problem):
        return None, f"{path.name} was built from another version: install opengem again"
    library.opengem_attention.argtypes = [POINTER(Problem), c_int, c_int]
    fault = fault_of(library)
    return (None, f"{path.name} failed its self-test: {fault}") if fault else (library, "")


def _processor_flags() -> set[str] | None:
    """Return the flags of an x86 processor, or None elsewhere."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return None
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        known = {"AVX512": _LEVELS["v4"] | _LEVELS["portable"], "AVX2": _LEVELS["portable"]}
        return known.get(torch.backends.cpu.get_cpu_capability(), set())
    return set(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))
