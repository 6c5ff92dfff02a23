"""Columns of users and ads that hold the labels of the log itself: rates and counts over all of its days."""

import math
from dataclasses import dataclass

import numpy as np

from opengem.data.checking.leaks.columns import Column
from opengem.data.checking.leaks.levels import auc_error, fitted_auc, levels_of
from opengem.data.checking.leaks.sample import Sample
from opengem.data.checking.logs import Logs

OWNERS = ("user", "ad")
WINDOWS = {"all": "TRUE", "train": "split = 'train'", "after": "split IN ('validation', 'test')"}
STATIC = 0.995
"""Share of examples whose value is that of the owner's example before, from which a column is the owner's own."""
ENOUGH = 40
"""Owners that must be in both halves."""
EXAMPLES = 30
"""Owners with a positive, and with a negative, that each window must have."""
BINS, OWNERS_A_BIN = 32, 8
SLICES, ROWS_A_SLICE = 10, 2_000


@dataclass(frozen=True)
class WholeLog:
    """A column of users or ads against one task.

    Attributes:
        owner: `user` or `ad`.
        task: The task.
        window: `all`, `train` or `after` (validation and test): the examples in which it was found strongest.
        owners: Users or ads measured.
        z: Standard score of the correlation between halves of an owner's labels among owners of like value.
        correlation: That correlation.
        before: Standard score of the correlation without looking at the column.
    """

    owner: str
    task: str
    window: str
    owners: int
    z: float
    correlation: float
    before: float


@dataclass(frozen=True)
class WindowGap:
    """How well a column of users or ads ranks the examples of training, and those after it, against one task.

    Attributes:
        owner: `user` or `ad`.
        task: The task.
        train: AUC on the training examples.
        after: AUC on those of validation and test.
        error: Standard error of their difference.
    """

    owner: str
    task: str
    train: float
    after: float
    error: float


@dataclass(frozen=True)
class Halves:
    """Labels of users or ads in two halves of their requests.

    Attributes:
        code: `(E,)` code of the owner, as in the sample.
        above: `(2, E)` sum of label minus the rate of its surface and time.
        rows: `(2, E)` labelled examples.
    """

    code: np.ndarray
    above: np.ndarray
    rows: np.ndarray


def halve_labels(logs: Logs, sample: Sample) -> dict[tuple[str, str, str], Halves]:
    """Sum the labels of each user and ad, in two halves of their requests.

    Args:
        logs: The logs, joined.
        sample: The examples; owners that are not in it are left out.

    Returns:
        (owner, task, window) -> halves.
    """
    found: dict[tuple[str, str, str], Halves] = {}
    for task in logs.schema.tasks:
        y = f'"y_{task.name}"'
        for window, inside in WINDOWS.items():
            rows = f"SELECT * FROM labelled_rows WHERE {y} IS NOT NULL AND {inside}"
            (count,) = logs.one(f"SELECT count(*) FROM ({rows})")
            # slices are wide, so that hardly an owner's own labels make the rate that is taken off them
            slices = min(SLICES, max(1, count // ROWS_A_SLICE))
            above = (
                f"SELECT *, {y} - avg({y}) OVER (PARTITION BY surface, slice) AS above FROM "
                f"(SELECT *, ntile({slices}) OVER (ORDER BY request_time) AS slice FROM ({rows}))"
            )
            for owner in OWNERS:
                table = logs.con.sql(
                    f'SELECT "{owner}" AS key, '
                    "coalesce(sum(above) FILTER (hash(request) % 2 = 0), 0) AS a, "
                    "coalesce(sum(above) FILTER (hash(request) % 2 = 1), 0) AS b, "
                    "count(*) FILTER (hash(request) % 2 = 0) AS n, count(*) FILTER (hash(request) % 2 = 1) AS m "
                    f'FROM ({above}) WHERE "{owner}" IS NOT NULL GROUP BY 1 '
                    "HAVING n > 0 AND m > 0 ORDER BY 1"
                ).fetchnumpy()
                keys = np.ma.filled(table["key"], "").astype(str)
                code = np.searchsorted(sample.keys[owner], keys)
                code[code == len(sample.keys[owner])] = 0
                known = sample.keys[owner][code] == keys
                found[owner, task.name, window] = Halves(
                    code[known],
                    np.stack([np.ma.filled(table[c], 0.0)[known] for c in ("a", "b")]),
                    np.stack([np.ma.filled(table[c], 0)[known] for c in ("n", "m")]).astype(np.float64),
                )
    return found


def owner_of(column: Column) -> str:
    """Return whose value a column holds: `user` or `ad`, or "" where it changes from example to example."""
    if column.table != "impressions":
        return {"users": "user", "ads": "ad"}[column.table]
    for owner, past in column.past.items():
        has = column.has[owner]
        same = (column.own == past) | (column.missing & (np.isnan(past) if column.is_number else past < 0))
        if has.sum() >= ENOUGH and same[has].mean() >= STATIC:
            return owner
    return ""


def measure_whole_log(
    column: Column, sample: Sample, halves: dict[tuple[str, str, str], Halves]
) -> list[WholeLog]:
    """Measure whether a user's or ad's value holds the labels that it is to predict.

    A value that was known before tells how good an owner is, never how the dice fell: among owners of like value, the
    labels of two halves of an owner's requests are correlated by what the value does not tell, at 0 or above. A value
    that was computed from the labels fixes their sum: what one half has too much, the other lacks, and the correlation
    falls below 0. Owners are binned by the value, and by the value over their number of examples, for counts; the means
    of a bin leave the owner out. Only numbers and categories can be measured.

    Args:
        column: The column.
        sample: The examples.
        halves: The labels, from `halve_labels`.

    Returns:
        For each task the window in which the correlation is lowest.
    """
    owner = owner_of(column)
    if not owner:
        return []
    entity = sample.entity[owner]
    value = np.full(len(sample.keys[owner]), np.nan)
    own = column.own if column.is_number else np.where(column.missing, np.nan, column.own)
    value[entity] = own
    best: dict[str, WholeLog] = {}
    for (of, task, window), half in halves.items():
        if of != owner or len(half.code) < ENOUGH:
            continue
        x = value[half.code]
        variants = [_bins(x), _bins(x / half.rows.sum(axis=0))] if column.is_number else [_common(x)]
        before, _ = _correlation(half, np.zeros(len(x), np.int64))
        for bins in variants:
            z, correlation = _correlation(half, bins)
            if task not in best or z - max(before, 0) < best[task].z - max(best[task].before, 0):
                best[task] = WholeLog(owner, task, window, len(x), z, correlation, before)
    return list(best.values())


@dataclass(frozen=True)
class Window:
    """Labelled examples of training, or of validation and test, for one task.

    Attributes:
        rows: Their places in the sample, those of the first half first.
        cut: Where the second half begins.
        owners: `user` and `ad` -> how many have a positive, and how many a negative.
    """

    rows: np.ndarray
    cut: int
    owners: dict[str, tuple[int, int]]


def label_windows(sample: Sample) -> dict[str, tuple[Window, Window]]:
    """Return the examples of each task in training, and after it."""
    order = np.argsort(sample.half, kind="stable")
    found: dict[str, tuple[Window, Window]] = {}
    for task, labels in sample.labels.items():
        labelled = order[~np.isnan(labels[order])]
        windows = []
        for inside in (sample.train, sample.after):
            rows = labelled[inside[labelled]]
            hits, misses = rows[labels[rows] == 1], rows[labels[rows] == 0]
            owners = {
                o: (len(np.unique(c[hits])), len(np.unique(c[misses]))) for o, c in sample.entity.items()
            }
            windows.append(Window(rows, len(rows) - int(sample.half[rows].sum()), owners))
        found[task] = (windows[0], windows[1])
    return found


def measure_windows(
    column: Column, sample: Sample, windows: dict[str, tuple[Window, Window]]
) -> list[WindowGap]:
    """Measure whether a user's or ad's value ranks the examples of one window far better than those of the other.

    A value that was known before all of them does so about equally; one that was computed from the labels of a window
    knows that window alone. It finds what `measure_whole_log` cannot where owners have few examples in the window.

    Args:
        column: The column.
        sample: The examples.
        windows: The windows, from `label_windows`.

    Returns:
        For each task with 30 owners of positives, and of negatives, in both windows: the reading with the largest
        difference.
    """
    owner = owner_of(column)
    enough = {t: w for t, w in windows.items() if owner and min(min(v.owners[owner]) for v in w) >= EXAMPLES}
    if not enough:
        return []
    variants = levels_of(column)
    best: list[WindowGap] = []
    for task, pair in enough.items():
        y = sample.labels[task]
        found = []
        for levels in variants:
            train, after = (
                fitted_auc(levels.own[w.rows], levels.size, y[w.rows], sample.surface[w.rows], w.cut)
                for w in pair
            )
            # a value is drawn once an owner, however many examples read it
            errors = [auc_error(auc, *w.owners[owner]) for auc, w in zip((train, after), pair, strict=True)]
            found.append(WindowGap(owner, task, train, after, math.hypot(*errors)))
        best.append(max(found, key=lambda w: abs(w.after - w.train)))
    return best


def _bins(values: np.ndarray) -> np.ndarray:
    """Return quantile bins of about 8 owners or more; a value that is common is a bin of its own, null is bin 0."""
    given = values[~np.isnan(values)]
    if not len(given):
        return np.zeros(len(values), np.int64)
    steps = np.linspace(0, 1, max(2, min(BINS, len(given) // OWNERS_A_BIN)) + 1)[1:-1]
    edges = np.unique(np.quantile(given, steps, method="nearest"))
    bins = np.searchsorted(edges, values, "left") + np.searchsorted(edges, values, "right") + 1
    return np.where(np.isnan(values), 0, bins)


def _common(codes: np.ndarray) -> np.ndarray:
    """Return categories as bins; those of few owners share one."""
    known = np.where(np.isnan(codes), -1, codes).astype(np.int64) + 1
    counts = np.bincount(known)
    return np.where(counts[known] >= OWNERS_A_BIN, known + 1, 0)


def _correlation(half: Halves, bins: np.ndarray) -> tuple[float, float]:
    """Return z and correlation of an owner's two rates within bins, weighted by the smaller half."""
    weight = half.rows.min(axis=0)
    a, b = (
        _less_others(above / rows, weight, bins) for above, rows in zip(half.above, half.rows, strict=True)
    )
    product = weight * a * b
    scale = np.sqrt((weight * a * a).sum() * (weight * b * b).sum())
    if not scale:
        return 0.0, 0.0
    # roots keep a few large owners from hiding the rest; independent halves still have a mean of 0 or above, since the
    # root of a product is the product of roots and both halves are skewed alike
    root = np.sign(product) * np.sqrt(np.abs(product))
    return float(root.sum() / np.sqrt(np.abs(product).sum())), float(product.sum() / scale)


def _less_others(values: np.ndarray, weight: np.ndarray, bins: np.ndarray) -> np.ndarray:
    """Return values less the mean of the other owners of their bin; 0 where there is no other."""
    sums = np.bincount(bins, weight * values)[bins] - weight * values
    weights = np.bincount(bins, weight)[bins] - weight
    return np.where(weights > 0, values - sums / np.where(weights > 0, weights, 1), 0.0)
