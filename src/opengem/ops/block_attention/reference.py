"""Block attention, one block at a time: the meaning, readable and slow."""

from itertools import pairwise

import torch
from torch import Tensor


def block_attention(
    qkv_L3HK: Tensor, offsets: Tensor, rotation_LP2: Tensor | None, block: int, shift: int, scale: float
) -> Tensor:
    """See `api.block_attention`."""
    if rotation_LP2 is not None:
        qkv_L3HK = _rotated(qkv_L3HK, rotation_LP2)
    bounds = offsets.tolist()
    pieces = []
    for first, last in pairwise(bounds):
        for start in range(first - shift, last, block):
            q, k, v = qkv_L3HK[max(first, start) : min(last, start + block)].unbind(1)
            weights = torch.softmax(scale * torch.einsum("qhk,mhk->hqm", q, k), dim=2)
            pieces.append(torch.einsum("hqm,mhk->qhk", weights, v))
    return torch.cat(pieces) if pieces else qkv_L3HK[:, 2]


def _rotated(x_L3HK: Tensor, rotation_LP2: Tensor) -> Tensor:
    cos, sin = (rotation_LP2[:, None, None, :, i] for i in (0, 1))
    even, odd = x_L3HK[..., 0::2], x_L3HK[..., 1::2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return turned.flatten(-2).to(x_L3HK.dtype)
