"""Jagged layouts: pad, unpad, concat, split, gather, segment reduce, expand."""

from opengem.ops.jagged_layout.api import (
    concat,
    expand,
    gather,
    pad,
    pad_mask,
    segment_reduce,
    split,
    unpad,
)
from opengem.ops.jagged_layout.vectorised import offsets_of_lengths, row_and_position, size_of

__all__ = [
    "concat",
    "expand",
    "gather",
    "offsets_of_lengths",
    "pad",
    "pad_mask",
    "row_and_position",
    "segment_reduce",
    "size_of",
    "split",
    "unpad",
]
