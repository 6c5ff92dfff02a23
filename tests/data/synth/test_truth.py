import dataclasses
import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sklearn.metrics import log_loss

from opengem.data.synth import load_parameters, load_truth, measure_truth
from opengem.errors import DataError

DAY = 86_400_000


def in_window(world):
    """Whether each impression was clicked and converted within 7 days, joined by request and ad."""
    events = world.events.filter(pc.equal(world.events["type"], "conversion"))
    at = {
        (r, i): t
        for r, i, t in zip(*(events[c].to_pylist() for c in ("request_id", "item_id", "time")), strict=True)
    }
    rows = zip(*(world.impressions[c].to_pylist() for c in ("request_id", "ad_id", "time")), strict=True)
    return np.array([t < at.get((r, a), 0) <= t + 7 * DAY for r, a, t in rows])


def labels(world):
    click = world.impressions["click"].to_numpy() == 1
    like = world.impressions["like"].to_numpy(zero_copy_only=False)
    everywhere = np.ones(len(click), dtype=bool)
    return {
        "click": (everywhere, click),
        "conversion": (click, in_window(world)),
        "like": (~np.isnan(like), np.nan_to_num(like) == 1),
    }


@pytest.mark.parametrize("task", ["click", "conversion", "like"])
def test_labels_are_drawn_from_the_true_probabilities(world, task):
    exists, label = labels(world)[task]
    p, y = world.truth[f"p_{task}"].to_numpy()[exists], label[exists]
    edges = np.quantile(p, np.linspace(0, 1, 9))
    part = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, 7)
    for k in range(8):
        rows = part == k
        z = (y[rows].sum() - p[rows].sum()) / np.sqrt((p[rows] * (1 - p[rows])).sum())
        assert abs(z) < 4, (task, k, z)


def test_likes_absent_where_the_surface_has_none(world):
    valid = np.asarray(world.truth["p_like"].is_valid())
    assert (valid == np.asarray(world.impressions["like"].is_valid())).all()


def test_some_conversions_come_after_the_window(world):
    late = world.info.conversions - int(in_window(world).sum())
    assert 0 < late < 0.15 * world.info.conversions


@pytest.mark.parametrize("task", ["click", "like"])
def test_best_ne_is_the_ne_of_the_true_probabilities(world, task):
    exists, label = labels(world)[task]
    p, y = world.truth[f"p_{task}"].to_numpy()[exists], label[exists]
    realised = log_loss(y, p) / log_loss(y, np.full(len(y), y.mean()))
    assert world.info.all_days[task].best_ne == pytest.approx(realised, abs=0.015)


def test_terms_add_up_and_carry_signal(world):
    told = world.info.all_days
    assert 0.78 < told["click"].best_ne < 0.86
    assert 1.1 < told["click"].logit_sd < 1.6
    assert 0.4 < told["click"].history_share < 0.7
    assert all(sd > 0.05 for task in told.values() for sd in task.term_sd.values())
    for task in told.values():
        assert task.no_history_ne > task.best_ne + 0.04
        assert task.no_history_ne < 1
    names = [c for c in world.truth.column_names if c.startswith("click_")]
    logit = np.sum([world.truth[c].to_numpy().astype(float) for c in names], axis=0)
    assert np.std(logit) == pytest.approx(told["click"].logit_sd, rel=1e-6)
    np.testing.assert_allclose(1 / (1 + np.exp(-logit)), world.truth["p_click"].to_numpy(), atol=1e-6)


def test_no_better_constant_a_surface_exists_without_history(world):
    """The refit is an optimum: each surface's answers are calibrated, checked by a grid around it."""
    table = world.truth
    p = table["p_click"].to_numpy()
    base = table["click_base"].to_numpy()
    static = [c for c in table.column_names if c.startswith(("click_cross", "click_ad"))]
    rest = np.sum([table[c].to_numpy().astype(float) for c in static], axis=0)
    loss = 0.0
    for level in np.unique(base):
        rows = base == level
        tries = [1 / (1 + np.exp(-rest[rows] - shift)) for shift in np.linspace(-6, 0, 601)]
        loss += min(float(-(p[rows] * np.log(q) + (1 - p[rows]) * np.log(1 - q)).sum()) for q in tries)
    rate = p.mean()
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert world.info.all_days["click"].no_history_ne == pytest.approx(loss / len(p) / entropy, abs=1e-5)


def test_days_can_be_picked(world):
    first, last = world.config.splits()["test"]
    picked = load_truth(world.path, first, last)
    start = (first - datetime.date(1970, 1, 1)).days * DAY
    ids = set(
        world.impressions.filter(pc.greater_equal(world.impressions["time"], start))[
            "impression_id"
        ].to_pylist()
    )
    assert set(picked["impression_id"].to_pylist()) == ids
    assert measure_truth(world.path, first, last)["click"].examples == len(ids)
    assert isinstance(picked, pa.Table)


def test_folder_without_truth_is_refused(tmp_path):
    with pytest.raises(DataError, match="truth"):
        load_truth(tmp_path)
    with pytest.raises(DataError, match="parameters"):
        load_parameters(tmp_path)


def test_parameters_come_back_exactly(small, tmp_path):
    parameters = load_parameters(small.path)
    parameters.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (small.path / "truth" / "parameters.json").read_bytes()
    table = dataclasses.asdict(parameters)["age_format_surface"]
    for axis in range(3):
        np.testing.assert_allclose(table.mean(axis=axis), 0, atol=1e-12)
