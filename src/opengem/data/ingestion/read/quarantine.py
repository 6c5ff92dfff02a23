"""The quarantine file: every row that broke a rule, with its reason and what it held."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opengem.data.columns import to_json
from opengem.data.ingestion.read.sources import Source, SourceFile
from opengem.data.ingestion.read.table import ROW_BITS, batches

_SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("file", pa.string()),
        ("row", pa.int64()),
        ("reason", pa.string()),
        ("content", pa.string()),
    ]
)


def write_quarantine(con: Any, sources: dict[str, Source], path: Path) -> dict[str, int]:
    """Write the quarantined rows with their contents, and return how many there are of each reason.

    Args:
        con: Connection of the work database, with the table `quarantine`.
        sources: Table -> its files; the rows are read again from them.
        path: Parquet file to write.

    Returns:
        `TABLE: reason` -> rows.
    """
    with pq.ParquetWriter(path, _SCHEMA, compression="zstd") as writer:
        for table, source in sources.items():
            for number, file in enumerate(source.files):
                found = con.execute(
                    f"SELECT src & {(1 << ROW_BITS) - 1}, reason FROM quarantine "
                    f"WHERE tab = ? AND src >> {ROW_BITS} = ? ORDER BY src",
                    [table, number],
                ).fetchall()
                if found:
                    _write_file(writer, table, file, found)
    counts = con.execute("SELECT tab, reason, count(*) FROM quarantine GROUP BY ALL ORDER BY ALL").fetchall()
    return {f"{table}: {reason}": count for table, reason, count in counts}


def _write_file(writer: pq.ParquetWriter, table: str, file: SourceFile, found: list[tuple[int, str]]) -> None:
    rows = np.array([row for row, _ in found], np.int64)
    reasons = pa.array([reason for _, reason in found], pa.string())
    for start, batch in batches(file, list(file.columns), table):
        low, high = np.searchsorted(rows, [start, start + batch.num_rows])
        if low == high:
            continue
        taken = batch.take(pa.array(rows[low:high] - start)).to_pylist()
        content = [json.dumps(to_json(dict(file.folders) | row), ensure_ascii=False) for row in taken]
        count = int(high - low)
        arrays = [
            pa.repeat(pa.scalar(table), count),
            pa.repeat(pa.scalar(file.name), count),
            pa.array(rows[low:high]),
            reasons[low:high],
            pa.array(content, pa.string()),
        ]
        writer.write_table(pa.table(arrays, schema=_SCHEMA))
