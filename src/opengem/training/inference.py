"""A trained run as a model, and its predictions on a split."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from opengem.config import build, load_toml
from opengem.data.dataset import Dataset
from opengem.data.encoder import Encoder
from opengem.data.loader import Loader
from opengem.evaluation import Coverage, PredictionTable
from opengem.jagged import Batch
from opengem.schema.inputs import InputSpec
from opengem.training.checkpoint import load_model_state, require_checkpoint
from opengem.training.run import TrainRun
from opengem.training.run_folder import RunFolder


class TrainedModel:
    """The eager model of a run with its newest weights, ready to score.

    Attributes:
        run: The run's settings.
        inputs: What the model was built for.
        model: The model in evaluation mode.
    """

    def __init__(self, folder: RunFolder, run: TrainRun, inputs: InputSpec, model: nn.Module) -> None:
        self.folder, self.run, self.inputs, self.model = folder, run, inputs, model

    @classmethod
    def load(cls, path: Path) -> "TrainedModel":
        """Load the model of the run in `path`."""
        folder = RunFolder.open(path)
        settings = load_toml(folder.run_file)
        settings.pop("transfer", None)  # how it was taught; the model is the same without
        run = build(TrainRun, settings)
        inputs = folder.inputs()
        model = run.model.build(inputs)
        model.load_state_dict(load_model_state(require_checkpoint(folder.checkpoints)))
        return cls(folder, run, inputs, model.eval())

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name or self.run.model.type

    def open_data(self, data: Path | None = None) -> Dataset:
        """Open a data set for this model: its own, or another of its schema, read with its vocabularies.

        Raises:
            ConfigError: The model would read its ids or numbers otherwise than in training; says what differs.
        """
        dataset = Dataset.open(data or self.run.data, verify=True)
        return dataset.for_model(self.folder.path, self.inputs, Encoder.load(self.folder.encoder))

    def scores(
        self, dataset: Dataset, splits: tuple[str, ...], batch_size: int = 2048
    ) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        """Yield batches in time order with their probabilities `(B, T)` float64 and embeddings `(B, D)`."""
        for batch, logits_BT, embedding_BD in self.log_odds(dataset, splits, batch_size):
            yield batch, torch.sigmoid(logits_BT), embedding_BD

    @torch.no_grad()
    def log_odds(
        self, dataset: Dataset, splits: tuple[str, ...], batch_size: int = 2048
    ) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        """Yield batches in time order with their log-odds `(B, T)` float64 and embeddings `(B, D)`.

        Log-odds keep apart what runs together as probabilities: from about 37 on a probability is 1.
        """
        loader = Loader(
            dataset, splits, batch_size=batch_size, history=self.run.model.history, order="time", seed=0
        )
        for batch in loader:
            output = self.model(batch)
            yield batch, output.logits_BT.double(), output.embedding_BD


def predict_split(
    trained: TrainedModel,
    dataset: Dataset,
    split: str,
    progress: Callable[[int, int], None] | None = None,
    coverage: Coverage | None = None,
) -> PredictionTable:
    """Return the model's own predictions on one split, before calibration, with labels, in time order.

    Args:
        trained: The model.
        dataset: A data set of its schema.
        split: Name of the split.
        progress: Called with the rows done and the rows in all.
        coverage: Counts the rows as they are read.
    """
    tasks = [t.name for t in trained.inputs.tasks]
    rows = dataset.split(split)
    parts: list[np.ndarray] = []
    done = 0
    for batch, logits_BT, _ in trained.log_odds(dataset, (split,)):
        parts.append(logits_BT.numpy())
        if coverage:
            coverage.add(batch)
        done += batch.num_examples
        if progress:
            progress(done, len(rows))
    z = np.concatenate(parts) if parts else np.zeros((0, len(tasks)))
    p = torch.sigmoid(torch.from_numpy(z)).numpy()
    here = slice(rows.start, rows.stop)
    surfaces = np.array(["other", *trained.inputs.surfaces])
    return PredictionTable(
        example_id=np.asarray(dataset.example_ids[here]),
        request=np.asarray(dataset.column("request")[here]),
        user=np.asarray(dataset.column("user")[here]),
        surface=surfaces[np.asarray(dataset.column("surface")[here])],
        time=np.asarray(dataset.column("time")[here]),
        predictions={task: p[:, i] for i, task in enumerate(tasks)},
        log_odds={task: z[:, i] for i, task in enumerate(tasks)},
        labels={task: np.asarray(dataset.column(f"y_{task}")[here]) for task in tasks},
        model=trained.name,
        schema_fingerprint=trained.inputs.fingerprint,
        split=split,
    )
