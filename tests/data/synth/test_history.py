import math

import numpy as np
import pytest

from opengem.data.synth.history import (
    CLICK,
    EVENT_TYPES,
    IMPRESSION,
    LIKE,
    MESSAGE,
    NEVER_MS,
    SEARCH,
    VIEW,
    Log,
    Shown,
    observe,
)

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
START = 1_700_000_000_000


def random_case(seed, step):
    """Logs whose times fall on a coarse grid, so that ties are common; some users have no events."""
    rng = np.random.default_rng(seed)
    creatives = rng.normal(size=(9, 32)).astype(np.float32)
    n, b = 400, 150
    kind = rng.integers(0, len(EVENT_TYPES), n)
    organic = kind <= MESSAGE
    log = Log(
        user=rng.integers(1, 5, n),
        time=START + rng.integers(0, 60, n) * step,
        kind=kind,
        category=np.where(kind == MESSAGE, -1, rng.integers(0, 3, n)),
        item=np.where(np.isin(kind, (SEARCH, MESSAGE)), -1, rng.integers(0, 9, n)),
        advertiser=np.where(organic, -1, rng.integers(0, 3, n)),
    )
    ad = rng.integers(0, 9, b)
    shown = Shown(
        user=rng.integers(0, 6, b),
        time=START + rng.integers(0, 61, b) * step,
        category=rng.integers(0, 3, b),
        advertiser=rng.integers(0, 3, b),
        creative=creatives[ad],
    )
    return log, shown, creatives


def slow(log, shown, creatives, i):
    t = int(shown.time[i])
    rows = [j for j in range(len(log)) if log.user[j] == shown.user[i] and log.time[j] < t]
    same = [j for j in rows if log.category[j] == shown.category[i]]
    touch = [j for j in same if log.kind[j] in (VIEW, LIKE, SEARCH)]
    ages = sorted(t - int(log.time[j]) for j in touch)
    ads = [
        t - int(log.time[j])
        for j in rows
        if log.kind[j] == IMPRESSION and log.advertiser[j] == shown.advertiser[i]
    ]

    def decayed(kinds, half_life):
        return sum(0.5 ** ((t - int(log.time[j])) / half_life) for j in same if log.kind[j] in kinds)

    ticks = (VIEW, LIKE, SEARCH, CLICK)
    searches = [int(log.time[j]) for j in same if log.kind[j] == SEARCH]
    ordered = sum(
        any(0 < int(log.time[j]) - s <= 10 * MINUTE for s in searches)
        for j in same
        if log.kind[j] == VIEW and t - int(log.time[j]) <= 3 * DAY
    )
    liked = sum((creatives[log.item[j]].astype(float) for j in rows if log.kind[j] == LIKE), np.zeros(32))
    own = shown.creative[i].astype(float)
    size = np.linalg.norm(liked) * np.linalg.norm(own)
    return {
        "touched_days": len({int(log.time[j]) // DAY for j in touch}),
        "touches": len(touch),
        "first_touch_ms": ages[-1] if ages else NEVER_MS,
        "last_touch_ms": ages[0] if ages else NEVER_MS,
        "recent": [decayed(ticks, h) for h in (10 * MINUTE, DAY, 14 * DAY)],
        "recent_likes": decayed((LIKE,), 14 * DAY),
        "recent_searches": decayed((SEARCH,), 14 * DAY),
        "shown": sum(age <= 2 * DAY for age in ads),
        "last_shown_ms": min(ads) if ads else NEVER_MS,
        "ordered": ordered,
        "taste": float(liked @ own / size) if size else 0.0,
    }


@pytest.mark.parametrize(("seed", "step"), [(0, MINUTE), (1, 5 * MINUTE), (2, 7 * HOUR), (3, 1)])
def test_observed_numbers_equal_loops_over_the_log(seed, step):
    log, shown, creatives = random_case(seed, step)
    got = observe(log, shown, creatives)
    for i in range(len(shown.time)):
        for name, value in slow(log, shown, creatives, i).items():
            np.testing.assert_allclose(getattr(got, name)[i], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_event_at_the_time_of_the_request_is_not_history():
    creatives = np.eye(32, dtype=np.float32)
    one = np.array([0])
    log = Log(
        user=one, time=np.array([START]), kind=np.array([LIKE]), category=one, item=one, advertiser=one - 1
    )
    shown = Shown(
        user=np.array([0, 0]),
        time=np.array([START, START + 1]),
        category=np.array([0, 0]),
        advertiser=np.array([0, 0]),
        creative=creatives[[0, 0]],
    )
    got = observe(log, shown, creatives)
    assert got.touches.tolist() == [0, 1]
    assert got.taste.tolist() == [0.0, 1.0]
    assert got.recent[0].tolist() == [0.0, 0.0, 0.0]


def test_log_without_events_gives_nothing_known():
    creatives = np.eye(32, dtype=np.float32)
    none = np.zeros(0, dtype=np.int64)
    log = Log(user=none, time=none, kind=none, category=none, item=none, advertiser=none)
    one = np.array([0])
    shown = Shown(user=one, time=one + START, category=one, advertiser=one, creative=creatives[:1])
    got = observe(log, shown, creatives)
    assert got.touches.tolist() == got.shown.tolist() == got.ordered.tolist() == [0]
    assert got.taste.tolist() == got.recent_likes.tolist() == [0.0]
    assert got.last_touch_ms[0] == got.last_shown_ms[0] == NEVER_MS


def test_probe_search_then_view_counts_and_the_reverse_does_not():
    creatives = np.eye(32, dtype=np.float32)
    pair = np.array([0, 0])
    shown = Shown(
        user=pair[:1],
        time=np.array([START + HOUR]),
        category=pair[:1],
        advertiser=pair[:1],
        creative=creatives[:1],
    )
    counts = {}
    for kinds in ((SEARCH, VIEW), (VIEW, SEARCH)):
        log = Log(
            user=pair,
            time=np.array([START, START + MINUTE]),
            kind=np.array(kinds),
            category=pair,
            item=pair,
            advertiser=pair - 1,
        )
        counts[kinds] = int(observe(log, shown, creatives).ordered[0])
    assert counts == {(SEARCH, VIEW): 1, (VIEW, SEARCH): 0}


def test_decayed_sum_of_a_long_history_keeps_its_precision():
    """10,000 events a minute apart: a geometric series with a closed form."""
    n = 10_000
    zero = np.zeros(n, dtype=np.int64)
    log = Log(
        user=zero,
        time=START + np.arange(n) * MINUTE,
        kind=zero + VIEW,
        category=zero,
        item=zero,
        advertiser=zero - 1,
    )
    one = zero[:1]
    shown = Shown(
        user=one,
        time=np.array([START + n * MINUTE]),
        category=one,
        advertiser=one,
        creative=np.eye(32, dtype=np.float32)[:1],
    )
    got = observe(log, shown, np.eye(32, dtype=np.float32))
    for k, half_life in enumerate((10 * MINUTE, DAY, 14 * DAY)):
        ratio = 0.5 ** (MINUTE / half_life)
        assert math.isclose(got.recent[0, k], ratio * (1 - ratio**n) / (1 - ratio), rel_tol=1e-12)
