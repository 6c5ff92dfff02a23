"""What a column tells of the label in the example's own row, against what its past values tell."""

import math
from dataclasses import dataclass

import numpy as np

from opengem.data.checking.leaks.columns import Column
from opengem.data.checking.leaks.levels import (
    Levels,
    auc_error,
    count,
    fitted_auc,
    halves,
    levels_of,
    surface_rates,
)
from opengem.data.checking.leaks.sample import Sample

ENOUGH = 30
"""Positives, and negatives, that a task must have among the examples to be measured."""
STRONG, WEAK = 2.0, 1.0
"""Log odds above what is expected, from which a level counts as telling the label."""
LEVEL_ROWS = 20
_KINDS = tuple((sign, least) for sign in (1, -1) for least in (STRONG, WEAK))


@dataclass(frozen=True)
class Telling:
    """Levels that tell the label, found on one half of the examples and measured on the other.

    Attributes:
        words: The most frequent of them.
        rows: Examples at these levels.
        rate: Share of positives among them.
        expected: The same, expected from their surfaces.
        lift: Log odds of rate over expected.
        gain: `lift` less the largest lift, in the same direction, of examples whose past value is at these levels.
        error: Standard error of `gain`.
        low: Rate less three standard errors.
    """

    words: str
    rows: int
    rate: float
    expected: float
    lift: float
    gain: float
    error: float
    low: float


@dataclass(frozen=True)
class OwnRow:
    """A column against one task.

    Attributes:
        rows: Examples measured: those with a label and a past.
        positives: Positives among them.
        own: AUC, within surfaces, of the rates of the own value's level.
        past: The same of the value in the example before of the user or of the ad, whichever tells more.
        error: Standard error of `own - past`.
        telling: Strong and weak levels, positive and negative, that were found.
        compared: Whether there was a past to compare with; without one `past` is 0.5.
    """

    rows: int
    positives: int
    own: float
    past: float
    error: float
    telling: tuple[Telling, ...]
    compared: bool = True


def measure_own_row(column: Column, sample: Sample) -> dict[str, OwnRow]:
    """Measure a column of the impressions against every task.

    AUCs are those of `fitted_auc`, with halves by request: neither a level's luck nor the surface counts for the
    column. Past values get rates of their own, and are judged on the same examples.

    Args:
        column: The column, with past values.
        sample: The examples.

    Returns:
        Task -> what was measured, for tasks with 30 positives and 30 negatives. Where so many have no past, as in a log
        of users and ads that are seen once, it is measured on all examples and compared with nothing.
    """
    has = np.logical_or.reduce(list(column.has.values()))
    order = np.argsort(sample.half, kind="stable")  # so that the halves are slices
    variants = levels_of(column)
    found: dict[str, OwnRow] = {}
    for task, labels in sample.labels.items():
        labelled = order[~np.isnan(labels[order])]
        compared = _enough(labels[labelled[has[labelled]]])
        kept = labelled[has[labelled]] if compared else labelled
        y, surface = labels[kept], sample.surface[kept]
        if _enough(y):
            cut = len(kept) - int(sample.half[kept].sum())
            measured = [_measure(v.at(kept), y, surface, cut, compared) for v in variants]
            found[task] = max(measured, key=lambda m: m.own - m.past)
    return found


def _enough(y: np.ndarray) -> bool:
    return min(y.sum(), (1 - y).sum()) >= ENOUGH


def _measure(levels: Levels, y: np.ndarray, surface: np.ndarray, cut: int, compared: bool) -> OwnRow:
    own = fitted_auc(levels.own, levels.size, y, surface, cut)
    pasts = levels.past.values() if compared else ()
    past = max((fitted_auc(level, levels.size, y, surface, cut) for level in pasts), default=0.5)
    positives = int(y.sum())
    error = math.hypot(*(auc_error(auc, positives, len(y) - positives) for auc in (own, past)))
    telling = _find_telling(levels, y, surface, cut) if compared else ()
    return OwnRow(len(y), positives, own, past, error, telling, compared)


def _find_telling(levels: Levels, y: np.ndarray, surface: np.ndarray, cut: int) -> tuple[Telling, ...]:
    """Find levels far from what is expected on one half, and count their examples on the other."""
    sums = {kind: np.zeros((1 + len(levels.past), 3)) for kind in _KINDS}
    often = {kind: np.zeros(levels.size) for kind in _KINDS}
    for fit, rest in halves(cut):
        base = surface_rates(y[fit], surface[fit], int(surface.max()) + 1)[surface]
        n, hits, expected = count(levels.own[fit], y[fit], base[fit], levels.size)
        lift = _log_odds(hits, n) - _log_odds(expected, n)
        judged = np.stack(
            [
                count(level[rest], y[rest], base[rest], levels.size)
                for level in (levels.own, *levels.past.values())
            ]
        )
        for sign, least in _KINDS:
            telling = (n >= LEVEL_ROWS) & (sign * lift >= least)
            sums[sign, least] += judged[:, :, telling].sum(axis=2)
            often[sign, least] += np.where(telling, n, 0)
    found = [
        _telling(sums[kind], kind[0], levels.words[int(np.argmax(often[kind]))])
        for kind in _KINDS
        if often[kind].any()
    ]
    return tuple(t for t in found if t is not None)


def _log_odds(hits: np.ndarray | float, n: np.ndarray | float) -> np.ndarray:
    return np.log((np.asarray(hits) + 0.5) / (np.asarray(n) - hits + 0.5))


def _telling(sums: np.ndarray, sign: int, words: str) -> Telling | None:
    """Return what the levels tell; `sums` are (rows, positives, expected) of own values, then of each past."""
    rows, hits, expected = sums[0]
    if rows < LEVEL_ROWS:
        return None
    lifts = _log_odds(sums[:, 1], sums[:, 0]) - _log_odds(sums[:, 2], sums[:, 0])
    errors = np.sqrt(1 / (sums[:, 1] + 0.5) + 1 / (sums[:, 0] - sums[:, 1] + 0.5))
    seen = np.flatnonzero(sums[1:, 0] >= LEVEL_ROWS) + 1
    if not len(seen):
        return None  # without a past there is nothing to compare with
    past = seen[np.argmax(sign * lifts[seen])]
    rate = hits / rows
    odds_low = _log_odds(hits, rows) - 3 * errors[0]
    return Telling(
        words, int(rows), rate, expected / rows, float(lifts[0]), float(lifts[0] - lifts[past]),
        float(np.hypot(errors[0], errors[past])), float(1 / (1 + np.exp(-odds_low))),
    )  # fmt: skip
