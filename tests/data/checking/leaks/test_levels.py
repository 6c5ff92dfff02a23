"""Columns as levels, and AUCs that luck and surfaces do not lift."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from opengem.data.checking.leaks.columns import Column
from opengem.data.checking.leaks.levels import auc_error, auc_within, fitted_auc, levels_of

NAN = float("nan")


def column(own, past=None, words=()):
    kind = "text" if words else "number"
    dtype = np.int64 if words else np.float64
    given = {} if past is None else {"user": np.array(past, dtype)}
    return Column("impressions", "x", kind, np.array(own, dtype), given, {}, list(words))


def test_auc_is_that_of_scikit_learn_and_counts_pairs_of_one_group():
    random = np.random.default_rng(0)
    rank, group = random.integers(0, 9, 300), random.integers(0, 4, 300)
    y = (random.random(300) < 0.1 + 0.05 * rank + 0.1 * group).astype(float)
    one = np.zeros(300, np.int64)
    assert auc_within(rank, y, one) == pytest.approx(roc_auc_score(y, rank))
    parts = [(roc_auc_score(y[group == g], rank[group == g]), y[group == g]) for g in range(4)]
    pairs = np.array([(1 - part).sum() * part.sum() for _, part in parts])
    by_hand = sum(auc * n for (auc, _), n in zip(parts, pairs, strict=True)) / pairs.sum()
    assert auc_within(rank, y, group) == pytest.approx(by_hand)


def test_auc_of_one_class_or_of_groups_of_one_class_is_a_half():
    assert auc_within(np.array([0, 1, 2]), np.ones(3), np.zeros(3, np.int64)) == 0.5
    assert auc_within(np.array([0, 1]), np.array([0.0, 1.0]), np.array([0, 1])) == 0.5


def test_learning_a_level_by_heart_gains_nothing():
    """2,000 levels of 2 examples: fitted and judged on the same rows they would rank almost rightly."""
    random = np.random.default_rng(1)
    level = np.repeat(np.arange(2_000), 2)[random.permutation(4_000)]
    y = (random.random(4_000) < 0.3).astype(float)
    surface = np.zeros(4_000, np.int64)
    assert fitted_auc(level, 2_000, y, surface, 2_000) == pytest.approx(0.5, abs=0.03)
    assert fitted_auc((y + 1).astype(int), 3, y, surface, 2_000) == 1.0


def test_what_only_names_the_surface_tells_nothing():
    random = np.random.default_rng(2)
    surface = random.integers(0, 3, 3_000)
    y = (random.random(3_000) < np.array([0.05, 0.3, 0.7])[surface]).astype(float)
    assert fitted_auc(surface, 3, y, surface, 1_500) == pytest.approx(0.5, abs=1e-12)
    assert fitted_auc(surface, 3, y, np.zeros(3_000, np.int64), 1_500) > 0.7


def test_the_standard_error_is_the_spread_of_many_draws():
    random = np.random.default_rng(3)
    y = np.r_[np.ones(60), np.zeros(140)]
    draws = [roc_auc_score(y, random.normal(size=200) + y) for _ in range(400)]
    assert auc_error(float(np.mean(draws)), 60, 140) == pytest.approx(float(np.std(draws)), rel=0.15)


def test_a_common_number_and_null_are_levels_of_their_own():
    own = [NAN] * 10 + [0.0] * 500 + list(np.linspace(0.001, 9.0, 490))
    (levels,) = levels_of(column(own, past=[0.0] * 500 + [NAN] * 250 + [-5.0] * 250))
    assert set(levels.own[:10]) == {0}
    zero = set(levels.own[10:510])
    assert len(zero) == 1
    assert not zero & set(levels.own[510:])
    assert levels.words[zero.pop()] == "0"
    assert set(levels.past["user"]) == {levels.own[10], 0, 1}  # what is smaller than all is a level too
    assert levels.words[0] == "null"
    assert levels.own.max() < levels.size


def test_whole_numbers_that_repeat_are_categories_too():
    random = np.random.default_rng(4)
    codes = random.integers(0, 200, 10_000).astype(float)
    numbers, categories = levels_of(column(codes, past=np.r_[codes[1:], NAN]))
    assert len(np.unique(numbers.own)) < 70
    assert len(np.unique(categories.own)) == 200
    same = {int(c): int(level) for c, level in zip(codes, categories.own, strict=True)}
    assert [same[int(c)] for c in codes[1:]] == categories.past["user"][:-1].tolist()
    assert categories.past["user"][-1] == 0
    assert len(levels_of(column(codes + 0.5))) == 1
    assert len(levels_of(column(np.arange(10_000.0)))) == 1


def test_rare_categories_share_a_level():
    own = [0] * 50 + [1] * 50 + list(range(2, 42)) + [-1] * 5
    (levels,) = levels_of(column(own, past=[5] * 145, words=[f"w{i}" for i in range(42)]))
    assert len(np.unique(levels.own)) == 4
    assert levels.words[levels.own[0]] == "w0"
    assert set(levels.own[100:140]) == {1}
    assert set(levels.own[140:]) == {0}
    assert set(levels.past["user"]) == {1}


def test_a_column_without_a_value_has_one_level():
    (levels,) = levels_of(column([NAN] * 20))
    assert set(levels.own) == {0}
