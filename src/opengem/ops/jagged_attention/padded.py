"""Jagged softmax attention as one dense call over padded rows: best for short rows of like length."""

import torch
import torch.nn.functional as F
from torch import Tensor

from opengem.ops.jagged_layout import pad, pad_mask, size_of, unpad


def jagged_attention(
    q_LHK: Tensor,
    k_MHK: Tensor,
    v_MHK: Tensor,
    q_offsets: Tensor,
    k_offsets: Tensor,
    causal: bool,
    window: int | None,
    scale: float,
    max_q: int | None,
    max_k: int | None,
) -> Tensor:
    """See `api.jagged_attention`."""
    max_q = longest(q_offsets) if max_q is None else max_q
    max_k = longest(k_offsets) if max_k is None else max_k
    q = pad(q_LHK, q_offsets, max_q, newest_last=False).transpose(1, 2)
    k, v = (pad(x, k_offsets, max_k, newest_last=False).transpose(1, 2) for x in (k_MHK, v_MHK))
    held_RM = pad_mask(k_offsets, max_k, newest_last=False)
    # a row without keys attends to its padding, which is zeros: its answer is zero, not NaN
    seen = (held_RM | (k_offsets[1:] == k_offsets[:-1])[:, None])[:, None, None]
    if causal or window is not None:
        ahead = torch.arange(max_k, device=q.device) - torch.arange(max_q, device=q.device)[:, None]
        near = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
        near = near if window is None else near & (ahead.abs() <= window)
        # a padded query would see nothing: it sees itself
        seen = (seen & near) | (ahead == 0)
    bias = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, float("-inf"))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    # the fused call answers 0 to a query all of whose scores are minus infinity: show it instead
    out = torch.add(out, q, alpha=0)
    return unpad(out.transpose(1, 2), q_offsets, newest_last=False)


def longest(offsets: Tensor) -> int:
    """Return the length of the longest row, at least 1."""
    lengths = torch.cat([offsets[1:] - offsets[:-1], offsets.new_ones(1)])
    return size_of(lengths.max())
