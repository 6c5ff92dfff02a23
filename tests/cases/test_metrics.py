"""ME01 to ME08: many rows, one class, NaN, large log-odds, uneven batches, windows of nothing, sampled negatives."""

import dataclasses
import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import log_loss as sk_log_loss
from sklearn.metrics import roc_auc_score

from opengem import evaluate, label, train
from opengem.errors import CheckFailed
from opengem.evaluation import (
    PredictionTable,
    compare_predictions,
    evaluate_predictions,
    fit_platt,
    read_predictions,
    write_predictions,
)
from opengem.evaluation.metrics import auc, calibration, log_loss, normalized_entropy, undefined_reason
from opengem.models.loss import binary_cross_entropy
from opengem.training.checkpoint import save_checkpoint
from opengem.training.window import Window
from tests.cases.inputs import opengem, run_script
from tests.cases.made import lines, saved, tiny, world_data


def table(labels: Any, predictions: Any, *, surface: Any = None, log_odds: Any = None) -> PredictionTable:
    """Return a table of one task; example k has the id 100 + k."""
    n = len(labels)
    return PredictionTable(
        example_id=np.arange(n) + 100,
        request=np.arange(n),
        user=np.arange(n) // 2,
        surface=np.array(["feed"] * n) if surface is None else np.asarray(surface),
        time=np.arange(n),
        predictions={"click": np.asarray(predictions, np.float64)},
        labels={"click": np.asarray(labels, np.float32)},
        log_odds={} if log_odds is None else {"click": np.asarray(log_odds, np.float64)},
        model="m",
    )


@pytest.mark.slow
def test_me01_sums_do_not_stop_at_16_777_216(tmp_path):
    found = pq.read_table(run_script("me01_large_weighted.py", tmp_path / "input") / "predictions.parquet")
    labels, p, weight = (found[c].to_numpy() for c in ("label", "probability", "weight"))
    assert len(labels) == 40_000_000
    assert weight.dtype == np.float32
    assert auc(labels, p, weight) == pytest.approx(0.75, abs=1e-9)
    assert calibration(labels, p, weight) == pytest.approx(1.3, abs=1e-6)
    # the same with weights that differ, and without: a row of weight 2 counts as two rows
    assert auc(labels[10_000_000:], p[10_000_000:], weight[10_000_000:] * 3) == pytest.approx(0.5, abs=1e-9)


def test_me01_running_sums_are_float64():
    """The same as the large case in small: one more row of weight 1 counts beside 2^25 of weight."""
    weight = np.array([2.0**25, 1, 1, 1], np.float32)
    value = auc([0, 0, 1, 1], np.array([0.2, 0.8, 0.8, 0.1], np.float32), weight)
    assert value == pytest.approx((2.0**25 + 0.5) / (2 * (2.0**25 + 1)), rel=1e-12)


def test_me02_a_surface_without_positives(tmp_path):
    rows = pq.read_table(run_script("me02_one_class_surface.py", tmp_path / "input") / "predictions.parquet")
    labels, p = rows["label"].to_numpy(), rows["probability"].to_numpy()
    result = evaluate_predictions(table(labels, p, surface=rows["surface"].to_pylist()), replicates=20)
    found = json.loads(json.dumps(result.to_dict(), allow_nan=False))["tasks"]["click"]
    values = {name: part["metrics"]["auc"]["value"] for name, part in found["surfaces"].items()}
    assert values == {"feed": 1.0, "explore": 0.5, "reels": None}
    assert found["surfaces"]["reels"]["metrics"]["ne"]["value"] is None
    for metric in ("ne", "auc"):
        assert found["surfaces"]["reels"]["undefined"][metric] == "no positive in 4 rows"
    assert found["surface_mean"]["auc"] == {"value": 0.75, "surfaces": 2, "of": 3, "left_out": ["reels"]}
    assert found["total"]["rows"] == 12
    assert found["total"]["metrics"]["auc"]["value"] == pytest.approx(0.8906, abs=5e-5)
    assert found["total"]["metrics"]["auc"]["value"] == pytest.approx(roc_auc_score(labels, p), abs=1e-12)


@pytest.mark.parametrize(
    ("predictions", "log_odds", "words"),
    [
        ([math.nan] * 4, None, "4 of 4 that are not; first: nan for example_id 100"),
        ([0.2, 0.3, math.nan, 0.4], None, "1 of 4 that are not; first: nan for example_id 102"),
        (
            [0.2, 0.3, 1.0, 0.4],
            [-1.4, -0.8, math.inf, -0.4],
            "1 of 4 that are not; first: inf for example_id 102",
        ),
        ([0.0] * 4, [-math.inf] * 4, "4 of 4 that are not; first: -inf for example_id 100"),
    ],
)
def test_me03_predictions_that_are_not_numbers_give_no_metric(predictions, log_odds, words):
    bad = table([0, 0, 1, 1], predictions, log_odds=log_odds)
    for work in (evaluate_predictions, fit_platt, lambda t: compare_predictions(t, t)):
        with pytest.raises(CheckFailed, match=f'task "click".*{words}'):
            work(bad)


def poisoned(run, name: str, value: float) -> None:
    """Write a checkpoint of the run, newer and whole, in which one entry is `value`."""
    checkpoint = saved(run)
    model = checkpoint.model | {name: torch.full_like(checkpoint.model[name], value)}
    state = checkpoint.state | {"steps": checkpoint.state["steps"] + 1}
    save_checkpoint(run / "checkpoints", state["steps"], model, checkpoint.other, state)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_me03_a_run_that_predicts_them_fails_the_command(tmp_path_factory, tmp_path, value):
    run = train(tiny(world_data(tmp_path_factory), max_steps=1, calibrate=True), tmp_path / "run").folder
    poisoned(run, "heads.bias", value)
    done = opengem("evaluate", run, cwd=tmp_path)
    assert done.exit_code == 1
    assert "240 of 240" in done.output
    assert 'task "click"' in done.output
    assert "example_id" in done.output
    assert not (run / "eval.json").exists()
    assert not (run / "predictions.parquet").exists()
    done = opengem("transfer", "label", run, "--out", tmp_path / "labels.parquet", cwd=tmp_path)
    assert done.exit_code == 1
    assert 'task "click"' in done.output
    assert not (tmp_path / "labels.parquet").exists()


LABELS = [0, 1, 1, 1, 1, 1, 1]
LOGITS = [98.0950, 98.4612, 98.1145, 98.1506, 97.6037, 98.9425, 99.2644]


def test_me04_saturated_logits_rank_and_have_a_finite_loss(tmp_path):
    given = table(LABELS, 1 / (1 + np.exp(-np.array(LOGITS))), log_odds=LOGITS)
    write_predictions(given, tmp_path / "p.parquet")
    for saturated in (given, read_predictions(tmp_path / "p.parquet")):
        total = evaluate_predictions(saturated, replicates=20).tasks["click"].total
        assert total.metrics["auc"].value == pytest.approx(5 / 6, abs=1e-12)
        assert total.metrics["log_loss"].value == pytest.approx(98.0950 / 7, abs=1e-9)
        assert round(total.metrics["log_loss"].value, 4) == 14.0136
    assert roc_auc_score(LABELS, LOGITS) == pytest.approx(5 / 6)


def test_me04_a_run_keeps_its_log_odds(tmp_path_factory, tmp_path):
    run = train(tiny(world_data(tmp_path_factory), max_steps=2), tmp_path / "run").folder
    poisoned(run, "heads.bias", 200.0)  # all probabilities are 1 in float64
    result = evaluate(run, replicates=10).tasks["click"].total
    found = read_predictions(run / "predictions.parquet")
    z, y = found.log_odds["click"], found.labels["click"]
    assert set(found.predictions["click"]) == {1.0}
    assert result.metrics["auc"].value == pytest.approx(roc_auc_score(y, z), abs=1e-12)
    assert result.metrics["log_loss"].value == pytest.approx(float(np.where(y == 1, 0, z).mean()), rel=1e-9)
    label(run, tmp_path / "labels.parquet", splits=("test",))
    stored = pq.read_table(tmp_path / "labels.parquet")
    np.testing.assert_array_equal(stored["z_click"].to_numpy(), z.astype(np.float32))


def test_me04_calibration_moves_log_odds_and_keeps_their_order():
    random = np.random.default_rng(0)
    z = random.normal(0, 3, 400)
    given = table(
        (random.random(400) < 1 / (1 + np.exp(-z / 2))).astype(float), 1 / (1 + np.exp(-z)), log_odds=z
    )
    fitted = fit_platt(given)
    plain = fit_platt(dataclasses.replace(given, log_odds={}))
    assert fitted.tasks["click"].total == pytest.approx(plain.tasks["click"].total, abs=1e-6)
    after = fitted.apply(given)
    a, b = fitted.tasks["click"].surfaces["feed"]
    np.testing.assert_allclose(after.log_odds["click"], a * z + b)
    np.testing.assert_allclose(after.predictions["click"], 1 / (1 + np.exp(-(a * z + b))), rtol=1e-9)


def step(
    losses: torch.Tensor, labels: torch.Tensor, logits: torch.Tensor, window: Window, weight: Any = None
) -> None:
    """Give a window one step of one task."""
    n = len(labels)
    weight = torch.ones(n) if weight is None else weight
    batch = SimpleNamespace(num_examples=n, weight=weight, num_events=lambda: 0)
    window.add(losses.sum(), losses, logits[:, None], labels[:, None], weight[:, None], batch, 0.0)  # type: ignore[arg-type]


def test_me06_the_mean_is_over_rows_not_over_batches():
    window = Window({"click": 1.0}, 0.0)
    for loss, rows in ((0.7, 256), (0.8, 256), (0.9, 10)):
        step(torch.tensor([loss], dtype=torch.float64), torch.zeros(rows), torch.zeros(rows), window)
    assert window.row()["loss"] == pytest.approx(0.752874, abs=5e-7)
    assert window.row()["rows"] == 522
    logits = np.log(np.expm1(np.repeat([0.7, 0.8, 0.9], [256, 256, 10])))  # of a negative with that loss
    rows = table(np.zeros(522), 1 / (1 + np.exp(-logits)), log_odds=logits)
    found = evaluate_predictions(rows, replicates=0).tasks["click"].total.metrics["log_loss"].value
    assert found == pytest.approx(0.752874, abs=5e-7)
    weighted = Window({"click": 1.0}, 0.0)
    step(torch.tensor([0.7]), torch.zeros(4), torch.zeros(4), weighted, torch.full((4,), 0.5))
    step(torch.tensor([0.9]), torch.zeros(1), torch.zeros(1), weighted, torch.tensor([6.0]))
    assert weighted.row()["loss"] == pytest.approx((0.7 * 2 + 0.9 * 6) / 8)  # weights are summed, not counted


def test_me06_several_tasks_each_over_its_own_labelled_rows():
    window = Window({"click": 1.0, "buy": 2.0}, 0.0)
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(300, 2, generator=g), (torch.rand(300, 2, generator=g) < 0.4).float()
    mask = (torch.rand(300, 2, generator=g) < torch.tensor([1.0, 0.3])).float()
    for a, b in ((0, 100), (100, 290), (290, 300)):
        part = slice(a, b)
        per_task = binary_cross_entropy(logits[part], labels[part], mask[part])
        soft = 0.25 + a / 1000  # a term that no task holds, such as a teacher's
        batch = SimpleNamespace(num_examples=b - a, weight=torch.ones(b - a), num_events=lambda: 0)
        loss = per_task[0] + 2 * per_task[1] + soft
        window.add(loss, per_task, logits[part], labels[part], mask[part], batch, 0.0)  # type: ignore[arg-type]
    p = torch.sigmoid(logits.double()).numpy()
    kept = mask.numpy() > 0
    one, two = (sk_log_loss(labels.numpy()[kept[:, i], i], p[kept[:, i], i]) for i in (0, 1))
    soft = (0.25 * 100 + 0.35 * 190 + 0.54 * 10) / 300
    assert window.row()["loss"] == pytest.approx(one + 2 * two + soft, rel=1e-5)


def test_me06_the_log_of_a_run_weighs_its_last_batch_by_its_rows(tmp_path_factory, tmp_path):
    data = world_data(tmp_path_factory)
    fixed = {"batch_size": 400, "max_steps": 0, "learning_rate": 0.0, "table_learning_rate": 0.0}
    each = lines(train(tiny(data, **fixed), tmp_path / "each").folder)
    both = lines(train(tiny(data, log_every=2, **fixed), tmp_path / "both").folder)
    assert [r["rows"] for r in each] == [400, 80]
    expected = (400 * each[0]["loss"] + 80 * each[1]["loss"]) / 480
    assert both[0]["loss"] == pytest.approx(expected, rel=1e-9)
    evaluated = evaluate(tmp_path / "both", split="train", replicates=0).tasks["click"].total
    assert both[0]["loss"] == pytest.approx(evaluated.metrics["log_loss"].value, rel=1e-5)
    assert both[0]["ne"] == pytest.approx(evaluated.metrics["ne"].value, rel=1e-5)


NOTHING = {
    "base rate": ([1, 0, 0, 0], [0.25] * 4, 1.0000, 1.0),
    "better": ([1, 0, 0, 0], [0.4, 0.2, 0.2, 0.2], 0.7050, 1.0),
    "all 0": ([0, 0, 0, 0], [0.25] * 4, None, None),
    "one row": ([1], [0.7], None, 0.7),
}


@pytest.mark.parametrize("name", NOTHING)
def test_me07_entropy_of_nothing(name):
    labels, p, ne, expected = NOTHING[name]
    result = evaluate_predictions(table(labels, p), replicates=5).to_dict()["tasks"]["click"]["total"]
    metrics = json.loads(json.dumps(result, allow_nan=False))["metrics"]
    window = Window({"click": 1.0}, 0.0)
    logits = torch.tensor(p, dtype=torch.float64).logit()
    step(torch.tensor([0.5]), torch.tensor(labels, dtype=torch.float64), logits, window)
    for value, ratio in (
        (metrics["ne"]["value"], metrics["calibration"]["value"]),
        (window.row()["ne"], window.row()["calibration"]),
    ):
        assert value == (None if ne is None else pytest.approx(ne, abs=5e-5))
        assert ratio == (None if expected is None else pytest.approx(expected, abs=1e-6))
    if ne is None:
        words = "no positive in 4 rows" if name == "all 0" else "no negative in 1 row"
        assert result["undefined"]["ne"] == words
        assert window.row()["undefined"] == words
    else:
        assert window.row()["undefined"] is None


def test_me07_a_window_of_weight_zero():
    labels, p, weight = [1, 0, 0, 0], [0.25] * 4, [0.0] * 4
    for metric in (normalized_entropy, calibration, auc, log_loss):
        assert math.isnan(metric(labels, p, weight))
    assert undefined_reason(labels, weight) == "all 4 rows have weight 0"
    window = Window({"click": 1.0}, 0.0)
    step(torch.tensor([0.0]), torch.tensor(labels), torch.zeros(4), window, torch.zeros(4))
    row = window.row()
    assert (row["ne"], row["calibration"], row["undefined"]) == (None, None, "no labelled row")
    json.dumps(row, allow_nan=False)


def test_me08_sampling_of_negatives_is_not_offered_and_not_swallowed(tmp_path_factory, tmp_path):
    """Without sampling, a probability needs no correction; a setting that asks for it must not pass in silence."""
    (tmp_path / "run.toml").write_text(
        f'data = "{world_data(tmp_path_factory)}"\n[model]\ntype = "vertical"\n'
    )
    done = opengem("train", "run.toml", "training.negatives_kept=0.1", cwd=tmp_path)
    assert done.exit_code == 2
    assert "training.negatives_kept is not a setting" in done.output
