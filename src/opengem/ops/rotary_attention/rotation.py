"""Rotation of pairs of values by given angles."""

import torch
from torch import Tensor


def rotate(x: Tensor, rotation_P2: Tensor) -> Tensor:
    """Turn each pair (2p, 2p + 1) of the last dimension by an angle.

    `(a, b) -> (a cos - b sin, a sin + b cos)`.

    Args:
        x: `(..., K)` floating point, K even.
        rotation_P2: Cosine and sine, `(..., K / 2, 2)`, broadcast against `x`.

    Returns:
        As `x`, in its dtype; computed in float32 where `x` is shorter.
    """
    pairs = x.unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling() or x.dtype not in (torch.float32, torch.float64):
        cos, sin = rotation_P2.unbind(-1)
        first, second = pairs.unbind(-1)
        turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
        return turned.flatten(-2).to(x.dtype)
    # in eager mode one complex product is several times cheaper than four real ones and a stack
    turn = torch.view_as_complex(rotation_P2.to(x.dtype).contiguous())
    return torch.view_as_real(as_complex(x) * turn).flatten(-2)


def as_complex(x: Tensor) -> Tensor:
    """Return `(..., K)` as complex `(..., K / 2)`: a view where the pairs lie as complex numbers do."""
    *others, last = x.stride()
    if last != 1 or x.storage_offset() % 2 or any(n % 2 for n in others):
        x = x.contiguous()
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))
