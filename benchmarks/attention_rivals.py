"""What else would compute these operations with torch alone: the rivals of `attention.py`."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from opengem.ops.jagged_layout import pad, unpad
from opengem.ops.rotary_attention import rotate

BLOCK = 64


class Rival(NamedTuple):
    """The kinds of operation that it can serve, and how to make it for a problem."""

    kinds: tuple[str, ...]
    build: Callable[[Any], Callable[..., Tensor]]
    pads: bool = False


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend between `(..., N, H, K)`."""
    heads_first = (x.transpose(-3, -2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads_first, attn_mask=mask).transpose(-3, -2)


def _gelu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """GDPA between `(..., N, H, K)`."""
    q, k, v = (x.transpose(-3, -2) for x in (q, k, v))
    return (F.gelu(q @ (k * 0.1).mT) @ v).transpose(-3, -2)


def _band(length: int, window: int | None) -> Tensor | None:
    if window is None or length <= window + 1:
        return None
    place = torch.arange(length)
    return (place[:, None] - place).abs() <= window


def _loop(made: Any) -> Callable[..., Tensor]:
    """One call a row or block; rows are split, not sliced, whose backward is the cheaper one."""
    lengths = made.lengths.tolist()
    if made.kind == "block":
        pieces = [p for n in lengths for p in [BLOCK] * (n // BLOCK) + [n % BLOCK] * (n % BLOCK > 0)]

        def blocks(qkv: Tensor) -> Tensor:
            turned = rotate(qkv, made.rotation[:, None, None])
            # a batch dimension of one: without it the fused call is not taken
            return torch.cat([_sdpa(*x[None].unbind(2))[0] for x in turned.split(pieces)])

        return blocks
    if made.kind == "gdpa":
        return lambda q, k, v: torch.cat(
            [_gelu(*x) for x in zip(q.split(lengths), k.unbind(), v.unbind(), strict=True)]
        )
    bands = [_band(n, made.window) for n in lengths]

    def rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(x[None].split(lengths, dim=1) for x in (q, k, v)), bands, strict=True)
        return torch.cat([_sdpa(*x)[0] for x in parts])

    return rows


def _dense_blocks(made: Any) -> Callable[..., Tensor]:
    """Every block gathered into one dense batch; a block that is not full is padded."""
    index, held, slot = [], [], []
    for first, last in pairwise(made.offsets.tolist()):
        for start in range(first, last, BLOCK):
            place = torch.arange(start, start + BLOCK)
            slot.append(torch.arange(min(BLOCK, last - start)) + len(index) * BLOCK)
            held.append(place < last)
            index.append(place.clamp(max=last - 1))
    index, held, slot = torch.cat(index), torch.stack(held)[:, None, None], torch.cat(slot)

    def call(qkv: Tensor) -> Tensor:
        x = rotate(qkv, made.rotation[:, None, None]).index_select(0, index).unflatten(0, (-1, BLOCK))
        return _sdpa(*x.unbind(2), held).flatten(0, 1).index_select(0, slot)

    return call


def _padded(made: Any) -> Callable[..., Tensor]:
    """Rows padded to the longest."""
    longest = int(made.lengths.max())
    held = torch.arange(longest) < made.offsets.diff()[:, None]
    offsets = made.offsets
    fill = lambda x: pad(x, offsets, longest, newest_last=False)  # noqa: E731
    if made.kind == "block":
        seen = held.view(-1, 1, 1, BLOCK) | (torch.arange(BLOCK) == 0)  # an empty block sees a zero

        def blocks(qkv: Tensor) -> Tensor:
            x = fill(rotate(qkv, made.rotation[:, None, None])).view(-1, BLOCK, *qkv.shape[1:])
            out = _sdpa(*x.unbind(2), seen)
            return unpad(out.reshape(-1, longest, *out.shape[2:]), offsets, newest_last=False)

        return blocks
    if made.kind == "gdpa":
        return lambda q, k, v: unpad(_gelu(fill(q), k, v), offsets, newest_last=False)
    seen, band = held[:, None, None], _band(longest, made.window)
    if band is not None:
        seen = (seen & band) | torch.eye(longest, dtype=torch.bool)  # an empty place sees itself

    def rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return unpad(_sdpa(fill(q), fill(k), fill(v), seen), offsets, newest_last=False)

    return rows


def _compiled(made: Any) -> Callable[..., Tensor]:
    return torch.compile(_padded(made), dynamic=False)


def _nested(made: Any) -> Callable[..., Tensor]:
    """Nested tensors of rows, or of blocks; on a CPU torch pads them inside."""
    offsets = made.offsets
    if made.kind == "block":
        starts = [s for a, b in pairwise(offsets.tolist()) for s in range(a, b, BLOCK)]
        offsets = torch.tensor([*starts, int(offsets[-1])])

    def call(*tensors: Tensor) -> Tensor:
        if made.kind == "block":
            tensors = rotate(tensors[0], made.rotation[:, None, None]).unbind(1)
        return _sdpa(
            *(torch.nested.nested_tensor_from_jagged(x.contiguous(), offsets) for x in tensors)
        ).values()

    return call


RIVALS: dict[str, Rival] = {
    "loop": Rival(("jagged", "block", "gdpa"), _loop),
    "dense blocks": Rival(("block",), _dense_blocks),
    "padded": Rival(("jagged", "block", "gdpa"), _padded, pads=True),
    "compiled padded": Rival(("jagged", "block", "gdpa"), _compiled, pads=True),
    "nested": Rival(("jagged", "block"), _nested, pads=True),
}
"""Name -> rival."""
