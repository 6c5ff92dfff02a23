"""Calibration after training, fitted on the validation split."""

from pathlib import Path

from opengem.evaluation import PlattCalibration, PredictionTable, fit_platt
from opengem.training.inference import TrainedModel, predict_split

SPLIT = "validation"


def calibrate(run: Path) -> PlattCalibration | None:
    """Fit Platt scaling per task and surface on the validation split, and write it into the run's folder.

    `p' = sigmoid(a logit(p) + b)`; a run that was trained on the validation split, or has none, gets no calibration.
    Evaluation, prediction and the package apply it; the label store does not, for a student learns on the training
    window.

    Args:
        run: Folder of the run.

    Returns:
        The calibration, or None.
    """
    trained = TrainedModel.load(run)
    dataset = trained.open_data()
    if SPLIT in trained.run.training.splits or len(dataset.split(SPLIT)) == 0:
        return None
    calibration = fit_platt(predict_split(trained, dataset, SPLIT))
    calibration.save(trained.folder.calibration_file)
    return calibration


def calibrated(trained: TrainedModel, table: PredictionTable) -> PredictionTable:
    """Return predictions with the run's calibration, if it has one."""
    calibration = read_calibration(trained)
    return calibration.apply(table) if calibration else table


def read_calibration(trained: TrainedModel) -> PlattCalibration | None:
    """Return the run's calibration, if it has one."""
    file = trained.folder.calibration_file
    return PlattCalibration.load(file) if file.exists() else None
