"""The own row against the past: what only the own row tells, and levels that tell the label."""

import numpy as np
import pytest

from opengem.data.checking.leaks.columns import Column
from opengem.data.checking.leaks.evidence import by_levels, by_own_row
from opengem.data.checking.leaks.own_row import measure_own_row
from opengem.data.checking.leaks.sample import Sample

N = 6_000


class Drawn:
    """6,000 examples of 600 users, ten each in order; half of a user's clicks are the user's own liking."""

    def __init__(self, seed=0):
        self.random = random = np.random.default_rng(seed)
        self.user = np.repeat(np.arange(600), 10)
        self.liking = random.beta(1, 5, 600)[self.user]
        self.y = (random.random(N) < self.liking).astype(float)
        self.first = np.arange(N) % 10 == 0
        self.surface = np.zeros(N, np.int64)

    def sample(self, y=None):
        zero = np.zeros(N, np.int64)
        return Sample(
            N, np.arange(N), {"click": self.y if y is None else y}, self.surface, np.arange(N), zero == 0, zero == 1,
            self.random.integers(0, 2, N), {"user": self.user, "ad": zero}, {}, {},
        )  # fmt: skip

    def column(self, own):
        own = np.asarray(own, np.float64)
        past = np.where(self.first, np.nan, np.roll(own, 1))
        none = np.full(N, np.nan)
        return Column(
            "impressions",
            "x",
            "number",
            own,
            {"user": past, "ad": none},
            {"user": ~self.first, "ad": np.zeros(N, bool)},
        )

    def measure(self, own, y=None):
        return measure_own_row(self.column(own), self.sample(y))["click"]


def test_a_copy_is_told_by_its_own_row_alone():
    drawn = Drawn()
    found = drawn.measure(drawn.y)
    assert found.own == 1.0
    assert 0.55 < found.past < 0.75  # a user who clicked before clicks again
    assert found.rows == N - 600
    assert found.positives == int(drawn.y[~drawn.first].sum())
    own_row, levels = by_own_row("click", found), by_levels("click", found)
    assert own_row is not None
    assert levels is not None
    assert own_row.strength == levels.strength == "sure"
    assert "100% have click" in levels.text


def test_what_the_user_is_like_is_told_by_the_past_as_well():
    drawn = Drawn()
    found = drawn.measure(drawn.liking)
    assert found.own > 0.7
    assert found.past == pytest.approx(found.own, abs=1e-9)
    assert by_own_row("click", found) is None
    assert by_levels("click", found) is None


@pytest.mark.parametrize("seed", range(5))
def test_noise_tells_nothing(seed):
    drawn = Drawn(seed)
    for own in (
        drawn.random.normal(size=N),
        drawn.random.integers(0, 2, N),
        drawn.random.integers(0, 300, N),
    ):
        found = drawn.measure(own)
        assert by_own_row("click", found) is None
        assert by_levels("click", found) is None


def test_nulls_can_tell_the_label():
    drawn = Drawn()
    own = np.where(drawn.y == 1, drawn.random.normal(size=N), np.nan)
    found = drawn.measure(own)
    assert found.own > 0.99
    assert found.own - found.past > 0.3


def test_a_rare_level_is_found_though_it_lifts_no_auc():
    drawn = Drawn()
    flag = (drawn.y == 1) & (drawn.random.random(N) < 0.1)
    found = drawn.measure(flag)
    assert found.own < 0.6
    assert by_own_row("click", found) is None
    evidence = by_levels("click", found)
    assert evidence is not None
    assert evidence.strength == "sure"
    strong = max(found.telling, key=lambda t: t.lift)
    assert (strong.words, strong.rate) == ("1", 1.0)
    assert strong.rows == int(flag[~drawn.first].sum())


def test_a_level_that_is_only_somewhat_better_is_likely_at_most():
    drawn = Drawn()
    y = (drawn.random.random(N) < 0.1).astype(float)
    flag = np.where(y == 1, drawn.random.random(N) < 0.3, drawn.random.random(N) < 0.05)
    evidence = by_levels("click", drawn.measure(flag, y))
    assert evidence is not None
    assert evidence.strength == "likely"  # 40% of its rows against 10%


def test_a_level_that_never_clicks_is_likely_at_most():
    drawn = Drawn()
    evidence = by_levels("click", drawn.measure((drawn.y == 0) & (drawn.random.random(N) < 0.5)))
    assert evidence is not None
    assert evidence.strength == "likely"


def test_what_only_names_the_surface_tells_nothing():
    drawn = Drawn()
    drawn.surface = drawn.random.integers(0, 3, N)
    y = (drawn.random.random(N) < np.array([0.02, 0.2, 0.9])[drawn.surface]).astype(float)
    found = drawn.measure(drawn.surface, y)
    assert found.own == pytest.approx(0.5, abs=0.02)
    assert by_levels("click", found) is None
    drawn.surface = np.zeros(N, np.int64)
    assert drawn.measure(y * 1.0 + 0, y).own == 1.0


def test_few_positives_are_not_measured():
    drawn = Drawn()
    y = np.zeros(N)
    y[np.flatnonzero(~drawn.first)[:29]] = 1
    assert measure_own_row(drawn.column(drawn.y), drawn.sample(y)) == {}
    y[np.flatnonzero(drawn.first)[0]] = 1
    assert not drawn.measure(drawn.y, y).compared
    y[np.flatnonzero(~drawn.first)[29]] = 1
    assert drawn.measure(drawn.y, y).compared
    assert measure_own_row(drawn.column(drawn.y), drawn.sample(y)).keys() == {"click"}


def test_without_a_past_only_a_very_good_column_is_named():
    drawn = Drawn()
    drawn.first = np.ones(N, bool)
    found = drawn.measure(drawn.y)
    assert (found.compared, found.rows, found.own, found.past) == (False, N, 1.0, 0.5)
    evidence = by_own_row("click", found)
    assert evidence is not None
    assert evidence.strength == "sure"
    evidence = by_own_row("click", drawn.measure(drawn.y + 0.8 * drawn.random.normal(size=N)))
    assert evidence is not None
    assert evidence.strength == "likely"
    assert by_own_row("click", drawn.measure(drawn.liking)) is None


def test_missing_labels_are_left_out():
    drawn = Drawn()
    y = np.where(drawn.random.random(N) < 0.5, drawn.y, np.nan)
    found = drawn.measure(drawn.y, y)
    assert found.rows == int((~np.isnan(y) & ~drawn.first).sum())
