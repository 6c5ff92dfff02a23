"""GDPA as batched matrix products over padded rows."""

import torch
from torch import Tensor

from opengem.ops.gdpa.activations import activate
from opengem.ops.jagged_layout import pad, size_of, unpad


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
    """See `api.gdpa`."""
    if k_offsets is not None:
        # zeros behind a row's values add Act(.) * 0: nothing has to be masked
        longest = _longest(k_offsets) if max_k is None else max_k
        k, v = (pad(x, k_offsets, longest, newest_last=False) for x in (k, v))
    if request_of_row is not None:
        k, v = k.index_select(0, request_of_row), v.index_select(0, request_of_row)
    if q_offsets is not None:
        longest = _longest(q_offsets) if max_q is None else max_q
        q_BNHK = pad(q, q_offsets, longest, newest_last=False)
        return unpad(_dense(q_BNHK, k, v, activation, alpha), q_offsets, newest_last=False)
    return _dense(q if q.dim() == 4 else q.expand(k.shape[0], -1, -1, -1), k, v, activation, alpha)


def _dense(
    q_BNHK: Tensor, k_BMHK: Tensor, v_BMHK: Tensor, activation: tuple[str, ...], alpha: float
) -> Tensor:
    # the keys are the fewer: they carry the scale
    scores_BHNM = torch.matmul(q_BNHK.transpose(1, 2), (k_BMHK * alpha).permute(0, 2, 3, 1))
    weights_BHNM = activate(scores_BHNM, activation, 1)
    return torch.matmul(weights_BHNM, v_BMHK.transpose(1, 2)).transpose(1, 2)


def _longest(offsets: Tensor) -> int:
    lengths = torch.cat([offsets[1:] - offsets[:-1], offsets.new_zeros(1)])
    return size_of(lengths.max())
