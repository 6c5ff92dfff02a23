"""Floating-point operations of the custom operators, for torch's FLOP counter, counted on real lengths."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def attention_flops() -> dict[Any, Callable]:
    """Return operator -> forward FLOPs of a call with its arguments: `4 H K` times the pairs that see each other."""
    # importing an operation registers its operator
    from opengem.ops.block_attention import native as block
    from opengem.ops.gdpa import native as gdpa
    from opengem.ops.jagged_attention import native as jagged

    del block, gdpa, jagged
    formulas = {
        torch.ops.opengem.jagged_attention: _jagged,
        torch.ops.opengem.block_attention: _block,
        torch.ops.opengem.gdpa: _gdpa,
    }
    for formula in formulas.values():
        formula._get_raw = True  # the counter then hands over tensors, not shapes
    return formulas


def _jagged(q, k, v, q_offsets, k_offsets, back: int, ahead: int, scale, out_val=None) -> int:
    n, m = q_offsets.diff(), k_offsets.diff()
    if min(back, ahead) >= q.shape[0]:
        pairs = (n * m).sum()
    else:
        # a query p events from the start sees min(p, back) before it, itself, and min(n - 1 - p, ahead) after it
        pairs = (n + _near(n, back) + _near(n, ahead)).sum()
    return 4 * q.shape[1] * q.shape[2] * int(pairs)


def _near(n: Tensor, reach: int) -> Tensor:
    """Return the sum over p < n of min(p, reach)."""
    inner = n.clamp(max=reach + 1)
    return inner * (inner - 1) // 2 + (n - inner) * reach


def _block(qkv, offsets, rotation, block: int, shift: int, scale, out_val=None) -> int:
    n = offsets.diff()
    first = n.clamp(max=block - shift)
    full, last = (n - first) // block, (n - first) % block
    return 4 * qkv.shape[2] * qkv.shape[3] * int((first**2 + full * block**2 + last**2).sum())


def _gdpa(q, k, v, q_offsets, k_offsets, request_of_row, kinds, alpha, out_val=None) -> int:
    m = torch.full((k.shape[0],), k.shape[1]) if k_offsets is None else k_offsets.diff()
    m = m if request_of_row is None else m[request_of_row]
    n = torch.full_like(m, q.shape[-3]) if q_offsets is None else q_offsets.diff()
    return 4 * q.shape[-2] * q.shape[-1] * int((n * m).sum())
