"""Labels that were not known when their example was written, and came to be known with later logs."""

import numpy as np
import pyarrow as pa

from opengem.data.arrow_file import ArrowFile, Column
from opengem.data.arrow_sink import write_table
from opengem.data.segments import Segments

NAME = "matured.arrow"
"""File of a segment with labels of examples before it: `row`, and `y_TASK` for each task with later labels."""


class MaturedLabels:
    """The newest labels of a task: those that were written with the examples, with those that matured since.

    Args:
        written: Column of the labels as they were written, NaN where masked.
        segments: The segments of the data set.
        task: Name of the task.
    """

    def __init__(self, written: Column, segments: Segments, task: str) -> None:
        self._written = written
        rows, values = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for segment in segments.all:
            path = segment.folder / NAME
            if path.exists():
                file = ArrowFile(path)
                if f"y_{task}" in file.names:
                    rows.append(file.column("row").values)
                    values.append(file.column(f"y_{task}").values)
        rows, values = np.concatenate(rows), np.concatenate(values)
        # of several the last holds: the newest segment's
        self._rows, last = np.unique(rows[::-1], return_index=True)
        self._values = values[::-1][last]

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Return the labels of example rows, float32, NaN where masked."""
        found = self._written.gather(rows)
        if len(self._rows):
            places = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)
            found = np.where(self._rows[places] == rows, self._values[places], found)
        return found

    @property
    def values(self) -> np.ndarray:
        """Labels of all examples; without a copy where none matured."""
        if not len(self._rows):
            return self._written.values
        labels = np.array(self._written.values)
        labels[self._rows] = self._values
        return labels


def write_matured(folder, rows: np.ndarray, labels: dict[str, np.ndarray]) -> None:
    """Write the labels that matured; nothing where there are none.

    Args:
        folder: The segment.
        rows: `(n,)` int64 example rows of earlier segments, each once.
        labels: Task -> `(n,)` float32, NaN where still masked.
    """
    if len(rows):
        columns = {f"y_{task}": pa.array(y.astype(np.float32)) for task, y in labels.items()}
        write_table(folder / NAME, pa.table({"row": pa.array(rows, pa.int64()), **columns}))
