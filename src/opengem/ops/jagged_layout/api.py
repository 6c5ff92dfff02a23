"""Jagged layouts: pad, unpad, concat, split, gather, reduce and expand. The one door."""

from typing import Literal

from torch import Tensor

from opengem.errors import ConfigError
from opengem.ops.arguments import check_index, check_offsets
from opengem.ops.backend import Backend, call
from opengem.ops.jagged_layout import reference, vectorised


def _backends(name: str) -> tuple[Backend, ...]:
    return Backend("vectorised", getattr(vectorised, name)), Backend("reference", getattr(reference, name))


_PAD, _PAD_MASK, _UNPAD = _backends("pad"), _backends("pad_mask"), _backends("unpad")
_CONCAT, _SPLIT, _GATHER = _backends("concat"), _backends("split"), _backends("gather")
_REDUCE = _backends("segment_reduce")


def _check_length(operation: str, name: str, length: int) -> None:
    if isinstance(length, int) and length < 0:
        raise ConfigError(f"{operation}: {name} must be at least 0, got {length}")


def pad(
    values: Tensor, offsets: Tensor, length: int, *, newest_last: bool = True, backend: str = "auto"
) -> Tensor:
    """Return the rows side by side, with zeros where a row is shorter than `length`.

    Args:
        values: `(L, ...)`.
        offsets: `(R + 1,)` int64 or int32.
        length: Places of a row, at least 0. Of a longer row the last `length` values are kept.
        newest_last: Values stand at the end of the row (the last value always in the last place), zeros
            before them; otherwise values first, zeros after them.
        backend: `auto`, `vectorised` or `reference`.

    Returns:
        `(R, length, ...)`.
    """
    check_offsets("pad", "offsets", offsets, values.shape[0])
    _check_length("pad", "length", length)
    return call("pad", _PAD, backend, values, offsets.long(), length, newest_last)


def pad_mask(offsets: Tensor, length: int, *, newest_last: bool = True, backend: str = "auto") -> Tensor:
    """Return which places of `pad`'s result hold a value, `(R, length)` bool.

    Args:
        offsets: `(R + 1,)` int64 or int32.
        length: Places of a row, at least 0.
        newest_last: As for `pad`.
        backend: `auto`, `vectorised` or `reference`.
    """
    check_offsets("pad_mask", "offsets", offsets)
    _check_length("pad_mask", "length", length)
    return call("pad_mask", _PAD_MASK, backend, offsets.long(), length, newest_last)


def unpad(dense: Tensor, offsets: Tensor, *, newest_last: bool = True, backend: str = "auto") -> Tensor:
    """Return the values of a padded tensor, the inverse of `pad`.

    Args:
        dense: `(R, N, ...)`.
        offsets: `(R + 1,)` int64 or int32 of the values to return. Where a row is longer than N its oldest values
            were lost in padding: they come back as zeros.
        newest_last: As for `pad`.
        backend: `auto`, `vectorised` or `reference`.

    Returns:
        `(L, ...)` with L = `offsets[-1]`.
    """
    check_offsets("unpad", "offsets", offsets)
    if dense.dim() < 2 or dense.shape[0] != offsets.shape[0] - 1:
        raise ConfigError(
            f"unpad: dense must be (R, N, ...) with R = {offsets.shape[0] - 1}, got {tuple(dense.shape)}"
        )
    return call("unpad", _UNPAD, backend, dense, offsets.long(), newest_last)


def concat(
    a: Tensor, a_offsets: Tensor, b: Tensor, b_offsets: Tensor, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Join row i of `b` to the end of row i of `a`.

    Args:
        a: `(L, ...)`.
        a_offsets: `(R + 1,)` int64 or int32.
        b: `(M, ...)`, as `a` in all other dimensions.
        b_offsets: `(R + 1,)` int64 or int32.
        backend: `auto`, `vectorised` or `reference`.

    Returns:
        Values `(L + M, ...)` and offsets `(R + 1,)`.
    """
    check_offsets("concat", "a_offsets", a_offsets, a.shape[0])
    check_offsets("concat", "b_offsets", b_offsets, b.shape[0])
    if a_offsets.shape != b_offsets.shape or a.shape[1:] != b.shape[1:]:
        raise ConfigError(
            f"concat: both sides must have the same number of rows and the same inner shape, got "
            f"{a_offsets.shape[0] - 1} rows of {tuple(a.shape[1:])} and "
            f"{b_offsets.shape[0] - 1} rows of {tuple(b.shape[1:])}"
        )
    return call("concat", _CONCAT, backend, a, a_offsets.long(), b, b_offsets.long())


def split(
    values: Tensor, offsets: Tensor, newest: int, *, backend: str = "auto"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut each row into its older part and its `newest` last values.

    Args:
        values: `(L, ...)`.
        offsets: `(R + 1,)` int64 or int32.
        newest: Values of the second part, at least 0; a shorter row goes there whole.
        backend: `auto`, `vectorised` or `reference`.

    Returns:
        Older values and their offsets, recent values and their offsets.
    """
    check_offsets("split", "offsets", offsets, values.shape[0])
    _check_length("split", "newest", newest)
    return call("split", _SPLIT, backend, values, offsets.long(), newest)


def gather(values: Tensor, offsets: Tensor, rows: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Return the jagged tensor whose row i is row `rows[i]` (jagged requests expanded to examples).

    Args:
        values: `(L, ...)`.
        offsets: `(R + 1,)` int64 or int32.
        rows: `(B,)` int64 or int32, each from 0 to R - 1, in any order, with repetitions.
        backend: `auto`, `vectorised` or `reference`.

    Returns:
        Values `(M, ...)` and offsets `(B + 1,)`.
    """
    check_offsets("gather", "offsets", offsets, values.shape[0])
    check_index("gather", "rows", rows, offsets.shape[0] - 1)
    return call("gather", _GATHER, backend, values, offsets.long(), rows.long())


def segment_reduce(
    values: Tensor, offsets: Tensor, how: Literal["sum", "mean", "max"], *, backend: str = "auto"
) -> Tensor:
    """Reduce each row to one value; an empty row gives zero.

    Args:
        values: `(L, ...)` floating point.
        offsets: `(R + 1,)` int64 or int32.
        how: `sum`, `mean` or `max`.
        backend: `auto`, `vectorised` or `reference`.

    Returns:
        `(R, ...)`.
    """
    check_offsets("segment_reduce", "offsets", offsets, values.shape[0])
    if how not in ("sum", "mean", "max"):
        raise ConfigError(f'segment_reduce: how must be "sum", "mean" or "max", got "{how}"')
    return call("segment_reduce", _REDUCE, backend, values, offsets.long(), how)


def expand(rows: Tensor, request_of_example: Tensor) -> Tensor:
    """Return for each example the row of its request.

    Args:
        rows: `(R, ...)`.
        request_of_example: `(B,)` int64 or int32, from 0 to R - 1.

    Returns:
        `(B, ...)`.
    """
    # index_select, not advanced indexing: its backward is the faster one on CPU
    return rows.index_select(0, request_of_example)
