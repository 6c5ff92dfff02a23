"""Block attention as one dense batch of blocks: index arithmetic, one gather, one call, one gather back."""

import torch
import torch.nn.functional as F
from torch import Tensor

from opengem.ops.jagged_layout import offsets_of_lengths, row_and_position, size_of
from opengem.ops.rotary_attention import rotate


def block_attention(
    qkv_L3HK: Tensor, offsets: Tensor, rotation_LP2: Tensor | None, block: int, shift: int, scale: float
) -> Tensor:
    """See `api.block_attention`."""
    L, _, H, K = qkv_L3HK.shape
    if rotation_LP2 is not None:
        qkv_L3HK = rotate(qkv_L3HK, rotation_LP2[:, None, None])
    index, held, slot = blocks(offsets, L, block, shift)
    packed = qkv_L3HK.reshape(L, 3 * H * K).index_select(0, index.reshape(-1)).view(-1, block, 3, H, K)
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
    mask = torch.zeros_like(held, dtype=q.dtype).masked_fill(~held, float("-inf"))[:, None, None, :]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    # the fused call answers 0 to a query all of whose scores are minus infinity: show it instead
    out = torch.add(out, q, alpha=0)
    return out.transpose(1, 2).reshape(-1, H * K).index_select(0, slot).view(L, H, K)


def blocks(offsets: Tensor, total: int, block: int, shift: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value in each place `(blocks, block)`, whether there is one, and each value's place `(L,)`."""
    lengths = offsets[1:] - offsets[:-1]
    counts = torch.where(lengths > 0, (lengths + shift + block - 1) // block, 0)
    block_offsets = offsets_of_lengths(counts)
    row, nth = row_and_position(block_offsets, size_of(block_offsets[-1]))
    first, last = offsets[row][:, None], offsets[row + 1][:, None]
    value = first + (nth * block - shift)[:, None] + torch.arange(block, device=offsets.device)
    held = (value >= first) & (value < last)
    # an empty place reads a value of its own row, so that a bad value never crosses to another row
    value = torch.minimum(torch.maximum(value, first), last - 1)
    row, position = row_and_position(offsets, total)
    return value, held, block_offsets[row] * block + position + shift
