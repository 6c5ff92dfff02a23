"""The label store: a teacher's forward passes, made once for all students."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from opengem.data.dataset import Dataset
from opengem.errors import CheckFailed, ConfigError, DataError, nearest
from opengem.jagged import Batch
from opengem.training.inference import TrainedModel


@dataclass(frozen=True, kw_only=True)
class LabelStore:
    """What one label store holds.

    Attributes:
        path: The Parquet file.
        teacher: Name of the teacher.
        rows: Number of labelled examples.
        tasks: Tasks that the teacher predicts.
    """

    path: Path
    teacher: str
    rows: int
    tasks: tuple[str, ...]


def label(
    teacher: Path,
    out: Path,
    data: Path | None = None,
    *,
    splits: tuple[str, ...] = ("train", "validation"),
    embeddings: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> LabelStore:
    """Score examples with a teacher and write its labels; what `opengem transfer label` calls.

    The file has one row an example: `example_id`, `request`, `user`, `surface`, `time`, and per task the probability
    `p_TASK` and log-odds `z_TASK` (float32), and `embedding`, the teacher's trunk (a list of float16 of one length).
    Teacher, splits and the schema's fingerprint stand in the Parquet key-value metadata; any stack can join it by
    `example_id`.

    Args:
        teacher: Folder of the teacher's run.
        out: Parquet file to write (replaced as a whole).
        data: Data set; the teacher's own if not given.
        splits: Splits to label.
        embeddings: Whether to store the embeddings.
        progress: Called with the rows done and the rows in all.

    Raises:
        CheckFailed: The teacher says NaN or infinity; names task, count and first example. Nothing is written.

    Source: Meta's GEM post: forward passes make labels and embeddings once for all students.
    """
    trained = TrainedModel.load(teacher)
    dataset = trained.open_data(data)
    tasks = tuple(t.name for t in trained.inputs.tasks)
    surfaces = np.array(["other", *trained.inputs.surfaces])
    total = sum(len(dataset.split(s)) for s in splits)
    metadata = {
        "opengem.teacher": trained.name,
        "opengem.schema": trained.inputs.fingerprint,
        "opengem.splits": ",".join(splits),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    writer: pq.ParquetWriter | None = None
    done = 0
    try:
        for split in splits:
            start = dataset.split(split).start
            for batch, logits_BT, embedding_BD in trained.log_odds(dataset, (split,)):
                _require_finite(logits_BT, batch, tasks, trained.name)
                rows = slice(start, start + batch.num_examples)
                start = rows.stop
                columns = {
                    "example_id": pa.array(batch.example_id.numpy()),
                    "request": pa.array(np.asarray(dataset.column("request")[rows])),
                    "user": pa.array(np.asarray(dataset.column("user")[rows])),
                    "surface": pa.array(surfaces[batch.surface.numpy()]),
                    "time": pa.array(batch.time.numpy()),
                }
                p, z = torch.sigmoid(logits_BT).float().numpy(), logits_BT.float().numpy()
                for i, task in enumerate(tasks):
                    columns[f"p_{task}"] = pa.array(p[:, i])
                    columns[f"z_{task}"] = pa.array(z[:, i])
                if embeddings:
                    flat = embedding_BD.float().numpy().astype(np.float16)
                    columns["embedding"] = pa.FixedSizeListArray.from_arrays(flat.reshape(-1), flat.shape[1])
                table = pa.table(columns)
                if writer is None:
                    writer = pq.ParquetWriter(
                        temporary,
                        table.schema.with_metadata(metadata),
                        compression="zstd",
                        write_page_checksum=True,
                    )
                writer.write_table(table)
                done += batch.num_examples
                if progress:
                    progress(done, total)
        if writer is None:
            raise ConfigError(f"splits must hold examples. Received: none in {list(splits)}")
        writer.close()
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return LabelStore(path=out, teacher=trained.name, rows=done, tasks=tasks)


def _require_finite(logits_BT: Tensor, batch: Batch, tasks: tuple[str, ...], teacher: str) -> None:
    for i, task in enumerate(tasks):
        wrong = ~torch.isfinite(logits_BT[:, i])
        if wrong.any():
            raise CheckFailed(
                f'{teacher} must predict finite log-odds for task "{task}". Received {int(wrong.sum())} of '
                f"{len(wrong)} in a batch that are not; first: example_id {int(batch.example_id[wrong][0])}. "
                "No labels are written."
            )


def read_labels(path: Path, dataset: Dataset) -> tuple[dict[str, np.ndarray], str]:
    """Read a label store as columns over a data set's example rows.

    Args:
        path: The Parquet file.
        dataset: The data set whose rows are to be taught.

    Returns:
        `teacher_TASK` -> log-odds, float32, one for each example row, NaN where the store has none; and the teacher's
        name.

    Raises:
        DataError: The file is broken, was made for another schema, lacks a column, names an example twice, holds a
            label that is not finite, or has no row in common.
    """
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} must be a label store. Received: {error}") from None
    metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    made_for = metadata.get("opengem.schema", "")
    if made_for != dataset.inputs.fingerprint:
        raise DataError(
            f"{path} must be made for the schema of {dataset.folder}. "
            f"Received: {made_for[:12]}, wanted {dataset.inputs.fingerprint[:12]}"
        )
    tasks = [t.name for t in dataset.inputs.tasks]
    for column in ("example_id", *(f"z_{task}" for task in tasks)):
        if column not in table.column_names:
            raise DataError(f'{path} must have a column "{column}"{nearest(column, table.column_names)}')
    ids = table["example_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    if (ordered[1:] == ordered[:-1]).any():
        twice = ordered[1:][ordered[1:] == ordered[:-1]][0]
        raise DataError(f"{path} must name each example once. Received: example_id {twice} more than once")
    wanted = np.asarray(dataset.example_ids)
    place = np.minimum(np.searchsorted(ordered, wanted), max(len(ordered) - 1, 0))
    found = ordered[place] == wanted if len(ordered) else np.zeros(len(wanted), bool)
    if not found.any():
        raise DataError(f"{path} must label examples of {dataset.folder}. Received: no example_id in common")
    columns = {}
    for task in tasks:
        values = table[f"z_{task}"].to_numpy()[order].astype(np.float32)
        wrong = ~np.isfinite(values)
        if wrong.any():
            raise DataError(
                f'column "z_{task}" of {path} must hold finite log-odds. Received: {int(wrong.sum())} that are not; '
                f"first: {values[wrong][0]} for example_id {ordered[wrong][0]}"
            )
        columns[f"teacher_{task}"] = np.where(found, values[place], np.float32(np.nan))
    return columns, metadata.get("opengem.teacher", "")
