from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from opengem.errors import ConfigError, DataError
from opengem.evaluation import PlattCalibration, PredictionTable, auc, calibration, fit_platt, log_loss


def drifted(rows=20_000, *, seed=0, shares=(0.5, 0.45, 0.05), truth=None):
    """Labels from sigmoid(a logit(p) + b), with an own (a, b) per surface."""
    truth = truth or {"feed": (0.7, -0.5), "reels": (1.3, 0.4), "small": (1.0, 1.0)}
    random = np.random.default_rng(seed)
    surface = random.choice(list(truth), rows, p=shares)
    x = random.normal(-1.5, 1.2, rows)
    slope, offset = np.array([truth[s] for s in surface]).T
    labels = (random.random(rows) < 1 / (1 + np.exp(-(slope * x + offset)))).astype(np.float32)
    ids = np.arange(rows, dtype=np.int64)
    return PredictionTable(
        example_id=ids,
        request=ids,
        user=ids % 100,
        surface=surface,
        time=ids,
        predictions={"click": 1 / (1 + np.exp(-x))},
        labels={"click": labels},
    )


def logit(p):
    return np.log(p) - np.log1p(-p)


def test_without_shrinkage_each_surface_is_a_logistic_regression():
    table = drifted()
    fitted = fit_platt(table, shrinkage_positives=0).tasks["click"]
    for name in ("feed", "reels", "small"):
        mask = table.surface == name
        x, y = logit(table.predictions["click"][mask]), table.labels["click"][mask]
        expected = LogisticRegression(C=np.inf, tol=1e-10).fit(x[:, None], y)
        assert fitted.surfaces[name] == pytest.approx(
            (expected.coef_[0, 0], expected.intercept_[0]), abs=1e-4
        )


def test_shrunk_fit_minimises_the_penalised_loss():
    table = drifted()
    fitted = fit_platt(table, shrinkage_positives=100).tasks["click"]
    x, y = logit(table.predictions["click"]), table.labels["click"]
    p = 1 / (1 + np.exp(-(fitted.total[0] * x + fitted.total[1])))
    columns = np.stack([x, np.ones_like(x)])
    information = (columns * (p * (1 - p))) @ columns.T / y.sum()
    mask = table.surface == "small"

    def objective(t):
        score = t[0] * x[mask] + t[1]
        away = t - np.array(fitted.total)
        return (np.logaddexp(0, score) - y[mask] * score).sum() + 50 * away @ information @ away

    expected = minimize(objective, fitted.total, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-9})
    assert fitted.surfaces["small"] == pytest.approx(tuple(expected.x), abs=1e-4)


def test_shrinkage_runs_from_own_fit_to_the_total():
    table = drifted()
    labels = table.labels["click"]
    positives = float(labels.mean() * (table.surface == "small").sum())
    fits = {k: fit_platt(table, shrinkage_positives=k).tasks["click"] for k in (0, positives, 1e9)}
    total = fits[0].total
    own, middle, far = (fits[k].surfaces["small"] for k in (0, positives, 1e9))
    assert far == pytest.approx(total, abs=1e-3)
    # the total counts for as many rows as the surface has: about half-way
    assert (middle[1] - total[1]) / (own[1] - total[1]) == pytest.approx(0.5, abs=0.1)


def test_held_out_calibration_and_loss_improve_and_order_stays():
    fitted = fit_platt(drifted(seed=1))
    test = drifted(seed=2)
    after = fitted.apply(test)
    for name in ("feed", "reels", "small"):
        mask = test.surface == name
        y = test.labels["click"][mask]
        before_p, after_p = test.predictions["click"][mask], after.predictions["click"][mask]
        before = abs(calibration(y, before_p) - 1)
        assert abs(calibration(y, after_p) - 1) < max(0.06, 0.25 * before)
        assert log_loss(y, after_p) < log_loss(y, before_p)
        assert auc(y, after_p) == pytest.approx(auc(y, before_p), abs=1e-12)
    assert np.array_equal(after.example_id, test.example_id)


def test_a_calibrated_model_is_left_alone():
    truth = dict.fromkeys(("feed", "reels", "small"), (1.0, 0.0))
    fitted = fit_platt(drifted(rows=100_000, truth=truth)).tasks["click"]
    assert fitted.total == pytest.approx((1, 0), abs=0.03)


def test_json_round_trip_is_exact(tmp_path):
    fitted = fit_platt(drifted(rows=3000))
    assert PlattCalibration.load(fitted.save(tmp_path / "calibration.json")) == fitted
    for wrong in ({}, {"kind": "isotonic", "tasks": {}}, {"kind": "platt", "tasks": {"t": {"total": [1]}}}):
        with pytest.raises(DataError, match="calibration must be"):
            PlattCalibration.from_dict(wrong)
    with pytest.raises(DataError, match="a above 0"):
        PlattCalibration.from_dict({"kind": "platt", "tasks": {"t": {"total": [-1, 0], "surfaces": {}}}})


def test_one_class_takes_the_fit_above_and_says_so():
    table = drifted(rows=2000)
    labels = table.labels["click"].copy()
    labels[table.surface == "small"] = 0
    fitted = fit_platt(replace(table, labels={"click": labels})).tasks["click"]
    assert "small" not in fitted.surfaces
    assert fitted.notes == [
        f"small: one class in {(table.surface == 'small').sum()} rows, takes the fit of the total"
    ]
    nothing = fit_platt(replace(table, labels={"click": np.zeros(2000, np.float32)})).tasks["click"]
    assert nothing.total == (1.0, 0.0)
    assert nothing.notes == ["total: one class in 2000 rows, left as it was"]


def test_new_surfaces_take_the_total():
    fitted = fit_platt(drifted(rows=3000))
    slope, offset = fitted.tasks["click"].total
    found = fitted.probabilities("click", [0.2, 0.2], ["never seen", "feed"])
    assert found[0] == pytest.approx(1 / (1 + np.exp(-(slope * logit(0.2) + offset))))
    assert found[0] != found[1]
    with pytest.raises(DataError, match=r"Missing: \['click'\]"):
        PlattCalibration(tasks={}).apply(drifted(rows=10))


def test_hard_data_stay_finite():
    table = drifted(rows=400)
    y = table.labels["click"]
    extremes = {
        "separable": np.where(y == 1, 0.9, 0.1),
        "constant": np.full(400, 0.3),
        "saturated": np.where(y == 1, 1.0, 0.0),
        "wrong way round": np.where(y == 1, 0.2, 0.8),
    }
    for name, p in extremes.items():
        fitted = fit_platt(replace(table, predictions={"click": p})).tasks["click"]
        pairs = [fitted.total, *fitted.surfaces.values()]
        assert np.isfinite(pairs).all(), name
        assert all(slope > 0 for slope, _ in pairs), name
    constant = fit_platt(replace(table, predictions={"click": extremes["constant"]}))
    moved = constant.probabilities("click", [0.3], ["?"])
    assert moved[0] == pytest.approx(y.mean(), abs=1e-3)
    with pytest.raises(ConfigError, match="shrinkage_positives"):
        fit_platt(table, shrinkage_positives=-1)
