"""Metrics, intervals, comparison and calibration of predictions; numpy and Parquet only."""

from opengem.evaluation.compare import Comparison, SliceComparison, compare_predictions
from opengem.evaluation.coverage import Coverage, history_warnings, unseen_text
from opengem.evaluation.evaluate import EvalResult, SliceResult, TaskResult, evaluate_predictions
from opengem.evaluation.interval import METRICS, Interval, bootstrap_intervals
from opengem.evaluation.metrics import (
    auc,
    calibration,
    expected_calibration_error,
    log_loss,
    normalized_entropy,
    reliability,
    user_auc,
)
from opengem.evaluation.platt import PlattCalibration, TaskCalibration, fit_platt
from opengem.evaluation.predictions import PredictionTable, read_predictions, write_predictions

__all__ = [
    "METRICS",
    "Comparison",
    "Coverage",
    "EvalResult",
    "Interval",
    "PlattCalibration",
    "PredictionTable",
    "SliceComparison",
    "SliceResult",
    "TaskCalibration",
    "TaskResult",
    "auc",
    "bootstrap_intervals",
    "calibration",
    "compare_predictions",
    "evaluate_predictions",
    "expected_calibration_error",
    "fit_platt",
    "history_warnings",
    "log_loss",
    "normalized_entropy",
    "read_predictions",
    "reliability",
    "unseen_text",
    "user_auc",
    "write_predictions",
]
