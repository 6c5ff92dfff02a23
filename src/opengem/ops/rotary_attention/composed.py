"""Rotary self-attention over dense rows through torch's fused softmax attention; any device, exports."""

import torch
import torch.nn.functional as F
from torch import Tensor

from opengem.ops.rotary_attention.rotation import rotate


def rotary_attention(
    qkv_BN3HK: Tensor,
    rotation_NP2: Tensor | None,
    seen_BN: Tensor | None,
    band_NN: Tensor | None,
    scale: float,
) -> Tensor:
    """See `api.rotary_attention`."""
    if rotation_NP2 is not None:
        qkv_BN3HK = rotate(qkv_BN3HK, rotation_NP2[..., None, None, :, :])
    q, k, v = qkv_BN3HK.permute(2, 0, 3, 1, 4).unbind(0)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias(seen_BN, band_NN, q.dtype), scale=scale)
    return out.transpose(1, 2)


def bias(seen_BN: Tensor | None, band_NN: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return what is added to the scores, `(B or 1, 1, N or 1, N)`: 0 where a key is seen, minus infinity elsewhere."""
    if seen_BN is None and band_NN is None:
        return None
    if seen_BN is None:
        seen = band_NN[None, None]  # type: ignore[index]
    else:
        seen = seen_BN[:, None, None] if band_NN is None else seen_BN[:, None, None] & band_NN
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, float("-inf"))
