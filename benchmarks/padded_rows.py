"""Ready-made rows in Parquet: an example each, with its histories padded to the longest."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from opengem.jagged import Batch

BATCH = 1_024
LONGEST = {"organic": 4_096, "ads": 512}


def padded_rows(batch: Batch) -> pa.Table:
    """Return a batch as ready-made rows: every feature, label and length, and histories padded to the longest."""
    owner = batch.request_of_example
    columns: dict[str, pa.Array] = {}

    def add(name: str, values: torch.Tensor, narrow: bool = True) -> None:
        values = values[owner] if len(values) == batch.num_requests != len(owner) else values
        array = values.numpy()
        if narrow and array.dtype == np.int64:
            array = array.astype(np.int32)
        flat = pa.array(array.reshape(-1))
        columns[name] = flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])

    for part in ("ids", "numbers", "missing", "vectors", "labels", "label_mask"):
        for name, values in getattr(batch, part).items():
            add(f"{part}_{name}", values)
    for name in ("time", "example_id"):
        add(name, getattr(batch, name), narrow=False)
    add("surface", batch.surface)
    for name, stream in batch.history.items():
        lengths = stream.offsets.diff()
        inside = torch.arange(LONGEST[name])[None] < lengths[:, None]
        add(f"{name}_length", lengths)
        for key, values in {"time": stream.times, **stream.ids, **stream.numbers}.items():
            padded = torch.zeros(inside.shape, dtype=values.dtype)
            padded[inside] = values
            add(f"{name}_{key}", padded, narrow=key != "time")
    return pa.table(columns)


def as_blobs(table: pa.Table) -> pa.Table:
    """Return ready-made rows with each list of numbers as one value of fixed size."""
    arrays = []
    for column in table.columns:
        array = column.combine_chunks()
        if pa.types.is_fixed_size_list(array.type):
            numbers = array.flatten().to_numpy()
            kind = pa.binary(numbers.nbytes // len(array))
            array = pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(numbers)])
        arrays.append(array)
    return pa.table(arrays, names=table.column_names)


def read_rows(path: Path, types: list[np.dtype], threads: bool) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches of ready-made rows as tensors: views of what Arrow has read."""
    for batch in pq.ParquetFile(path, memory_map=True).iter_batches(BATCH, use_threads=threads):
        tensors = {}
        for name, column, kind in zip(batch.schema.names, batch.columns, types, strict=True):
            rows = len(column)
            if pa.types.is_fixed_size_list(column.type):
                column = column.flatten()
            if pa.types.is_fixed_size_binary(column.type):
                width, start = column.type.byte_width, column.offset
                flat = np.frombuffer(column.buffers()[1], np.uint8)[start * width :][: rows * width].view(
                    kind
                )
            else:
                flat = column.to_numpy(zero_copy_only=True)
            # read-only memory: torch warns, and nobody writes
            tensors[name] = torch.from_numpy(flat.reshape(rows, -1))
        yield tensors
