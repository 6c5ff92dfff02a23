"""Reading a table: every file as a stream of typed batches into the work database, faults into quarantine."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from opengem.data.columns import canonical_ids, plain
from opengem.data.ingestion.read.normalise import SQL_TYPES, Findings, column_of, normalise
from opengem.data.ingestion.read.plan import Use, same_readings
from opengem.data.ingestion.read.sources import BROKEN, Source, SourceFile
from opengem.data.ingestion.work_database import one_row
from opengem.errors import DataError
from opengem.schema.words import Table

pc: Any = pyarrow.compute  # its functions are made at run time, out of a type checker's sight

BATCH_ROWS = 131_072
INBOX_BYTES = 64 << 20
ROW_BITS = 40
"""A row is known as `file number << ROW_BITS | position in the file`."""
_EARLIEST, _LATEST = 315_532_800_000, 4_102_444_800_000  # 1980 and 2100


@dataclass
class Counts:
    """Rows of a table: passed over by `where`, read, and with what found in them."""

    passed_over: int = 0
    read: int = 0
    findings: Findings = field(default_factory=Findings)


def read_table(
    con: Any,
    source: Source,
    table: Table,
    uses: list[Use],
    content: list[str],
    sizes: dict[str, int],
    advance: Callable[[int], None],
) -> Counts:
    """Read a table into the work table `t_NAME`, and its faulty rows into `quarantine`.

    Args:
        con: Connection of the work database.
        source: The files.
        table: What the schema says of the table.
        uses: Readings of its columns.
        content: Columns whose values together tell whether two rows are alike.
        sizes: Vector feature -> its length, where it is known already.
        advance: Called with the number of rows after each batch.

    Raises:
        DataError: A file cannot be read, or a column has the wrong type.
    """
    target = f"t_{source.table}"
    types = {"src": "BIGINT", **{u.name: SQL_TYPES[u.role] for u in uses}}
    types |= {"content": "UBIGINT"} if content or not source.files else {}
    repeated = same_readings(uses)
    columns = ", ".join(
        f'"{name}" {kind}'
        + (f' GENERATED ALWAYS AS ("{repeated[name]}") VIRTUAL' if name in repeated else "")
        for name, kind in types.items()
    )
    con.execute(f'CREATE TABLE "{target}" ({columns})')
    counts = Counts()
    counts.findings.sizes |= {f"f_{name}": size for name, size in sizes.items()}
    needed = list(dict.fromkeys([*(u.column for u in uses), *table.where, *content]))
    with _Inbox(con, target) as inbox:
        for number, file in enumerate(source.files):
            for start, batch in batches(file, needed, source.table):
                rows = np.arange(start, start + batch.num_rows, dtype=np.int64) + (number << ROW_BITS)
                advance(batch.num_rows)
                if table.where:
                    kept = _where(batch, file, table)
                    counts.passed_over += int((~kept).sum())
                    batch, rows = batch.filter(pa.array(kept)), rows[kept]
                counts.read += batch.num_rows
                if batch.num_rows:
                    _take_in(con, inbox, source, file, batch, rows, uses, content, counts.findings, table)
    return counts


class _Inbox:
    """Rows on their way into a work table: many together, for the database is slow at taking in a few at a time.

    A thread puts them in, while the next ones are read.
    """

    def __init__(self, con: Any, target: str) -> None:
        self.con, self.target = con.cursor(), target
        self.waiting: list[pa.Table] = []
        self.bytes = 0
        self._thread = ThreadPoolExecutor(1)
        self._under_way: Future[None] | None = None

    def __enter__(self) -> "_Inbox":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                self.empty()
                self._wait()
        finally:
            self._thread.shutdown()
            self.con.close()

    def add(self, data: pa.Table) -> None:
        """Add rows: `src`, the columns of the work table, and `raw N`, which together tell whether rows are alike."""
        if self.waiting and self.waiting[0].schema != data.schema:
            self.empty()
        self.waiting.append(data)
        self.bytes += data.nbytes
        if self.bytes > INBOX_BYTES:
            self.empty()

    def empty(self) -> None:
        """Have all rows that wait put into the work table."""
        if not self.waiting:
            return
        self._wait()
        self._under_way = self._thread.submit(self._put, pa.concat_tables(self.waiting))
        self.waiting, self.bytes = [], 0

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def _put(self, data: pa.Table) -> None:
        raw = [f'"{name}"' for name in data.column_names if name.startswith("raw ")]
        names = [f'"{name}"' for name in data.column_names if not name.startswith("raw ")]
        values = [*names, f"hash({', '.join(raw)})"] if raw else names
        names = [*names, "content"] if raw else names
        self.con.register("arriving", data)
        self.con.execute(
            f'INSERT INTO "{self.target}" ({", ".join(names)}) SELECT {", ".join(values)} FROM arriving'
        )
        self.con.unregister("arriving")


def content_columns(name: str, table: Table, source: Source, used: list[str]) -> list[str]:
    """Return the columns that tell whether two rows of a table are alike; none where ingest does not ask."""
    if table.id or name in ("users", "ads"):
        return sorted(c for c in set(used) if c in source.columns)
    return sorted(source.columns) if table.deduplicate else []


def check_times(con: Any, name: str, table: Table) -> None:
    """Check that the times of a table that was read may be true.

    Raises:
        DataError: They lie outside 1980 to 2100, so their unit is wrong.
    """
    if table.time is None:
        return
    first, last = one_row(con, f'SELECT min("time"), max("time") FROM "t_{name}"')
    if first is not None and (last < _EARLIEST or first > _LATEST):
        raise DataError(
            f"tables.{name}.time must lie between 1980 and 2100. Received: {first} to {last} ms since 1970, read "
            f'from column "{table.time.column}" as unit "{table.time.unit}"\n  fix: set the unit in the schema'
        )


def _take_in(
    con: Any,
    inbox: _Inbox,
    source: Source,
    file: SourceFile,
    batch: pa.RecordBatch,
    rows: np.ndarray,
    uses: list[Use],
    content: list[str],
    findings: Findings,
    table: Table,
) -> None:
    try:
        columns, fault, reasons = normalise(batch, file, uses, findings)
    except DataError as error:
        raise DataError(f"{file.name} (tables.{source.table}): {error}") from None
    if table.span is not None:
        times = np.asarray(columns["time"].fill_null(0))
        outside = (fault == 0) & ((times < table.span[0]) | (times >= table.span[1]))
        reasons.append("time outside the span of the table")
        fault[outside] = len(reasons)
    quarantine(con, source.table, rows[fault > 0], fault[fault > 0], reasons)
    names = [*columns]
    arrays = [pa.array(rows), *columns.values()]
    for index, column in enumerate(content):
        names.append(f"raw {index}")
        arrays.append(_hashable(plain(column_of(batch, file, column))))
    data = pa.table(arrays, names=["src", *names])
    if fault.any():
        data = data.filter(pa.array(fault == 0))
    inbox.add(data)


def _hashable(array: pa.Array) -> pa.Array:
    """Return a column that the work database can hash whatever its zone or null type."""
    kind = array.type
    if pa.types.is_null(kind):
        return array.cast(pa.string())
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return array.cast(pa.int64())
    if pa.types.is_decimal(kind):
        return array.cast(pa.string())
    return array


def quarantine(con: Any, table: str, rows: np.ndarray, fault: np.ndarray, reasons: list[str]) -> None:
    """Note rows that break a rule; `fault` is 1 + the index of each row's reason."""
    if not len(rows):
        return
    data = pa.table(
        {
            "tab": pa.repeat(pa.scalar(table), len(rows)),
            "src": pa.array(rows, pa.int64()),
            "reason": pa.array(reasons, pa.string()).take(pa.array(fault - 1)),
        }
    )
    con.register("incoming", data)
    con.execute("INSERT INTO quarantine SELECT * FROM incoming")
    con.unregister("incoming")


def _where(batch: pa.RecordBatch, file: SourceFile, table: Table) -> np.ndarray:
    kept = np.ones(batch.num_rows, bool)
    for column, values in table.where.items():
        ids = canonical_ids(column_of(batch, file, column), column)
        wanted = pa.concat_arrays([canonical_ids(pa.array([value])) for value in values])
        kept &= np.asarray(pc.is_in(ids, value_set=wanted))
    return kept


def batches(file: SourceFile, columns: list[str], table: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield `(first row, batch)` of a file.

    Raises:
        DataError: The file is broken; names the file, the row group and the column.
    """
    present = [c for c in columns if c in file.columns]
    start = 0
    with pq.ParquetFile(file.path, buffer_size=1 << 20) as reader:
        for group in range(reader.num_row_groups):
            try:
                for batch in reader.iter_batches(BATCH_ROWS, row_groups=[group], columns=present):
                    yield start, batch
                    start += batch.num_rows
            except BROKEN as error:
                column = _broken_column(reader, group, present)
                raise DataError(
                    f"{file.name} (tables.{table}) must be a whole Parquet file. "
                    f'Received: column "{column}" of row group {group} cannot be read: {error}'
                ) from None


def _broken_column(reader: pq.ParquetFile, group: int, columns: list[str]) -> str:
    for column in columns:
        try:
            reader.read_row_group(group, columns=[column])
        except BROKEN:
            return column
    return ", ".join(columns)
