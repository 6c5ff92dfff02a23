"""Columns that count or rate what comes after the example, or are the next label; and times that lie after it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from opengem.data.checking.leaks.columns import Column
from opengem.data.checking.leaks.sample import Sample
from opengem.data.checking.logs import Logs
from opengem.schema.check import event_tables

USERS = 1_000
"""Most users whose later events are counted; beyond it, those of the smallest hashes."""
EVENTS = 5_000_000
"""Most events of them; beyond it, fewer users are taken."""
TYPES = 8
HOUR, DAY = 3_600_000, 86_400_000
SPANS = {"1 hour": HOUR, "1 day": DAY, "7 days": 7 * DAY, "the whole log": 10**14}
ENOUGH, ENOUGH_OWNERS = 300, 30
_SECOND_UNITS = {"s": 1e-3, "ms": 1.0, "us": 1e3, "ns": 1e6}
MARGIN = 60 * DAY


@dataclass(frozen=True)
class Outcome:
    """What comes after the examples, what came before them, and what there is in all.

    Attributes:
        words: What it is.
        rows: Examples it is known for, int64.
        after: Its ranks after each example, centred and of length 1.
        before: The same before it, over the same span.
        whole: The same over the whole log.
    """

    words: str
    rows: np.ndarray
    after: np.ndarray
    before: np.ndarray
    whole: np.ndarray


@dataclass(frozen=True)
class Later:
    """How a column is correlated with what comes after.

    Attributes:
        words: What comes after.
        after: Rank correlation with it.
        before: The larger of the rank correlations with the same before the example and over the whole log.
        whole: The rank correlation with the same over the whole log.
        rows: Examples measured.
    """

    words: str
    after: float
    before: float
    whole: float
    rows: int


@dataclass(frozen=True)
class LaterTimes:
    """A column of times.

    Attributes:
        later: Share of its values that lie after the example.
        rows: Values that do.
        unit: How they are written.
    """

    later: float
    rows: int
    unit: str


def later_outcomes(logs: Logs, sample: Sample) -> list[Outcome]:
    """Count each user's events before and after the examples, and rate the labels of each user and ad likewise.

    Args:
        logs: The logs, joined.
        sample: The examples.
    """
    return [*_event_outcomes(logs, sample), *_label_outcomes(logs, sample)]


def measure_later(column: Column, outcomes: list[Outcome]) -> Later | None:
    """Return the outcome that a column knows better after the example than before it, if any.

    What was known before knows the past at least as well as the future; so a column is suspect where its rank
    correlation with what comes after is high, and stands far above that with what came before and in all.

    Args:
        column: A column of numbers.
        outcomes: From `later_outcomes`.
    """
    best: Later | None = None
    for outcome in outcomes:
        values = column.own[outcome.rows]
        given = ~np.isnan(values)
        if given.sum() < ENOUGH:
            continue
        x = _ranks(values[given])
        parts = [_scaled(p[given]) for p in (outcome.after, outcome.before, outcome.whole)]
        after, before, whole = (abs(float(x @ part)) for part in parts)
        found = Later(outcome.words, after, max(before, whole), whole, int(given.sum()))
        if best is None or _odds(found) > _odds(best):
            best = found
    return best


def _odds(later: Later) -> float:
    """Return how much nearer the future is than the past."""
    return (1 - later.before) / (1 - min(later.after, 0.999))


def measure_times(column: Column, sample: Sample) -> LaterTimes | None:
    """Return how many values of a column of times lie after the example; None where it holds no times.

    Whole numbers count as times where all but a hundredth lie within 60 days of the log in some unit. Days, which are
    midnights of some zone, are later only a day after.

    Args:
        column: The column.
        sample: The examples.
    """
    if not column.is_number or column.kind == "list":
        return None
    given = ~column.missing
    values, time = column.own[given], sample.time[given]
    if not len(values):
        return None
    first, last = sample.time.min() - MARGIN, sample.time.max() + MARGIN
    units = {"ms": 1.0} if column.kind == "time" else _SECOND_UNITS
    for unit, per_ms in units.items():
        at = values / per_ms
        inside = (at >= first) & (at <= last)
        if column.kind != "time" and inside.mean() < 0.99:
            continue
        slack = DAY if (np.mod(at, DAY) == 0).all() else (0 if per_ms >= 1 else 1_000)
        later = at > time + slack
        return LaterTimes(
            float(later.mean()), int(later.sum()), "timestamps" if column.kind == "time" else unit
        )
    return None


def _event_outcomes(logs: Logs, sample: Sample) -> list[Outcome]:
    codes = np.unique(sample.entity["user"])
    keys = sample.keys["user"][codes]
    tables = ["impressions", *event_tables(logs.schema)]
    queries = []
    for name in tables:
        typed = name != "impressions" and logs.schema.tables[name].type
        source = "examples" if name == "impressions" else f'"t_{name}"'
        kind = f"'{name}: ' || coalesce(type, 'none')" if typed else f"'{name}'"
        queries.append(f'SELECT "user", "time", {kind} AS kind FROM {source}')
    union = " UNION ALL ".join(queries)
    logs.con.execute("CREATE TEMP TABLE followed AS SELECT DISTINCT \"user\" FROM sampled ORDER BY hash(\"user\") "
                     f"LIMIT {USERS}")  # fmt: skip
    counted = f'SELECT "user", count(*) AS n FROM ({union}) SEMI JOIN followed USING ("user") GROUP BY 1'
    logs.con.execute(
        'CREATE TEMP TABLE kept AS SELECT "user" FROM (SELECT "user", sum(n) OVER (ORDER BY n, "user") AS total '
        f"FROM ({counted})) WHERE total <= {EVENTS}"
    )
    found: Any = logs.con.sql(f'SELECT * FROM ({union}) SEMI JOIN kept USING ("user")').fetchnumpy()
    for name in ("followed", "kept"):
        logs.con.execute(f"DROP TABLE {name}")
    user = np.searchsorted(keys, np.ma.filled(found["user"], "").astype(str))
    kind = np.ma.filled(found["kind"], "").astype(str)
    time = np.ma.filled(found["time"], 0).astype(np.int64)
    followed = np.unique(user)
    rows = np.flatnonzero(np.isin(sample.entity["user"], codes[followed]))
    if len(rows) < ENOUGH or len(followed) < ENOUGH_OWNERS:
        return []
    return count_events(
        user, time, kind, np.searchsorted(codes, sample.entity["user"][rows]), sample.time[rows], rows
    )


def count_events(
    user: np.ndarray, time: np.ndarray, kind: np.ndarray, of: np.ndarray, at: np.ndarray, rows: np.ndarray
) -> list[Outcome]:
    """Count a user's events of each kind in `(t, t + span]`, in `[t - span, t)` and in all, for some spans.

    Args:
        user: `(E,)` int code of each event's user.
        time: `(E,)` int64 Unix ms.
        kind: `(E,)` what each event is; the 8 most frequent kinds are counted, and all together.
        of: `(n,)` code of the user of each example.
        at: `(n,)` its time, Unix ms.
        rows: `(n,)` its place in the sample.
    """
    kinds, counts = np.unique(kind, return_counts=True)
    listed = [("events of any kind", np.ones(len(kind), bool))] if len(kinds) > 1 else []
    listed += [(str(kinds[i]), kind == kinds[i]) for i in np.argsort(-counts, kind="stable")[:TYPES]]
    start = int(min(time.min(), at.min()))
    width = int(max(time.max(), at.max())) - start + 2
    outcomes = []
    for words, which in listed:
        key = np.sort(user[which] * width + (time[which] - start))

        def until(moment: np.ndarray, side: Any, key: np.ndarray = key) -> np.ndarray:
            return np.searchsorted(key, of * width + np.clip(moment - start, -1, width - 1), side)

        begin, end = (
            until(np.full(len(of), start - 1), "right"),
            until(np.full(len(of), start + width), "right"),
        )
        here, past_here = until(at, "left"), until(at, "right")
        whole = _ranks((end - begin).astype(np.float64))
        for name, span in SPANS.items():
            after, before = until(at + span, "right") - past_here, here - until(at - span, "left")
            if after.any():
                outcomes.append(
                    Outcome(
                        f"the user's {words} in {name} after it", rows, _ranks(after.astype(np.float64)),
                        _ranks(before.astype(np.float64)), whole,
                    )
                )  # fmt: skip
    return outcomes


def _label_outcomes(logs: Logs, sample: Sample) -> list[Outcome]:
    """Rate the labels of the user's and the ad's later requests, of this and later ones, and of the next example."""
    outcomes = []
    for task in logs.schema.tasks:
        for owner in ("user", "ad"):
            found = _rates(logs, owner, task.name)
            for what, after, before in (
                ("in later requests", "later", "earlier"),
                ("from this request on", "since", "earlier"),
                ("in the next example", "next", "last"),
            ):
                rows = np.flatnonzero(~np.isnan(found[after]) & ~np.isnan(found[before]))
                owners = len(np.unique(sample.entity[owner][rows]))
                if len(rows) >= ENOUGH and owners >= ENOUGH_OWNERS and np.ptp(found[after][rows]) > 0:
                    words = f"the {owner}'s rate of {task.name} {what}"
                    parts = (_ranks(found[name][rows]) for name in (after, before, "whole"))
                    outcomes.append(Outcome(words, rows, *parts))
    return outcomes


def _rates(logs: Logs, owner: str, task: str) -> dict[str, np.ndarray]:
    """Return the owner's label rates around each sampled example, NaN where there is none."""
    frames = {
        "later": "1 FOLLOWING AND UNBOUNDED FOLLOWING",
        "since": "CURRENT ROW AND UNBOUNDED FOLLOWING",
        "earlier": "UNBOUNDED PRECEDING AND 1 PRECEDING",
        "whole": "UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    }
    labelled = f'SELECT row, "{owner}", request_time, "y_{task}" AS y FROM labelled_rows WHERE y IS NOT NULL'
    order = f'PARTITION BY "{owner}" ORDER BY request_time ROWS BETWEEN'
    rates = ", ".join(
        f"sum(hits) OVER ({order} {frame}) / sum(n) OVER ({order} {frame}) AS {name}"
        for name, frame in frames.items()
    )
    requests = f'SELECT "{owner}", request_time, sum(y) AS hits, count(*) AS n FROM ({labelled}) GROUP BY ALL'
    own = f'OVER (PARTITION BY "{owner}" ORDER BY row)'
    found: Any = logs.con.sql(
        f'SELECT r.*, n.* FROM sampled s LEFT JOIN (SELECT "{owner}", request_time, {rates} FROM ({requests})) r '
        f'ON r."{owner}" = s."{owner}" AND r.request_time = s.request_time '
        f'LEFT JOIN (SELECT row, lead(y) {own} AS "next", lag(y) {own} AS "last" FROM ({labelled})) n ON n.row = s.row '
        "ORDER BY s.row"
    ).fetchnumpy()
    return {name: np.ma.filled(found[name].astype(np.float64), np.nan) for name in (*frames, "next", "last")}


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks (ties share their mean) less their mean, scaled to length 1; zeros where all are equal."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return _scaled((ends - (counts - 1) / 2)[at])


def _scaled(values: np.ndarray) -> np.ndarray:
    values = values - values.mean()
    length = float(np.sqrt(values @ values))
    return values / length if length > 1e-9 else np.zeros_like(values)
