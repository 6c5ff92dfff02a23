"""A student taught by a label store."""

from dataclasses import dataclass, field
from pathlib import Path

from opengem.data.dataset import Dataset
from opengem.training.run import TrainRun
from opengem.training.trainer import Observer, TrainResult, train
from opengem.transfer.labelling import read_labels
from opengem.transfer.methods import PlainDistillation, TransferMethod


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """What a student is taught by.

    Attributes:
        labels: Parquet file of a label store.
        method: How it is taught, by `type`.
    """

    labels: str
    method: TransferMethod = field(default_factory=PlainDistillation)


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
    """
    dataset = Dataset.open(run.data)
    columns, _ = read_labels(Path(run.transfer.labels), dataset)
    objective = run.transfer.method.build(dataset.inputs, run.training.task_weights)
    return train(run, folder, resume=resume, objective=objective, extras=columns, observer=observer)
