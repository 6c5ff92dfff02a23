"""The columns of a table as they lie in its files, for the sampled examples: read by the reading code of ingest."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from opengem.data.checking.leaks.sample import Sample
from opengem.data.checking.logs import Logs
from opengem.data.columns import plain
from opengem.data.ingestion.read.normalise import Findings, column_of, normalise
from opengem.data.ingestion.read.plan import Use
from opengem.data.ingestion.read.sources import Source, SourceFile
from opengem.data.ingestion.read.table import ROW_BITS, batches
from opengem.schema.words import TimeColumn

pc: Any = pyarrow.compute  # its functions are made at run time, out of a type checker's sight

AT_ONCE = 16
"""Columns that are held at once."""


@dataclass
class Column:
    """One column over the sampled examples.

    Attributes:
        table: Its table.
        name: Its name.
        kind: `number`, `time` (numbers, Unix ms), `list` (numbers: how many elements) or `text` (codes).
        own: `(n,)` in the example's own row: float64 with NaN for null, or int64 codes with -1 for null.
        past: `user` and `ad` -> the same in their example before; empty for tables without one.
        has: `user` and `ad` -> bool, whether there is an example before.
        words: What the codes of text stand for.
    """

    table: str
    name: str
    kind: str
    own: np.ndarray
    past: dict[str, np.ndarray] = field(default_factory=dict)
    has: dict[str, np.ndarray] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    @property
    def is_number(self) -> bool:
        """Whether the values are numbers, not codes."""
        return self.kind != "text"

    @property
    def missing(self) -> np.ndarray:
        """Where the own value is null."""
        return np.isnan(self.own) if self.is_number else self.own < 0


def read_columns(logs: Logs, sample: Sample, skipped: dict[str, str]) -> Iterator[Column]:
    """Yield every column of the impressions, and of users and ads, over the sampled examples.

    Args:
        logs: The logs, joined.
        sample: The examples.
        skipped: Gets `TABLE.COLUMN` -> its type, for those that cannot be measured.
    """
    for table, places in sample.place.items():
        source = logs.sources[table]
        kinds = {c: _kind(source, c, logs.plan.uses[table]) for c in source.columns}
        skipped |= {f"{table}.{c}": kind for c, kind in kinds.items() if kind not in _READ}
        names = [c for c, kind in kinds.items() if kind in _READ]
        rows = np.unique(np.concatenate(list(places.values())))
        rows = rows[rows >= 0]
        at = {
            name: np.where(place >= 0, np.searchsorted(rows, place), len(rows))
            for name, place in places.items()
        }
        has = {name: place >= 0 for name, place in places.items() if name != "own"}
        for start in range(0, len(names), AT_ONCE):
            part = names[start : start + AT_ONCE]
            uses = [_use(c, kinds[c], logs.plan.uses[table]) for c in part]
            arrays = _gather(source, uses, [kinds[c] for c in part], rows)
            for name in part:
                yield _column(table, name, kinds[name], arrays.pop(name), at, has)


_READ = ("number", "time", "list", "text")


def _kind(source: Source, column: str, uses: list[Use]) -> str:
    """Return how a column is measured, or its type where it cannot be."""
    if any(u.column == column and u.role == "number" for u in uses):
        return "number"
    types = [file.columns[column] for file in source.files if column in file.columns]
    types = [t.value_type if pa.types.is_dictionary(t) else t for t in types] or [pa.string()]
    found = {_kind_of_type(t) for t in types if not pa.types.is_null(t)} or {"number"}
    if found <= {"number", "text"}:
        return found.pop() if len(found) == 1 else "text"
    return found.pop() if len(found) == 1 else " and ".join(sorted({str(t) for t in types}))


def _kind_of_type(kind: pa.DataType) -> str:
    t = pa.types
    if t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_decimal(kind):
        return "number"
    if t.is_timestamp(kind) or t.is_date(kind):
        return "time"
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return "list"
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "text"
    return str(kind)


def _use(column: str, kind: str, uses: list[Use]) -> Use:
    """Return how a column is read: a number as the schema reads it, all else by its type."""
    if kind == "number":
        cast = any(u.column == column and u.cast for u in uses)
        return Use(column, column, "number", cast=cast)
    if kind == "time":
        zone = next((u.time.zone for u in uses if u.column == column and u.time and u.time.zone), "UTC")
        return Use(column, column, "time", time=TimeColumn(column=column, unit="timestamp", zone=zone))
    return Use(column, column, "id")


def _gather(
    source: Source, uses: list[Use], kinds: list[str], rows: np.ndarray
) -> dict[str, pa.ChunkedArray]:
    """Return columns at the given sorted places in the files."""
    parts: dict[str, list[pa.Array]] = {u.name: [] for u in uses}
    for number, file in enumerate(source.files):
        low, high = np.searchsorted(rows, [number << ROW_BITS, (number + 1) << ROW_BITS])
        inside = rows[low:high] - (number << ROW_BITS)
        if not len(inside):
            continue
        for start, batch in batches(file, [u.column for u in uses], source.table):
            first, last = np.searchsorted(inside, [start, start + batch.num_rows])
            if first < last:
                taken = batch.take(pa.array(inside[first:last] - start))
                for name, array in _typed(taken, file, uses, kinds).items():
                    parts[name].append(array)
    return {
        name: pa.chunked_array(arrays) if arrays else pa.chunked_array([], pa.null())
        for name, arrays in parts.items()
    }


def _typed(batch: pa.RecordBatch, file: SourceFile, uses: list[Use], kinds: list[str]) -> dict[str, pa.Array]:
    lists = [u for u, kind in zip(uses, kinds, strict=True) if kind == "list"]
    typed, _, _ = normalise(batch, file, [u for u in uses if u not in lists], Findings())
    for use in lists:
        array = plain(column_of(batch, file, use.column))
        lengths = pa.nulls(len(array)) if pa.types.is_null(array.type) else pc.list_value_length(array)
        typed[use.name] = lengths.cast(pa.float64())
    return typed


def _column(
    table: str,
    name: str,
    kind: str,
    array: pa.ChunkedArray,
    at: dict[str, np.ndarray],
    has: dict[str, np.ndarray],
) -> Column:
    words: list[str] = []
    if kind == "text":
        coded = array.cast(pa.string()).combine_chunks().dictionary_encode()
        coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
        words = coded.dictionary.to_pylist()
        values = np.append(np.asarray(pc.fill_null(coded.indices, -1)).astype(np.int64), -1)
    else:
        values = np.append(array.cast(pa.float64()).to_numpy(), np.nan)
    past = {owner: values[index] for owner, index in at.items() if owner != "own"}
    return Column(table, name, kind, values[at["own"]], past, has, words)
