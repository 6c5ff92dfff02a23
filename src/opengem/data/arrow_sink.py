"""Writing uncompressed Arrow IPC files that can be memory-mapped, in as few record batches as memory allows."""

from pathlib import Path

import pyarrow as pa

PIECE_ROWS = 1 << 22
"""Rows of one record batch: a file with fewer rows has one, and its columns are read without a copy."""


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as one record batch."""
    with ArrowSink(path, table.schema) as sink:
        sink.add(table)


class ArrowSink:
    """A file that takes tables one after another and joins them into large record batches.

    Args:
        path: File to write.
        schema: Columns and types.
        piece_rows: Rows of one record batch, at least.
    """

    def __init__(self, path: Path, schema: pa.Schema, piece_rows: int = PIECE_ROWS) -> None:
        self._schema = schema
        self._piece_rows = piece_rows
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, schema)
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._written = 0

    def __enter__(self) -> "ArrowSink":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self._flush(last=True)
        self._writer.close()
        self._file.close()

    def add(self, table: pa.Table) -> None:
        """Add rows; columns must be those of the schema, in order."""
        self._waiting.append(table.cast(self._schema))
        self._rows += table.num_rows
        if self._rows >= self._piece_rows:
            self._flush(last=False)

    def _flush(self, last: bool) -> None:
        if not self._rows and not (last and not self._written):
            return
        table = pa.concat_tables(self._waiting) if self._waiting else self._schema.empty_table()
        arrays = [
            c.chunk(0)
            if c.num_chunks == 1
            else pa.concat_arrays(c.chunks)
            if c.num_chunks
            else pa.array([], c.type)
            for c in table.columns
        ]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._written += self._rows
        self._waiting, self._rows = [], 0
