"""Jagged softmax attention row by row: the meaning, readable and slow."""

import torch
from torch import Tensor


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
    """See `api.jagged_attention`; the longest lengths are not needed here."""
    q_bounds, k_bounds = q_offsets.tolist(), k_offsets.tolist()
    out = []
    for row in range(len(q_bounds) - 1):
        q = q_LHK[q_bounds[row] : q_bounds[row + 1]]
        k, v = (x[k_bounds[row] : k_bounds[row + 1]] for x in (k_MHK, v_MHK))
        scores_HNM = scale * torch.einsum("nhk,mhk->hnm", q, k)
        ahead = torch.arange(k.shape[0], device=k.device) - torch.arange(q.shape[0], device=k.device)[:, None]
        if causal:
            scores_HNM = scores_HNM.masked_fill(ahead > 0, float("-inf"))
        if window is not None:
            scores_HNM = scores_HNM.masked_fill(ahead.abs() > window, float("-inf"))
        out.append(torch.einsum("hnm,mhk->nhk", torch.softmax(scores_HNM, dim=2), v))
    return torch.cat(out) if out else q_LHK
