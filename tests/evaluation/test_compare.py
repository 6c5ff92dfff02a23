import json
from dataclasses import replace

import numpy as np
import pytest

from opengem.errors import CheckFailed, DataError
from opengem.evaluation import auc, calibration, compare_predictions, log_loss, normalized_entropy


def test_differences_are_of_the_metrics(build):
    a, b = build(model="a", noise=0.3), build(model="b", noise=1.5)
    found = compare_predictions(a, b, replicates=20)
    y = a.labels["click"]
    both = [normalized_entropy(y, t.predictions["click"]) for t in (a, b)]
    total = found.totals["click"]
    values = {name: interval.value for name, interval in total.differences.items()}
    pa, pb = a.predictions["click"], b.predictions["click"]
    assert values == pytest.approx(
        {
            "ne": both[0] - both[1],
            "ne_percent": 100 * (both[0] / both[1] - 1),
            "log_loss": log_loss(y, pa) - log_loss(y, pb),
            "auc": auc(y, pa) - auc(y, pb),
            "calibration": calibration(y, pa) - calibration(y, pb),
        }
    )
    feed = a.surface == "feed"
    assert found.surfaces["click"]["feed"].differences["auc"].value == pytest.approx(
        auc(y[feed], pa[feed]) - auc(y[feed], pb[feed])
    )
    assert total.values["ne"] == pytest.approx(tuple(both))


def test_verdicts(build):
    good, bad, twin = (
        build(model="good", noise=0.2),
        build(model="bad", noise=2.0),
        build(model="twin", noise=0.2),
    )
    forward = compare_predictions(good, bad, replicates=100).totals["click"].verdict
    assert forward.startswith("good is better: -")
    backward = compare_predictions(bad, good, replicates=100).totals["click"].verdict
    assert backward.startswith("good is better: bad has +")
    none = compare_predictions(good, twin, replicates=100).totals["click"].verdict
    assert none.startswith("no difference shown: good has ")
    same = compare_predictions(good, good, replicates=20)
    assert same.totals["click"].differences["ne"].high == 0
    assert "no difference shown" in same.verdict()
    assert (same.a, same.b) == ("good (A)", "good (B)")


def test_pairing_narrows_the_interval(build):
    """Two models that make nearly the same errors: far narrower than for independent errors."""
    a = build(model="a", noise=0.5)
    nudged = {task: np.clip(p * np.float32(1.01), 0, 1) for task, p in a.predictions.items()}
    b = replace(a, predictions=nudged, model="b")
    found = compare_predictions(a, b, replicates=100).totals["click"].differences["log_loss"]
    alone = compare_predictions(a, build(model="c", noise=0.5), replicates=100).totals["click"]
    assert found.high - found.low < 0.2 * (
        alone.differences["log_loss"].high - alone.differences["log_loss"].low
    )


def test_order_of_rows_does_not_matter(build):
    a, b = build(model="a", noise=0.3), build(model="b")
    shuffled = b.take(np.random.default_rng(0).permutation(len(b)))
    assert compare_predictions(a, b, replicates=5) == compare_predictions(a, shuffled, replicates=5)


def test_other_examples_are_an_error_with_counts(build):
    a, b = build(model="a"), build(model="b")
    fewer = b.take(np.arange(100, 3000))
    with pytest.raises(DataError, match=r"2900 in both, 100 only in a, 0 only in b.*allow_partial"):
        compare_predictions(a, fewer)
    partial = compare_predictions(a, fewer, replicates=5, allow_partial=True)
    whole = compare_predictions(a.take(np.arange(100, 3000)), fewer, replicates=5)
    assert (partial.rows, partial.only_a, partial.only_b) == (2900, 100, 0)
    assert partial.totals == whole.totals
    with pytest.raises(DataError, match="0 common examples"):
        compare_predictions(a, replace(b, example_id=b.example_id + 10**6), allow_partial=True)


def test_other_labels_users_or_surfaces_are_refused(build):
    a, b = build(model="a"), build(model="b")
    flipped = replace(b, labels={**b.labels, "click": 1 - b.labels["click"]})
    with pytest.raises(DataError, match=r'"y_click".*3000 of 3000 that differ; first example_id: 5'):
        compare_predictions(a, flipped)
    with pytest.raises(DataError, match='"user"'):
        compare_predictions(a, replace(b, user=b.user + 1))
    with pytest.raises(DataError, match='"surface"'):
        compare_predictions(a, replace(b, surface=b.surface[::-1]))


def test_labels_known_in_one_only(build):
    a, b = build(model="a"), build(model="b")
    later = {**b.labels, "click": b.labels["click"].copy()}
    later["click"][:50] = np.nan
    with pytest.raises(DataError, match=r'"y_click".*50 of 3000'):
        compare_predictions(a, replace(b, labels=later))
    found = compare_predictions(a, replace(b, labels=later), replicates=5, allow_partial=True)
    assert found.totals["click"].rows == 2950


def test_one_class_and_nan(build):
    a, b = build(model="a"), build(model="b")
    no_clicks = {**a.labels, "click": np.zeros(3000, np.float32)}
    found = compare_predictions(replace(a, labels=no_clicks), replace(b, labels=no_clicks), replicates=5)
    assert found.totals["click"].verdict == "not defined: no positive in 3000 rows"
    made = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert made["tasks"]["click"]["total"]["differences"]["ne"]["value"] is None
    b.predictions["click"][4] = np.nan
    with pytest.raises(CheckFailed, match=r"1 of 3000.*example_id 9 by model b"):
        compare_predictions(a, b)


def test_json_parts(build):
    made = compare_predictions(build(model="a"), build(model="b"), replicates=5).to_dict()
    assert (made["a"], made["b"], made["rows"]) == ("a", "b", 3000)
    assert set(made["tasks"]["like"]["surfaces"]) == {"feed", "reels", "explore"}
    assert set(made["tasks"]["like"]["total"]["differences"]["ne_percent"]) == {"value", "low", "high"}
    assert made["verdict"].count("\n") == 1
