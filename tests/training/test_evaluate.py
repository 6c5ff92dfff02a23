import json

import numpy as np
import pytest

from opengem.data.dataset import Dataset
from opengem.errors import ConfigError
from opengem.evaluation import PlattCalibration, normalized_entropy, read_predictions
from opengem.models.baselines import DINConfig
from opengem.training.evaluate import compare_runs, evaluate
from opengem.training.inference import TrainedModel, predict_split
from opengem.training.run import TrainingConfig, TrainRun
from opengem.training.trainer import train


@pytest.fixture(scope="module")
def runs(small_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    for name, splits in (("a", ("train",)), ("b", ("train", "validation"))):
        training = TrainingConfig(batch_size=64, log_every=5, workers=0, splits=splits)
        train(
            TrainRun(data=str(small_data), model=DINConfig(width=8), training=training, name=name), out / name
        )
        evaluate(out / name, replicates=20)
    return out


def test_predictions_are_those_of_the_test_split_in_order(runs, small_data):
    dataset = Dataset.open(small_data)
    table = read_predictions(runs / "a" / "predictions.parquet")
    rows = dataset.split("test")
    np.testing.assert_array_equal(table.example_id, dataset.example_ids[rows.start : rows.stop])
    found = json.loads((runs / "a" / "eval.json").read_text())["tasks"]["click"]["total"]["metrics"]["ne"]
    seen = table.labelled("click")
    expected = normalized_entropy(table.labels["click"][seen], table.predictions["click"][seen])
    assert found["value"] == pytest.approx(expected, rel=1e-9)
    assert found["low"] < found["value"] < found["high"]


def test_calibration_is_fitted_on_validation_and_applied(runs, small_data):
    trained = TrainedModel.load(runs / "a")
    dataset = trained.open_data()
    validation = predict_split(trained, dataset, "validation")
    calibration = PlattCalibration.load(runs / "a" / "calibration.json")
    mended = calibration.apply(validation)
    seen = validation.labelled("click")
    y = validation.labels["click"][seen]
    assert mended.predictions["click"][seen].sum() == pytest.approx(y.sum(), rel=0.1)
    raw = predict_split(trained, dataset, "test")
    table = read_predictions(runs / "a" / "predictions.parquet")
    np.testing.assert_allclose(
        table.predictions["click"], calibration.apply(raw).predictions["click"], rtol=1e-6
    )


def test_a_run_that_saw_the_validation_split_is_not_calibrated_on_it(runs):
    assert not (runs / "b" / "calibration.json").exists()
    trained = TrainedModel.load(runs / "b")
    raw = predict_split(trained, trained.open_data(), "test")
    table = read_predictions(runs / "b" / "predictions.parquet")
    np.testing.assert_allclose(table.predictions["click"], raw.predictions["click"], rtol=1e-6)


def test_two_runs_are_compared_on_the_same_rows(runs, tmp_path):
    comparison = compare_runs(runs / "a", runs / "b", replicates=50)
    assert (comparison.a, comparison.b) == ("a", "b")
    a, b = (
        json.loads((runs / n / "eval.json").read_text())["tasks"]["click"]["total"]["metrics"] for n in "ab"
    )
    difference = comparison.totals["click"].differences["ne"]
    assert difference.value == pytest.approx(a["ne"]["value"] - b["ne"]["value"], abs=1e-9)
    with pytest.raises(ConfigError, match="must be the folder of a run"):
        compare_runs(runs / "a", tmp_path)
