"""Evaluation of a run: predictions of a split, metrics with intervals, both as files of the run."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from opengem.errors import ConfigError
from opengem.evaluation import (
    Comparison,
    Coverage,
    EvalResult,
    compare_predictions,
    evaluate_predictions,
    read_predictions,
    write_predictions,
)
from opengem.training.calibrate import calibrated
from opengem.training.inference import TrainedModel, predict_split
from opengem.training.run_folder import RunFolder, write_atomically


def evaluate(
    run: Path,
    data: Path | None = None,
    *,
    split: str = "test",
    replicates: int = 200,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> EvalResult:
    """Score a split with a trained run; what `opengem evaluate` calls.

    Writes `predictions.parquet` and `eval.json` into the run's folder (for another split than `test`, with the
    split's name in theirs).

    Args:
        run: Folder of the run.
        data: Data set; the run's own if not given.
        split: `train`, `validation` or `test`.
        replicates: Bootstrap replicates over users.
        seed: Seed of the bootstrap.
        progress: Called with the rows done and the rows in all.
    """
    trained = TrainedModel.load(run)
    dataset = trained.open_data(data)
    coverage = Coverage(trained.inputs)
    table = calibrated(trained, predict_split(trained, dataset, split, progress, coverage))
    result = evaluate_predictions(table, replicates=replicates, seed=seed)
    result = dataclasses.replace(result, coverage=coverage.to_dict())
    folder, ending = trained.folder, "" if split == "test" else f".{split}"
    write_predictions(table, folder.predictions_file.with_suffix(f"{ending}.parquet"))
    content = json.dumps(result.to_dict(), indent=1).encode()
    write_atomically(folder.eval_file.with_suffix(f"{ending}.json"), content)
    return result


def compare_runs(a: Path, b: Path, *, replicates: int = 500, seed: int = 0) -> Comparison:
    """Compare two evaluated runs on the same test rows; what `opengem compare` calls.

    Args:
        a: Folder of the first run.
        b: Folder of the second.
        replicates: Bootstrap replicates over users.
        seed: Seed of the bootstrap.
    """
    tables = []
    for path in (a, b):
        file = RunFolder.open(path).predictions_file
        if not file.exists():
            raise ConfigError(
                f"{path} must be evaluated first: opengem evaluate {path}. Received: no {file.name}"
            )
        tables.append(read_predictions(file))
    return compare_predictions(*tables, replicates=replicates, seed=seed)
