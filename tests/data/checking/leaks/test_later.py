"""Counts of what comes after, against counting by hand; and times after the example."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from opengem.data.checking.leaks.columns import Column
from opengem.data.checking.leaks.later import DAY, HOUR, SPANS, count_events, measure_later, measure_times
from opengem.data.checking.leaks.sample import Sample

T0 = 1_767_225_600_000


@pytest.fixture(scope="module")
def events():
    """40 users with 1 to 60 events each over 12 days, of two kinds, and 600 examples at some of their times."""
    random = np.random.default_rng(0)
    user = np.repeat(np.arange(40), random.integers(1, 61, 40))
    time = T0 + random.integers(0, 12 * DAY, len(user)) // 1000 * 1000
    kind = np.where(random.random(len(user)) < 0.3, "click", "view")
    pick = random.integers(0, len(user), 600)
    return user, time, kind, user[pick], time[pick] + random.integers(-1, 2, 600) * 1000


def by_hand(events, which, span):
    user, time, _, of, at = events
    mine = [time[(user == u) & which] for u in of]
    after = np.array([((t > a) & (t <= a + span)).sum() for t, a in zip(mine, at, strict=True)])
    before = np.array([((t >= a - span) & (t < a)).sum() for t, a in zip(mine, at, strict=True)])
    return after.astype(float), before.astype(float), np.array([len(t) for t in mine], float)


def test_counts_are_those_made_by_hand(events):
    user, time, kind, of, at = events
    outcomes = {o.words: o for o in count_events(user, time, kind, of, at, np.arange(600))}
    kinds = {"events of any kind": kind != "", "view": kind == "view", "click": kind == "click"}
    assert len(outcomes) == len(kinds) * len(SPANS)
    for words, which in kinds.items():
        for name, span in SPANS.items():
            outcome = outcomes[f"the user's {words} in {name} after it"]
            for ranks, counts in zip(
                (outcome.after, outcome.before, outcome.whole), by_hand(events, which, span), strict=True
            ):
                assert spearmanr(ranks, counts).statistic == pytest.approx(1.0)


def test_the_rank_correlation_is_that_of_scipy_and_nulls_are_left_out(events):
    user, time, kind, of, at = events
    after, before, whole = by_hand(events, kind == "view", DAY)
    outcome = next(
        o for o in count_events(user, time, kind, of, at, np.arange(600)) if "view in 1 day" in o.words
    )
    x = after + np.random.default_rng(1).normal(size=600)
    found = measure_later(Column("impressions", "x", "number", x), [outcome])
    assert found is not None
    assert found.after == pytest.approx(spearmanr(x, after).statistic)
    assert found.whole == pytest.approx(abs(spearmanr(x, whole).statistic))
    assert found.before == pytest.approx(max(abs(spearmanr(x, c).statistic) for c in (before, whole)))
    x[:200] = np.nan
    found = measure_later(Column("impressions", "x", "number", x), [outcome])
    assert found is not None
    assert found.rows == 400
    x[:350] = np.nan
    assert measure_later(Column("impressions", "x", "number", x), [outcome]) is None


def sample_at(time):
    n = len(time)
    zero = np.zeros(n, np.int64)
    return Sample(n, np.arange(n), {}, zero, time, zero == 0, zero == 1, zero, {}, {}, {})


@pytest.mark.parametrize(("unit", "factor"), [("s", 1e-3), ("ms", 1), ("us", 1e3), ("ns", 1e6)])
def test_numbers_near_the_log_are_times_in_some_unit(unit, factor):
    time = T0 + np.arange(100) * HOUR
    shift = np.where(np.arange(100) < 30, 5_000, -5_000)
    found = measure_times(Column("impressions", "x", "number", (time + shift) * factor), sample_at(time))
    assert found is not None
    assert (found.unit, found.rows, found.later) == (unit, 30, pytest.approx(0.3))


def test_other_numbers_are_no_times():
    sample = sample_at(T0 + np.arange(100) * HOUR)
    for values in (np.arange(100.0), np.full(100, 2e12), np.full(100, np.nan), np.full(100, 20260101.0)):
        assert measure_times(Column("impressions", "x", "number", values), sample) is None
    assert measure_times(Column("impressions", "x", "list", sample.time * 1.0), sample) is None
    assert measure_times(Column("impressions", "x", "text", np.arange(100)), sample) is None


def test_a_day_is_later_only_a_day_after():
    time = T0 + np.arange(100) * HOUR
    today = time // DAY * DAY * 1.0

    def later(values):
        found = measure_times(Column("impressions", "x", "time", values), sample_at(time))
        assert found is not None
        return found.later

    assert later(today) == 0
    assert later(today + DAY) == 0  # the midnight of a zone to the west
    assert later(today + 2 * DAY) > 0.9
    assert later(np.where(np.arange(100) % 2, np.nan, time + 1.0)) == 1
