"""Generalised dot-product attention: an activation in place of the softmax. The one door."""

from torch import Tensor

from opengem.errors import ConfigError, nearest
from opengem.ops import triton_target
from opengem.ops.arguments import check_index, check_offsets, check_operands
from opengem.ops.backend import Backend, call
from opengem.ops.gdpa import cpu, native, padded, reference, triton
from opengem.ops.gdpa.activations import ACTIVATIONS

BACKENDS = (
    Backend("triton", triton.gdpa, triton.obstacle, triton_target.suits),
    Backend("native", native.gdpa, native.obstacle, native.suits),
    Backend("cpu", cpu.gdpa, cpu.obstacle, cpu.suits),
    Backend("padded", padded.gdpa),
    Backend("reference", reference.gdpa),
)
"""Backends in order of preference; the last one is the meaning."""


def gdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_offsets: Tensor | None = None,
    k_offsets: Tensor | None = None,
    request_of_row: Tensor | None = None,
    activation: str | tuple[str, ...] = "gelu",
    alpha: float = 1.0,
    max_q: int | None = None,
    max_k: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return `Act(alpha Q K^T) V` for each row and head, without softmax or any normalisation.

    Backward, with `S = alpha Q K^T`, `P = Act(S)`: `dV = P^T dO`, `dS = (dO V^T) * Act'(S)`,
    `dQ = alpha dS K`, `dK = alpha dS^T Q`. FLOPs forward: `4 H K sum_b len_q len_k`.

    Three forms: self (`q`, `k`, `v` jagged on the same offsets); cross (jagged or dense `q` against the keys
    and values that a request generates: a feed-forward network whose weights are data); pooled (`q` are seeds
    shared by all rows).

    Args:
        q: `(L, H, K)` with `q_offsets`; or dense `(B, N, H, K)`; or seeds `(N, H, K)` without offsets.
        k: `(M, H, K)` with `k_offsets`; or dense `(R, M, H, K)`.
        v: As `k`.
        q_offsets: `(B + 1,)` int64 or int32.
        k_offsets: `(R + 1,)` int64 or int32.
        request_of_row: `(B,)` int64 or int32 from 0 to R - 1, the row of keys that each row of queries reads, so
            that many ads share one request's keys; `None`: row b reads row b.
        activation: A name of `ACTIVATIONS`, or one a head.
        alpha: Scale of the scores; a published variant uses 1 / longest row.
        max_q: Longest row of queries, if known (saves reading it from the device); no row may be longer.
        max_k: Longest row of keys, likewise.
        backend: `auto`, `triton` (CUDA, bfloat16 or float16), `native` (CPU, float32, compiled), `cpu` (torch alone),
            `padded` or `reference`.

    Returns:
        As `q`; for seeds `(B, N, H, K)`.

    Raises:
        ConfigError: A shape or setting is wrong.
        BackendUnavailable: The named backend cannot run here.

    Source: Meta's released GDPA code (activation in place of softmax, the map, per-head activations).
        Its CPU fallback applies a softmax and is no oracle.
    """
    names = (activation,) if isinstance(activation, str) else tuple(activation)
    for name in names:
        if name not in ACTIVATIONS:
            known = list(ACTIVATIONS)
            raise ConfigError(f'gdpa: activation must be one of {known}, got "{name}"{nearest(name, known)}')
    if len(names) not in (1, q.shape[-2]):
        raise ConfigError(
            f"gdpa: activation must be one name or one a head ({q.shape[-2]}), got {len(names)}"
        )
    if k.shape != v.shape or k.shape[-2:] != q.shape[-2:]:
        raise ConfigError(
            f"gdpa: k and v must have one shape, and q the same heads and width, got q {tuple(q.shape)}, "
            f"k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    if k.dim() != (4 if k_offsets is None else 3) or q.dim() not in ((3, 4) if q_offsets is None else (3,)):
        raise ConfigError(
            f"gdpa: with offsets an operand must be (L, H, K), without (rows, N, H, K); got q {tuple(q.shape)} "
            f"{'with' if q_offsets is not None else 'without'} offsets, k {tuple(k.shape)} "
            f"{'with' if k_offsets is not None else 'without'} offsets"
        )
    others = {"q_offsets": q_offsets, "k_offsets": k_offsets, "request_of_row": request_of_row}
    check_operands("gdpa", {"q": q, "k": k, "v": v}, others)
    if q_offsets is not None:
        check_offsets("gdpa", "q_offsets", q_offsets, q.shape[0])
        q_offsets = q_offsets.long()
    if k_offsets is not None:
        check_offsets("gdpa", "k_offsets", k_offsets, k.shape[0])
        k_offsets = k_offsets.long()
    q_rows, k_rows = _rows(q, q_offsets), _rows(k, k_offsets)
    if request_of_row is not None:
        check_index("gdpa", "request_of_row", request_of_row, k_rows)  # type: ignore[arg-type]
        request_of_row, k_rows = request_of_row.long(), request_of_row.shape[0]
    if q_rows is not None and q_rows != k_rows:
        raise ConfigError(
            f"gdpa: q must have as many rows as {'k' if request_of_row is None else 'request_of_row'}, got {q_rows} "
            f"and {k_rows}"
        )
    return call(
        "gdpa", BACKENDS, backend, q, k, v, q_offsets, k_offsets, request_of_row, names, alpha, max_q, max_k
    )


def _rows(x: Tensor, offsets: Tensor | None) -> int | None:
    """Return the rows of an operand, or `None` for seeds."""
    if offsets is not None:
        return offsets.shape[0] - 1
    return x.shape[0] if x.dim() == 4 else None
