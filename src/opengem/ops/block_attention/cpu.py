"""Block attention on CPU with torch alone: a few blocks at a time, so that all of their steps stay in the cache."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from opengem.ops.jagged_layout import offsets_of_lengths, row_and_position
from opengem.ops.rotary_attention import fused
from opengem.ops.rotary_attention.fused import flash, flash_backward

EVENTS = 512
"""Events of a chunk."""

obstacle = fused.obstacle


def block_attention(
    qkv_L3HK: Tensor, offsets: Tensor, rotation_LP2: Tensor | None, block: int, shift: int, scale: float
) -> Tensor:
    """See `api.block_attention`."""
    turn = None
    if rotation_LP2 is not None:
        turn = torch.view_as_complex(rotation_LP2.to(qkv_L3HK.dtype).contiguous())
    chunks = _chunks(*_blocks(offsets, block, shift), qkv_L3HK.dtype)
    return _Attention.apply(qkv_L3HK, turn, chunks, scale)  # pyright: ignore[reportReturnType]


class _Chunk(NamedTuple):
    """Blocks of like length: the event in each place `(G * N,)`; where lengths differ, which places hold one."""

    index: Tensor
    blocks: int
    held: Tensor | None
    mask: Tensor | None


def _blocks(offsets: Tensor, block: int, shift: int) -> tuple[Tensor, Tensor]:
    """Return first event and length of every block, the longest first."""
    lengths = offsets.diff()
    counts = torch.where(lengths > 0, (lengths + shift + block - 1) // block, 0)
    block_offsets = offsets_of_lengths(counts)
    row, nth = row_and_position(block_offsets, int(block_offsets[-1]))
    first = offsets[row] + nth * block - shift
    start, end = torch.maximum(first, offsets[row]), torch.minimum(first + block, offsets[row + 1])
    length, order = (end - start).sort(descending=True, stable=True)
    return start[order], length


def _chunks(start: Tensor, length: Tensor, dtype: torch.dtype) -> list[_Chunk]:
    chunks, sizes, at = [], length.tolist(), 0
    while at < len(sizes):
        longest = sizes[at]
        to = min(len(sizes), at + max(1, EVENTS // longest))
        place = torch.arange(longest)
        index, held, mask = start[at:to, None] + place, None, None
        if sizes[to - 1] < longest:
            here = length[at:to, None]
            held = place < here
            # an empty place reads an event of its own block, so that a bad value never crosses to another
            index = start[at:to, None] + torch.minimum(place, here - 1)
            mask = torch.zeros(held.shape, dtype=dtype).masked_fill_(~held, float("-inf"))[:, None, None]
        chunks.append(_Chunk(index.flatten(), to - at, None if held is None else held.flatten(), mask))
        at = to
    return chunks


def _gathered(qkv: Tensor, turn: Tensor | None, chunk: _Chunk) -> Tensor:
    """Return the chunk's operands, turned, `(3, G, H, N, K)`."""
    x = qkv.index_select(0, chunk.index)
    if turn is not None:
        _pairs(x).mul_(turn.index_select(0, chunk.index)[:, None, None])
    return x.unflatten(0, (chunk.blocks, -1)).permute(2, 0, 3, 1, 4)


def _pairs(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def _scatter(to: Tensor, chunk: _Chunk, x: Tensor) -> None:
    if chunk.held is None:
        to.index_copy_(0, chunk.index, x)
    else:
        to.index_copy_(0, chunk.index[chunk.held], x[chunk.held])


class _Attention(torch.autograd.Function):
    """The loop over chunks, forward and backward; only answers and sums of exponentials are kept between the two."""

    @staticmethod
    def forward(ctx: Any, qkv, turn, chunks, scale):
        L, _, H, K = qkv.shape
        out, sums = qkv.new_empty(L, H, K), []
        for chunk in chunks:
            q, k, v = _gathered(qkv, turn, chunk)
            part, log_sum = flash(q, k, v, 0.0, False, attn_mask=chunk.mask, scale=scale)
            # the fused call answers 0 to a query that is not finite: show it instead
            part.add_(q, alpha=0)
            _scatter(out, chunk, part.transpose(1, 2).flatten(0, 1))
            sums.append(log_sum)
        ctx.save_for_backward(qkv, turn, out, *sums)
        ctx.settings = chunks, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad):
        qkv, turn, out, *sums = ctx.saved_tensors
        chunks, scale = ctx.settings
        d_qkv = qkv.new_empty(qkv.shape)
        for chunk, log_sum in zip(chunks, sums, strict=True):
            q, k, v = _gathered(qkv, turn, chunk)
            d_out, answers = (x.index_select(0, chunk.index) for x in (grad, out))
            if chunk.held is not None:  # places that only repeat an event answer nobody
                d_out.masked_fill_(~chunk.held[:, None, None], 0)
            d_out, answers = (x.unflatten(0, (chunk.blocks, -1)).transpose(1, 2) for x in (d_out, answers))
            parts = flash_backward(
                d_out, q, k, v, answers, log_sum, 0.0, False, attn_mask=chunk.mask, scale=scale
            )
            d = torch.stack([p.transpose(1, 2).flatten(0, 1) for p in parts], dim=1)
            if turn is not None:
                _pairs(d).mul_(turn.index_select(0, chunk.index).conj()[:, None, None])
            _scatter(d_qkv, chunk, d)
        return d_qkv, None, None, None
