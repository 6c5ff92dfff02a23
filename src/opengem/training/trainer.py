"""The trainer: one loop, exactly resumable."""

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from opengem.data.dataset import Dataset
from opengem.data.encoder import Encoder
from opengem.data.loader import Loader
from opengem.errors import ConfigError, OpenGEMError
from opengem.jagged import Batch
from opengem.models.flops import FlopsPerExample
from opengem.models.loss import labels_and_masks
from opengem.training.build import apply_passes, build_model
from opengem.training.calibrate import calibrate
from opengem.training.checkpoint import load_newest, random_state, restore_random_state, save_checkpoint
from opengem.training.objective import LabelObjective
from opengem.training.optimizers import Optimizers
from opengem.training.resume import compare_identity, data_identity, machine_identity, require_same_run
from opengem.training.roof import matmul_roof
from opengem.training.run import TrainRun
from opengem.training.run_folder import RunFolder, write_atomically
from opengem.training.warm_start import WarmStart
from opengem.training.window import Window

Observer = Callable[[dict[str, Any]], None]

_LOWER = (
    "Lower training.learning_rate or training.table_learning_rate; the newest checkpoint is from before, and a new run "
    "can begin with it by training.start_from"
)


class Interrupted(OpenGEMError):  # noqa: N818
    """The run was stopped by Ctrl-C; a checkpoint was written."""

    exit_code = 130


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a finished run gives back."""

    folder: Path
    steps: int
    seconds: float
    resumed_from: int


def train(
    run: TrainRun,
    folder: Path | None = None,
    *,
    resume: bool = False,
    objective: LabelObjective | None = None,
    extras: Mapping[str, np.ndarray] | None = None,
    observer: Observer | None = None,
    notes: Sequence[str] = (),
) -> TrainResult:
    """Train the model of a run; what `opengem train` calls.

    Args:
        run: The settings.
        folder: The run's folder; a new one below `runs/` if not given.
        resume: Continue the run in `folder` from its newest whole checkpoint. The losses that follow are, to the last
            digit, those of the run that was never stopped; where they cannot be, the start row says why.
        objective: What to minimise; the true labels if not given.
        extras: Named columns, one value an example row of the data set, that batches carry for the objective.
        observer: Called with each event: start, train, time and end rows, as they stand in `metrics.jsonl`.
        notes: Lines for the start row, beside the trainer's own.

    Raises:
        ConfigError: The settings do not fit the data, the folder holds another run, another process trains in it, or a
            loss or gradient is not finite.
        DataError: No checkpoint is whole, or none can be written.
        Interrupted: Ctrl-C came; a checkpoint was written.
    """
    dataset = Dataset.open(run.data, verify=True)
    if resume and folder is None:
        raise ConfigError("--resume needs the folder of the run. Received: none")
    place = RunFolder.create(folder, run.name or run.model.type)
    with place.only_here():
        begun = place.run_file.exists()  # killed before its first line, it begins
        if begun and not resume:
            raise ConfigError(
                f"{place.path} holds a run already: name another folder, or continue it with --resume"
            )
        if begun:
            dataset = dataset.read_as(Encoder.load(place.encoder))
            require_same_run(place, run, dataset)
        else:
            dataset = dataset.grown(run.training.splits)
        trainer = Trainer(run, dataset, place, objective, extras, observer or (lambda row: None), notes)
        if resume:
            trainer.resume()
        if not trainer.resumed_from:
            trainer.begin()
        result = trainer.run_all()
        if run.training.calibrate:
            calibrate(result.folder)
    return result


class Trainer:
    """One run in progress.

    Args:
        run: The settings.
        dataset: The data.
        folder: The run's folder.
        objective: What to minimise, or None for the labels.
        extras: Columns that batches carry.
        observer: Called with each row of the log.
        notes: Lines for the start row.
    """

    def __init__(
        self,
        run: TrainRun,
        dataset: Dataset,
        folder: RunFolder,
        objective: LabelObjective | None,
        extras: Mapping[str, np.ndarray] | None,
        observer: Observer,
        notes: Sequence[str] = (),
    ) -> None:
        config = run.training
        self.run, self.config, self.folder, self.observer = run, config, folder, observer
        self.dataset, self.inputs, self.notes = dataset, dataset.inputs, list(notes)
        model = build_model(run, dataset.inputs)
        self.parameters = _count(model)
        self.model, self.backend = apply_passes(model, run)
        self.objective = objective or LabelObjective(dataset.inputs, config.task_weights)
        self.loader = Loader(
            dataset,
            config.splits,
            batch_size=config.batch_size,
            history=run.model.history,
            order=config.order,
            seed=run.seed,
            workers=config.workers,
            extras=dict(extras) if extras else None,
        )
        if len(self.loader) == 0:
            raise ConfigError(f"training.splits must hold examples. Received: none in {list(config.splits)}")
        self.total_steps = self._count_steps()
        if config.max_steps:
            self.total_steps = min(self.total_steps, config.max_steps)
        self.optimizers = Optimizers(self.model, config, self.total_steps)
        self.flops_per_example = FlopsPerExample(self.model, config.log_every)
        weights = {t.name: config.task_weights.get(t.name, 1.0) for t in dataset.inputs.tasks}
        self.window = Window(weights, matmul_roof())
        self.identity = {
            "data": data_identity(dataset, config.splits),
            "machine": machine_identity(self.backend),
        }
        self.steps = self.examples = self.resumed_from = 0
        self.seconds_before = 0.0
        self.stop = False

    def run_all(self) -> TrainResult:
        """Train to the end, or to a Ctrl-C."""
        self.began = time.perf_counter()
        self._tell(self._start_row())
        handler = signal.getsignal(signal.SIGINT)
        try:
            signal.signal(signal.SIGINT, self._on_interrupt)
        except ValueError:  # not in the main thread: there Ctrl-C does not come
            handler = None
        try:
            self._epochs()
        finally:
            if handler is not None:
                signal.signal(signal.SIGINT, handler)
        self._checkpoint()
        if self.stop and self.steps < self.total_steps:
            raise Interrupted(
                f"stopped at step {self.steps:,} of {self.total_steps:,}; a checkpoint was written. "
                f"Continue with: opengem train {self.folder.path} --resume"
            )
        seconds = self._seconds()
        self._log({"kind": "time", **self.window.totals, "seconds": seconds})
        end = {"kind": "end", "step": self.steps, "examples": self.examples, "seconds": seconds}
        write_atomically(self.folder.end_file, json.dumps(end).encode())
        self._tell(end)
        return TrainResult(
            folder=self.folder.path, steps=self.steps, seconds=seconds, resumed_from=self.resumed_from
        )

    def begin(self) -> None:
        """Begin anew, with fresh values or those of the run that the settings name."""
        if self.config.start_from:
            start = WarmStart(Path(self.config.start_from), self.run, self.dataset)
            start.apply(self.model, self.optimizers)
            write_atomically(self.folder.warm_start_file, json.dumps(start.facts, indent=1).encode())
            self.notes += start.notes()
        encoder = self.dataset.encoder
        admitted = {name: encoder.table_rows(name) - rows for name, rows in encoder.window.items()}
        self.notes += [
            f"{name}: {n:,} ids admitted after the training window" for name, n in admitted.items() if n
        ]
        schema = (self.dataset.folder / "schema.toml").read_text(encoding="utf-8")
        self.folder.write_start(self.run, schema, self.inputs.to_dict(), encoder)

    def resume(self) -> None:
        """Go back to the newest whole checkpoint, if there is one."""
        found = load_newest(self.folder.checkpoints)
        if found is None:
            return
        state = found.state
        self.notes += [f"passed over {line}" for line in found.passed_over]
        self.notes += compare_identity(state, **self.identity)
        self.model.load_state_dict(found.model)
        self.optimizers.load_state(found.other)
        self.objective.load_state(
            {k.removeprefix("objective/"): v for k, v in found.other.items() if k.startswith("objective/")}
        )
        self.loader.load_state(state["loader"])
        self.steps = self.resumed_from = state["steps"]
        self.examples, self.seconds_before = state["examples"], state["seconds"]
        self.window.sums, self.window.totals = state["window"], state["totals"]
        self.folder.cut_metrics(state["metrics_bytes"])
        restore_random_state(found.other)

    def _epochs(self) -> None:
        self.model.train()
        if self.steps >= self.total_steps:  # killed between its last checkpoint and its end
            return
        for epoch in range(self.loader.state()["epoch"], self.config.epochs):
            if self.loader.state()["epoch"] != epoch:
                self.loader.set_epoch(epoch)
            waited = time.perf_counter()
            for batch in self.loader:
                self.window.spend("data", time.perf_counter() - waited)
                self._step(batch)
                if self.stop or self.steps >= self.total_steps:
                    return
                waited = time.perf_counter()

    def _count_steps(self) -> int:
        total = 0
        for epoch in range(self.config.epochs):  # batches hold whole requests, so their number may vary
            self.loader.set_epoch(epoch)
            total += len(self.loader)
        self.loader.set_epoch(0)
        return total

    def _step(self, batch: Batch) -> None:
        clock = [time.perf_counter()]
        self.objective.prepare(batch)
        self.optimizers.prepare(self.steps)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.precision == "bf16"):
            output = self.model(batch)
        loss, per_task = self.objective(output, batch)
        clock.append(time.perf_counter())
        if not torch.isfinite(loss):
            raise ConfigError(
                f"the loss must stay finite. Received: {loss.item()} at step {self.steps:,}, which was not applied. "
                f"{_LOWER}"
            )
        try:
            loss.backward()
            clock.append(time.perf_counter())
            norm = self.optimizers.step(self.steps)
        except FloatingPointError as error:
            raise ConfigError(
                f"gradients must stay finite. Received: NaN or infinity in {error} at step {self.steps:,}, which "
                f"was not applied. {_LOWER}"
            ) from None
        clock.append(time.perf_counter())
        for part, a, b in zip(("forward", "backward", "optimizer"), clock[:-1], clock[1:], strict=True):
            self.window.spend(part, b - a)
        labels_BT, mask_BT = labels_and_masks(batch, self.inputs)
        # backward costs twice the forward; recompute does not count
        flops = 3.0 * self.flops_per_example(batch) * batch.num_examples
        self.window.add(loss, per_task, output.logits_BT, labels_BT, mask_BT, batch, flops)
        self.steps += 1
        self.examples += batch.num_examples
        if self.steps % self.config.log_every == 0 or self.steps == self.total_steps:
            rate = self.config.learning_rate * self.optimizers.factor(self.steps - 1)
            self._log({"kind": "train", "step": self.steps, "examples": self.examples, **self.window.row(),
                       "gradient_norm": norm, "learning_rate": rate, "seconds": self._seconds()})  # fmt: skip
            self.window.clear()
        every = self.config.checkpoint_every
        if every and self.steps % every == 0 and self.steps < self.total_steps:
            self._checkpoint()

    def _checkpoint(self) -> None:
        other = {**self.optimizers.state(), **random_state()}
        other.update({f"objective/{k}": v for k, v in self.objective.state().items()})
        state = {
            "steps": self.steps,
            "examples": self.examples,
            "seconds": self._seconds(),
            "loader": self.loader.state(),
            "window": self.window.sums,
            "totals": self.window.totals,
            "metrics_bytes": self.folder.metrics_size(),
            **self.identity,
        }
        save_checkpoint(self.folder.checkpoints, self.steps, self.model.state_dict(), other, state)

    def _start_row(self) -> dict[str, Any]:
        return {
            "kind": "start",
            "model": self.run.model.type,
            "folder": str(self.folder.path),
            "total_steps": self.total_steps,
            "resumed_from": self.resumed_from,
            "examples": self.loader.num_examples,
            "parameters": self.parameters,
            "table_backend": self.backend,
            "precision": self.config.precision,
            "roof_gflops": self.window.roof / 1e9,
            "threads": torch.get_num_threads(),
            "notes": self.notes,
        }

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def _log(self, row: dict[str, Any]) -> None:
        self.folder.append_metrics(row)
        self._tell(row)

    def _tell(self, row: dict[str, Any]) -> None:
        self.observer({**row, "total_steps": self.total_steps})

    def _on_interrupt(self, number, frame) -> None:
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True  # between two steps all state is whole; a second Ctrl-C does not wait


def _count(model: nn.Module) -> dict[str, int]:
    tables = sum(p.numel() for n, p in model.named_parameters() if ".weights." in n)
    return {"tables": tables, "dense": sum(p.numel() for p in model.parameters()) - tables}
