"""What the Triton backends share: when they can run, on which generation of device, and with how many programs."""

import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opengem.errors import ConfigError

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")
"""Whether Triton interprets kernels on CPU tensors, slowly: for tests of values."""

_INSTALLED = importlib.util.find_spec("triton") is not None
_DTYPES = (torch.float32, torch.float16) if INTERPRETED else (torch.bfloat16, torch.float16)
_WIDTHS = (16, 32, 64, 128)
LARGEST = 2**31 - 1
"""Elements that a kernel can address."""


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


def obstacle(x: Tensor) -> str:
    """Say why Triton kernels cannot run on an operand `(..., K)`, or return an empty string."""
    if not _INSTALLED:
        return 'triton is not installed: pip install "opengem[kernels]"'
    if x.device.type != ("cpu" if INTERPRETED else "cuda"):
        return f"it runs on CUDA tensors (on CPU tensors under TRITON_INTERPRET=1), got {x.device.type}"
    if x.dtype not in _DTYPES:
        return f"it computes in {' or '.join(str(d) for d in _DTYPES)}, got {x.dtype}"
    if x.shape[-1] not in _WIDTHS:
        return f"the width K of a head must be one of {_WIDTHS}, got {x.shape[-1]}"
    if not INTERPRETED and not _built_for(*capability(x.device)):
        major, minor = capability(x.device)
        return f"it is built for devices of compute capability 8.0, 9 and 10, got {major}.{minor}"
    return ""


def suits(x: Tensor, *_rest: Any) -> bool:
    """Whether `auto` may choose the kernels for operands like `x`: never the interpreter."""
    return x.is_cuda


def _built_for(major: int, minor: int) -> bool:
    # devices of capability 8.6 and 8.9 have less shared memory than some launches take
    return major in (9, 10) or (major, minor) == (8, 0)


def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a CUDA device."""
    properties = torch.cuda.get_device_properties(device)
    return properties.major, properties.minor


def generation(device: torch.device) -> int:
    """Return the major compute capability: 8 Ampere, 9 Hopper, 10 Blackwell; 0 for the interpreter."""
    return 0 if INTERPRETED else capability(device)[0]


def programs(launch: Launch, device: torch.device) -> int:
    """Return how many persistent programs fill the device."""
    if INTERPRETED:
        return 3
    return launch.programs * torch.cuda.get_device_properties(device).multi_processor_count


def on(device: torch.device) -> AbstractContextManager:
    """Return a context in which kernels are launched on `device`: a launch goes to the current one."""
    return nullcontext() if INTERPRETED else torch.cuda.device(device)


def addressable(x: Tensor) -> Tensor:
    """Return `x` as kernels can address it, copied if need be: 32-bit places, a last dimension without gaps.

    It is for the inside of an operator, where sizes are numbers: while tracing they are symbols, and a question would
    bind the program to its answer.

    Raises:
        ConfigError: It has too many elements.
    """
    check_count(x.numel())
    reach = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return x if x.stride(-1) == 1 and reach <= LARGEST else x.contiguous()


def check_count(elements: int) -> None:
    """Raise `ConfigError` where a kernel could not address this many elements."""
    if elements > LARGEST:
        raise ConfigError(
            f"triton kernels take and give at most {LARGEST} elements a tensor, got {elements}: split the batch"
        )
