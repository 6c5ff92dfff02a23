"""Features over the examples: constant ones, ids that hardly repeat, and drift from training to test days."""

from typing import Any

import numpy as np

from opengem.data.checking.logs import Logs
from opengem.data.checking.report import DataCheck, percent
from opengem.data.ingestion.join.ids import derived_sql
from opengem.schema.words import Feature

PSI_LARGE = 0.25
"""Population stability index above which a distribution counts as another one (0.1 to 0.25: some change)."""
UNSEEN_LARGE = 0.5
REPEATS = 2.0
"""Least number of training examples an id should be seen in on average."""
BINS = 10
TOP = 20
FEW = 100
"""Examples, and for drift owners, below which nothing is said of how ids repeat and how values drift."""


def check_features(logs: Logs, check: DataCheck) -> None:
    """Check what each feature says over the training examples, and whether it says the same over the test examples.

    Drift is the population stability index `sum (q - p) ln(q / p)` of the shares p in training and q in test, over the
    deciles of training numbers, or the 20 most frequent training ids and all others, with missing values apart. What
    the index is by chance, `(bins - 1) (1 / n + 1 / m)` for n and m independent draws, is told beside it; features of
    users and ads are drawn once an owner.

    Args:
        logs: The logs, joined.
        check: Gets the facts `features` and `drift`, and the findings.
    """
    check.facts["features"], check.facts["drift"] = {}, {}
    owners = {
        "user": _distinct(logs, '"user"'), "ad": _distinct(logs, "ad"), "context": _distinct(logs, "row")
    }  # fmt: skip
    for feature in logs.schema.features:
        source = _source(logs, feature)
        check.facts["features"][feature.name] = _spread(logs, feature, source, check)
        train, test = owners[feature.owner]
        # hours and weekdays of other days are others; vectors have no bins
        if feature.kind != "vector" and not feature.derive and min(train, test) >= FEW:
            check.facts["drift"][feature.name] = _drift(logs, feature, source, train, test, check)


def _distinct(logs: Logs, column: str) -> tuple[int, int]:
    train, test = logs.one(
        f"SELECT count(DISTINCT {column}) FILTER (split = 'train'), count(DISTINCT {column}) FILTER (split = 'test') "
        "FROM labelled_rows"
    )
    return train, test


def _source(logs: Logs, feature: Feature) -> str:
    """Return SQL for (split, value) of a feature over all examples that are in a split."""
    if feature.derive:
        value = derived_sql(feature, 'e."time"')
        return f"SELECT l.split, {value} AS value FROM labelled_rows l JOIN examples e ON e.row = l.row"
    place = logs.plan.place[feature.name]
    column = f'x."f_{feature.name}" AS value'
    if place == "impressions":
        return f"SELECT l.split, {column} FROM labelled_rows l JOIN examples x ON x.row = l.row"
    row = {"users": "user_row", "ads": "ad_row"}[place]
    return f"SELECT l.split, {column} FROM labelled_rows l LEFT JOIN {place} x ON x.row = l.{row}"


def _spread(logs: Logs, feature: Feature, source: str, check: DataCheck) -> dict[str, Any]:
    where = f"features.{feature.name}"
    rows, given, distinct = logs.one(
        f"SELECT count(*), count(value), count(DISTINCT value) FROM ({source}) WHERE split = 'train'"
    )
    facts = {"rows": rows, "missing": rows - given, "distinct": distinct}
    examples = f"{rows:,} training examples"
    if not given:
        check.warn("features", where, f"is missing in all {examples}")
    elif distinct == 1 and given == rows:
        check.warn("features", where, f"is constant: one value in all {examples}, so it says nothing")
    elif feature.kind == "id" and rows >= FEW and given / distinct < REPEATS:
        text = f"is almost unique: {distinct:,} ids in {examples}"
        check.warn("features", where, f"{text}, so what is learned of an id is hardly ever used again")
    return facts


def _drift(
    logs: Logs, feature: Feature, source: str, train: int, test: int, check: DataCheck
) -> dict[str, float | None]:
    if feature.kind == "number":
        counts, unseen = _number_counts(logs, source), None
    else:
        counts, unseen = _id_counts(logs, feature, source)
    if not counts.sum(axis=1).all():
        return {"psi": None, "by_chance": None, "unseen": unseen}
    psi = stability(counts[0], counts[1])
    chance = (counts.shape[1] - 1) * (1 / train + 1 / test)
    where = f"features.{feature.name}"
    if psi - chance > PSI_LARGE:
        text = f"is distributed otherwise in test than in training: stability index {psi:.2f}"
        check.warn("drift", where, f"{text} (above {PSI_LARGE} is large; by chance about {chance:.2f})")
    if unseen is not None and unseen > UNSEEN_LARGE:
        check.warn("drift", where, f"{percent(unseen, 1)} of its ids in test were never seen in training")
    return {"psi": psi, "by_chance": chance, "unseen": unseen}


def stability(train: np.ndarray, test: np.ndarray) -> float:
    """Return the population stability index of two arrays of counts over the same bins.

    Half a count is added to each bin, so that an empty bin has a finite share.
    """
    p = (train + 0.5) / (train + 0.5).sum()
    q = (test + 0.5) / (test + 0.5).sum()
    return float(((q - p) * np.log(q / p)).sum())


def _number_counts(logs: Logs, source: str) -> np.ndarray:
    """Return counts `(2, bins)` of training and test in the bins of the training deciles; missing values come last."""
    steps = ", ".join(f"{i / BINS:g}" for i in range(1, BINS))
    (edges,) = logs.one(f"SELECT quantile_disc(value, [{steps}]) FROM ({source}) WHERE split = 'train'")
    inside = sorted(set(edges or []))
    bin_of = " + ".join(f"(value > {edge!r})::INTEGER" for edge in inside) or "0"
    return _counts(
        logs, f"SELECT split, coalesce({bin_of}, {len(inside) + 1}) AS bin FROM ({source})", len(inside) + 2
    )


def _id_counts(logs: Logs, feature: Feature, source: str) -> tuple[np.ndarray, float]:
    """Return counts `(2, 22)` of the most frequent training ids, all others and missing; and the share unseen."""
    if feature.kind == "ids":
        source = (
            f"SELECT split, unnest(value) AS value FROM ({source}) WHERE len(value) > 0 "
            f"UNION ALL SELECT split, NULL FROM ({source}) WHERE value IS NULL OR len(value) = 0"
        )
    counted = (
        "SELECT value, count(*) FILTER (split = 'train') AS train, count(*) FILTER (split = 'test') AS test "
        f"FROM ({source}) GROUP BY value"
    )
    found = logs.rows(
        f"SELECT CASE WHEN value IS NULL THEN {TOP + 1} ELSE least(rank, {TOP}) END AS bin, sum(train)::BIGINT, "
        f"sum(test)::BIGINT, coalesce(sum(test) FILTER (train = 0 AND value IS NOT NULL), 0)::BIGINT FROM ("
        "SELECT *, row_number() OVER (ORDER BY value IS NULL, train DESC, value) - 1 AS rank "
        f"FROM ({counted})) GROUP BY 1"
    )
    counts, unseen = np.zeros((2, TOP + 2)), 0
    for at, train, test, new in found:
        counts[:, at] = train, test
        unseen += new
    given = counts[1, : TOP + 1].sum()
    return counts[:, counts.any(axis=0)], float(unseen / given) if given else 0.0


def _counts(logs: Logs, query: str, bins: int) -> np.ndarray:
    counts = np.zeros((2, bins))
    for split, at, n in logs.rows(f"SELECT split, bin, count(*) FROM ({query}) GROUP BY ALL"):
        if split in ("train", "test"):
            counts[("train", "test").index(split), at] = n
    return counts[:, counts.any(axis=0)]
