"""What the Triton backends share: when they can run, on which generation of device, and with how many programs."""

import importlib.util
import os
from dataclasses import dataclass

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")
"""Whether Triton interprets kernels on CPU tensors, slowly: for tests of values."""

_INSTALLED = importlib.util.find_spec("triton") is not None
_DTYPES = (torch.float32, torch.float16) if INTERPRETED else (torch.bfloat16, torch.float16)
_WIDTHS = (16, 32, 64, 128)
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Attributes:
        own: Values a tile of the side that a program answers for.
        other: Values of the other side that it meets at once.
        warps: Warps a program.
        stages: Loads in flight.
        programs: Programs a multiprocessor.
    """

    own: int
    other: int
    warps: int = 4
    stages: int = 2
    programs: int = 1

    def own_for(self, longest: int | None) -> int:
        """Return `own`, less where no row is longer than `longest`: a power of two, at least 16."""
        if not isinstance(longest, int):
            return self.own
        return min(self.own, max(16, 1 << max(longest - 1, 0).bit_length()))


INTERPRETER = Launch(own=64, other=16)
"""What the interpreter uses for every kernel."""


def obstacle(*tensors: Tensor) -> str:
    """Say why Triton kernels cannot run on these tensors `(..., K)`, or return an empty string."""
    if not _INSTALLED:
        return 'triton is not installed: pip install "opengem[kernels]"'
    first = tensors[0]
    for x in tensors:
        if x.device != first.device or x.dtype != first.dtype:
            return (
                "all operands must have one device and dtype, got "
                f"{[f'{x.device} {x.dtype}' for x in tensors]}"
            )
    if first.device.type != ("cpu" if INTERPRETED else "cuda"):
        return f"it runs on CUDA tensors (on CPU tensors under TRITON_INTERPRET=1), got {first.device.type}"
    if first.dtype not in _DTYPES:
        return f"it computes in {' or '.join(str(d) for d in _DTYPES)}, got {first.dtype}"
    for x in tensors:  # not before the device is known: under export a comparison of sizes would bound them
        if x.numel() > _LARGEST:
            return f"an operand may have at most {_LARGEST} elements, got {x.numel()}"
    if first.shape[-1] not in _WIDTHS:
        return f"the width K of a head must be one of {_WIDTHS}, got {first.shape[-1]}"
    if not INTERPRETED and generation(first.device) not in (8, 9, 10):
        return f"it is built for compute capability 8, 9 and 10, got {generation(first.device)}"
    return ""


@torch.compiler.assume_constant_result
def generation(device: torch.device) -> int:
    """Return the major compute capability: 8 Ampere, 9 Hopper, 10 Blackwell; 0 for the interpreter."""
    return 0 if INTERPRETED else torch.cuda.get_device_capability(device)[0]


def programs(launch: Launch, device: torch.device) -> int:
    """Return how many persistent programs fill the device."""
    if INTERPRETED:
        return 3
    return launch.programs * torch.cuda.get_device_properties(device).multi_processor_count


def with_unit_stride(x: Tensor) -> Tensor:
    """Return `x`, copied if neighbours in its last dimension are not neighbours in memory."""
    return x if x.stride(-1) == 1 else x.contiguous()
