"""Tiny runs and packages on the data set of a case."""

import warnings
from pathlib import Path
from typing import Any

import opengem.models  # noqa: F401 - registers the model types
from opengem import TrainingConfig, TrainRun, export_run, train
from opengem.models.vertical import VerticalConfig
from opengem.serving.live import LivePackage
from opengem.serving.service import create_app
from tests.cases.inputs import Stored

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the test client asks for a successor of httpx
    from fastapi.testclient import TestClient


def tiny_run(stored: Stored, folder: Path, *, history: int = 20, **training: Any) -> Path:
    """Train a very small vertical model for a few steps; return the folder of the run."""
    plain = {"batch_size": 64, "max_steps": 3, "workers": 0, "log_every": 1, "calibrate": False}
    run = TrainRun(
        data=str(stored.folder),
        model=VerticalConfig(width=4, heads=1, layers=(8,), dropout=0.0, history=history),
        training=TrainingConfig(**(plain | {"table_learning_rate": 0.5} | training)),
    )
    return train(run, folder).folder


def service(run: Path, out: Path) -> TestClient:
    """Export a run and return a client of the service of its package."""
    return TestClient(create_app(LivePackage(export_run(run, out).folder)))
