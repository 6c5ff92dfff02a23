"""Ready-made histories: one row a user with list columns, taken apart into events."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from opengem.data.columns import canonical_ids, list_parts, numbers, plain
from opengem.data.ingestion.read.normalise import SQL_TYPES, column_of
from opengem.data.ingestion.read.sources import Source, SourceFile
from opengem.data.ingestion.read.table import ROW_BITS, batches, quarantine
from opengem.data.times import read_times
from opengem.errors import DataError, nearest
from opengem.schema.inputs import MISSING_TIME
from opengem.schema.words import Stream


def read_ready(con: Any, source: Source, stream: Stream, item: str, advance: Callable[[int], None]) -> int:
    """Read the ready-made histories of a stream into the work table `r_STREAM`, one row an event.

    Args:
        con: Connection of the work database.
        source: The files.
        stream: The stream; its `ready` says which list is which attribute.
        item: The attribute that holds the item, which `members` are looked up by; "" if none does.
        advance: Called with the number of rows after each batch.

    Returns:
        Number of rows (users) read.

    Raises:
        DataError: A file cannot be read, or a column is missing or of the wrong type.
    """
    ready = stream.ready
    assert ready is not None
    kinds = {a.name: SQL_TYPES[a.kind] for a in stream.attributes}
    columns = ", ".join(f'"a_{stream.name}.{name}" {kinds[name]}' for name in (*ready.lists, *ready.members))
    con.execute(
        f'CREATE TABLE "r_{stream.name}" ("user" VARCHAR, src BIGINT, pos BIGINT, "time" BIGINT, {columns})'
    )
    needed = [
        ready.user,
        *ready.lists.values(),
        *ready.members.values(),
        *([ready.times.column] if ready.times else []),
    ]
    read = 0
    for number, file in enumerate(source.files):
        for column in needed:
            if not file.has(column):
                raise DataError(
                    f'{file.name} must hold column "{column}" of streams.{stream.name}.ready'
                    f"{nearest(column, file.columns)}. Received: {', '.join(file.columns)}"
                )
        for start, batch in batches(file, needed, source.table):
            rows = np.arange(start, start + batch.num_rows, dtype=np.int64) + (number << ROW_BITS)
            advance(batch.num_rows)
            read += batch.num_rows
            try:
                _take_in(con, source, file, batch, rows, stream, item)
            except DataError as error:
                raise DataError(f"{file.name} (streams.{stream.name}.ready): {error}") from None
    _one_row_a_user(con, source, stream)
    return read


def _take_in(
    con: Any,
    source: Source,
    file: SourceFile,
    batch: pa.RecordBatch,
    rows: np.ndarray,
    stream: Stream,
    item: str,
) -> None:
    """Flatten the lists of a batch; rows with a null user, unequal lists or unreadable values are quarantined."""
    ready = stream.ready
    assert ready is not None
    user = canonical_ids(column_of(batch, file, ready.user), ready.user)
    kinds = {a.name: a.kind for a in stream.attributes}
    offsets: np.ndarray | None = None
    flat: dict[str, pa.Array] = {}
    unequal = np.zeros(len(rows), bool)
    unreadable = np.zeros(len(rows), bool)
    lists = dict(ready.lists) | ({"": ready.times.column} if ready.times else {})
    parts = {n: list_parts(_lists(column_of(batch, file, c)), c, "lists") for n, c in lists.items()}
    for own, _, _ in parts.values():
        offsets = own if offsets is None else offsets
        unequal |= np.diff(own) != np.diff(offsets)
    for name, (own, values, _) in parts.items():
        if name == "":
            assert ready.times is not None
            read, bad = read_times(values, ready.times)
            bad = bad | np.asarray(read.is_null())
        elif kinds[name] == "number":
            read, bad = numbers(values, lists[name])
        else:
            read, bad = canonical_ids(values, lists[name]), np.zeros(len(values), bool)
        flat[name] = read.filter(pa.array(np.repeat(~unequal, np.diff(own))))
        unreadable[np.repeat(np.arange(len(rows)), np.diff(own))[bad]] = True
    assert offsets is not None
    for name, column in ready.members.items():
        listed = list_parts(_lists(column_of(batch, file, column)), column, "lists")
        held = _members(offsets, canonical_ids(parts[item][1]), listed, column)
        held = held.cast(pa.float64() if kinds[name] == "number" else pa.string())
        flat[name] = held.filter(pa.array(np.repeat(~unequal, np.diff(offsets))))
    lengths = np.where(unequal, 0, np.diff(offsets))
    faults = [np.asarray(user.is_null()), unequal, unreadable]
    reasons = [f"null key {ready.user}", "lists of one row differ in length", "unreadable value in a list"]
    fault = np.select(faults, [1, 2, 3], 0)
    quarantine(con, source.table, rows[fault > 0], fault[fault > 0], reasons)
    _insert(con, stream, user, rows, lengths, flat, np.repeat(fault == 0, lengths))


def _members(
    offsets: np.ndarray, items: pa.Array, listed: tuple[np.ndarray, pa.Array, np.ndarray], column: str
) -> pa.Array:
    """Return 1 where an event's item is in its user's list, 0 where not, null where item or list is missing."""
    own, values, missing = listed
    codes = pa.concat_arrays([items, canonical_ids(values, column)]).dictionary_encode(null_encoding="encode")
    code = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    users = np.arange(len(missing))
    owner = np.repeat(users, np.diff(offsets))
    key = owner * len(codes.dictionary) + code[: len(items)]
    listed_key = np.repeat(users, np.diff(own)) * len(codes.dictionary) + code[len(items) :]
    unknown = missing[owner] | np.asarray(items.is_null())
    return pa.array(np.isin(key, listed_key).astype(np.int8), mask=unknown)


def _insert(
    con: Any,
    stream: Stream,
    user: pa.Array,
    rows: np.ndarray,
    lengths: np.ndarray,
    flat: dict[str, pa.Array],
    kept: np.ndarray,
) -> None:
    owner = np.repeat(np.arange(len(rows)), lengths)
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    time = flat.get("", pa.repeat(pa.scalar(MISSING_TIME, pa.int64()), len(owner)))
    columns = {
        "user": user.take(pa.array(owner)),
        "src": pa.array(rows[owner], pa.int64()),
        "pos": pa.array(np.arange(len(owner)) - first + 1, pa.int64()),
        "time": time,
    }
    assert stream.ready is not None
    for name in (*stream.ready.lists, *stream.ready.members):  # in the order of the table's columns
        columns[f"a_{stream.name}.{name}"] = flat[name]
    con.register("incoming", pa.table(columns).filter(pa.array(kept)))
    con.execute(f'INSERT INTO "r_{stream.name}" SELECT * FROM incoming')
    con.unregister("incoming")


def _lists(column: pa.Array) -> pa.Array:
    array = plain(column)
    return array.cast(pa.list_(pa.null())) if pa.types.is_null(array.type) else array


def _one_row_a_user(con: Any, source: Source, stream: Stream) -> None:
    name = f'"r_{stream.name}"'
    con.execute(
        f'CREATE TEMP TABLE doubled AS SELECT DISTINCT src FROM {name} WHERE "user" IN '
        f'(SELECT "user" FROM {name} GROUP BY "user" HAVING count(DISTINCT src) > 1)'
    )
    con.execute(
        "INSERT INTO quarantine SELECT ?, src, 'user repeated in ready-made histories' FROM doubled",
        [source.table],
    )
    con.execute(f"DELETE FROM {name} WHERE src IN (SELECT src FROM doubled)")
    con.execute("DROP TABLE doubled")
