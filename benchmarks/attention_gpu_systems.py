"""The operations that `attention_gpu.py` measures, as each system computes them."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from opengem.ops.block_attention import block_attention
from opengem.ops.gdpa import gdpa
from opengem.ops.jagged_attention import jagged_attention
from opengem.ops.rotary_attention import rotate

BLOCK = 64
CHECKED_ROWS = 8
"""Rows, the last ones, of which an answer is held against the reference."""


class Unavailable(Exception):  # noqa: N818 - reads as the fact that it states
    """A system cannot run here."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one measurement.

    Attributes:
        operation: A key of `SYSTEMS`.
        rows: Rows B.
        heads: Heads H.
        width: Width of a head K.
        longest: Events of the longest row.
        sparsity: Mean length over the longest, 0.5 to 1.
        keys: Keys of each row where they are of one number (the generated feed-forward's width), else 0.
    """

    operation: str
    rows: int
    heads: int
    width: int
    longest: int
    sparsity: float
    keys: int = 0

    def described(self) -> dict:
        """Return the sizes by name."""
        return asdict(self)

    def lengths(self) -> np.ndarray:
        """Draw lengths, uniform between (2 s - 1) times the longest and the longest; the same ones each time."""
        least = int((2 * self.sparsity - 1) * self.longest)
        return np.random.default_rng(0).integers(least, self.longest, self.rows, endpoint=True)

    def pairs(self, lengths: np.ndarray) -> int:
        """Return how many pairs of query and key see each other in a head."""
        if self.operation == "GDPA":
            return int(lengths.sum()) * self.keys
        if self.operation == "block attention":
            return int((lengths // BLOCK * BLOCK**2 + (lengths % BLOCK) ** 2).sum())
        return int((lengths.astype(np.int64) ** 2).sum())

    def flops(self, lengths: np.ndarray, both: bool) -> float:
        """Return the useful FLOPs of a forward pass, or of forward and backward."""
        return 4.0 * self.heads * self.width * self.pairs(lengths) * (3.5 if both else 1)


@dataclass
class Problem:
    """Inputs of one measurement."""

    shape: Shape
    lengths: np.ndarray
    offsets: Tensor
    tensors: list[Tensor]
    rotation: Tensor

    @classmethod
    def draw(cls, shape: Shape, device: str, dtype: torch.dtype) -> "Problem":
        """Draw normal values: `qkv` for block attention, else `q`, `k` and `v`."""
        torch.manual_seed(0)
        lengths = shape.lengths()
        total, inner = int(lengths.sum()), (shape.heads, shape.width)
        make = lambda *sizes: torch.randn(*sizes, *inner, device=device, dtype=dtype)  # noqa: E731
        if shape.operation == "GDPA":
            keys = shape.rows, shape.keys
            tensors = [make(total), make(*keys), make(*keys)]
        elif shape.operation == "block attention":
            tensors = [make(total, 3)]
        else:
            tensors = [make(total) for _ in range(3)]
        offsets = torch.tensor(np.concatenate([[0], lengths.cumsum()]), device=device)
        place = torch.cat([torch.arange(int(n)) for n in lengths])
        angle = place[:, None] / 1e4 ** (torch.arange(shape.width // 2) / (shape.width // 2))
        rotation = torch.stack([angle.cos(), angle.sin()], dim=-1).to(device)
        return cls(shape, lengths, offsets, tensors, rotation)

    def last_rows(self) -> "Problem":
        """Return the problem of the last few rows alone, in double precision."""
        first = max(self.shape.rows - CHECKED_ROWS, 0)
        begin = int(self.offsets[first])
        jagged = self.shape.operation != "GDPA"
        tensors = [
            x[begin if jagged or i == 0 else first :].double().detach() for i, x in enumerate(self.tensors)
        ]
        rotation = self.rotation[begin:].double()
        return Problem(self.shape, self.lengths[first:], self.offsets[first:] - begin, tensors, rotation)


@dataclass
class Call:
    """How a system computes an operation.

    Attributes:
        tensors: Its operands, in the layout that it likes best: to make them is not part of the work.
        run: Function of the operands.
        read: What of its answer is the operation's, `(L, H, K)`.
    """

    tensors: list[Tensor]
    run: Callable[..., Tensor]
    read: Callable[[Tensor], Tensor] = lambda out: out


def ours(made: Problem, backend: str = "triton") -> Call:
    """Return this project's operation."""
    return Call(made.tensors, _ours(made, backend))


def _ours(made: Problem, backend: str) -> Callable[..., Tensor]:
    if made.shape.operation == "GDPA":
        alpha = made.shape.width**-0.5
        return lambda q, k, v: gdpa(
            q, k, v, q_offsets=made.offsets, alpha=alpha, max_q=made.shape.longest, backend=backend
        )
    if made.shape.operation == "block attention":
        return lambda qkv: block_attention(qkv, made.offsets, made.rotation, block=BLOCK, backend=backend)
    return lambda q, k, v: jagged_attention(q, k, v, made.offsets, backend=backend)


def padded(made: Problem) -> Callable[..., Tensor]:
    """Return the operation on rows padded to the longest; without a mask where no row is shorter."""
    longest, rows = made.shape.longest, len(made.lengths)
    held = torch.arange(longest, device=made.offsets.device) < made.offsets.diff()[:, None]
    # where each value stands, found once: nothing is read from the device in a call
    place = held.flatten().nonzero().flatten()

    def fill(x: Tensor) -> Tensor:
        empty = x.new_zeros(rows * longest, *x.shape[1:])
        return empty.index_copy(0, place, x).unflatten(0, (rows, longest))

    def strip(x: Tensor) -> Tensor:
        return x.flatten(0, 1).index_select(0, place)

    if made.shape.operation == "GDPA":
        alpha = made.shape.width**-0.5

        def feed_forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scores = fill(q).transpose(1, 2) @ (k * alpha).permute(0, 2, 3, 1)
            return strip((F.gelu(scores) @ v.transpose(1, 2)).transpose(1, 2))

        return feed_forward
    full = bool((made.lengths == longest).all())
    # an empty row sees its padding, which is zeros
    held = held | (made.offsets.diff() == 0)[:, None]

    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        heads_first = (x.transpose(-3, -2) for x in (q, k, v))
        return F.scaled_dot_product_attention(*heads_first, attn_mask=seen).transpose(-3, -2)

    if made.shape.operation == "block attention":
        more = -longest % BLOCK
        blocks = F.pad(held, (0, more)).unflatten(1, (-1, BLOCK)).flatten(0, 1)
        # an empty block sees its padding too
        blocks = blocks | ~blocks.any(1, keepdim=True)
        seen = None if full and not more else blocks[:, None, None]

        def in_blocks(qkv: Tensor) -> Tensor:
            turned = F.pad(fill(rotate(qkv, made.rotation[:, None, None])), (0, 0) * 3 + (0, more))
            q, k, v = turned.unflatten(1, (-1, BLOCK)).flatten(0, 1).unbind(2)
            out = attend(q, k, v, seen).unflatten(0, (rows, -1)).flatten(1, 2)
            return strip(out[:, :longest])

        return in_blocks
    seen = None if full else held[:, None, None]
    return lambda q, k, v: strip(attend(fill(q), fill(k), fill(v), seen))


def compiled_padded(made: Problem) -> Call:
    """Return the padded operation, compiled whole for its shape."""
    # code of earlier shapes counts towards the limit beyond which nothing is compiled
    torch.compiler.reset()
    return Call(made.tensors, torch.compile(padded(made), dynamic=False, fullgraph=True))


def fbgemm(made: Problem) -> Call:
    """Return FBGEMM's jagged flash attention: heads first, no scale, weights divided by the longest length."""
    attention = fbgemm_operator()
    longest, scale = made.shape.longest, made.shape.width**-0.5
    q, k, v = made.tensors
    tensors = [x.transpose(0, 1).contiguous() for x in (q * scale, k, v)]
    return Call(
        tensors,
        lambda q, k, v: attention(q, k, v, made.offsets, longest),
        lambda out: out.transpose(0, 1) * longest,
    )


def fbgemm_operator() -> Callable[..., Tensor]:
    """Return FBGEMM's operator, or raise `Unavailable` with the reason."""
    name = "sll_multi_head_jagged_flash_attention"
    if importlib.util.find_spec("fbgemm_gpu") is None:
        raise Unavailable("fbgemm_gpu is not installed")
    try:
        importlib.import_module("fbgemm_gpu.sll")
        operator = getattr(torch.ops.fbgemm, name)
    except Exception as reason:  # a wheel for another torch fails in many ways
        raise Unavailable(f"fbgemm_gpu cannot be loaded: {reason}") from reason
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"fbgemm::{name}", "CUDA"):
        raise Unavailable("this build of fbgemm_gpu has no jagged flash attention for CUDA")
    return operator


def gap(made: Problem, call: Call) -> float:
    """Return the largest difference of a system from the reference on the last rows, over the largest value."""
    few = made.last_rows()
    expected = _ours(few, "reference")(*few.tensors)
    with torch.no_grad():
        found = call.read(call.run(*call.tensors))[made.tensors[0].shape[0] - expected.shape[0] :]
    return float((found.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-9))


SYSTEMS: dict[str, dict[str, Callable[[Problem], Call]]] = {
    "jagged attention": {"triton": ours, "FBGEMM": fbgemm, "compiled padded": compiled_padded},
    "GDPA": {"triton": ours, "compiled padded": compiled_padded},
    "block attention": {"triton": ours, "compiled padded": compiled_padded},
}
"""Operation -> system -> how to build it for a problem."""
