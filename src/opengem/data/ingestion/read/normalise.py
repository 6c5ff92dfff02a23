"""One batch of raw rows becomes one of typed columns, with the reason of each row that breaks a rule."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from opengem.data.columns import (
    canonical_ids,
    canonical_lists,
    cast_or_null,
    labels,
    list_parts,
    numbers,
    plain,
    vectors,
)
from opengem.data.ingestion.read.plan import Use, same_readings
from opengem.data.ingestion.read.sources import SourceFile
from opengem.data.times import read_times
from opengem.errors import DataError

pc: Any = pyarrow.compute  # its functions are made at run time, out of a type checker's sight

SQL_TYPES = {
    "id": "VARCHAR",
    "ids": "VARCHAR[]",
    "number": "DOUBLE",
    "vector": "FLOAT[]",
    "time": "BIGINT",
    "label": "DOUBLE",
    "example_id": "BIGINT",
}


@dataclass
class Findings:
    """What reading found beside the rows: vector sizes and null elements, over all files of a table."""

    sizes: dict[str, int] = field(default_factory=dict)
    null_elements: dict[str, int] = field(default_factory=dict)


def column_of(batch: pa.RecordBatch, file: SourceFile, column: str) -> pa.Array:
    """Return a column of a batch, of its file's folders, or nulls where the file has none."""
    if column in file.columns:
        return batch.column(batch.schema.get_field_index(column))
    if file.folders.get(column) is not None:
        return pa.repeat(pa.scalar(file.folders[column], pa.string()), batch.num_rows)
    return pa.nulls(batch.num_rows)


def normalise(
    batch: pa.RecordBatch, file: SourceFile, uses: list[Use], findings: Findings
) -> tuple[dict[str, pa.Array], np.ndarray, list[str]]:
    """Return the typed columns of a batch, and which rows break a rule.

    Args:
        batch: Rows of the file.
        file: The file.
        uses: Readings of the table.
        findings: Counts that are added to.

    Returns:
        Columns by name, each reading once; int array `(n,)`, 0 where the row is good, else 1 + the index of the reason;
        the reasons.

    Raises:
        DataError: A column's type cannot hold what the schema says.
    """
    columns: dict[str, pa.Array] = {}
    fault = np.zeros(batch.num_rows, np.int32)
    reasons: list[str] = []

    def report(mask: np.ndarray, reason: str) -> None:
        if mask.any():
            reasons.append(reason)
            fault[mask & (fault == 0)] = len(reasons)

    repeated = same_readings(uses)
    for use in uses:
        if use.name not in repeated:
            array = plain(column_of(batch, file, use.column))
            columns[use.name], bad, reason = _read(array, use, findings)
            report(bad, reason)
        if use.required:
            values = columns[repeated.get(use.name, use.name)]
            report(np.asarray(values.is_null()), _null_reason(use))
    return columns, fault, reasons


def _null_reason(use: Use) -> str:
    what = {"time": "time", "arrival": "arrival", "surface": "surface"}.get(use.name, "key")
    return f"null {what} {use.column}"


def _read(array: pa.Array, use: Use, findings: Findings) -> tuple[pa.Array, np.ndarray, str]:
    column = use.column
    good = np.zeros(len(array), bool)
    if use.role == "id":
        return (_first_ids(array, use) if use.first else canonical_ids(array, column)), good, ""
    if use.role == "ids":
        lists, dropped = canonical_lists(array, column, use.separator)
        findings.null_elements[column] = findings.null_elements.get(column, 0) + dropped
        return lists, good, ""
    if use.role == "number":
        values, bad = numbers(array, column, use.cast)
        return values, bad, f"number {column} is infinite or unreadable"
    if use.role == "label":
        values, bad = labels(array, column)
        return values, bad, f"label {column} is not 0, 1 or null"
    if use.role == "vector":
        return _vectors(array, use, findings)
    if use.role == "example_id":
        values, bad = _whole_numbers(array, column)
        return values, bad, f"key {column} is not a whole number of 64 bits"
    assert use.time is not None
    values, bad = read_times(array, use.time)
    return values, bad, f"unreadable or ambiguous time {column}"


def _first_ids(array: pa.Array, use: Use) -> pa.Array:
    lists, _ = canonical_lists(array, use.column, use.separator)
    offsets, values, _ = list_parts(lists, use.column, "ids")
    starts = pa.array(offsets[:-1], mask=np.diff(offsets) == 0)
    return values.take(starts)


def _vectors(array: pa.Array, use: Use, findings: Findings) -> tuple[pa.Array, np.ndarray, str]:
    matrix, bad = vectors(array, use.column, findings.sizes.get(use.name, 0))
    size = matrix.shape[1]
    if size:
        findings.sizes.setdefault(use.name, size)
    offsets = pa.array(np.arange(len(array) + 1, dtype=np.int32) * size)
    missing = pa.array(np.asarray(array.is_null()))
    lists = pa.ListArray.from_arrays(offsets, pa.array(matrix.reshape(-1), pa.float32()), mask=missing)
    return lists, bad, f"vector {use.column} is not {size} numbers"


def _whole_numbers(array: pa.Array, column: str) -> tuple[pa.Array, np.ndarray]:
    kind = array.type
    given = np.asarray(array.is_valid())
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.int64()), ~given & False
    if pa.types.is_integer(kind):
        over = np.zeros(len(array), bool)
        if pa.types.is_uint64(kind):
            over = np.asarray(pc.fill_null(pc.greater(array, pa.scalar(2**63 - 1, pa.uint64())), False))
            array = pc.if_else(pa.array(over), pa.scalar(None, pa.uint64()), array)
        return array.cast(pa.int64()), over
    if pa.types.is_floating(kind):
        floats = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
        missing = np.isnan(floats)
        bad = ~missing & ~((np.floor(floats) == floats) & (np.abs(floats) < 2.0**53))
        return pa.array(np.where(missing | bad, 0, floats).astype(np.int64), mask=missing | bad), bad
    if pa.types.is_decimal(kind):
        values = cast_or_null(canonical_ids(array, column), pa.int64())
        return values, given & np.asarray(values.is_null())
    raise DataError(f'column "{column}" must hold whole numbers of 64 bits. Received: {kind}')
