"""Values of users and ads: how good they are is no leak, how their dice fell is one."""

import numpy as np
import pytest

from opengem.data.checking.leaks.columns import Column
from opengem.data.checking.leaks.sample import Sample
from opengem.data.checking.leaks.whole_log import (
    Halves,
    label_windows,
    measure_whole_log,
    measure_windows,
    owner_of,
)

ADS, ROWS = 300, 40


class Drawn:
    """300 ads of a true rate each, 40 examples of each, the last ten of them after training."""

    def __init__(self, seed=0):
        random = np.random.default_rng(seed)
        self.random, self.ad = random, np.repeat(np.arange(ADS), ROWS)
        self.rate = random.beta(4, 16, ADS)
        self.y = (random.random(ADS * ROWS) < self.rate[self.ad]).astype(float)
        self.half = random.integers(0, 2, ADS * ROWS)
        self.after = np.tile(np.arange(ROWS) >= 30, ADS)
        n = ADS * ROWS
        self.sample = Sample(
            total=n, row=np.arange(n), labels={"click": self.y}, surface=np.zeros(n, np.int64), time=np.arange(n),
            train=~self.after, after=self.after, half=self.half,
            entity={"user": np.arange(n) % 500, "ad": self.ad}, keys={"user": np.arange(500), "ad": np.arange(ADS)},
            place={},
        )  # fmt: skip

    def mean(self, which=None):
        which = np.ones(len(self.y), bool) if which is None else which
        return np.bincount(self.ad[which], self.y[which], ADS) / np.bincount(self.ad[which], minlength=ADS)

    def halves(self):
        found = {}
        for window, inside in (("all", self.y >= 0), ("train", ~self.after), ("after", self.after)):
            base = self.y[inside].mean()
            parts = [inside & (self.half == h) for h in (0, 1)]
            rows = np.stack([np.bincount(self.ad[p], minlength=ADS) for p in parts]).astype(float)
            above = np.stack([np.bincount(self.ad[p], self.y[p] - base, ADS) for p in parts])
            both = (rows > 0).all(axis=0)
            found["ad", "click", window] = Halves(np.flatnonzero(both), above[:, both], rows[:, both])
        return found

    def column(self, of_ad):
        return Column("ads", "x", "number", np.asarray(of_ad, np.float64)[self.ad])

    def measure(self, of_ad):
        (found,) = measure_whole_log(self.column(of_ad), self.sample, self.halves())
        return found

    def windows(self, of_ad):
        (found,) = measure_windows(self.column(of_ad), self.sample, label_windows(self.sample))
        return found


@pytest.mark.parametrize("seed", range(5))
def test_what_was_known_before_is_never_far_below_nothing(seed):
    drawn = Drawn(seed)
    before = drawn.random.binomial(50, drawn.rate) / 50  # the rate of an earlier log
    for value in (
        drawn.rate,
        before,
        np.arange(ADS),
        np.ones(ADS),
        drawn.random.normal(size=ADS),
        drawn.rate * ROWS,
    ):
        assert drawn.measure(value).z > -3
        gap = drawn.windows(value)
        assert abs(gap.after - gap.train) < 3 * gap.error + 0.05


@pytest.mark.parametrize("seed", range(3))
def test_rates_and_counts_over_the_log_are_found(seed):
    drawn = Drawn(seed)
    for value in (
        drawn.mean(),
        drawn.mean() * ROWS,
        np.round(drawn.mean() * 20),
        (drawn.mean() * ROWS + 2) / (ROWS + 10),
    ):
        found = drawn.measure(value)
        assert found.z < -6
        assert found.correlation < -0.3
        assert found.before > 2  # without the column, halves of a good ad are both good


@pytest.mark.parametrize(("window", "name"), [("after", "after"), ("train", "train")])
def test_rates_over_one_window_are_found_in_it(window, name):
    drawn = Drawn(7)
    inside = drawn.after if window == "after" else ~drawn.after
    found = drawn.measure(drawn.mean(inside))
    assert found.window == name
    assert found.z < -4.5
    gap = drawn.windows(drawn.mean(inside))
    assert (gap.after - gap.train) * (1 if window == "after" else -1) > 0.05


def test_a_category_made_of_labels_is_found():
    drawn = Drawn(8)
    codes = np.digitize(drawn.mean(), np.quantile(drawn.mean(), np.linspace(0.05, 0.95, 19)))
    text = Column("ads", "x", "text", codes[drawn.ad], words=[f"c{i}" for i in range(20)])
    (found,) = measure_whole_log(text, drawn.sample, drawn.halves())
    assert found.z < -4.5
    groups = np.arange(ADS) % 20
    text = Column("ads", "x", "text", groups[drawn.ad], words=[f"c{i}" for i in range(20)])
    (found,) = measure_whole_log(text, drawn.sample, drawn.halves())
    assert found.z > 0


def test_few_owners_are_not_measured():
    drawn = Drawn()
    few = {k: Halves(h.code[:39], h.above[:, :39], h.rows[:, :39]) for k, h in drawn.halves().items()}
    assert measure_whole_log(drawn.column(drawn.mean()), drawn.sample, few) == []


def test_whose_value_a_column_is():
    n = 200
    user = np.repeat(np.arange(20), 10)
    past = np.r_[np.nan, user[:-1] * 1.0]
    has = np.r_[False, user[1:] == user[:-1]]
    random = np.random.default_rng(0).normal(size=n)
    has_ad = np.ones(n, bool)

    def made(own, user_past):
        return Column(
            "impressions", "x", "number", own, {"user": user_past, "ad": -random}, {"user": has, "ad": has_ad}
        )

    assert owner_of(made(user * 1.0, past)) == "user"
    assert owner_of(made(random, np.roll(random, 1))) == ""
    assert owner_of(made(np.full(n, np.nan), np.full(n, np.nan))) == "user"
    assert owner_of(Column("ads", "x", "number", random)) == "ad"
    assert owner_of(Column("users", "x", "number", random)) == "user"
