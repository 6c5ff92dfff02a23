"""Block attention on CPU: index arithmetic around one autograd function that holds all the rest."""

import torch
from torch import Tensor

from opengem.ops.block_attention.packed import blocks
from opengem.ops.rotary_attention import fused

obstacle = fused.obstacle


def block_attention(
    qkv_L3HK: Tensor, offsets: Tensor, rotation_LP2: Tensor | None, block: int, shift: int, scale: float
) -> Tensor:
    """See `api.block_attention`."""
    index, held, slot = blocks(offsets, qkv_L3HK.shape[0], block, shift)
    mask = torch.zeros_like(held, dtype=qkv_L3HK.dtype).masked_fill(~held, float("-inf"))[:, None, None]
    return fused.packed_attention(qkv_L3HK, rotation_LP2, mask, scale, (index, slot))
