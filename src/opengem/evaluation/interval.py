"""Intervals of the metrics by resampling users, because rows of one user are not independent.

A replicate draws as many users as there are, with replacement; a user drawn k times brings all of their
rows with weight k. Rows are sorted once, so a replicate costs O(rows). All slices of an evaluation see the
same draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from opengem.errors import ConfigError
from opengem.evaluation import metrics

METRICS = ("ne", "log_loss", "auc", "user_auc", "calibration")
"""Names of the metrics that get an interval, in the order of every array of values."""

CONFIDENCE = 0.95
"""Share of replicates that an interval holds."""

MIN_DEFINED = 0.5
"""Smallest share of replicates in which a metric must exist for its interval to be given."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value on all rows with its percentile interval over replicates.

    Attributes:
        value: metric on all rows; nan where undefined.
        low: lower end; nan where undefined, or with fewer than two users, or without replicates.
        high: upper end.
        undefined: replicates in which the metric did not exist (for example, no positive drawn); they are
            left out. 0 where the value itself does not exist.
    """

    value: float
    low: float
    high: float
    undefined: int = 0

    def to_dict(self) -> dict[str, float | int | None]:
        """Give value, low and high, None for nan, and ``undefined_replicates`` where there are any."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        made: dict[str, float | int | None] = {k: v if np.isfinite(v) else None for k, v in ends.items()}
        return made | ({"undefined_replicates": self.undefined} if self.undefined else {})


class SliceStatistic:
    """The five metrics of a fixed set of rows as a function of how often each user was drawn.

    All but AUC are ratios of sums over users. AUC needs the rows: negatives are sorted once, and every
    positive remembers between which negatives it stands.
    """

    def __init__(self, rows: metrics.Rows, user_codes: np.ndarray) -> None:
        """Prepare the sums.

        Args:
            rows: checked rows, each array [B].
            user_codes: [B] integers, positions in the array of draws.
        """
        y, p, w, score, loss = rows
        self.users, codes = np.unique(user_codes, return_inverse=True)
        count = len(self.users)
        columns = (w, w * y, w * p, w * loss)
        self.sums = np.stack([np.bincount(codes, column, count) for column in columns], axis=1)
        _, by_user, user_weight = metrics.auc_of_users(rows, codes)
        both = ~np.isnan(by_user)
        self.user_auc = np.stack([np.where(both, by_user, 0) * user_weight, both * user_weight], axis=1)
        positive = y == 1
        order = np.argsort(score[~positive], kind="stable")
        negatives = score[~positive][order]
        self.negative_user, self.negative_weight = codes[~positive][order], w[~positive][order]
        rank = np.argsort(score[positive], kind="stable")
        scores = score[positive][rank]
        self.positive_user, self.positive_weight = codes[positive][rank], w[positive][rank]
        self.low = np.searchsorted(negatives, scores, side="left")
        self.high = np.searchsorted(negatives, scores, side="right")

    def values(self, draws: np.ndarray) -> np.ndarray:
        """Compute the metrics for one set of draws.

        Args:
            draws: [all users] float64, how often each user of the table was drawn.

        Returns:
            [5] float64, ordered as ``METRICS``; nan where undefined.
        """
        k = draws[self.users]
        weight, positives, predicted, loss = k @ self.sums
        mean_loss = metrics.ratio(loss, weight)
        wins, impressions = k @ self.user_auc
        ne = metrics.ratio(mean_loss, metrics.binary_entropy(metrics.ratio(positives, weight)))
        return np.array(
            [
                ne,
                mean_loss,
                self._auc(k),
                metrics.ratio(wins, impressions),
                metrics.ratio(predicted, positives),
            ]
        )

    def _auc(self, k: np.ndarray) -> float:
        """Weighted AUC, each row weighted by the draws of its user."""
        below = np.zeros(len(self.negative_user) + 1)
        np.cumsum(k[self.negative_user] * self.negative_weight, out=below[1:])
        weight = k[self.positive_user] * self.positive_weight
        wins = weight @ (below[self.low] + below[self.high]) / 2
        return min(metrics.ratio(metrics.ratio(wins, weight.sum()), below[-1]), 1.0)


def bootstrap(
    statistics: Sequence[SliceStatistic], num_users: int, *, replicates: int, seed: int
) -> np.ndarray:
    """Evaluate all statistics on the same draws of users.

    Args:
        statistics: the slices.
        num_users: users in the whole table; the draws are over all of them.
        replicates: number of draws, 0 or more.
        seed: of numpy's PCG64; equal seeds give equal draws.

    Returns:
        [1 + replicates, slices, 5] float64; row 0 is the value on all rows.

    Raises:
        ConfigError: replicates is negative.
    """
    if replicates < 0:
        raise ConfigError(f"replicates must be 0 or more. Received {replicates}.")
    random = np.random.default_rng(seed)
    found = np.empty((1 + replicates, len(statistics), len(METRICS)))
    draws = np.ones(num_users)
    for replicate in range(1 + replicates):
        if replicate:
            drawn = random.integers(0, max(num_users, 1), num_users)
            draws = np.bincount(drawn, minlength=num_users).astype(np.float64)
        for place, statistic in enumerate(statistics):
            found[replicate, place] = statistic.values(draws)
    return found


def percentile_interval(values: np.ndarray, *, users: int) -> Interval:
    """Turn a value and its replicates into an interval.

    Args:
        values: [1 + replicates] float64, the value on all rows first.
        users: users in the slice; with fewer than two nothing can be resampled and the interval is nan.

    Returns:
        The 95% percentile interval over replicates in which the metric exists, nan where it exists in fewer
        than half.
    """
    value, replicates = float(values[0]), values[1:]
    defined = replicates[np.isfinite(replicates)]
    low = high = float("nan")
    enough = len(defined) > 0 and len(defined) >= MIN_DEFINED * len(replicates)
    if np.isfinite(value) and enough and users >= 2:
        edge = (1 - CONFIDENCE) / 2
        low, high = (float(v) for v in np.quantile(defined, [edge, 1 - edge]))
    undefined = len(replicates) - len(defined) if np.isfinite(value) else 0
    return Interval(value=value, low=low, high=high, undefined=undefined)


def bootstrap_intervals(
    labels: ArrayLike,
    predictions: ArrayLike,
    users: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    replicates: int = 200,
    seed: int = 0,
) -> dict[str, Interval]:
    """Give every metric of one set of rows with its 95% interval over users.

    Args:
        labels: [B], 0 or 1.
        predictions: [B], in [0, 1].
        users: [B], ids.
        weight: [B], 0 or more; default 1.
        replicates: resamplings of users.
        seed: of the resampling.

    Returns:
        Metric name to interval, the names of ``METRICS``.

    Raises:
        DataError: see ``metrics.checked_rows``.

    Source:
        Multinomial bootstrap over clusters: Field and Welsh, Bootstrapping clustered data, 2007.
    """
    rows = metrics.checked_rows(labels, predictions, weight)
    ids, codes = np.unique(np.asarray(users), return_inverse=True)
    found = bootstrap([SliceStatistic(rows, codes)], len(ids), replicates=replicates, seed=seed)
    return {
        name: percentile_interval(found[:, 0, place], users=len(ids)) for place, name in enumerate(METRICS)
    }
