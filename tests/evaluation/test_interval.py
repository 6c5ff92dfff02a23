import numpy as np
import pytest

from opengem.errors import ConfigError
from opengem.evaluation import (
    METRICS,
    auc,
    bootstrap_intervals,
    calibration,
    log_loss,
    normalized_entropy,
    user_auc,
)
from opengem.evaluation.interval import SliceStatistic, percentile_interval
from opengem.evaluation.metrics import checked_rows


def plain_values(labels, predictions, users, weight):
    """The five metrics by the functions of one metric each."""
    plain = [f(labels, predictions, weight) for f in (normalized_entropy, log_loss, auc, calibration)]
    plain.insert(3, user_auc(labels, predictions, users, weight))
    return np.array(plain)


def random_rows(rows=400, users=30, seed=0):
    random = np.random.default_rng(seed)
    user = random.integers(0, users, rows)
    predictions = np.round(random.random(rows), 2)
    return (random.random(rows) < predictions).astype(int), predictions, user, random.uniform(0.5, 3, rows)


def test_a_replicate_equals_the_metrics_with_the_draws_as_weights():
    labels, predictions, users, weight = random_rows()
    statistic = SliceStatistic(checked_rows(labels, predictions, weight), users)
    for seed in range(5):
        draws = np.random.default_rng(seed).poisson(1.0, 30).astype(float)
        expected = plain_values(labels, predictions, users, weight * draws[users])
        # A user drawn k times is k users with the same AUC: their weight, not their pairs, grows by k.
        assert statistic.values(draws) == pytest.approx(expected, abs=1e-10)


def test_the_value_is_the_metric_on_all_rows():
    labels, predictions, users, weight = random_rows()
    found = bootstrap_intervals(labels, predictions, users, weight, replicates=20)
    assert [found[name].value for name in METRICS] == pytest.approx(
        plain_values(labels, predictions, users, weight), abs=1e-12
    )
    assert all(found[name].low < found[name].value < found[name].high for name in METRICS)


def test_same_seed_same_interval_other_seed_other():
    rows = random_rows()[:3]
    assert bootstrap_intervals(*rows, seed=4, replicates=30) == bootstrap_intervals(
        *rows, seed=4, replicates=30
    )
    assert (
        bootstrap_intervals(*rows, seed=4, replicates=30)["ne"]
        != bootstrap_intervals(*rows, seed=5, replicates=30)["ne"]
    )


def test_interval_of_the_log_loss_has_the_width_of_theory():
    random = np.random.default_rng(1)
    predictions = random.uniform(0.1, 0.9, 4000)
    labels = (random.random(4000) < predictions).astype(int)
    found = bootstrap_intervals(labels, predictions, np.arange(4000), replicates=800)["log_loss"]
    row = -np.log(np.where(labels == 1, predictions, 1 - predictions))
    assert found.high - found.low == pytest.approx(2 * 1.96 * row.std() / np.sqrt(4000), rel=0.1)


def test_rows_of_one_user_are_not_counted_as_independent():
    """Each user's row repeated 16 times: the interval of the users is 4 times as wide as that of the rows."""
    labels, predictions, _, _ = random_rows(rows=500, users=500)
    users = np.arange(500)
    once = bootstrap_intervals(labels, predictions, users, replicates=400)["log_loss"]
    repeated = [np.repeat(v, 16) for v in (labels, predictions, users)]
    clustered = bootstrap_intervals(*repeated, replicates=400)["log_loss"]
    as_rows = bootstrap_intervals(*repeated[:2], np.arange(8000), replicates=400)["log_loss"]
    assert clustered.high - clustered.low == pytest.approx(once.high - once.low, rel=0.15)
    assert (clustered.high - clustered.low) / (as_rows.high - as_rows.low) == pytest.approx(4, rel=0.2)


@pytest.mark.slow
def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """Positives score N(1, 1), negatives N(0, 1): the true AUC is Phi(1 / sqrt 2) = 0.760250."""
    inside = 0
    for trial in range(300):
        random = np.random.default_rng(trial)
        labels = random.integers(0, 2, 600)
        scores = 1 / (1 + np.exp(-random.normal(labels, 1.0)))
        found = bootstrap_intervals(labels, scores, np.arange(600), replicates=200, seed=trial)["auc"]
        inside += found.low <= 0.760250 <= found.high
    assert 0.91 <= inside / 300 <= 0.98


def test_undefined_replicates_are_left_out_and_counted():
    labels = np.zeros(60, int)
    labels[0] = 1  # one user holds the only positive; about 37% of the draws miss that user
    predictions = np.linspace(0.9, 0.1, 60)
    found = bootstrap_intervals(labels, predictions, np.arange(60) // 2, replicates=300)
    assert 0.28 < found["auc"].undefined / 300 < 0.46
    assert (found["auc"].low, found["auc"].high) == (1, 1)
    assert found["log_loss"].undefined == 0
    assert found["auc"].to_dict()["undefined_replicates"] == found["auc"].undefined


def test_mostly_undefined_means_no_interval():
    values = np.array([0.5, *[np.nan] * 60, *[0.5] * 40])
    found = percentile_interval(values, users=10)
    assert found.value == 0.5
    assert np.isnan(found.low)
    assert found.to_dict() == {"value": 0.5, "low": None, "high": None, "undefined_replicates": 60}


def test_one_user_no_replicates_no_rows():
    labels, predictions, _, _ = random_rows(rows=20)
    one = bootstrap_intervals(labels, predictions, np.zeros(20, int), replicates=10)["ne"]
    assert np.isfinite(one.value)
    assert np.isnan(one.low)
    none = bootstrap_intervals(labels, predictions, np.arange(20), replicates=0)["ne"]
    assert np.isfinite(none.value)
    assert np.isnan(none.high)
    empty = bootstrap_intervals([], [], [], replicates=5)
    assert all(np.isnan(found.value) for found in empty.values())
    with pytest.raises(ConfigError, match="replicates must be 0 or more"):
        bootstrap_intervals(labels, predictions, np.arange(20), replicates=-1)


def test_percentiles_are_numpys():
    values = np.concatenate(([2.0], np.random.default_rng(0).normal(2, 1, 200)))
    found = percentile_interval(values, users=9)
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(values[1:], [2.5, 97.5])))
