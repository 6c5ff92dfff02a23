"""Softmax attention between the rows of jagged tensors. The one door."""

from torch import Tensor

from opengem.errors import ConfigError
from opengem.ops import triton_target
from opengem.ops.arguments import check_offsets, check_operands
from opengem.ops.backend import Backend, call
from opengem.ops.jagged_attention import cpu, native, padded, reference, triton

BACKENDS = (
    Backend("triton", triton.jagged_attention, triton.obstacle, triton_target.suits),
    Backend("native", native.jagged_attention, native.obstacle, native.suits),
    Backend("cpu", cpu.jagged_attention, cpu.obstacle, cpu.suits),
    Backend("padded", padded.jagged_attention),
    Backend("reference", reference.jagged_attention),
)
"""Backends in order of preference; the last one is the meaning."""


def jagged_attention(
    q_LHK: Tensor,
    k_MHK: Tensor,
    v_MHK: Tensor,
    q_offsets: Tensor,
    k_offsets: Tensor | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    max_q: int | None = None,
    max_k: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return `softmax(scale q k^T) v` row by row; a row without keys gives zeros.

    Cost: `4 H K` times the number of (query, key) pairs that see each other.

    Args:
        q_LHK: Queries `(L, H, K)`, floating point.
        k_MHK: Keys `(M, H, K)`.
        v_MHK: Values, as the keys.
        q_offsets: `(R + 1,)` int64 or int32.
        k_offsets: `(R + 1,)` int64 or int32; `None`: self-attention, keys stand on `q_offsets`.
        causal: Event i sees no event after it. Self-attention only.
        window: Event i sees events i - window to i + window; at least 0; `None` for no limit.
            Self-attention only; with `causal`, i - window to i.
        scale: Factor on the scores; `None` for `K ** -0.5`.
        max_q: Longest row of queries, if known; no row may be longer. Backends that pad need it under
            export or to avoid reading it from a device.
        max_k: Longest row of keys, likewise.
        backend: `auto`, `triton` (CUDA, bfloat16 or float16), `native` (CPU, float32, compiled), `cpu` (torch alone),
            `padded` or `reference`.

    Returns:
        `(L, H, K)`.

    Raises:
        ConfigError: A shape or setting is wrong.
        BackendUnavailable: The named backend cannot run here.

    Source: Jagged Flash Attention (2409.15373) for the layout; window as in Kunlun (2602.10016).
    """
    if k_offsets is not None and (causal or window is not None):
        raise ConfigError(
            "jagged_attention: causal and window need self-attention (k_offsets=None), got k_offsets"
        )
    if window is not None and window < 0:
        raise ConfigError(f"jagged_attention: window must be at least 0 events or None, got {window}")
    same = k_offsets is None
    if (
        q_LHK.dim() != 3
        or k_MHK.shape != v_MHK.shape
        or k_MHK.shape[1:] != q_LHK.shape[1:]
        or (same and k_MHK.shape != q_LHK.shape)
        or (k_offsets is not None and k_offsets.shape != q_offsets.shape)
    ):
        raise ConfigError(
            f"jagged_attention: q must be (L, H, K), k and v (M, H, K) (M = L without k_offsets), and both offsets "
            f"of one length; got q {tuple(q_LHK.shape)}, k {tuple(k_MHK.shape)}, v {tuple(v_MHK.shape)}"
        )
    offsets = {"q_offsets": q_offsets, "k_offsets": k_offsets}
    check_operands("jagged_attention", {"q": q_LHK, "k": k_MHK, "v": v_MHK}, offsets)
    check_offsets("jagged_attention", "q_offsets", q_offsets, q_LHK.shape[0])
    if k_offsets is not None:
        check_offsets("jagged_attention", "k_offsets", k_offsets, k_MHK.shape[0])
    scale = q_LHK.shape[2] ** -0.5 if scale is None else scale
    q_offsets = q_offsets.long()
    k_offsets = q_offsets if k_offsets is None else k_offsets.long()
    max_k = max_q if same and max_k is None else max_k
    return call(
        "jagged_attention",
        BACKENDS,
        backend,
        q_LHK,
        k_MHK,
        v_MHK,
        q_offsets,
        k_offsets,
        causal,
        window,
        scale,
        max_q,
        max_k,
    )
