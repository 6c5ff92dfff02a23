"""Calibration after training: Platt scaling per task and surface, small surfaces drawn to the task's own fit.

    p' = sigmoid(a logit(p) + b)

Fit on predictions that the model was not trained on and that are not the test set.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from opengem.errors import ConfigError, DataError
from opengem.evaluation.metrics import CLIP
from opengem.evaluation.predictions import PredictionTable

IDENTITY = (1.0, 0.0)
_STEPS = 100
_TOLERANCE = 1e-10


@dataclass(frozen=True, kw_only=True)
class TaskCalibration:
    """Slope and offset of one task.

    Attributes:
        total: (a, b) over all surfaces; used for a surface that was not fitted.
        surfaces: surface to (a, b).
        notes: what could not be fitted, in words.
    """

    total: tuple[float, float] = IDENTITY
    surfaces: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PlattCalibration:
    """Fitted calibration of all tasks of a model; ``apply`` it to predictions, ``save`` it as JSON."""

    tasks: dict[str, TaskCalibration]

    def apply(self, table: PredictionTable) -> PredictionTable:
        """Give the table with calibrated probabilities; tasks that were not fitted are refused.

        Args:
            table: predictions of the model.

        Returns:
            A table with the same rows; float64 probabilities in [0, 1].

        Raises:
            DataError: the table has a task that was not fitted.
        """
        missing = [task for task in table.tasks if task not in self.tasks]
        if missing:
            raise DataError(f"calibration must have been fitted for all tasks. Missing: {missing}.")
        before = {task: table.log_odds.get(task, _logit(table.predictions[task])) for task in table.tasks}
        after = {task: self._moved(task, z, table.surface) for task, z in before.items()}
        return replace(
            table,
            predictions={task: _sigmoid(z) for task, z in after.items()},
            log_odds=after if table.log_odds else {},
        )

    def probabilities(self, task: str, predictions: ArrayLike, surface: ArrayLike) -> np.ndarray:
        """Calibrate probabilities of one task.

        Args:
            task: name of a fitted task.
            predictions: [B], in [0, 1].
            surface: [B] strings; one that was not fitted gets the task's total.

        Returns:
            [B] float64 in [0, 1], in the same order within a surface as before (a > 0).
        """
        return _sigmoid(self._moved(task, _logit(predictions), surface))

    def _moved(self, task: str, log_odds: np.ndarray, surface: ArrayLike) -> np.ndarray:
        fitted = self.tasks[task]
        names, codes = np.unique(np.asarray(surface, dtype=str), return_inverse=True)
        pairs = np.array([fitted.surfaces.get(str(name), fitted.total) for name in names]).reshape(-1, 2)
        slope, offset = pairs[codes].T
        return slope * log_odds + offset

    def to_dict(self) -> dict[str, Any]:
        """Give the fits as JSON-able values."""
        return {
            "kind": "platt",
            "tasks": {
                task: {
                    "total": list(f.total),
                    "surfaces": {k: list(v) for k, v in f.surfaces.items()},
                    "notes": f.notes,
                }
                for task, f in self.tasks.items()
            },
        }

    @classmethod
    def from_dict(cls, made: dict[str, Any]) -> PlattCalibration:
        """Read what ``to_dict`` gave.

        Args:
            made: the dictionary.

        Returns:
            The calibration.

        Raises:
            DataError: it is not such a dictionary.
        """
        try:
            if made["kind"] != "platt":
                raise KeyError(f"kind {made['kind']!r}")
            return cls(
                tasks={
                    task: TaskCalibration(
                        total=_pair(part["total"]),
                        surfaces={name: _pair(values) for name, values in part["surfaces"].items()},
                        notes=list(part.get("notes", [])),
                    )
                    for task, part in made["tasks"].items()
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f'calibration must be {{"kind": "platt", "tasks": ...}}. Received a wrong part: {error}'
            ) from None

    def save(self, path: str | Path) -> Path:
        """Write the fits as JSON to ``path`` and return it."""
        path = Path(path)
        path.write_text(json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> PlattCalibration:
        """Read the fits that ``save`` wrote; raises DataError where they are not."""
        return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))


def fit_platt(table: PredictionTable, *, shrinkage_positives: float = 20.0) -> PlattCalibration:
    """Fit slope and offset on the logit, per task and per (task, surface).

    A surface minimises its log loss plus the penalty (k / 2m) d' F d, where d is its distance from the task's
    fit and F the Fisher information of the task's rows there, m of them positive: the task's fit counts as k
    positives, with the negatives that go with them. The task's own fit is drawn to (1, 0) in the same way, by
    one row, so that it exists on separable data too.

    Args:
        table: predictions on held-out examples; rows without a label are left out.
        shrinkage_positives: k, 0 or more; a surface of the task's base rate with k positives lies about
            half-way between its own fit and the task's.

    Returns:
        The fits. A task or surface with one class, where nothing can be fitted, gets (1, 0) or the task's fit
        and a note. Where the slope would not be positive, which would turn the order round, only the offset
        is fitted.

    Raises:
        ConfigError: shrinkage_positives is negative.
        CheckFailed: a prediction is nan, infinite or outside [0, 1].

    Source:
        Platt, Probabilistic outputs for support vector machines, 1999; the shrinkage is our reconstruction of
        hierarchical calibration.
    """
    if not shrinkage_positives >= 0:
        raise ConfigError(f"shrinkage_positives must be 0 or more. Received {shrinkage_positives}.")
    names, codes = table.surface_codes()
    tasks: dict[str, TaskCalibration] = {}
    for task in table.tasks:
        kept, rows = table.labelled(task), table.rows(task)
        x = rows.score if table.log_odds else _logit(rows.predictions)
        y, notes = rows.labels, []
        if not _two_classes(y):
            note = f"total: one class in {len(y)} rows, left as it was"
            tasks[task] = TaskCalibration(notes=[note])
            continue
        total = _fit(x, y, IDENTITY, _information(x, IDENTITY) / len(x))
        per_positive = _information(x, total) / y.sum()
        surfaces: dict[str, tuple[float, float]] = {}
        for place, name in enumerate(names):
            inside = codes[kept] == place
            if _two_classes(y[inside]):
                surfaces[name] = _fit(x[inside], y[inside], total, shrinkage_positives * per_positive)
            else:
                notes.append(f"{name}: one class in {int(inside.sum())} rows, takes the fit of the total")
        tasks[task] = TaskCalibration(total=total, surfaces=surfaces, notes=notes)
    return PlattCalibration(tasks=tasks)


def _fit(
    x: np.ndarray, y: np.ndarray, center: tuple[float, float], precision: np.ndarray
) -> tuple[float, float]:
    """Newton from the center, slope positive; offset alone where the slope would not be."""
    slope, offset = _newton(x, y, center, precision)
    if slope <= 0:
        only_offset = precision + np.diag([1e12 * (1 + len(x)), 0.0])
        slope, offset = _newton(x, y, center, only_offset)
    return float(slope), float(offset)


def _newton(x: np.ndarray, y: np.ndarray, center: tuple[float, float], precision: np.ndarray) -> np.ndarray:
    """Minimise log loss + (1/2)(t - c)' P (t - c) over t = (a, b) by Newton with step halving."""
    middle = np.array(center)
    # A hair of ridge keeps the system solvable when all logits are equal.
    precision = precision + 1e-6 * np.eye(2)

    def objective(t: np.ndarray) -> float:
        score = t[0] * x + t[1]
        away = t - middle
        return float((np.logaddexp(0, score) - y * score).sum() + away @ precision @ away / 2)

    at, value = middle, objective(middle)
    for _ in range(_STEPS):
        residual = _sigmoid(at[0] * x + at[1]) - y
        gradient = np.array([residual @ x, residual.sum()]) + precision @ (at - middle)
        step = np.linalg.solve(_information(x, (at[0], at[1])) + precision, gradient)
        scale = 1.0
        while scale > 1e-8 and objective(at - scale * step) > value:
            scale /= 2
        at = at - scale * step
        previous, value = value, objective(at)
        if (
            previous - value <= _TOLERANCE * (1 + abs(value)) * 1e-4
            or np.abs(scale * step).max() < _TOLERANCE
        ):
            break
    return at


def _information(x: np.ndarray, at: tuple[float, float]) -> np.ndarray:
    """Fisher information of (a, b) summed over rows, [2, 2]."""
    p = _sigmoid(at[0] * x + at[1])
    spread = p * (1 - p)
    cross = spread @ x
    return np.array([[spread @ (x * x), cross], [cross, spread.sum()]])


def _logit(predictions: ArrayLike) -> np.ndarray:
    """Logit with p clipped at 1e-12 from both ends."""
    p = np.clip(np.asarray(predictions, np.float64), CLIP, 1 - CLIP)
    return np.log(p) - np.log1p(-p)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Sigmoid that never overflows: 1 - tanh halves."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def _two_classes(y: np.ndarray) -> bool:
    """Whether both labels occur."""
    return bool(len(y)) and 0 < y.sum() < len(y)


def _pair(values: Any) -> tuple[float, float]:
    """Two finite numbers, the first positive."""
    slope, offset = (float(v) for v in values)
    if not (np.isfinite([slope, offset]).all() and slope > 0):
        raise ValueError(f"(a, b) must be finite with a above 0, received {values}")
    return slope, offset
