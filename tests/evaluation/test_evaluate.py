import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from opengem.errors import CheckFailed, ConfigError
from opengem.evaluation import (
    METRICS,
    PredictionTable,
    auc,
    calibration,
    evaluate_predictions,
    log_loss,
    normalized_entropy,
    user_auc,
)


def three_surfaces():
    """Feed AUC 1, explore AUC 1/2, reels without a positive."""
    ids = np.arange(12, dtype=np.int64)
    return PredictionTable(
        example_id=ids,
        request=ids,
        user=ids // 2,
        surface=np.repeat(["feed", "explore", "reels"], 4),
        time=ids,
        predictions={"click": np.array([0.1, 0.2, 0.8, 0.9, 0.3, 0.3, 0.7, 0.7, 0.1, 0.2, 0.3, 0.4])},
        labels={"click": np.array([0, 0, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0], np.float32)},
    )


def test_total_and_surfaces_equal_the_metrics_of_their_rows(table):
    result = evaluate_predictions(table, replicates=10)
    for task in ("click", "like"):
        known = ~np.isnan(table.labels[task])
        for name, found in [("", result.tasks[task].total), *result.tasks[task].surfaces.items()]:
            mask = known & (table.surface == name) if name else known
            y, p, users = table.labels[task][mask], table.predictions[task][mask], table.user[mask]
            assert (found.rows, found.positives) == (mask.sum(), y.sum())
            assert found.users == len(np.unique(users))
            values = {key: interval.value for key, interval in found.metrics.items()}
            assert values == pytest.approx(
                {
                    "ne": normalized_entropy(y, p),
                    "log_loss": log_loss(y, p),
                    "auc": auc(y, p),
                    "user_auc": user_auc(y, p, users),
                    "calibration": calibration(y, p),
                }
            )
            assert values["auc"] == pytest.approx(roc_auc_score(y, p))
            assert found.undefined == {}


def test_every_row_is_in_one_surface_or_masked(table):
    for task, result in evaluate_predictions(table, replicates=0).tasks.items():
        parts = result.surfaces.values()
        assert sum(part.rows for part in parts) == result.total.rows
        assert sum(part.masked for part in parts) == result.total.masked
        assert result.total.rows + result.total.masked == len(table)
        assert result.total.masked == np.isnan(table.labels[task]).sum()
        assert int(result.total.reliability.count.sum()) == result.total.rows


def test_a_surface_without_positives_is_null_named_and_kept_out_of_the_mean():
    result = evaluate_predictions(three_surfaces(), replicates=50)
    task = result.tasks["click"]
    assert task.total.metrics["auc"].value == pytest.approx(0.890625)
    reels = task.to_dict()["surfaces"]["reels"]
    assert reels["metrics"]["auc"] == {"value": None, "low": None, "high": None}
    assert reels["undefined"]["auc"] == "no positive in 4 rows"
    assert reels["metrics"]["log_loss"]["value"] is not None
    assert task.surface_mean("auc") == {"value": 0.75, "surfaces": 2, "of": 3, "left_out": ["reels"]}


def test_no_user_with_both_classes_is_said():
    table = three_surfaces().take(np.array([0, 1, 2, 3]))
    found = evaluate_predictions(table, replicates=0).tasks["click"].total
    assert found.undefined == {"user_auc": "no user with both classes"}


def test_json_has_no_nan_and_all_parts(table):
    result = evaluate_predictions(table, replicates=10, seed=7)
    made = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert (made["model"], made["split"], made["replicates"], made["seed"]) == ("model", "test", 10, 7)
    total = made["tasks"]["click"]["total"]
    assert set(total["metrics"]) == set(METRICS)
    assert set(total["metrics"]["ne"]) == {"value", "low", "high"}
    assert len(total["reliability"]) == 10
    assert sum(part["count"] for part in total["reliability"]) == total["rows"]
    summary = result.summary()["click"]
    assert summary["ne_interval"] == [total["metrics"]["ne"]["low"], total["metrics"]["ne"]["high"]]
    assert summary["auc"] == total["metrics"]["auc"]["value"]


def test_small_slices_are_counted_but_not_measured():
    found = evaluate_predictions(three_surfaces(), replicates=5, min_rows=5).tasks["click"]
    assert np.isnan(found.surfaces["feed"].metrics["auc"].value)
    assert found.surfaces["feed"].undefined["log_loss"] == "4 rows, fewer than min_rows = 5"
    assert found.surfaces["feed"].rows == 4
    assert np.isfinite(found.total.metrics["auc"].value)
    with pytest.raises(ConfigError, match="min_rows"):
        evaluate_predictions(three_surfaces(), min_rows=0)


def test_nan_predictions_stop_the_evaluation(table):
    table.predictions["like"][:] = np.nan
    with pytest.raises(CheckFailed, match=r'task "like".*3000 of 3000.*example_id 5'):
        evaluate_predictions(table)


def test_a_task_without_any_label_is_null(table):
    table.labels["like"][:] = np.nan
    result = evaluate_predictions(table, replicates=5)
    assert result.tasks["like"].total.undefined["log_loss"] == "no rows"
    assert result.tasks["like"].total.masked == 3000
    json.dumps(result.to_dict(), allow_nan=False)
    assert np.isfinite(result.tasks["click"].total.metrics["ne"].value)


def test_an_empty_table_is_null_everywhere(table):
    result = evaluate_predictions(table.take(np.arange(0)), replicates=3)
    assert result.rows == 0
    assert result.tasks["click"].surfaces == {}
    assert np.isnan(result.tasks["click"].total.metrics["ne"].value)
