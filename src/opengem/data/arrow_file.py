"""Memory-mapped Arrow IPC files, read by gathering rows of single columns."""

from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from opengem.errors import DataError, nearest


def rows_of_slices(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the row numbers of many slices, one slice after another.

    Formula: the concatenation over i of `[starts[i], ..., starts[i] + lengths[i] - 1]`.

    Args:
        starts: Shape `(R,)`, int64.
        lengths: Shape `(R,)`, int64, 0 or more.

    Returns:
        Shape `(sum(lengths),)`, int64.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)


LONG_SLICE = 256
"""Mean length in rows from which slices are copied one by one; shorter ones are gathered by row number."""


class Column:
    """One column of a memory-mapped file: values, vectors or lists, in one or more record batches."""

    def __init__(self, data: pa.ChunkedArray, where: str):
        self._where = where
        self._type = data.type
        self._chunks = [c for c in data.chunks if len(c)]
        sizes = np.array([len(c) for c in self._chunks], dtype=np.int64)
        self._first_rows = np.cumsum(sizes) - sizes
        self._length = int(sizes.sum())
        self._is_list = pa.types.is_list(data.type) or pa.types.is_large_list(data.type)
        self._is_vector = pa.types.is_fixed_size_list(data.type)

    def __len__(self) -> int:
        return self._length

    @property
    def is_list(self) -> bool:
        """Whether rows are lists of varying length."""
        return self._is_list

    @property
    def vector_size(self) -> int:
        """Length of a row of a vector column."""
        return self._type.list_size

    @cached_property
    def values(self) -> np.ndarray:
        """The whole column. No copy is made of numbers in a single record batch; not for lists."""
        if self._is_list:
            raise TypeError(f"{self._where} holds lists; use gather_lists.")
        parts = self._parts
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [self._empty()])

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Return the values at `rows`, shape `(n,)`, or `(n, size)` for vectors, in the type of the file."""
        parts = self._parts
        if len(parts) == 1:
            return parts[0][rows]
        empty = self._empty()
        out = np.empty((len(rows), *empty.shape[1:]), dtype=parts[0].dtype if parts else empty.dtype)
        for part, inside, local in self._by_chunk(rows):
            out[inside] = parts[part][local]
        return out

    def copy_slices(
        self, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray, places: np.ndarray
    ) -> None:
        """Copy the values of slices to their places in `out`, one slice at a time; see `ArrowFile.copy_slices`."""
        parts = list(zip(self._first_rows.tolist(), self._parts, strict=True))
        for start, length, place in zip(starts.tolist(), lengths.tolist(), places.tolist(), strict=True):
            for first, part in parts:
                begin, end = max(start, first), min(start + length, first + len(part))
                if begin < end:
                    out[place + begin - start : place + end - start] = part[begin - first : end - first]

    def gather_lists(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lists at `rows` as flat values and lengths `(n,)` int64; a null list is empty."""
        lengths = np.zeros(len(rows), dtype=np.int64)
        starts = np.zeros(len(rows), dtype=np.int64)
        pieces = list(self._by_chunk(rows))
        for part, inside, local in pieces:
            offsets, _, valid = self._list_parts[part]
            starts[inside] = offsets[local]
            lengths[inside] = offsets[local + 1] - offsets[local]
            if valid is not None:
                lengths[inside] *= valid[local]
        firsts = np.cumsum(lengths) - lengths
        kind = self._list_parts[0][1].dtype if self._list_parts else np.dtype(np.int64)
        out = np.empty(int(lengths.sum()), dtype=kind)
        for part, inside, _ in pieces:
            source = rows_of_slices(starts[inside], lengths[inside])
            out[rows_of_slices(firsts[inside], lengths[inside])] = self._list_parts[part][1][source]
        return out, lengths

    def _by_chunk(self, rows: np.ndarray):
        """Yield (chunk, positions in `rows`, rows within the chunk)."""
        if len(self._chunks) == 1:
            yield 0, slice(None), rows
            return
        chunk_of_row = np.searchsorted(self._first_rows, rows, side="right") - 1
        for chunk in np.unique(chunk_of_row):
            inside = np.flatnonzero(chunk_of_row == chunk)
            yield int(chunk), inside, rows[inside] - self._first_rows[chunk]

    def _empty(self) -> np.ndarray:
        if self._is_vector:
            return np.empty((0, self.vector_size), dtype=self._type.value_type.to_pandas_dtype())
        return np.empty(0, dtype=_numpy_dtype(self._type))

    @cached_property
    def _parts(self) -> list[np.ndarray]:
        return [self._vectors(c) if self._is_vector else self._numbers(c) for c in self._chunks]

    @cached_property
    def _list_parts(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        return [
            (
                c.offsets.to_numpy(),
                self._numbers(c.values),
                c.is_valid().to_numpy(zero_copy_only=False) if c.null_count else None,
            )
            for c in self._chunks
        ]

    def _numbers(self, chunk: pa.Array) -> np.ndarray:
        if _is_text(chunk.type):
            return chunk.to_numpy(zero_copy_only=False)
        if chunk.null_count and not pa.types.is_floating(chunk.type):
            raise DataError(
                f"{self._where} must hold no nulls. Received: {chunk.null_count}. Run ingest again."
            )
        return chunk.to_numpy(zero_copy_only=chunk.null_count == 0)

    def _vectors(self, chunk: pa.Array) -> np.ndarray:
        size = self.vector_size
        inside = chunk.values.slice(chunk.offset * size, len(chunk) * size)
        rows = self._numbers(inside).reshape(len(chunk), size)
        if chunk.null_count:
            rows = np.where(chunk.is_valid().to_numpy(zero_copy_only=False)[:, None], rows, 0)
        return rows


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)


def _numpy_dtype(kind: pa.DataType) -> np.dtype:
    return np.dtype(object) if _is_text(kind) else np.dtype(kind.to_pandas_dtype())


def _mapped(path: Path) -> pa.Table:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path), "r")).read_all()
    except FileNotFoundError as error:
        raise DataError(f"{path} must be part of the data set and is missing. Run ingest again.") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} must be an Arrow IPC file. Received: {error}. Run ingest again.") from error


class ArrowFile:
    """Uncompressed Arrow IPC files, memory-mapped and read as one: nothing is read before a row is gathered.

    Args:
        paths: The file, or the parts of it in order, all with the same columns.

    Raises:
        DataError: A file is missing, is no Arrow IPC file, or has other columns than the first.
    """

    def __init__(self, *paths: Path):
        self.path = paths[0]
        parts = [_mapped(path) for path in paths]
        for path, part in zip(paths, parts, strict=True):
            if part.schema != parts[0].schema:
                raise DataError(
                    f"{path} must have the columns of {self.path}. Received: {part.schema.names} against "
                    f"{parts[0].schema.names}. Run ingest again."
                )
        self._table = pa.concat_tables(parts)
        self._columns: dict[str, Column] = {}

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._table.num_rows

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return self._table.column_names

    def table(self, names: list[str]) -> pa.Table:
        """Return some columns as they lie in the mapped files."""
        return self._table.select(names)

    def column(self, name: str) -> Column:
        """Return the column `name`.

        Raises:
            DataError: There is no such column.
        """
        if name not in self._columns:
            if name not in self.names:
                hint = nearest(name, self.names)
                raise DataError(
                    f'{self.path.name} must have a column "{name}"{hint}. Received: {self.names}.'
                )
            self._columns[name] = Column(self._table.column(name), f'column "{name}" of {self.path.name}')
        return self._columns[name]

    def copy_slices(
        self, starts: np.ndarray, lengths: np.ndarray, out: dict[str, np.ndarray], places: np.ndarray
    ) -> None:
        """Copy slices of some columns, in the types of where they go.

        Formula: `out[name][places[i] + k] = column name at row starts[i] + k`, for k in `[0, lengths[i])`.

        Args:
            starts: First row of each slice, `(n,)` int64.
            lengths: Rows of each slice, `(n,)` int64, 0 or more.
            out: Column -> where to copy it; its other places stay as they are.
            places: Where each slice begins in `out`, `(n,)` int64.
        """
        if lengths.sum() >= LONG_SLICE * len(lengths):
            for name, values in out.items():
                self.column(name).copy_slices(starts, lengths, values, places)
            return
        source, target = rows_of_slices(starts, lengths), rows_of_slices(places, lengths)
        for name, values in out.items():
            values[target] = self.column(name).gather(source)
