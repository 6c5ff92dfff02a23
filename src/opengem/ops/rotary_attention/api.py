"""Self-attention over dense rows with rotary encoding of queries, keys and values. The one door."""

from torch import Tensor

from opengem.errors import ConfigError
from opengem.ops.backend import Backend, call
from opengem.ops.rotary_attention import composed, fused, reference

BACKENDS = (
    Backend("fused", fused.rotary_attention, fused.obstacle),
    Backend("composed", composed.rotary_attention),
    Backend("reference", reference.rotary_attention),
)
"""Backends in order of preference; the last one is the meaning."""


def rotary_attention(
    qkv_BN3HK: Tensor,
    rotation_NP2: Tensor | None = None,
    *,
    seen_BN: Tensor | None = None,
    band_NN: Tensor | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attend between the N tokens of each row.

    With u the rotation: `o_i = sum_j softmax_j(scale <u_i q_i, u_j k_j>) u_j v_j` over the j that i sees.

    Args:
        qkv_BN3HK: Queries, keys and values `(B, N, 3, H, K)`, floating point.
        rotation_NP2: Cosine and sine by which the pair (2p, 2p + 1) is turned, `(N, K / 2, 2)`; `None` for no
            rotation.
        seen_BN: Which keys anybody may see, `(B, N)` bool; each row needs one that every query sees.
        band_NN: Which keys query i may see, `(N, N)` bool.
        scale: Factor on the scores; `None` for `K ** -0.5`.
        backend: `auto`, `fused` (CPU), `composed` or `reference`.

    Returns:
        `(B, N, H, K)`.

    Raises:
        ConfigError: A shape is wrong.
        BackendUnavailable: The named backend cannot run here.

    Source: rotation of all three as in the helper of Meta's released attention code.
    """
    if qkv_BN3HK.dim() != 5 or qkv_BN3HK.shape[2] != 3 or not qkv_BN3HK.is_floating_point():
        raise ConfigError(
            f"rotary_attention: qkv must be floating point (B, N, 3, H, K), got {tuple(qkv_BN3HK.shape)} "
            f"{qkv_BN3HK.dtype}"
        )
    _, N, _, _, K = qkv_BN3HK.shape
    if rotation_NP2 is not None and (K % 2 or tuple(rotation_NP2.shape) != (N, K // 2, 2)):
        raise ConfigError(
            f"rotary_attention: rotation must be (N, K / 2, 2) with K even, got {tuple(rotation_NP2.shape)} "
            f"for N = {N}, K = {K}"
        )
    scale = K**-0.5 if scale is None else scale
    return call("rotary_attention", BACKENDS, backend, qkv_BN3HK, rotation_NP2, seen_BN, band_NN, scale)
