"""A trained run as a package."""

import json
from pathlib import Path
from typing import Literal

import numpy as np

from opengem.serving.export import export
from opengem.serving.package import Package
from opengem.training.calibrate import read_calibration
from opengem.training.inference import TrainedModel

SAMPLE_REQUESTS = 256


def export_run(
    run: Path,
    out: Path,
    data: Path | None = None,
    *,
    format: Literal["pt2", "aoti"] = "pt2",
    force: bool = False,
) -> Package:
    """Export a trained run and check the package against it; what `opengem export` calls.

    Args:
        run: Folder of the run.
        out: Folder of the package.
        data: Data set; the run's own if not given.
        format: `pt2`, a torch.export program, or `aoti`, compiled by AOTInductor.
        force: Export a teacher all the same.

    Returns:
        The package; `facts["parity"]` holds the largest difference that was found.
    """
    trained = TrainedModel.load(run)
    dataset = trained.open_data(data)
    # the newest requests: their histories are the longest
    newest = np.arange(max(0, dataset.num_requests - SAMPLE_REQUESTS), dataset.num_requests)
    sample = [
        dataset.read(part, trained.run.model.history) for part in np.array_split(newest, 4) if len(part)
    ]
    evaluated = trained.folder.eval_file
    card = {
        "name": trained.name,
        "model": trained.run.model.type,
        "metrics": json.loads(evaluated.read_text(encoding="utf-8")) if evaluated.exists() else None,
        "environment": json.loads(trained.folder.environment_file.read_text(encoding="utf-8")),
    }
    return export(
        trained.model,
        dataset,
        trained.inputs,
        out,
        sample=sample,
        card=card,
        format=format,
        role="teacher" if trained.run.model.type == "gem" else "student",
        force=force,
        calibration=read_calibration(trained),
    )
