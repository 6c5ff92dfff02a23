"""Predictions of a model with their labels, and the Parquet file that holds them.

Columns: example_id, request, user (int64), surface (string), time (int64, milliseconds since 1970-01-01
UTC), and for each task ``p_TASK`` (probability), ``z_TASK`` (log-odds, where they are known) and ``y_TASK``
(0 or 1, null where the label is masked or not yet mature). Who predicted what stands in the file's
key-value metadata.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opengem.errors import CheckFailed, DataError
from opengem.evaluation.metrics import Rows, checked_rows

if TYPE_CHECKING:
    import pyarrow as pa

ID_COLUMNS = ("example_id", "request", "user", "time")
_KEY = "opengem."


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictionTable:
    """Probabilities and labels of the same examples, one row an example.

    Attributes:
        example_id: [B] int64, each once.
        request: [B] int64, page view in which the example was shown.
        user: [B] int64.
        surface: [B] strings.
        time: [B] int64, milliseconds since 1970-01-01 UTC.
        predictions: task to [B] float32 or float64 in [0, 1].
        labels: task to [B] float32, 0 or 1, nan where masked or immature; the same tasks as ``predictions``.
        log_odds: task to [B] finite, of all tasks or of none: what the predictions were before they ran together at 0
            and 1. Where known, they rank the rows and give the log loss.
        model: name of the model.
        schema_fingerprint: of the schema that the model was trained with.
        split: which part of the data this is, for example ``"test"``.

    Raises:
        DataError: lengths or tasks differ, there is no task, or an example id comes twice.
    """

    example_id: np.ndarray
    request: np.ndarray
    user: np.ndarray
    surface: np.ndarray
    time: np.ndarray
    predictions: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    log_odds: dict[str, np.ndarray] = field(default_factory=dict)
    model: str = ""
    schema_fingerprint: str = ""
    split: str = ""
    _surface_index: list[tuple[list[str], np.ndarray]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the shape of the table; values of predictions are checked where they are used."""
        for name in ID_COLUMNS:
            column = np.asarray(getattr(self, name))
            if len(column) and not np.can_cast(column.dtype, np.int64):
                raise DataError(f'column "{name}" of predictions must fit int64. Received {column.dtype}.')
            object.__setattr__(self, name, column.astype(np.int64, copy=False))
        object.__setattr__(self, "surface", np.asarray(self.surface))
        if not self.predictions or self.predictions.keys() != self.labels.keys():
            raise DataError(
                "predictions and labels must name the same tasks, at least one. "
                f"Received {sorted(self.predictions)} and {sorted(self.labels)}."
            )
        if self.log_odds and self.log_odds.keys() != self.predictions.keys():
            raise DataError(
                "log_odds must name the tasks of the predictions, or none. "
                f"Received {sorted(self.log_odds)} and {sorted(self.predictions)}."
            )
        columns = {name: getattr(self, name) for name in (*ID_COLUMNS, "surface")}
        columns |= {f"z_{task}": values for task, values in self.log_odds.items()}
        columns |= {f"p_{task}": values for task, values in self.predictions.items()}
        columns |= {f"y_{task}": values for task, values in self.labels.items()}
        wrong = {
            name: np.shape(column) for name, column in columns.items() if np.shape(column) != (len(self),)
        }
        if wrong:
            raise DataError(
                f"all columns of predictions must have {len(self)} rows, as example_id. Received {wrong}."
            )
        ordered = np.sort(self.example_id)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise DataError(
                f"example_id must be unique in predictions. Received {len(twice)} repeated rows; "
                f"first id: {twice[0]}."
            )

    def __len__(self) -> int:
        """Rows of the table."""
        return len(self.example_id)

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, in the order of the predictions."""
        return list(self.predictions)

    def surface_codes(self) -> tuple[list[str], np.ndarray]:
        """Give the sorted surface names and, for each row, the place of its surface among them, [B] int64."""
        if not self._surface_index:
            import pyarrow as pa

            encoded = pa.array(self.surface, pa.string()).dictionary_encode()
            names = encoded.dictionary.to_pylist()
            order = sorted(range(len(names)), key=names.__getitem__)
            place = np.empty(len(names), np.int64)
            place[order] = np.arange(len(names))
            codes = encoded.indices.to_numpy(zero_copy_only=False)
            self._surface_index.append(([names[i] for i in order], place[codes]))
        return self._surface_index[0]

    def labelled(self, task: str) -> np.ndarray:
        """Say which rows have a label for the task, [B] bool."""
        return ~np.isnan(np.asarray(self.labels[task], np.float64))

    def rows(self, task: str) -> Rows:
        """Give the labelled rows of a task, checked, in float64.

        Args:
            task: name of the task.

        Returns:
            The rows in table order, weight 1.

        Raises:
            CheckFailed: a prediction of any row is nan, infinite or outside [0, 1]; names task, count and
                first example.
            DataError: a label is neither 0 nor 1 nor missing.
        """
        p = np.asarray(self.predictions[task], np.float64)
        self._refuse(
            ~((p >= 0) & (p <= 1)), p, f'predictions of task "{task}" must be probabilities in [0, 1]'
        )
        z = self.log_odds.get(task)
        if z is not None:
            self._refuse(~np.isfinite(z), z, f'log-odds of task "{task}" must be finite')
        kept = self.labelled(task)
        try:
            return checked_rows(
                np.asarray(self.labels[task])[kept], p[kept], log_odds=None if z is None else z[kept]
            )
        except DataError as error:
            raise DataError(f'task "{task}": {error}') from None

    def _refuse(self, wrong: np.ndarray, values: np.ndarray, must: str) -> None:
        if wrong.any():
            first = int(np.argmax(wrong))
            raise CheckFailed(
                f"{must}. Received {int(wrong.sum())} of {len(wrong)} that are not; first: {values[first]} for "
                f"example_id {self.example_id[first]}{f' by model {self.model}' if self.model else ''}. "
                "No metric is computed from them."
            )

    def take(self, rows: np.ndarray) -> PredictionTable:
        """Give the table of the chosen rows, by position or mask, in that order."""
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in (*ID_COLUMNS, "surface")},
            predictions={task: np.asarray(values)[rows] for task, values in self.predictions.items()},
            labels={task: np.asarray(values)[rows] for task, values in self.labels.items()},
            log_odds={task: np.asarray(values)[rows] for task, values in self.log_odds.items()},
        )


def to_arrow(table: PredictionTable) -> pa.Table:
    """Give the table as Arrow, as it stands in the file."""
    import pyarrow as pa

    columns = {name: pa.array(getattr(table, name), pa.int64()) for name in ("example_id", "request", "user")}
    columns["surface"] = pa.array(table.surface, pa.string())
    columns["time"] = pa.array(table.time, pa.int64())
    for task, values in table.predictions.items():
        kind = pa.float32() if np.asarray(values).dtype == np.float32 else pa.float64()
        columns[f"p_{task}"] = pa.array(values, kind)
        if task in table.log_odds:
            columns[f"z_{task}"] = pa.array(table.log_odds[task], pa.float64())
        columns[f"y_{task}"] = pa.array(
            np.asarray(table.labels[task], np.float32), pa.float32(), from_pandas=True
        )
    facts = {"model": table.model, "schema_fingerprint": table.schema_fingerprint, "split": table.split}
    return pa.table(columns).replace_schema_metadata({_KEY + k: v for k, v in facts.items()})


def write_predictions(table: PredictionTable, path: str | Path) -> Path:
    """Write the table as Parquet, whole or not at all: a temporary file beside the target is renamed onto it.

    Args:
        table: what to write.
        path: the file; its folder is made where missing. An existing file is replaced.

    Returns:
        The path.
    """
    import pyarrow.parquet as pq

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            pq.write_table(to_arrow(table), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def read_predictions(path: str | Path) -> PredictionTable:
    """Read a file that ``write_predictions`` wrote, or one of the same columns.

    Args:
        path: the Parquet file.

    Returns:
        The table; tasks in the order of the columns.

    Raises:
        DataError: the file is missing or not Parquet, a column is missing, null or of a wrong type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"predictions must be a Parquet file. Received {path}: {error}") from None
    tasks = [name[2:] for name in found.column_names if name.startswith("p_")]
    needed = [*ID_COLUMNS, "surface", *(f"y_{task}" for task in tasks)]
    missing = [name for name in needed if name not in found.column_names]
    if missing or not tasks:
        raise DataError(
            f"{path} must have the columns {needed} and one p_TASK or more. Missing: {missing or ['p_TASK']}."
        )
    for name in [*ID_COLUMNS, "surface", *(f"p_{task}" for task in tasks)]:
        if found[name].null_count:
            raise DataError(
                f'column "{name}" of {path} must have no null. Received {found[name].null_count}.'
            )
    metadata = {key.decode(): value.decode() for key, value in (found.schema.metadata or {}).items()}
    return PredictionTable(
        **{name: _numpy(found, name, path) for name in (*ID_COLUMNS, "surface")},
        predictions={task: _numpy(found, f"p_{task}", path) for task in tasks},
        labels={task: _numpy(found, f"y_{task}", path) for task in tasks},
        log_odds={
            task: _numpy(found, f"z_{task}", path) for task in tasks if f"z_{task}" in found.column_names
        },
        model=metadata.get(_KEY + "model", ""),
        schema_fingerprint=metadata.get(_KEY + "schema_fingerprint", ""),
        split=metadata.get(_KEY + "split", ""),
    )


def _numpy(found: pa.Table, name: str, path: str | Path) -> np.ndarray:
    """One column as numpy; floats keep their width, nulls of labels become nan."""
    import pyarrow as pa

    column = found[name]
    if name == "surface":
        wanted, fits = "string", pa.types.is_string(column.type) or pa.types.is_dictionary(column.type)
    elif name.startswith(("p_", "y_", "z_")):
        wanted, fits = "float", pa.types.is_floating(column.type)
    else:
        wanted, fits = "int64", column.type == pa.int64()
    if not fits:
        raise DataError(f'column "{name}" of {path} must be {wanted}. Received {column.type}.')
    return column.to_numpy()
