"""The field's metrics of a probability, in numpy, one function each.

All take ``(labels, predictions, weight=None)``: labels 0 or 1, predictions in [0, 1], weights 0 or more,
all [B]. Arithmetic is float64. A value that does not exist (one class, no rows, no weight) is ``nan``,
without a warning; ``undefined_reason`` says why in words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from opengem.errors import DataError

CLIP = 1e-12
"""Smallest probability that a logarithm sees; predictions are clipped nowhere else."""


class Rows(NamedTuple):
    """Checked rows in float64, each [B].

    Attributes:
        labels: 0 or 1.
        predictions: probabilities in [0, 1].
        weight: 0 or more.
        score: what ranks the rows: log-odds where they are known, else the predictions.
        loss: log loss, nats: from the log-odds where they are known, else from the predictions.
    """

    labels: np.ndarray
    predictions: np.ndarray
    weight: np.ndarray
    score: np.ndarray
    loss: np.ndarray


class Reliability(NamedTuple):
    """Bins of a reliability diagram, in order of the prediction, empty bins left out; each array [bins].

    Attributes:
        predicted: mean prediction of the bin.
        observed: weighted share of positives in the bin.
        weight: sum of weights in the bin.
        count: rows in the bin.
    """

    predicted: np.ndarray
    observed: np.ndarray
    weight: np.ndarray
    count: np.ndarray


def checked_rows(
    labels: ArrayLike,
    predictions: ArrayLike,
    weight: ArrayLike | None = None,
    log_odds: ArrayLike | None = None,
) -> Rows:
    """Turn the arguments of a metric into float64 rows, or say what is wrong with them.

    Weights are divided by a power of two, which is exact and changes no metric, so that their products stay
    finite.

    Args:
        labels: [B], 0 or 1, numbers or booleans. Rows without a label must have been left out.
        predictions: [B], probabilities in [0, 1], not logits.
        weight: [B], finite, 0 or more. None weighs every row 1.
        log_odds: [B], finite, where they are known: from about 37 on probabilities are all 1.

    Returns:
        The rows.

    Raises:
        DataError: lengths differ, or a label, prediction or weight is out of its range; says how many and
            the first.
    """
    y = np.asarray(labels, dtype=np.float64)
    p = np.asarray(predictions, dtype=np.float64)
    w = np.ones(len(p) if p.ndim else 0) if weight is None else np.asarray(weight, dtype=np.float64)
    if not (y.ndim == p.ndim == w.ndim == 1 and len(y) == len(p) == len(w)):
        raise DataError(
            "labels, predictions and weight must be one-dimensional and equally long. "
            f"Received shapes {y.shape}, {p.shape}, {w.shape}."
        )
    _refuse(~((p >= 0) & (p <= 1)), p, "predictions must be probabilities in [0, 1]")
    _refuse(~((y == 0) | (y == 1)), y, "labels must be 0 or 1 (leave out rows without a label)")
    _refuse(~((w >= 0) & (w < np.inf)), w, "weights must be finite and 0 or more")
    if weight is not None and len(w):
        w = np.ldexp(w, -int(np.frexp(w.max())[1]))
    if log_odds is None:
        return Rows(y, p, w, p, row_log_loss(y, p))
    z = np.asarray(log_odds, dtype=np.float64)
    if z.shape != y.shape:
        raise DataError(f"log_odds must be as long as labels. Received shapes {z.shape} and {y.shape}.")
    _refuse(~np.isfinite(z), z, "log_odds must be finite")
    return Rows(y, p, w, z, np.logaddexp(0, np.where(y == 1, -z, z)))


def _refuse(wrong: np.ndarray, values: np.ndarray, must: str) -> None:
    """Raise with the count, the first position and the first value where ``wrong``."""
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataError(
            f"{must}. Received {int(wrong.sum())} of {len(wrong)} that are not; "
            f"first: {values[first]} at row {first}."
        )


def row_log_loss(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Log loss of each row, -log p where the label is 1 and -log(1 - p) where it is 0, p clipped at 1e-12.

    Args:
        labels: [B] float64, 0 or 1, already checked.
        predictions: [B] float64 in [0, 1], already checked.

    Returns:
        [B] float64, nats.
    """
    return -np.log(np.maximum(np.where(labels == 1, predictions, 1 - predictions), CLIP))


def binary_entropy(rate: float) -> float:
    """Entropy -r log r - (1 - r) log(1 - r) of a rate in [0, 1], in nats; 0 at both ends, nan of nan."""
    if not 0 < rate < 1:
        return float("nan") if np.isnan(rate) else 0.0
    return float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))


def ratio(numerator: float | np.ndarray, denominator: float | np.ndarray) -> float:
    """Numerator over denominator; nan, without a warning, where the denominator is not above 0."""
    return float(numerator / denominator) if denominator > 0 else float("nan")


def undefined_reason(labels: ArrayLike, weight: ArrayLike | None = None) -> str | None:
    """Why NE and AUC do not exist for these labels, in words, or None where they do.

    Args:
        labels: [B], 0 or 1.
        weight: [B], 0 or more; rows of weight 0 do not count.

    Returns:
        For example ``"no positive in 4 rows"``.
    """
    y = np.asarray(labels, dtype=np.float64)
    if not len(y):
        return "no rows"
    if weight is not None:
        kept = np.asarray(weight) > 0
        if not kept.any():
            return f"all {len(y)} rows have weight 0"
        y = y[kept]
    if y.all() or not y.any():
        return f"no {'negative' if y.all() else 'positive'} in {len(y)} row{'s' if len(y) > 1 else ''}"
    return None


def log_loss(labels: ArrayLike, predictions: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Mean log loss, sum_i w_i (-y_i log p_i - (1 - y_i) log(1 - p_i)) / sum_i w_i, in nats.

    Args:
        labels: [B], 0 or 1.
        predictions: [B], in [0, 1]; clipped at 1e-12 inside the logarithm only.
        weight: [B], 0 or more; default 1.

    Returns:
        0 or more; nan without rows or weight.

    Raises:
        DataError: see ``checked_rows``.
    """
    rows = checked_rows(labels, predictions, weight)
    return ratio(rows.weight @ rows.loss, rows.weight.sum())


def normalized_entropy(labels: ArrayLike, predictions: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Mean log loss over the entropy of the base rate of the rows given: NE = log_loss / H(sum w y / sum w).

    1 is what always predicting the base rate gets; lower is better. The base rate is that of these very
    rows, so NE of two row sets with different base rates should not be compared.

    Args:
        labels: [B], 0 or 1.
        predictions: [B], in [0, 1].
        weight: [B], 0 or more; default 1.

    Returns:
        0 or more; nan where one class has no weight, because the entropy is then 0.

    Raises:
        DataError: see ``checked_rows``.

    Source:
        He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, 2014, section 3.
    """
    rows = checked_rows(labels, predictions, weight)
    total = rows.weight.sum()
    rate = ratio(rows.weight @ rows.labels, total)
    return ratio(ratio(rows.weight @ rows.loss, total), binary_entropy(rate))


def auc(labels: ArrayLike, predictions: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Area under the ROC curve: chance that a positive scores above a negative, ties one half (mid-rank).

    Args:
        labels: [B], 0 or 1.
        predictions: [B], in [0, 1].
        weight: [B], 0 or more; a pair weighs the product of its two weights.

    Returns:
        In [0, 1]; nan where one class has no weight.

    Raises:
        DataError: see ``checked_rows``.
    """
    y, p, w, *_ = checked_rows(labels, predictions, weight)
    positive = y == 1
    negatives = p[~positive]
    order = np.argsort(negatives, kind="stable")
    below = np.concatenate(([0.0], np.cumsum(w[~positive][order])))
    scores = p[positive]
    low = np.searchsorted(negatives[order], scores, side="left")
    high = np.searchsorted(negatives[order], scores, side="right")
    wins = w[positive] @ (below[low] + below[high]) / 2
    return min(ratio(ratio(wins, w[positive].sum()), below[-1]), 1.0)


def auc_by_user(
    labels: ArrayLike, predictions: ArrayLike, users: ArrayLike, weight: ArrayLike | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """AUC of every user on their own rows, ties counted one half.

    Args:
        labels: [B], 0 or 1.
        predictions: [B], in [0, 1].
        users: [B], ids of any sortable type.
        weight: [B], 0 or more; default 1.

    Returns:
        ``(ids, auc, weight)``, each [U]: sorted user ids; their AUC, nan for a user with one class; their
        weight.

    Raises:
        DataError: see ``checked_rows``; or users are not as many as labels.
    """
    rows = checked_rows(labels, predictions, weight)
    if np.shape(users) != rows.labels.shape:
        raise DataError(
            f"users must be as long as labels. Received {np.shape(users)} and {rows.labels.shape}."
        )
    return auc_of_users(rows, users)


def auc_of_users(rows: Rows, users: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """AUC of every user on rows that are checked already; see ``auc_by_user``."""
    y, _, w, p, _ = rows
    ids, codes = np.unique(np.asarray(users), return_inverse=True)
    if not len(y):
        return ids, np.zeros(0), np.zeros(0)
    order = np.lexsort((p, codes))
    y, p, w, user = y[order], p[order], w[order], codes[order]
    total = np.bincount(user, w, len(ids))
    # AUC of a user does not depend on their scale; at one scale, running sums over users lose no digits.
    largest = np.maximum.reduceat(w, np.flatnonzero(np.diff(user, prepend=-1)))
    w = w / np.where(largest > 0, largest, 1)[user]
    starts = np.flatnonzero(np.concatenate(([True], (user[1:] != user[:-1]) | (p[1:] != p[:-1]))))
    tied_positive = np.add.reduceat(w * y, starts)
    tied_negative = np.add.reduceat(w * (1 - y), starts)
    tied_user = user[starts]
    positives = np.bincount(tied_user, tied_positive, len(ids))
    negatives = np.bincount(tied_user, tied_negative, len(ids))
    before_user = np.concatenate(([0.0], np.cumsum(negatives)[:-1]))
    below = np.cumsum(tied_negative) - tied_negative / 2 - before_user[tied_user]
    wins = np.bincount(tied_user, tied_positive * below, len(ids))
    pairs = positives * negatives
    values = np.full(len(ids), np.nan)
    np.divide(wins, pairs, out=values, where=pairs > 0)
    return ids, np.clip(values, 0, 1), total


def user_auc(
    labels: ArrayLike, predictions: ArrayLike, users: ArrayLike, weight: ArrayLike | None = None
) -> float:
    """AUC inside each user, averaged with the user's impressions as weight, over users with both classes.

    Args:
        labels: [B], 0 or 1.
        predictions: [B], in [0, 1].
        users: [B], ids of any sortable type.
        weight: [B], 0 or more; default 1, then the weight of a user is the number of their rows.

    Returns:
        In [0, 1]; nan where no user has both classes.

    Raises:
        DataError: see ``auc_by_user``.

    Source:
        Zhou et al., Deep Interest Network, 2018, section 6.2 (there called GAUC).
    """
    _, values, user_weight = auc_by_user(labels, predictions, users, weight)
    both = ~np.isnan(values)
    return ratio(values[both] @ user_weight[both], user_weight[both].sum())


def calibration(labels: ArrayLike, predictions: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Sum of predictions over sum of labels, sum_i w_i p_i / sum_i w_i y_i; above 1 predicts too much.

    Args:
        labels: [B], 0 or 1.
        predictions: [B], in [0, 1].
        weight: [B], 0 or more; default 1.

    Returns:
        0 or more; nan without a positive.

    Raises:
        DataError: see ``checked_rows``.
    """
    y, p, w, *_ = checked_rows(labels, predictions, weight)
    return ratio(w @ p, w @ y)


def reliability(
    labels: ArrayLike, predictions: ArrayLike, weight: ArrayLike | None = None, *, bins: int = 10
) -> Reliability:
    """Mean prediction and observed rate in bins of equal weight (deciles), ties kept in one bin.

    Args:
        labels: [B], 0 or 1.
        predictions: [B], in [0, 1].
        weight: [B], 0 or more; default 1.
        bins: number of bins, 1 or more. Many equal predictions leave fewer.

    Returns:
        The bins.

    Raises:
        DataError: see ``checked_rows``.
    """
    y, p, w, *_ = checked_rows(labels, predictions, weight)
    y, p, w = y[w > 0], p[w > 0], w[w > 0]
    if not len(y):
        return Reliability(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))
    order = np.argsort(p, kind="stable")
    y, p, w = y[order], p[order], w[order]
    starts = np.flatnonzero(np.concatenate(([True], p[1:] != p[:-1])))
    tied = np.add.reduceat(w, starts)
    middle = (np.cumsum(tied) - tied / 2) / tied.sum()
    bin_of_row = np.repeat(
        np.minimum((middle * bins).astype(np.int64), bins - 1), np.diff(np.append(starts, len(p)))
    )
    weight_of_bin = np.bincount(bin_of_row, w, bins)
    count = np.bincount(bin_of_row, minlength=bins)
    kept = count > 0
    predicted = np.bincount(bin_of_row, w * p, bins)[kept] / weight_of_bin[kept]
    observed = np.bincount(bin_of_row, w * y, bins)[kept] / weight_of_bin[kept]
    return Reliability(predicted, observed, weight_of_bin[kept], count[kept])


def expected_calibration_error(
    labels: ArrayLike, predictions: ArrayLike, weight: ArrayLike | None = None, *, bins: int = 10
) -> float:
    """Mean over bins of |mean prediction - observed rate|, by the bins of ``reliability``.

    Bins of equal weight are used, not of equal width: click rates sit in a corner of [0, 1].

    Args:
        labels: [B], 0 or 1.
        predictions: [B], in [0, 1].
        weight: [B], 0 or more; default 1.
        bins: number of bins, 1 or more.

    Returns:
        In [0, 1]; nan without rows or weight.

    Raises:
        DataError: see ``checked_rows``.

    Source:
        Naeini et al., Obtaining Well Calibrated Probabilities Using Bayesian Binning, 2015, section 4.
    """
    found = reliability(labels, predictions, weight, bins=bins)
    return ratio(found.weight @ np.abs(found.predicted - found.observed), found.weight.sum())
