"""Softmax attention inside independent blocks of a jagged sequence. The one door."""

from torch import Tensor

from opengem.errors import ConfigError
from opengem.ops import triton_target
from opengem.ops.arguments import check_offsets, check_operands
from opengem.ops.backend import Backend, call
from opengem.ops.block_attention import cpu, native, packed, reference, triton

BACKENDS = (
    Backend("triton", triton.block_attention, triton.obstacle, triton_target.suits),
    Backend("native", native.block_attention, native.obstacle, native.suits),
    Backend("cpu", cpu.block_attention, cpu.obstacle),
    Backend("packed", packed.block_attention),
    Backend("reference", reference.block_attention),
)
"""Backends in order of preference; the last one is the meaning."""


def block_attention(
    qkv_L3HK: Tensor,
    offsets: Tensor,
    rotation_LP2: Tensor | None = None,
    *,
    block: int = 64,
    shift: int = 0,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attend from each event to all events of its block, both directions.

    Event p of its row (p = 0 the oldest) belongs to block `(p + shift) // block` of that row; with u the
    rotation, `o_i = sum_j softmax_j(scale <u_i q_i, u_j k_j>) u_j v_j` over the j of the block of i. A block
    never crosses rows. Cost: `4 H K` times the sum of squared block lengths, linear in L.

    Args:
        qkv_L3HK: Queries, keys and values `(L, 3, H, K)`, floating point.
        offsets: `(R + 1,)` int64 or int32.
        rotation_LP2: `(L, K / 2, 2)`, cosine and sine by which the pair (2p, 2p + 1) of queries, keys and
            values of each event is turned; `None` for no rotation.
        block: Events a block, at least 1.
        shift: Events by which borders are moved towards the start of the row, 0 to block - 1. Half a block
            on every other layer lets information cross borders.
        scale: Factor on the scores; `None` for `K ** -0.5`.
        backend: `auto`, `triton` (CUDA, bfloat16 or float16), `native` (CPU, float32, compiled), `cpu` (torch alone),
            `packed` or `reference`.

    Returns:
        `(L, H, K)`.

    Raises:
        ConfigError: A shape or setting is wrong.
        BackendUnavailable: The named backend cannot run here.

    Source: blocks of 64, non-causal, rotation of all three: Meta's released attention code. The shifted
        borders are our reconstruction (they stand in no source).
    """
    if qkv_L3HK.dim() != 4 or qkv_L3HK.shape[1] != 3 or not qkv_L3HK.is_floating_point():
        raise ConfigError(
            f"block_attention: qkv must be floating point (L, 3, H, K), got {tuple(qkv_L3HK.shape)} {qkv_L3HK.dtype}"
        )
    L, _, _, K = qkv_L3HK.shape
    if block < 1 or not 0 <= shift < block:
        raise ConfigError(
            f"block_attention: block must be at least 1 and shift from 0 to block - 1, got block {block}, shift {shift}"
        )
    if rotation_LP2 is not None and (K % 2 or tuple(rotation_LP2.shape) != (L, K // 2, 2)):
        raise ConfigError(
            f"block_attention: rotation must be (L, K / 2, 2) with K even, got {tuple(rotation_LP2.shape)} for K = {K}"
        )
    check_operands("block_attention", {"qkv": qkv_L3HK}, {"offsets": offsets, "rotation": rotation_LP2})
    check_offsets("block_attention", "offsets", offsets, L)
    scale = K**-0.5 if scale is None else scale
    return call(
        "block_attention", BACKENDS, backend, qkv_L3HK, offsets.long(), rotation_LP2, block, shift, scale
    )
