"""GDPA row by row: the meaning, readable and slow."""

from itertools import pairwise

import torch
from torch import Tensor

from opengem.ops.gdpa.activations import activate


def gdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor | None,
    k_offsets: Tensor | None,
    request_of_row: Tensor | None,
    activation: tuple[str, ...],
    alpha: float,
    max_q: int | None,
    max_k: int | None,
) -> Tensor:
    """See `api.gdpa`; the longest lengths are not needed here."""
    keys, values = _rows(k, k_offsets), _rows(v, k_offsets)
    if request_of_row is not None:
        keys = [keys[i] for i in request_of_row.tolist()]
        values = [values[i] for i in request_of_row.tolist()]
    seeds = q_offsets is None and q.dim() == 3
    queries = [q] * len(keys) if seeds else _rows(q, q_offsets)
    out = []
    for q_NHK, k_MHK, v_MHK in zip(queries, keys, values, strict=True):
        scores_HNM = alpha * torch.einsum("nhk,mhk->hnm", q_NHK, k_MHK)
        out.append(torch.einsum("hnm,mhk->nhk", activate(scores_HNM, activation, 0), v_MHK))
    if q_offsets is not None:
        return torch.cat(out) if out else q
    return torch.stack(out) if out else q.new_zeros(0, *q.shape[-3:])


def _rows(x: Tensor, offsets: Tensor | None) -> list[Tensor]:
    if offsets is None:
        return list(x)
    bounds = offsets.tolist()
    return [x[a:b] for a, b in pairwise(bounds)]
