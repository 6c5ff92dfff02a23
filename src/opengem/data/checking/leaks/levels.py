"""Columns as levels: how much the rate of a level tells of the label, fitted on one half and judged on the other."""

from dataclasses import dataclass

import numpy as np

from opengem.data.checking.leaks.columns import Column

EDGES = 32
"""Quantiles that cut numbers into levels; a value that is a quantile itself is a level of its own."""
CATEGORIES = 1_000
SEEN = 10
"""Times that a category must be seen to be a level of its own; the others share one."""
SMOOTHING = 20.0
"""Examples of average rate that are added to each level."""


@dataclass(frozen=True)
class Levels:
    """A column as levels from 0: of the own value, of past values (owner -> levels), their number, and their words."""

    own: np.ndarray
    past: dict[str, np.ndarray]
    size: int
    words: dict[int, str]

    def at(self, kept: np.ndarray) -> "Levels":
        """Return the levels of some examples."""
        return Levels(self.own[kept], {n: p[kept] for n, p in self.past.items()}, self.size, self.words)


def levels_of(column: Column) -> list[Levels]:
    """Return a column as levels: one reading of text, one or two of numbers.

    Null is level 0. Whole numbers that repeat may be codes, so they are read as categories too.
    """
    own, past = column.own, column.past
    if not column.is_number:
        return [_categories(own, past, column.words)]
    variants = [_quantiles(own, past)]
    values, codes = np.unique(own[~np.isnan(own)], return_inverse=True)
    if (
        2 * EDGES < len(values) < len(own) / SEEN and (values == np.floor(values)).all()
    ):  # whole numbers may be codes
        coded = np.full(len(own), -1)
        coded[~np.isnan(own)] = codes
        at = {n: np.searchsorted(values, p) for n, p in past.items()}
        known = {n: np.append(values, np.nan)[i] == past[n] for n, i in at.items()}
        variants.append(
            _categories(
                coded, {n: np.where(known[n], i, -1) for n, i in at.items()}, [f"{v:g}" for v in values]
            )
        )
    return variants


def _quantiles(own: np.ndarray, past: dict[str, np.ndarray]) -> Levels:
    given = own[~np.isnan(own)]
    edges = (
        np.unique(np.quantile(given, np.linspace(0, 1, EDGES + 1), method="nearest"))
        if len(given)
        else np.zeros(1)
    )

    def level(values: np.ndarray) -> np.ndarray:
        inside = np.searchsorted(edges, values, "left") + np.searchsorted(edges, values, "right") + 1
        return np.where(np.isnan(values), 0, inside)

    words = {0: "null"}
    for i, edge in enumerate(edges):
        words[2 * i + 2] = f"{edge:g}"
        words[2 * i + 1] = f"{edges[i - 1]:g} to {edge:g}" if i else f"below {edge:g}"
    words[2 * len(edges) + 1] = f"above {edges[-1]:g}"
    return Levels(level(own), {n: level(p) for n, p in past.items()}, 2 * len(edges) + 2, words)


def _categories(own: np.ndarray, past: dict[str, np.ndarray], words: list[str]) -> Levels:
    counts = np.bincount(own[own >= 0], minlength=len(words))
    frequent = np.argsort(-counts, kind="stable")[:CATEGORIES]
    frequent = frequent[counts[frequent] >= SEEN]
    of = np.append(np.ones(len(words), np.int64), 0)  # 0 is null, 1 all rare ones
    of[frequent] = np.arange(len(frequent)) + 2
    named = {0: "null", 1: "any of the rare values"} | {i + 2: words[code] for i, code in enumerate(frequent)}
    return Levels(of[own], {n: of[p] for n, p in past.items()}, len(frequent) + 2, named)


def fitted_auc(level: np.ndarray, size: int, y: np.ndarray, surface: np.ndarray, cut: int) -> float:
    """Return the AUC of a column within surfaces, fitted on one half of the examples and judged on the other.

    On one half each level gets the mean of label minus the rate of its surface, shrunk to 0; the other half is ranked
    by it. The halves change places, and the two AUCs are averaged.

    Args:
        level: `(n,)` level of each example.
        size: Number of levels.
        y: `(n,)` 0 or 1.
        surface: `(n,)` int codes from 0.
        cut: Where the second half begins.
    """
    aucs = []
    for fit, rest in halves(cut):
        base = surface_rates(y[fit], surface[fit], int(surface.max()) + 1)[surface[fit]]
        rank = ranks(count(level[fit], y[fit], base, size))[level[rest]]
        aucs.append(auc_within(rank, y[rest], surface[rest]))
    return float(np.mean(aucs))


def halves(cut: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return (fit, rest) slices of the two halves, in both orders."""
    first, second = slice(None, cut), slice(cut, None)
    return (first, second), (second, first)


def count(level: np.ndarray, y: np.ndarray, base: np.ndarray, size: int) -> np.ndarray:
    """Return rows, positives and expected positives of each level, `(3, size)`."""
    return np.stack([np.bincount(level, weights, size) for weights in (None, y, base)])


def surface_rates(y: np.ndarray, surface: np.ndarray, surfaces: int) -> np.ndarray:
    """Return the rate of each surface, shrunk to that of all."""
    hits, n = np.bincount(surface, y, surfaces), np.bincount(surface, minlength=surfaces)
    return (hits + y.mean()) / (n + 1)


def ranks(counts: np.ndarray) -> np.ndarray:
    """Return the rank of each level by its mean of label less expected, shrunk to 0; equal means have equal ranks."""
    n, hits, expected = counts
    return np.unique((hits - expected) / (n + SMOOTHING), return_inverse=True)[1]


def auc_within(rank: np.ndarray, y: np.ndarray, group: np.ndarray) -> float:
    """Return the share of pairs of a positive and a negative of one group that are ranked rightly; ties count half.

    Args:
        rank: `(n,)` int, from 0; the larger, the likelier a positive.
        y: `(n,)` 0 or 1.
        group: `(n,)` int codes from 0.

    Returns:
        The AUC; 0.5 where there is no pair.
    """
    shape = int(group.max()) + 1, int(rank.max()) + 1
    cell = group * shape[1] + rank
    cells = shape[0] * shape[1]
    n = np.bincount(cell, minlength=cells).reshape(shape)
    positives = np.bincount(cell, y, cells).reshape(shape)
    negatives = n - positives
    below = np.cumsum(negatives, axis=1) - negatives
    pairs = (positives.sum(axis=1) * negatives.sum(axis=1)).sum()
    return float((positives * (below + negatives / 2)).sum() / pairs) if pairs else 0.5


def auc_error(auc: float, positives: int, negatives: int) -> float:
    """Return the standard error of an AUC by Hanley and McNeil (1982)."""
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (positives - 1) * (q1 - auc**2) + (negatives - 1) * (q2 - auc**2)
    return float(np.sqrt(max(variance, 0.0) / (positives * negatives)))
