"""Two models on the same examples: paired differences with intervals over users, and a verdict in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from opengem.errors import DataError
from opengem.evaluation.interval import (
    CONFIDENCE,
    METRICS,
    Interval,
    SliceStatistic,
    bootstrap,
    percentile_interval,
)
from opengem.evaluation.metrics import Rows, undefined_reason
from opengem.evaluation.predictions import PredictionTable

DIFFERENCES = ("ne", "ne_percent", "log_loss", "auc", "calibration")
"""What is compared: A minus B, and ``ne_percent`` = 100 (NE_A / NE_B - 1)."""


@dataclass(frozen=True, kw_only=True)
class SliceComparison:
    """A minus B on one task and one set of rows.

    Attributes:
        rows: labelled rows, the same for both.
        positives: rows with label 1.
        users: users with a labelled row.
        values: metric to (value of A, value of B); nan where undefined.
        differences: the names of ``DIFFERENCES`` to the paired interval.
        verdict: one sentence.
    """

    rows: int
    positives: int
    users: int
    values: dict[str, tuple[float, float]]
    differences: dict[str, Interval]
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """Give the slice as JSON-able values."""
        shown = {
            name: {k: v if np.isfinite(v) else None for k, v in zip("ab", pair, strict=True)}
            for name, pair in self.values.items()
        }
        return {
            "rows": self.rows,
            "positives": self.positives,
            "users": self.users,
            "values": shown,
            "differences": {name: found.to_dict() for name, found in self.differences.items()},
            "verdict": self.verdict,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What ``compare_predictions`` found; ``tasks[TASK]["total"]`` and ``tasks[TASK]["surfaces"][NAME]``.

    Attributes:
        a: name of the first model.
        b: name of the second model.
        rows: examples in both.
        only_a: examples of A that B lacks, left out.
        only_b: examples of B that A lacks, left out.
        replicates: resamplings of users.
        seed: of the resampling.
        totals: task to comparison on all rows.
        surfaces: task to surface to comparison.
    """

    a: str
    b: str
    rows: int
    only_a: int
    only_b: int
    replicates: int
    seed: int
    totals: dict[str, SliceComparison]
    surfaces: dict[str, dict[str, SliceComparison]]

    def verdict(self) -> str:
        """Give the verdict of every task in total, one line a task."""
        return "\n".join(f"{task}: {found.verdict}" for task, found in self.totals.items())

    def to_dict(self) -> dict[str, Any]:
        """Give the comparison as JSON-able values."""
        names = ("a", "b", "rows", "only_a", "only_b", "replicates", "seed")
        return {name: getattr(self, name) for name in names} | {
            "confidence": CONFIDENCE,
            "verdict": self.verdict(),
            "tasks": {
                task: {
                    "total": found.to_dict(),
                    "surfaces": {name: part.to_dict() for name, part in self.surfaces[task].items()},
                }
                for task, found in self.totals.items()
            },
        }


def compare_predictions(
    a: PredictionTable,
    b: PredictionTable,
    *,
    replicates: int = 200,
    seed: int = 0,
    allow_partial: bool = False,
) -> Comparison:
    """Compare two models on the same examples by a paired bootstrap over users.

    Both are evaluated on the same resampled users, so what the two have in common cancels. Surfaces are
    each judged at 95% alone; among many surfaces some will differ by chance.

    Args:
        a: predictions of the first model.
        b: predictions of the second model.
        replicates: resamplings of users.
        seed: of the resampling.
        allow_partial: compare the common examples, and the rows labelled in both, when the two sets differ.

    Returns:
        The comparison over the tasks that both predict.

    Raises:
        DataError: the sets of examples differ and ``allow_partial`` is False; or nothing is common; or
            user, surface or a label of the same example differ.
        CheckFailed: a prediction is nan, infinite or outside [0, 1].
    """
    names = (a.model or "A", b.model or "B")
    if names[0] == names[1]:
        names = (f"{names[0]} (A)", f"{names[1]} (B)")
    only_a, only_b = len(a), len(b)
    _, in_a, in_b = np.intersect1d(a.example_id, b.example_id, assume_unique=True, return_indices=True)
    only_a, only_b = only_a - len(in_a), only_b - len(in_b)
    if (only_a or only_b) and not allow_partial:
        raise DataError(
            f"both prediction tables must hold the same examples. Received {len(in_a)} in both, {only_a} "
            f"only in {names[0]}, {only_b} only in {names[1]}. Predict the same split, or pass "
            "allow_partial to compare the common examples."
        )
    tasks = [task for task in a.tasks if task in b.tasks]
    if not len(in_a) or not tasks:
        raise DataError(
            f"the prediction tables must share examples and tasks. Received {len(in_a)} common examples; "
            f"tasks {a.tasks} and {b.tasks}."
        )
    a, b = a.take(in_a), b.take(in_b)
    _same(a, b, tasks, allow_partial)
    ids, codes = np.unique(a.user, return_inverse=True)
    surfaces, surface_codes = a.surface_codes()
    places: list[tuple[str, str | None]] = [(task, name) for task in tasks for name in [None, *surfaces]]
    slices: list[tuple[Rows, Rows, np.ndarray]] = []
    for task, name in places:
        known = a.labelled(task) & b.labelled(task)
        if name is not None:
            known &= surface_codes == surfaces.index(name)
        pair = [Rows(*(v[known[t.labelled(task)]] for v in t.rows(task))) for t in (a, b)]
        slices.append((pair[0], pair[1], codes[known]))
    statistics = [SliceStatistic(rows, users) for *pair, users in slices for rows in pair]
    found = bootstrap(statistics, len(ids), replicates=replicates, seed=seed)
    results = {
        place: _slice(slices[i][0], found[:, 2 * i : 2 * i + 2], len(statistics[2 * i].users), names)
        for i, place in enumerate(places)
    }
    return Comparison(
        a=names[0],
        b=names[1],
        rows=len(in_a),
        only_a=only_a,
        only_b=only_b,
        replicates=replicates,
        seed=seed,
        totals={task: results[task, None] for task in tasks},
        surfaces={task: {name: results[task, name] for name in surfaces} for task in tasks},
    )


def _same(a: PredictionTable, b: PredictionTable, tasks: list[str], allow_partial: bool) -> None:
    """Refuse aligned tables that disagree on what was shown to whom, or on what came of it."""
    columns = {"user": (a.user, b.user), "surface": (a.surface, b.surface)}
    for task in tasks:
        labels = [np.asarray(t.labels[task], np.float64) for t in (a, b)]
        if allow_partial:
            both = a.labelled(task) & b.labelled(task)
            labels = [np.where(both, values, 0) for values in labels]
        columns[f"y_{task}"] = (np.nan_to_num(labels[0], nan=-1.0), np.nan_to_num(labels[1], nan=-1.0))
    for name, (left, right) in columns.items():
        differ = left != right
        if differ.any():
            raise DataError(
                f'column "{name}" must be equal for equal example_id in both prediction tables. Received '
                f"{int(differ.sum())} of {len(differ)} that differ; first example_id: "
                f"{a.example_id[np.argmax(differ)]}."
            )


def _slice(rows: Rows, found: np.ndarray, users: int, names: tuple[str, str]) -> SliceComparison:
    """Turn values [1 + replicates, 2, 5] of one slice into differences."""
    of = {name: found[:, :, i] for i, name in enumerate(METRICS)}
    differences = {
        name: percentile_interval(of[name][:, 0] - of[name][:, 1], users=users)
        for name in DIFFERENCES
        if name != "ne_percent"
    }
    below = np.where(of["ne"][:, 1] > 0, of["ne"][:, 1], np.nan)
    differences["ne_percent"] = percentile_interval(100 * (of["ne"][:, 0] / below - 1), users=users)
    return SliceComparison(
        rows=len(rows.labels),
        positives=int(rows.labels.sum()),
        users=users,
        values={name: (float(of[name][0, 0]), float(of[name][0, 1])) for name in METRICS},
        differences={name: differences[name] for name in DIFFERENCES},
        verdict=_verdict(differences["ne_percent"], names, undefined_reason(rows.labels)),
    )


def _verdict(change: Interval, names: tuple[str, str], reason: str | None) -> str:
    """Say in words what the interval of the relative change of NE shows."""
    if not np.isfinite(change.value):
        return f"not defined: {reason or 'NE of the second model is 0'}"
    if not np.isfinite(change.low):
        why = "no interval (too few users or replicates)"
        return f"NE of {names[0]} is {change.value:+.2f}% against {names[1]}; {why}"
    shown = f"{change.value:+.2f}% NE [{change.low:+.2f}, {change.high:+.2f}]"
    if change.high < 0:
        return f"{names[0]} is better: {shown} against {names[1]}"
    if change.low > 0:
        return f"{names[1]} is better: {names[0]} has {shown} against it"
    return f"no difference shown: {names[0]} has {shown} against {names[1]}"
