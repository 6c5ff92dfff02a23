"""Metrics of a prediction table with intervals: per task, in total and per surface."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opengem.errors import ConfigError
from opengem.evaluation.interval import (
    CONFIDENCE,
    METRICS,
    Interval,
    SliceStatistic,
    bootstrap,
    percentile_interval,
)
from opengem.evaluation.metrics import Reliability, Rows, reliability, undefined_reason
from opengem.evaluation.predictions import PredictionTable


@dataclass(frozen=True, kw_only=True)
class SliceResult:
    """Metrics of one task on one set of rows.

    Attributes:
        rows: labelled rows.
        positives: rows with label 1.
        masked: rows of the slice without a label for the task; they are in no metric.
        users: users with a labelled row.
        metrics: the names of ``METRICS`` to interval; value nan where undefined.
        undefined: metric to the reason in words, for those that are undefined.
        reliability: deciles of the prediction.
    """

    rows: int
    positives: int
    masked: int
    users: int
    metrics: dict[str, Interval]
    undefined: dict[str, str]
    reliability: Reliability

    def to_dict(self) -> dict[str, Any]:
        """Give the slice as JSON-able values."""
        return {
            "rows": self.rows,
            "positives": self.positives,
            "masked": self.masked,
            "users": self.users,
            "metrics": {name: found.to_dict() for name, found in self.metrics.items()},
            "undefined": self.undefined,
            "reliability": [
                {"predicted": float(p), "observed": float(y), "count": int(n)}
                for p, y, n in zip(
                    self.reliability.predicted, self.reliability.observed, self.reliability.count, strict=True
                )
            ],
        }


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """Metrics of one task: in total and per surface."""

    total: SliceResult
    surfaces: dict[str, SliceResult]

    def surface_mean(self, metric: str) -> dict[str, Any]:
        """Average a metric over the surfaces where it is defined, all weighing the same; name the others."""
        values = {name: found.metrics[metric].value for name, found in self.surfaces.items()}
        defined = [value for value in values.values() if np.isfinite(value)]
        return {
            "value": float(np.mean(defined)) if defined else None,
            "surfaces": len(defined),
            "of": len(values),
            "left_out": [name for name, value in values.items() if not np.isfinite(value)],
        }

    def to_dict(self) -> dict[str, Any]:
        """Give the task as JSON-able values."""
        return {
            "total": self.total.to_dict(),
            "surfaces": {name: found.to_dict() for name, found in self.surfaces.items()},
            "surface_mean": {name: self.surface_mean(name) for name in ("ne", "auc")},
        }


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """What ``evaluate_predictions`` found; ``to_dict`` is the content of ``eval.json``.

    ``coverage`` is that of ``Coverage.to_dict``, empty where only predictions are known.
    """

    model: str
    split: str
    schema_fingerprint: str
    rows: int
    users: int
    replicates: int
    seed: int
    tasks: dict[str, TaskResult] = field(default_factory=dict)
    coverage: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Give the result as JSON-able values; a value that is undefined is None."""
        names = ("model", "split", "schema_fingerprint", "rows", "users", "replicates", "seed")
        return {name: getattr(self, name) for name in names} | {
            "confidence": CONFIDENCE,
            "coverage": self.coverage,
            "tasks": {name: found.to_dict() for name, found in self.tasks.items()},
        }

    def summary(self) -> dict[str, dict[str, Any]]:
        """Give the totals alone, ``{task: {metric: value, metric_interval: [low, high]}}``, None for nan."""
        made: dict[str, dict[str, Any]] = {}
        for task, result in self.tasks.items():
            made[task] = {"rows": result.total.rows, "positives": result.total.positives}
            for name, found in result.total.metrics.items():
                ends = found.to_dict()
                made[task] |= {name: ends["value"], f"{name}_interval": [ends["low"], ends["high"]]}
        return made


def evaluate_predictions(
    table: PredictionTable, *, replicates: int = 200, seed: int = 0, min_rows: int = 1
) -> EvalResult:
    """Compute NE, log loss, AUC, AUC inside users and calibration of each task, in total and per surface.

    Args:
        table: predictions with labels; rows without a label for a task are left out of that task and counted.
        replicates: resamplings of users for the 95% intervals; 0 gives values without intervals, quickly.
        seed: of the resampling.
        min_rows: slices with fewer labelled rows get counts but no metric, and say so; 1 or more.

    Returns:
        The result. All tasks and slices see the same resampled users.

    Raises:
        CheckFailed: a prediction is nan, infinite or outside [0, 1]; names task, count and first example.
        DataError: a label is neither 0 nor 1 nor missing.
        ConfigError: replicates is negative or min_rows below 1.
    """
    if min_rows < 1:
        raise ConfigError(f"min_rows must be 1 or more. Received {min_rows}.")
    ids, codes = np.unique(table.user, return_inverse=True)
    names, surface_codes = table.surface_codes()
    checked = {task: table.rows(task) for task in table.tasks}
    places: list[tuple[str, str | None]] = [(task, name) for task in table.tasks for name in [None, *names]]
    slices: list[tuple[Rows, np.ndarray, int]] = []
    for task, name in places:
        kept, rows = table.labelled(task), checked[task]
        of_slice = np.ones(len(table), bool) if name is None else surface_codes == names.index(name)
        inside = of_slice[kept]
        slices.append((Rows(*(v[inside] for v in rows)), codes[kept][inside], int((of_slice & ~kept).sum())))
    statistics = [SliceStatistic(rows, users) for rows, users, _ in slices]
    values = bootstrap(statistics, len(ids), replicates=replicates, seed=seed)
    results = {
        place: _slice_result(rows, masked, len(statistic.users), values[:, i], min_rows)
        for i, (place, (rows, _, masked), statistic) in enumerate(
            zip(places, slices, statistics, strict=True)
        )
    }
    return EvalResult(
        model=table.model,
        split=table.split,
        schema_fingerprint=table.schema_fingerprint,
        rows=len(table),
        users=len(ids),
        replicates=replicates,
        seed=seed,
        tasks={
            task: TaskResult(
                total=results[task, None], surfaces={name: results[task, name] for name in names}
            )
            for task in table.tasks
        },
    )


def _slice_result(rows: Rows, masked: int, users: int, values: np.ndarray, min_rows: int) -> SliceResult:
    """Turn the values of one slice, [1 + replicates, 5], into its result."""
    found = {name: percentile_interval(values[:, i], users=users) for i, name in enumerate(METRICS)}
    undefined: dict[str, str] = {}
    if 0 < len(rows.labels) < min_rows:
        nan = float("nan")
        found = {name: Interval(value=nan, low=nan, high=nan) for name in METRICS}
        undefined = dict.fromkeys(METRICS, f"{len(rows.labels)} rows, fewer than min_rows = {min_rows}")
    reason = undefined_reason(rows.labels)
    for name, interval in found.items():
        if not np.isfinite(interval.value) and name not in undefined:
            undefined[name] = reason or "no user with both classes"
    return SliceResult(
        rows=len(rows.labels),
        positives=int(rows.labels.sum()),
        masked=masked,
        users=users,
        metrics=found,
        undefined=undefined,
        reliability=reliability(rows.labels, rows.predictions),
    )
