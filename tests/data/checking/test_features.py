"""Constant features, ids that hardly repeat, and drift."""

import math

import numpy as np
import pytest

from opengem import check_data
from opengem.data.checking.features import stability
from opengem.schema import parse_schema
from tests.data.checking.test_tables import said
from tests.data.logs import DAY, T0, Log


def check(log):
    return check_data(parse_schema(log.schema, log.folder), workers=1)


@pytest.fixture
def two_days(tmp_path):
    """Return a function that writes 200 impressions of each of two days, with columns by day and number."""
    log = Log(tmp_path)
    log.schema["splits"] = {"train": ["2026-01-01", "2026-01-01"], "test": ["2026-01-02", "2026-01-02"]}

    def write(**columns):
        log.impressions(
            *(
                {"user": i, "ad": i % 7, "ts": T0 + day * DAY + i, "click": i % 2}
                | {name: value(day, i) for name, value in columns.items()}
                for day in (0, 1)
                for i in range(200)
            )
        )
        return log

    return write


def test_stability_is_the_sum_over_bins():
    """Shares (with half a count in each bin) 4.5/9, 2.5/9, 2/9 against 2/12.5, 4/12.5, 6.5/12.5, by hand."""
    train, test = np.array([4, 2, 1.5]), np.array([1.5, 3.5, 6])
    p, q = [4.5 / 9, 2.5 / 9, 2 / 9], [2 / 12.5, 4 / 12.5, 6.5 / 12.5]
    by_hand = sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert stability(train, test) == pytest.approx(by_hand)
    assert stability(train, train) == 0
    assert stability(train, test) == pytest.approx(stability(test, train))
    assert math.isfinite(stability(np.array([5, 0]), np.array([0, 5])))


def test_constant_and_almost_unique_features_are_named(two_days):
    log = two_days(price=lambda day, i: 3.0, token=lambda day, i: f"{day}-{i}", half=lambda day, i: i // 2)
    for name in ("token", "half"):
        log.schema["features"][name] = {"owner": "context", "kind": "id"}
    log.schema["features"]["gone"] = {"owner": "context", "kind": "id", "optional": True}
    found = check(log)
    words = said(found, "features", "warning")
    assert words["features.price"].startswith("is constant: one value in all 200 training examples")
    assert words["features.token"].startswith("is almost unique: 200 ids in 200 training examples")
    assert words["features.gone"].startswith("is missing in all 200 training examples")
    assert "features.half" not in words  # each id twice
    assert "features.ad" not in words
    assert found.facts["features"]["half"] == {"rows": 200, "missing": 0, "distinct": 100}


def test_a_value_that_is_sometimes_missing_is_not_constant(two_days):
    log = two_days(price=lambda day, i: 3.0 if i % 2 else None)
    assert "features.price" not in said(check(log), "features")


def test_drift_of_numbers_and_ids_and_unseen_ids_are_found(two_days):
    log = two_days(
        price=lambda day, i: i * 1.0 + 150 * day,
        steady=lambda day, i: i * 1.0,
        kind=lambda day, i: "abcd"[i % 4] if day == 0 else "aaab"[i % 4],
        fresh=lambda day, i: f"{day}{i % 3}",
        lost=lambda day, i: None if day and i % 2 else 1.0 * i,
    )
    for name in ("steady", "lost"):
        log.schema["features"][name] = {"owner": "context", "kind": "number"}
    for name in ("kind", "fresh"):
        log.schema["features"][name] = {"owner": "context", "kind": "id"}
    found = check(log)
    words = said(found, "drift", "warning")
    assert words.keys() == {"features.price", "features.kind", "features.fresh", "features.lost"}
    assert "100% of its ids in test were never seen in training" in words["features.fresh"]
    drift = found.facts["drift"]
    assert drift["fresh"]["unseen"] == 1.0
    assert drift["kind"]["unseen"] == 0.0
    assert drift["kind"]["psi"] == pytest.approx(stability(np.array([50] * 4), np.array([150, 50, 0, 0])))
    assert drift["steady"]["psi"] == pytest.approx(0, abs=1e-12)
    assert drift["steady"]["by_chance"] == pytest.approx((10 - 1) * (1 / 200 + 1 / 200))


def test_drift_of_lists_counts_their_elements(two_days):
    log = two_days(tags=lambda day, i: ["x", "y"] if day == 0 else (["x"] if i % 2 else []))
    log.schema["features"]["tags"] = {"owner": "context", "kind": "ids"}
    drift = check(log).facts["drift"]["tags"]
    assert drift["psi"] == pytest.approx(stability(np.array([200, 200, 0]), np.array([100, 0, 100])))


def test_few_owners_and_hours_are_not_called_drift(two_days):
    """Ten users cannot tell chance from drift, and the hours of other days are others by themselves."""
    log = two_days(user=lambda day, i: i % 10, mood=lambda day, i: day)
    log.schema["features"]["mood"] = {"owner": "user", "kind": "number"}
    log.schema["features"]["weekday"] = {"owner": "context", "kind": "id", "derive": "weekday"}
    found = check(log)
    assert not said(found, "drift")
    assert found.facts["drift"].keys() == {"price"}
