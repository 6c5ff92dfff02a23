"""Pieces that the Triton kernels share: which items a program takes, and how it reads a tile."""

import triton
import triton.language as tl


@triton.jit
def item_of(turn):
    """Return the item that this program takes in round `turn`: in turn from the front and from the back."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    return turn * programs + tl.where(turn % 2 == 0, program, programs - 1 - program)


@triton.jit
def turns(items):
    """Return the number of rounds in which this program takes one of `items`."""
    whole = items // tl.num_programs(0)
    return whole + tl.where(item_of(whole) < items, 1, 0)


@triton.jit
def read_tile(entries, tile):
    """Return the six numbers of an entry of `tiles.Tiles`: first, out, at, length, other, other length."""
    entry = entries + tile * 6
    return (
        tl.load(entry),
        tl.load(entry + 1),
        tl.load(entry + 2),
        tl.load(entry + 3),
        tl.load(entry + 4),
        tl.load(entry + 5),
    )


@triton.jit
def load_values(pointer, stride, begin, length, MASKED: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """Load values `begin` to `begin + N` of a row, `(N, D)`, zeros from `length` on."""
    place = begin + tl.arange(0, N)[:, None]
    pointers = pointer + (place * stride + tl.arange(0, D)[None, :])
    if MASKED:
        return tl.load(pointers, mask=place < length, other=0.0)
    return tl.load(pointers)


@triton.jit
def store_values(values, pointer, stride, begin, length, N: tl.constexpr, D: tl.constexpr):
    """Store `(N, D)` values from `begin` on, those before `length`, in the pointer's dtype."""
    place = begin + tl.arange(0, N)[:, None]
    pointers = pointer + (place * stride + tl.arange(0, D)[None, :])
    tl.store(pointers, values.to(pointer.dtype.element_ty), mask=place < length)
