"""A warm start: a new run that begins with what an earlier run learned."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from opengem.config import changes, load_toml, to_plain
from opengem.data.dataset import Dataset
from opengem.data.encoder import FIRST_ROW, Encoder
from opengem.distributed.fused_tables import FusedTables
from opengem.errors import ConfigError
from opengem.nn.embedding import EmbeddingTables
from opengem.nn.surface_embedding import SurfaceEmbedding
from opengem.schema.inputs import UNSEEN_ROW, InputSpec
from opengem.training.checkpoint import load_newest
from opengem.training.optimizers import Optimizers
from opengem.training.resume import entry_misfits
from opengem.training.run import TrainRun
from opengem.training.run_folder import RunFolder


class WarmStart:
    """What an earlier run gives to a new one.

    Parameters are taken by name. Rows of embedding tables and their AdaGrad sums are taken by id, through the
    vocabularies of both runs: a row may have another number now. An id that is new starts as the row that all unseen
    ids shared, with an AdaGrad sum of 0; an id that is gone is counted. Rows of surfaces are taken by the surface's
    name, new ones start as the row of any other surface. AdamW, the schedule, the random state, the objective and the
    running metrics begin anew.

    Args:
        path: Folder of the earlier run.
        run: Settings of the new run.
        dataset: Data set of the new run.

    Raises:
        ConfigError: The earlier run has no checkpoint, or was made for other features, streams or tasks.
        DataError: No checkpoint of it is whole.
    """

    def __init__(self, path: Path, run: TrainRun, dataset: Dataset) -> None:
        place = RunFolder.open(path)
        checkpoint = load_newest(place.checkpoints)
        if checkpoint is None:
            raise ConfigError(
                f"training.start_from must be a trained run. Received: {path}, without a checkpoint"
            )
        self.path, self.checkpoint = path, checkpoint
        self.settings = changes(load_toml(place.run_file)["model"], to_plain(run)["model"], "model")
        self.old_inputs, self.inputs = place.inputs(), dataset.inputs
        self.schema = changes(_by_position(self.old_inputs), _by_position(self.inputs))
        self.old_encoder, self.encoder = Encoder.load(place.encoder), dataset.encoder
        self.facts: dict[str, Any] = {}

    def apply(self, model: nn.Module, optimizers: Optimizers) -> None:
        """Write the earlier run's values into a model and the state of its tables' optimizer, and fill `facts`.

        Raises:
            ConfigError: Entries are missing, unexpected or of another shape; names them, and the settings that differ.
        """
        wanted = model.state_dict()
        tables, surfaces = _tables(model), _surfaces(model)
        misfits = entry_misfits(self.checkpoint.model, wanted, free=[*tables, *surfaces])
        if misfits or self.schema:
            reasons = [*self.schema, *self.settings, *misfits]
            raise ConfigError(
                f"training.start_from must be a run whose parameters fit the model. Received: {self.path}:\n  "
                + "\n  ".join(reasons)
            )
        values, state = {}, {}
        rows: dict[str, dict[str, int]] = {}
        surface_rows = _surface_rows(self.old_inputs.surfaces, self.inputs.surfaces)
        for name, saved in self.checkpoint.model.items():
            if name in tables:
                moment, vocabulary = tables[name]
                index, rows[name] = self._rows(vocabulary)
                values[name] = saved[index]
                state[moment] = self.checkpoint.other[moment][index].clone()
                state[moment][FIRST_ROW:][index[FIRST_ROW:] == UNSEEN_ROW] = 0.0
            else:
                values[name] = saved[surface_rows] if name in surfaces else saved
        model.load_state_dict(values)
        optimizers.load_table_state(state)
        self.facts = self._facts(values, rows)

    def notes(self) -> list[str]:
        """Return the start in words."""
        tables = [
            f"{n}: {r['taken']:,} ids taken, {r['new']:,} new, {r['gone']:,} gone"
            for n, r in self.facts["rows"].items()
        ]
        return [
            f"starts from {self.path} at step {self.facts['step']:,}: {len(self.facts['taken'])} parameters taken, "
            "none new; AdamW, schedule, random state and running metrics are new",
            *tables,
            *(f"differs from there: {line}" for line in self.facts["differs"]),
            *(f"passed over {line}" for line in self.checkpoint.passed_over),
        ]

    def _rows(self, vocabulary: str) -> tuple[Tensor, dict[str, int]]:
        """Return the old row of each new row `(rows,)`, the unseen row for a new id, and counts of ids."""
        old, new = self.old_encoder.vocabularies[vocabulary], self.encoder.vocabularies[vocabulary]
        rows = old.rows(new.ids)
        taken = int((rows != UNSEEN_ROW).sum())
        index = np.concatenate([np.arange(FIRST_ROW), rows])
        return torch.from_numpy(index), {"taken": taken, "new": len(new) - taken, "gone": len(old) - taken}

    def _facts(self, values: dict[str, Tensor], rows: dict[str, dict[str, int]]) -> dict[str, Any]:
        old, new = self.old_inputs.surfaces, self.inputs.surfaces
        numbers = changes(_numbers(self.old_encoder), _numbers(self.encoder), "scale of")
        return {
            "from": str(self.path),
            "step": self.checkpoint.state["steps"],
            "taken": {name: _digest(value) for name, value in values.items()},
            "new": [
                "optimizer of the dense part",
                "schedule",
                "random state",
                "objective",
                "running metrics",
            ],
            "rows": rows,
            "surfaces": {"new": [s for s in new if s not in old], "gone": [s for s in old if s not in new]},
            "differs": [*self.settings, *numbers],
        }


def _by_position(inputs: InputSpec) -> dict[str, Any]:
    """Return what parameters depend on by its place; rows of tables and surfaces are found by name instead."""
    layout = inputs.layout()
    return {key: layout[key] for key in ("features", "streams", "tasks", "ad_feature")}


def _tables(model: nn.Module) -> dict[str, tuple[str, str]]:
    """Return for each embedding table its entry in the state dict -> its AdaGrad sum, its vocabulary."""
    return {
        f"{name}.weights.{key}": (f"adagrad/{name}.{key}", vocabulary)
        for name, module in model.named_modules()
        if isinstance(module, EmbeddingTables | FusedTables)
        for key, vocabulary in module.vocabulary.items()
    }


def _surfaces(model: nn.Module) -> set[str]:
    return {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, SurfaceEmbedding)
    }


def _surface_rows(old: tuple[str, ...], new: tuple[str, ...]) -> Tensor:
    return torch.tensor([0, *(old.index(s) + 1 if s in old else 0 for s in new)])


def _numbers(encoder: Encoder) -> dict[str, dict[str, float]]:
    return {name: {"mean": mean, "std": std} for name, (mean, std) in encoder.numbers.items()}


def _digest(value: Tensor) -> str:
    return hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()
