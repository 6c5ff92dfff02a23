"""Rotary self-attention over dense rows: the meaning, readable and slow."""

import torch
from torch import Tensor


def rotary_attention(
    qkv_BN3HK: Tensor,
    rotation_NP2: Tensor | None,
    seen_BN: Tensor | None,
    band_NN: Tensor | None,
    scale: float,
) -> Tensor:
    """See `api.rotary_attention`."""
    if rotation_NP2 is not None:
        cos, sin = (rotation_NP2[..., None, None, :, i] for i in (0, 1))
        even, odd = qkv_BN3HK[..., 0::2], qkv_BN3HK[..., 1::2]
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        qkv_BN3HK = turned.flatten(-2).to(qkv_BN3HK.dtype)
    q, k, v = qkv_BN3HK.unbind(2)
    scores_BHNM = scale * torch.einsum("bnhk,bmhk->bhnm", q, k)
    if seen_BN is not None:
        scores_BHNM = scores_BHNM.masked_fill(~seen_BN[:, None, None], float("-inf"))
    if band_NN is not None:
        scores_BHNM = scores_BHNM.masked_fill(~band_NN, float("-inf"))
    return torch.einsum("bhnm,bmhk->bnhk", torch.softmax(scores_BHNM, dim=3), v)
