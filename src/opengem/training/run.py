"""The settings of one training run."""

from dataclasses import dataclass, field
from typing import Literal

from opengem.errors import ConfigError
from opengem.models.output import ModelConfig


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a model is trained.

    Attributes:
        epochs: Passes over the training rows, 1 or more.
        batch_size: Examples a step (whole requests: a batch may hold a few more).
        splits: Splits trained on, in order of time.
        order: `time`, or `shuffled` by whole requests.
        learning_rate: Peak rate of AdamW for everything but the tables.
        weight_decay: AdamW's, on matrices only.
        table_learning_rate: Peak rate of row-wise AdaGrad for the embedding tables.
        table_l2: L2 penalty on the embedding rows that a step uses.
        warmup: Share of the steps in which the rates rise; then they fall linearly to zero.
        clip: Largest norm of the dense gradient; 0 switches clipping off.
        precision: `fp32`, or `bf16` for autocast of the dense part.
        task_weights: Weight of a task in the loss, 1 where not named.
        table_backend: `auto` takes FBGEMM where it runs, else the reference.
        workers: Processes that read batches; 0 reads in the trainer.
        log_every: Steps between two lines of the log.
        checkpoint_every: Steps between two checkpoints; 0 writes one at the end only.
        start_from: Folder of a run whose parameters this one begins with: by name, embedding rows by id. Empty for
            fresh values.
        max_steps: Stop after this many steps; 0 means all.
        calibrate: Fit Platt scaling on the validation split at the end, unless it was trained on.
    """

    epochs: int = 1
    batch_size: int = 512
    splits: tuple[str, ...] = ("train",)
    order: Literal["time", "shuffled"] = "shuffled"
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    table_learning_rate: float = 0.05
    table_l2: float = 0.0
    warmup: float = 0.05
    clip: float = 1.0
    precision: Literal["fp32", "bf16"] = "fp32"
    task_weights: dict[str, float] = field(default_factory=dict)
    table_backend: Literal["auto", "fbgemm", "reference"] = "auto"
    workers: int = 1
    log_every: int = 50
    checkpoint_every: int = 500
    start_from: str = ""
    max_steps: int = 0
    calibrate: bool = True

    def __post_init__(self) -> None:
        """Check the ranges."""
        least = {
            "epochs": 1,
            "batch_size": 1,
            "workers": 0,
            "log_every": 1,
            "checkpoint_every": 0,
            "max_steps": 0,
        }
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"training.{name} must be at least {low}. Received: {getattr(self, name)}")
        for name in ("learning_rate", "table_learning_rate", "weight_decay", "table_l2", "clip"):
            if not 0 <= getattr(self, name) < 1e6:
                raise ConfigError(f"training.{name} must be 0 or more. Received: {getattr(self, name)}")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"training.warmup must be in [0, 1). Received: {self.warmup}")
        if not self.splits:
            raise ConfigError("training.splits must name at least one split. Received: []")


@dataclass(frozen=True, kw_only=True)
class TrainRun:
    """One training run: what `opengem train RUN.toml` reads.

    Attributes:
        data: Folder of an ingested data set.
        model: The model, by `type`.
        training: How it is trained.
        name: Name of the run; the model's type if empty.
        seed: Seed of the initial values, of the order and of dropout.
    """

    data: str
    model: ModelConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)
    name: str = ""
    seed: int = 0
