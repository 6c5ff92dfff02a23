"""Data sets of the catalogue's base world, each made once a session, and tiny runs on them."""

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import opengem.models  # noqa: F401 - registers the model types
from opengem import TrainingConfig, TrainRun
from opengem.data import Dataset
from opengem.models.vertical import VerticalConfig
from opengem.training.checkpoint import Checkpoint, load_checkpoint, require_checkpoint
from opengem.training.run_folder import RunFolder
from tests.cases.inputs import CASES, DAYS, Case, run_script

SMALL = VerticalConfig(width=8, heads=1, layers=(8,), dropout=0.0, history=20)
TIMES = {
    "seconds",
    "examples_per_second",
    "events_per_second",
    "mfu",
    "data_wait",
    "data",
    "forward",
    "backward",
}
"""Parts of the metrics that the clock decides."""

_made: dict[str, Path] = {}


def base() -> Any:
    """Return the catalogue's module of the base world."""
    if not CASES.is_dir():
        pytest.skip(f"the catalogue of cases must lie in {CASES}: there is no such folder")
    sys.path.insert(0, str(CASES))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        return importlib.import_module("base")
    finally:
        sys.path.remove(str(CASES))
        sys.dont_write_bytecode = written


def world_data(factory: pytest.TempPathFactory, splits: dict[str, list[str]] = DAYS, **size: int) -> Path:
    """Return the data set of the base world, of other sizes if asked for; it must not be changed."""
    name = f"{sorted(size.items())} {sorted(splits.items())}"
    if name not in _made:
        folder = factory.mktemp("world")
        for table, content in base().world(**size).items():
            (folder / "input").mkdir(exist_ok=True)
            pq.write_table(content, folder / "input" / f"{table}.parquet")
        given = Case(folder / "input", folder / "out")
        given.schema["splits"] = splits
        _made[name] = given.ingest().folder
    return _made[name]


def script_data(factory: pytest.TempPathFactory, script: str) -> Path:
    """Return the data set of a script's input, all of its rows for training; it must not be changed."""
    if script not in _made:
        folder = factory.mktemp(Path(script).stem)
        _made[script] = Case(run_script(script, folder / "input"), folder / "out").ingest().folder
    return _made[script]


def own_copy(data: Path, to: Path) -> Path:
    """Return a copy of a data set that may be changed."""
    return Path(shutil.copytree(data, to))


def tiny(data: Path, *, model: Any = SMALL, seed: int = 3, **training: Any) -> TrainRun:
    """Return the settings of a tiny run."""
    plain = {"batch_size": 48, "workers": 0, "log_every": 1, "calibrate": False, "max_steps": 10}
    return TrainRun(data=str(data), model=model, seed=seed, training=TrainingConfig(**(plain | training)))


def lines(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    """Return the lines of a run's metrics, without what the clock decides."""
    found = [row for row in RunFolder(folder).metrics() if row["kind"] == kind]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in found]


def saved(folder: Path) -> Checkpoint:
    """Return the newest checkpoint of a run."""
    return load_checkpoint(require_checkpoint(folder / "checkpoints"))


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of named tensors are equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def ids_of(folder: Path) -> list[int]:
    """Return the ids of all examples of a data set, ascending."""
    return sorted(Dataset.open(folder).example_ids.tolist())
