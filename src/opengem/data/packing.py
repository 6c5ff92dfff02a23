"""A batch as one block of memory, so that it crosses from a worker process as a single shared file."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils.data import get_worker_info

ALIGNMENT = 16
"""Bytes that every tensor in the block begins at a multiple of."""


@dataclass
class Packed:
    """The tensors of a tree in one block of bytes.

    Attributes:
        block: Shape `(bytes,)`, uint8.
        parts: Type and shape of each tensor.
        skeleton: The tree, with the position in `parts` in place of each tensor.
    """

    block: Tensor
    parts: list[tuple[torch.dtype, tuple[int, ...]]]
    skeleton: Any


def pack(tree: Any) -> Packed:
    """Copy all tensors of `tree`, a batch or any other pytree of tensors, into one block.

    In a worker of a `DataLoader` the block is shared memory from the start, so that sending it is no second copy.
    """
    tensors, spec = _pytree.tree_flatten(tree)
    parts = [(t.dtype, tuple(t.shape)) for t in tensors]
    bounds = _bounds(parts)
    block = torch.empty(0, dtype=torch.uint8)
    if get_worker_info() is not None:
        block.set_(torch.UntypedStorage._new_shared(bounds[-1]))
    block.resize_(bounds[-1])
    for tensor, start in zip(tensors, bounds, strict=False):
        place = block[start : start + tensor.numel() * tensor.element_size()]
        place.view(tensor.dtype).copy_(tensor.reshape(-1))
    return Packed(block, parts, _pytree.tree_unflatten(range(len(parts)), spec))


def unpack(packed: Packed) -> Any:
    """Return the tree again; its tensors are views of the block."""
    tensors = []
    for (dtype, shape), start in zip(packed.parts, _bounds(packed.parts), strict=False):
        size = prod(shape) * dtype.itemsize
        tensors.append(packed.block[start : start + size].view(dtype).reshape(shape))
    return _pytree.tree_map(tensors.__getitem__, packed.skeleton)


def _bounds(parts: list[tuple[torch.dtype, tuple[int, ...]]]) -> list[int]:
    """Return where each tensor begins, and the end of the block."""
    bounds = [0]
    for dtype, shape in parts:
        size = prod(shape) * dtype.itemsize
        bounds.append(bounds[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return bounds
