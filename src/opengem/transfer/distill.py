"""A student taught by a label store."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opengem.data.dataset import Dataset
from opengem.errors import ConfigError, DataError
from opengem.training.run import TrainRun
from opengem.training.trainer import Observer, TrainResult, train
from opengem.transfer.labelling import read_labels
from opengem.transfer.methods import PlainDistillation, TransferMethod


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """What a student is taught by.

    Attributes:
        labels: Parquet file of a label store.
        missing_limit: Largest share of the training rows that the label store may lack, 0 to 1. They learn from their
            true labels alone.
        method: How it is taught, by `type`.
    """

    labels: str
    missing_limit: float = 0.1
    method: TransferMethod = field(default_factory=PlainDistillation)

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 <= self.missing_limit <= 1:
            raise ConfigError(f"missing_limit must be in [0, 1]. Received: {self.missing_limit}")


@dataclass(frozen=True, kw_only=True)
class DistillRun(TrainRun):
    """A training run with a teacher: what `opengem transfer distill RUN.toml` reads.

    Attributes:
        transfer: The label store and the method.
    """

    transfer: TransferConfig


def distill(
    run: DistillRun,
    folder: Path | None = None,
    *,
    resume: bool = False,
    observer: Observer | None = None,
) -> TrainResult:
    """Train a student on true labels and a teacher's; what `opengem transfer distill` calls.

    Args:
        run: The settings.
        folder: The run's folder; a new one below `runs/` if not given.
        resume: Continue the run in `folder`.
        observer: Called with each row of the log.

    Raises:
        DataError: The label store does not fit, or lacks more training rows than `transfer.missing_limit` allows.
    """
    dataset = Dataset.open(run.data)
    columns, teacher = read_labels(Path(run.transfer.labels), dataset)
    note = f"taught by {teacher or 'a teacher without name'}: {_missing(run, dataset, columns)}"
    objective = run.transfer.method.build(dataset.inputs, run.training.task_weights)
    return train(
        run, folder, resume=resume, objective=objective, extras=columns, observer=observer, notes=(note,)
    )


def _missing(run: DistillRun, dataset: Dataset, columns: dict[str, np.ndarray]) -> str:
    """Return how many training rows the label store lacks, in words, or refuse."""
    rows = np.concatenate([np.arange(r.start, r.stop) for r in map(dataset.split, run.training.splits)])
    lacking = np.any([np.isnan(values[rows]) for values in columns.values()], axis=0)
    count = int(lacking.sum())
    found = f"{count:,} of {len(rows):,} training rows have no label of the teacher"
    if count > run.transfer.missing_limit * len(rows):
        raise DataError(
            f"transfer.labels must hold at least {1 - run.transfer.missing_limit:.0%} of the training rows "
            f"(transfer.missing_limit = {run.transfer.missing_limit}). Received: in {run.transfer.labels}, {found}; "
            f"first: example_id {dataset.example_ids[rows[lacking][0]]}"
        )
    return f"{found}; they learn from their true labels alone"
