import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from opengem.errors import DataError
from opengem.evaluation import (
    auc,
    calibration,
    expected_calibration_error,
    log_loss,
    normalized_entropy,
    reliability,
    user_auc,
)
from opengem.evaluation.metrics import auc_by_user, undefined_reason

ALL = (log_loss, normalized_entropy, auc, calibration, expected_calibration_error)


def brute_auc(labels, predictions, weight):
    """Every pair of a positive and a negative, by hand."""
    wins = pairs = 0.0
    for i in np.flatnonzero(labels == 1):
        for j in np.flatnonzero(labels == 0):
            pair = weight[i] * weight[j]
            pairs += pair
            wins += pair * ((predictions[i] > predictions[j]) + 0.5 * (predictions[i] == predictions[j]))
    return wins / pairs


@st.composite
def labelled_rows(draw):
    size = draw(st.integers(2, 40))
    labels = draw(arrays.arrays(np.int8, size, elements=st.integers(0, 1)))
    labels[:2] = [0, 1]
    scores = draw(arrays.arrays(np.int64, size, elements=st.integers(0, 8)))
    weight = draw(arrays.arrays(np.int64, size, elements=st.integers(1, 5)))
    return labels, scores / 8, weight


@settings(max_examples=80, deadline=None)
@given(labelled_rows())
def test_auc_equals_all_pairs_and_scikit_learn(rows):
    labels, scores, weight = rows
    found = auc(labels, scores, weight)
    assert found == pytest.approx(brute_auc(labels, scores, weight), abs=1e-12)
    assert found == pytest.approx(roc_auc_score(labels, scores, sample_weight=weight), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(labelled_rows())
def test_log_loss_equals_scikit_learn(rows):
    labels, scores, weight = rows
    inside = scores * 0.9 + 0.05
    assert log_loss(labels, inside, weight) == pytest.approx(
        sklearn_log_loss(labels, inside, sample_weight=weight), rel=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(labelled_rows())
def test_an_integer_weight_is_a_repeated_row(rows):
    labels, scores, weight = rows
    repeated = np.repeat(labels, weight), np.repeat(scores, weight)
    for metric in (log_loss, normalized_entropy, auc, calibration):
        assert metric(labels, scores, weight) == pytest.approx(metric(*repeated), rel=1e-10), metric
    users = np.arange(len(labels)) % 3
    assert user_auc(labels, scores, users, weight) == pytest.approx(
        user_auc(*repeated, np.repeat(users, weight)), rel=1e-10, nan_ok=True
    )


def test_normalized_entropy_by_hand():
    assert normalized_entropy([1, 0, 0, 0], [0.25] * 4) == pytest.approx(1.0, abs=1e-12)
    # log loss (-ln .4 - 3 ln .8) / 4 = 0.396430; entropy of 1/4 = 0.562335
    assert normalized_entropy([1, 0, 0, 0], [0.4, 0.2, 0.2, 0.2]) == pytest.approx(0.7050, abs=5e-5)
    assert calibration([1, 0, 0, 0], [0.4, 0.2, 0.2, 0.2]) == pytest.approx(1.0)


def test_normalized_entropy_weighs_the_base_rate_too():
    # weights 3 and 1: base rate 3/4, predicting it everywhere is 1 by definition.
    assert normalized_entropy([1, 0], [0.75, 0.75], [3, 1]) == pytest.approx(1.0, abs=1e-12)


def test_log_loss_is_a_mean_over_rows_not_over_batches():
    losses = np.repeat([0.7, 0.8, 0.9], [256, 256, 10])
    assert log_loss(np.ones(522), np.exp(-losses)) == pytest.approx(0.752874, abs=5e-7)


def test_predictions_are_clipped_inside_the_logarithm_only():
    assert log_loss([1, 0], [0.0, 1.0]) == pytest.approx(-np.log(1e-12))
    assert log_loss([1, 0], [1.0, 0.0]) == 0
    assert calibration([1, 0], [0.0, 0.0]) == 0
    assert auc([1, 0], [1e-13, 0.0]) == 1


def test_user_auc_by_hand():
    users = [7, 7, 7, 7, 3, 3, 3, 9, 9]
    labels = [1, 0, 1, 0, 1, 0, 0, 1, 1]
    scores = [0.9, 0.5, 0.4, 0.1, 0.2, 0.2, 0.8, 0.5, 0.6]
    # user 7: 3 of 4 pairs; user 3: one tie, one lost = 0.25; user 9 has one class and stays out.
    assert user_auc(labels, scores, users) == pytest.approx((4 * 0.75 + 3 * 0.25) / 7)
    ids, values, weight = auc_by_user(labels, scores, users)
    assert ids.tolist() == [3, 7, 9]
    assert values[:2] == pytest.approx([0.25, 0.75])
    assert np.isnan(values[2])
    assert weight.tolist() == [3, 4, 2]


def test_user_auc_equals_scikit_learn_per_user():
    random = np.random.default_rng(3)
    users = random.integers(0, 60, 2000)
    labels, scores = random.integers(0, 2, 2000), np.round(random.random(2000), 2)
    weight = 10.0 ** random.uniform(-9, 9, 60)[users] * random.uniform(0.5, 2, 2000)
    ids, values, _ = auc_by_user(labels, scores, users, weight)
    for place, user in enumerate(ids):
        own = users == user
        expected = roc_auc_score(labels[own], scores[own], sample_weight=weight[own])
        assert values[place] == pytest.approx(expected, abs=1e-9)


def test_a_million_rows_with_large_weights():
    random = np.random.default_rng(0)
    scores = np.round(random.random(1_000_000), 4)
    labels = (random.random(1_000_000) < scores).astype(np.float32)
    weight = random.integers(1, 2**31, 1_000_000) * 1e12
    assert auc(labels, scores, weight) == pytest.approx(
        roc_auc_score(labels, scores, sample_weight=weight), abs=1e-10
    )
    assert log_loss(labels, scores * 0.98 + 0.01, weight) == pytest.approx(
        sklearn_log_loss(labels, scores * 0.98 + 0.01, sample_weight=weight), rel=1e-10
    )
    assert auc(labels, scores, np.full(1_000_000, 1e300)) == pytest.approx(auc(labels, scores), abs=1e-12)


@pytest.mark.slow
def test_forty_million_float32_weights():
    half = 10_000_000
    scores = np.repeat(np.float32([0.2, 0.8, 0.8]), [half, half, 2 * half])
    labels = np.repeat(np.int8([0, 1]), 2 * half)
    weight = np.ones(4 * half, np.float32)
    assert auc(labels, scores, weight) == pytest.approx(0.75, abs=1e-12)
    assert calibration(labels, scores, weight) == pytest.approx(1.3, abs=1e-6)


@pytest.mark.parametrize("metric", ALL)
def test_no_rows_and_no_weight_are_nan(metric):
    assert np.isnan(metric([], []))
    assert np.isnan(metric([0, 1], [0.2, 0.4], [0, 0]))


def test_one_class_is_nan_where_the_metric_needs_two():
    for metric in (normalized_entropy, auc, calibration):
        assert np.isnan(metric([0, 0, 0, 0], [0.1, 0.2, 0.3, 0.4])), metric
    assert np.isnan(normalized_entropy([1, 1], [0.5, 0.5]))
    assert np.isnan(user_auc([0, 1], [0.1, 0.2], [1, 2]))
    assert np.isnan(user_auc([], [], []))
    assert np.isfinite(log_loss([0, 0], [0.1, 0.2]))


def test_the_reason_is_in_words():
    assert undefined_reason([0, 0, 0, 0]) == "no positive in 4 rows"
    assert undefined_reason([1]) == "no negative in 1 row"
    assert undefined_reason([]) == "no rows"
    assert undefined_reason([0, 1], [0, 0]) == "all 2 rows have weight 0"
    assert undefined_reason([0, 1], [1, 0]) == "no positive in 1 row"
    assert undefined_reason([0, 1]) is None


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize(("bad", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (1.5, "1.5"), (-0.1, "-0.1")])
def test_a_prediction_that_is_no_probability_is_named(metric, bad, shown):
    with pytest.raises(DataError, match=rf"1 of 3 .*first: {shown} at row 1"):
        metric([0, 1, 1], [0.1, bad, 0.5])


def test_bad_labels_weights_and_shapes_are_refused():
    with pytest.raises(DataError, match=r"labels must be 0 or 1.*2 of 4.*first: -1.0 at row 1"):
        normalized_entropy([0, -1, 2, 1], [0.5] * 4)
    with pytest.raises(DataError, match="labels"):
        auc([0, np.nan], [0.1, 0.2])
    with pytest.raises(DataError, match="weights must be finite"):
        log_loss([0, 1], [0.5, 0.5], [1, -1])
    with pytest.raises(DataError, match=r"equally long.*\(2,\), \(3,\)"):
        log_loss([0, 1], [0.5, 0.5, 0.5])
    with pytest.raises(DataError, match="users must be as long"):
        user_auc([0, 1], [0.5, 0.5], [1])


def test_reliability_bins_by_hand():
    predictions = np.arange(1, 101) / 200
    labels = (np.arange(100) % 10 == 0).astype(int)
    found = reliability(labels, predictions)
    assert found.count.tolist() == [10] * 10
    assert found.predicted == pytest.approx((np.arange(10) * 10 + 5.5) / 200)
    assert found.observed == pytest.approx([0.1] * 10)
    gap = np.abs((np.arange(10) * 10 + 5.5) / 200 - 0.1).mean()
    assert expected_calibration_error(labels, predictions) == pytest.approx(gap)


def test_reliability_keeps_ties_together_and_loses_no_row():
    predictions = np.repeat([0.1, 0.5], [75, 25])
    labels = np.concatenate((np.zeros(60), np.ones(15), np.ones(25)))
    found = reliability(labels, predictions)
    assert found.count.tolist() == [75, 25]
    assert found.predicted == pytest.approx([0.1, 0.5])
    assert found.observed == pytest.approx([0.2, 1.0])
    assert len(reliability([], []).count) == 0


def test_metrics_are_light():
    heavy = ("torch", "pyarrow", "sklearn", "scipy")
    code = f"import sys, opengem.evaluation; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
