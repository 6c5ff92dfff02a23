"""Checks of arguments that all operations share: what is wrong is refused by name before anything runs."""

import torch
from torch import Tensor

from opengem.errors import ConfigError

MOST_ELEMENTS = 2**31
"""A tensor must have fewer elements: kernels and torch's own products count in 32 bits."""


def check_offsets(operation: str, name: str, offsets: Tensor, rows: int | None = None) -> None:
    """Raise `ConfigError` unless `offsets` can stand before `rows` flat values.

    On CPU and outside a trace its values are read: they must begin at 0, never fall, and end at `rows`.

    Args:
        operation: Name of the operation, for the message.
        name: Name of the argument, for the message.
        offsets: The argument.
        rows: Values that it divides; `None` if it need not end anywhere.
    """
    if offsets.dim() != 1 or offsets.dtype not in (torch.int32, torch.int64) or offsets.shape[0] < 1:
        raise ConfigError(
            f"{operation}: {name} must be a 1-D integer tensor (int64 or int32) of R + 1 entries from 0 to the "
            f"number of values, got shape {tuple(offsets.shape)} and {offsets.dtype}"
        )
    if not _readable(offsets):
        return
    values = offsets.numpy()  # several times cheaper than torch on a few numbers
    falls = values[1:] < values[:-1]
    if falls.any():
        at = int(falls.argmax())
        raise ConfigError(
            f"{operation}: {name} must never fall, got {values[at]} before {values[at + 1]} at entry {at + 1}"
        )
    first, last = int(values[0]), int(values[-1])
    if first != 0 or (rows is not None and last != rows):
        raise ConfigError(
            f"{operation}: {name} must begin at 0 and end at the number of values"
            f"{'' if rows is None else f' ({rows})'}, got {first} and {last}"
        )


def check_index(operation: str, name: str, index: Tensor, rows: int) -> None:
    """Raise `ConfigError` unless `index` is 1-D, of integers, and (on CPU, outside a trace) within 0 to rows - 1."""
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        raise ConfigError(
            f"{operation}: {name} must be a 1-D tensor of int64 (or int32), got shape {tuple(index.shape)} and "
            f"{index.dtype}"
        )
    if _readable(index) and index.shape[0]:
        values = index.numpy()
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= rows:
            raise ConfigError(
                f"{operation}: {name} must hold rows from 0 to {rows - 1}, got {low if low < 0 else high}"
            )


def check_operands(operation: str, operands: dict[str, Tensor], others: dict[str, Tensor | None]) -> None:
    """Raise `ConfigError` unless all operands share a floating-point dtype and a device, and none is too large.

    Args:
        operation: Name of the operation, for the message.
        operands: Name -> floating-point argument; the first one sets dtype and device.
        others: Name -> argument of another dtype, or `None`; it must be on the same device.
    """
    first, example = next(iter(operands.items()))
    if not example.is_floating_point():
        raise ConfigError(f"{operation}: {first} must be floating point, got {example.dtype}")
    for name, x in operands.items():
        if x.dtype != example.dtype:
            raise ConfigError(
                f"{operation}: {name} must have the dtype of {first}, {example.dtype}, got {x.dtype}"
            )
        if not torch.compiler.is_compiling() and x.numel() >= MOST_ELEMENTS:
            raise ConfigError(
                f"{operation}: {name} must have fewer than 2^31 elements, got {tuple(x.shape)}: split the batch"
            )
    for name, x in {**operands, **others}.items():
        if x is not None and x.device != example.device:
            raise ConfigError(
                f"{operation}: {name} must be on the device of {first}, {example.device}, got {x.device}"
            )


def _readable(x: Tensor) -> bool:
    # a trace has no values, and reading them from another device would stall it
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and type(x) is Tensor
