"""The summary of a quickstart: `summary.json`."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from opengem.config import to_plain
from opengem.data.synth import load_truth
from opengem.evaluation import PredictionTable, evaluate_predictions, read_predictions, write_predictions
from opengem.loop.settings import BASELINES, QuickstartSettings
from opengem.training.run_folder import environment, write_atomically
from opengem.transfer.ratio import transfer_ratio

METRICS = ("auc", "ne", "log_loss", "calibration", "user_auc")


def write_summary(
    out: Path,
    world: Path | None,
    seconds: dict[str, float],
    commands: dict[str, str],
    settings: QuickstartSettings,
    known: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `summary.json` from the files of the runs.

    Args:
        out: Folder of the quickstart.
        world: Folder of the synthetic world, whose truth gives the best possible result.
        seconds: What each stage took.
        commands: The plain command of each stage.
        settings: What was trained.
        known: A summary written before, of which only times and commands are new.
    """
    summary = known or _measure(out, world, settings)
    summary["seconds"] = {name: round(value, 2) for name, value in seconds.items()}
    summary["commands"] = list(commands.values())
    write_atomically(out / "summary.json", json.dumps(summary, indent=1).encode())
    return summary


def _measure(out: Path, world: Path | None, settings: QuickstartSettings) -> dict[str, Any]:
    manifest = json.loads((out / "dataset" / "manifest.json").read_text(encoding="utf-8"))
    names = ("teacher", "student", "student_alone", *BASELINES)
    tables = {name: read_predictions(out / "runs" / name / "predictions.parquet") for name in names}
    models = {}
    for name in names:
        result = json.loads((out / "runs" / name / "eval.json").read_text(encoding="utf-8"))
        models[name] = {task: _metrics(found["total"]) for task, found in result["tasks"].items()}
    ratios = transfer_ratio(
        tables["teacher"], tables["student"], tables["student_alone"], replicates=settings.replicates
    )
    summary: dict[str, Any] = {
        "models": models,
        "rows": {
            "read": sum(manifest["rows"]["read"].values()),
            "kept": sum(manifest["rows"]["kept"].values()),
            "quarantined": manifest["rows"]["quarantined"],
            "deduplicated": manifest["rows"].get("deduplicated", 0),
            "by_table": manifest["rows"],
        },
        "transfer": {
            task: {"ratio": ends["value"], "ratio_interval": [ends["low"], ends["high"]]}
            for task, ends in ((task, interval.to_dict()) for task, interval in ratios.items())
        },
        "schema": manifest["schema"],
        "settings": to_plain(settings),
        "environment": environment(),
    }
    if world is not None:
        best = _best_possible(tables["teacher"], world)
        write_predictions(best, out / "runs" / "best_possible.parquet")
        found = evaluate_predictions(best, replicates=settings.replicates).to_dict()["tasks"]
        models["best_possible"] = {task: _metrics(result["total"]) for task, result in found.items()}
        summary["gap_closed"] = {task: _gap_closed(models, task) for task in models["teacher"]}
    return summary


def _metrics(total: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in METRICS:
        found = total["metrics"][name]
        made[name] = found["value"]
        made[f"{name}_interval"] = [found["low"], found["high"]]
    return made


def _best_possible(teacher: PredictionTable, world: Path) -> PredictionTable:
    """Return the planted probabilities of the teacher's rows as predictions."""
    truth = load_truth(world)
    ids = truth["impression_id"].to_numpy()
    order = np.argsort(ids)
    rows = order[np.searchsorted(ids[order], teacher.example_id)]
    click = truth["p_click"].to_numpy()[rows]
    planted = {
        "click": click,
        "conversion": click * truth["p_conversion"].to_numpy()[rows],
        "like": np.nan_to_num(truth["p_like"].to_numpy(zero_copy_only=False)[rows].astype(float)),
    }
    return PredictionTable(
        example_id=teacher.example_id,
        request=teacher.request,
        user=teacher.user,
        surface=teacher.surface,
        time=teacher.time,
        predictions={task: planted[task] for task in teacher.tasks},
        labels=teacher.labels,
        model="best_possible",
        schema_fingerprint=teacher.schema_fingerprint,
        split=teacher.split,
    )


def _gap_closed(models: dict[str, Any], task: str) -> float | None:
    """Return which share of the NE between the best baseline and the known best the teacher closes."""
    rival = min(models[name][task]["ne"] for name in BASELINES)
    gap = rival - models["best_possible"][task]["ne"]
    return (rival - models["teacher"][task]["ne"]) / gap if gap > 0 else None
