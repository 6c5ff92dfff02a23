"""A quickstart folder as the loop leaves it, small and made up, with real evaluations and comparisons in it."""

import json
import shutil

import numpy as np
import pytest
import tomli_w

from opengem.evaluation import (
    PredictionTable,
    compare_predictions,
    evaluate_predictions,
    write_predictions,
)

NOISE = {
    "best_possible": 0.0,
    "teacher": 0.45,
    "student": 0.6,
    "student_alone": 0.75,
    "din": 0.85,
    "dcnv2": 0.8,
    "dlrm": 0.95,
    "logistic_regression": 1.3,
}
TASKS = {"click": -1.4, "like": -2.6}
SURFACES = ["feed", "reels", "explore", "stories", "marketplace"]
SHARES = [0.45, 0.3, 0.15, 0.08, 0.02]


def prediction_tables(rows=4000, users=350, seed=0):
    """One table a model: the true logit, with more noise for the weaker models."""
    random = np.random.default_rng(seed)
    user = random.integers(0, users, rows)
    surface = np.array(SURFACES)[random.choice(len(SURFACES), rows, p=SHARES)]
    logits = {task: shift + random.normal(0, 1.3, rows) for task, shift in TASKS.items()}
    labels = {
        task: (random.random(rows) < 1 / (1 + np.exp(-x))).astype(np.float32) for task, x in logits.items()
    }
    labels["like"][surface == "marketplace"] = 0
    ids = np.arange(rows, dtype=np.int64)
    made = {}
    for name, noise in NOISE.items():
        own = np.random.default_rng([seed, len(name)])
        shown = {task: x + own.normal(0, noise, rows) for task, x in logits.items()}
        shrunk = {task: TASKS[task] + (x - TASKS[task]) / (1 + noise**2 / 1.7) for task, x in shown.items()}
        made[name] = PredictionTable(
            example_id=ids,
            request=ids // 4,
            user=user,
            surface=surface,
            time=1_767_225_600_000 + ids * 500,
            predictions={task: (1 / (1 + np.exp(-x))).astype(np.float32) for task, x in shrunk.items()},
            labels=labels,
            model=name,
            schema_fingerprint="6f1c0a94d2b7",
            split="test",
        )
    return made


def metrics_lines(noise, seed):
    """Training that falls towards a level, as in metrics.jsonl."""
    random = np.random.default_rng(seed)
    lines = []
    for step in range(20, 1001, 20):
        fall = 0.8 * np.exp(-step / 60) + 0.25 * np.exp(-step / 400)
        ne = 0.78 + 0.07 * noise + fall + random.normal(0, 0.012)
        lines.append(
            {
                "kind": "train",
                "step": step,
                "examples": step * 512,
                "loss": 0.5 * ne,
                "ne": ne,
                "calibration": 1 + random.normal(0, 0.04) + 0.4 * np.exp(-step / 50),
                "examples_per_second": 5200 / (1 + noise),
                "events_per_second": 260_000 / (1 + noise),
                "mfu": 0.21 if noise < 0.5 else None,
                "data_wait": 0.03,
                "seconds": step * 0.09,
                "learning_rate": 1e-3,
            }
        )
        if step % 200 == 0:
            tasks = {
                task: {"ne": ne + 0.01 + 0.03 * place, "auc": 0.75, "calibration": 1.0}
                for place, task in enumerate(TASKS)
            }
            lines.append({"kind": "validation", "step": step, "examples": step * 512, "tasks": tasks})
    lines.append(
        {
            "kind": "time",
            "forward": 21.0,
            "backward": 43.5,
            "optimizer": 9.2,
            "data": 2.7,
            "evaluation": 6.1,
            "seconds": 90.0,
        }
    )
    return lines


def put(path, content):
    """Write JSON, making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def environment():
    return {
        "time": "2026-01-05T10:00:00+00:00",
        "command": ["opengem", "train", "run.toml"],
        "python": "3.11.9",
        "versions": {"opengem": "0.1.0", "torch": "2.13.0", "fbgemm-gpu-cpu": None},
        "commit": "0123456789ab",
    }


def write_quickstart(folder, replicates=60):
    """Write every file of a quickstart folder."""
    tables = prediction_tables()
    results = {name: evaluate_predictions(table, replicates=replicates) for name, table in tables.items()}
    pairs = [("teacher", name) for name in ("dcnv2", "din", "dlrm", "logistic_regression")]
    pairs.append(("student", "student_alone"))
    put(
        folder / "comparisons.json",
        [compare_predictions(tables[a], tables[b], replicates=replicates).to_dict() for a, b in pairs],
    )
    models = {name: result.summary() for name, result in results.items()}
    gaps = {
        task: (models["dcnv2"][task]["ne"] - models["teacher"][task]["ne"])
        / (models["dcnv2"][task]["ne"] - models["best_possible"][task]["ne"])
        for task in TASKS
    }
    put(
        folder / "summary.json",
        {
            "models": models,
            "seconds": {
                "synth": 6.2,
                "ingest": 9.1,
                "train_teacher": 90,
                "train_baselines": 48.4,
                "label": 5.5,
                "train_students": 41,
                "evaluate": 8.8,
                "export": 3.9,
            },
            "rows": {
                "read": 40_120,
                "kept": 40_000,
                "quarantined": {"null key user_id": 60, "label is 2": 40},
                "deduplicated": 20,
                "by_table": {"passed_over": {"impressions": 0, "events": 7}},
            },
            "transfer": {
                "click": {"ratio": 0.56, "ratio_interval": [0.31, 0.82]},
                "like": {"ratio": 0.41, "ratio_interval": [-0.08, 0.9]},
            },
            "gap_closed": gaps,
            "commands": ["opengem quickstart --out runs/demo", "opengem report runs/demo"],
            "schema": {"name": "demo", "fingerprint": "6f1c0a94d2b7"},
            "environment": environment(),
        },
    )
    for place, (name, table) in enumerate(tables.items()):
        if name == "best_possible":
            continue
        run = folder / "runs" / name
        put(run / "eval.json", results[name].to_dict())
        put(run / "environment.json", environment())
        write_predictions(table, run / "predictions.parquet")
        (run / "run.toml").write_text(tomli_w.dumps({"name": name, "training": {"batch_size": 512}}))
        lines = metrics_lines(NOISE[name], place)
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    put(
        folder / "dataset" / "manifest.json",
        {
            "counts": {
                "examples": 40_000,
                "requests": 10_000,
                "events": {"organic": 1_200_000, "ads": 40_000},
                "users": 3500,
                "ads": 900,
            },
            "history_lengths": {
                "organic": {
                    "edges": [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
                    "counts": [40, 80, 160, 420, 900, 1700, 2600, 2400, 1200, 500],
                },
                "ads": {
                    "edges": [0, 1, 2, 4, 8, 16, 32, 64],
                    "counts": [900, 1500, 2300, 2600, 1700, 800, 200],
                },
            },
            "quarantine": {"null key user_id": 60, "label is 2": 40},
            "storage": {
                "bytes_store": 21_000_000,
                "bytes_copied_estimate": 940_000_000,
                "bytes_rows": 21_000_000,
                "bytes_per_event": 16.9,
                "bytes_per_example": 525.0,
            },
            "splits": {"train": [0, 30_000], "validation": [30_000, 35_000], "test": [35_000, 40_000]},
        },
    )
    put(
        folder / "ranked.json",
        {
            "request": {"user": 17, "surface": "feed", "time": "2026-01-05T08:00:00Z", "history": [1, 2, 3]},
            "ads": [
                {"ad": 100 + i, "scores": {"click": 0.31 / (i + 1), "like": 0.08 / (i + 1)}} for i in range(8)
            ],
        },
    )
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A complete quickstart folder; tests that change it copy it first."""
    return write_quickstart(tmp_path_factory.mktemp("quickstart") / "demo")


@pytest.fixture
def folder(finished, tmp_path):
    """A copy to break."""

    return shutil.copytree(finished, tmp_path / "demo")
