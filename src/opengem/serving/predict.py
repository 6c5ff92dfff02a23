"""Batch prediction: a package's scores for a split of a data set."""

from pathlib import Path

import numpy as np

from opengem.data import Dataset, Loader
from opengem.evaluation import PredictionTable, write_predictions
from opengem.serving.predictor import Predictor


def predict(
    package: str | Path,
    data: str | Path,
    split: str,
    out: str | Path,
    *,
    batch_size: int = 2048,
    workers: int = 0,
) -> int:
    """Score the examples of a split and write them as a prediction table, in the order of the data set.

    Args:
        package: Folder of a package.
        data: Folder of a data set with the inputs that the package was made for.
        split: Name of the split.
        out: Parquet file to write.
        batch_size: Examples scored at once, 1 or more.
        workers: Processes that read ahead.

    Returns:
        Number of rows.

    Raises:
        ConfigError: The data set has other inputs than the package.
    """
    predictor = Predictor.load(package)
    dataset = predictor.read(Dataset.open(data, verify=True))
    loader = Loader(dataset, split, batch_size=batch_size, history=predictor.package.history, workers=workers)
    parts = [predictor.score(batch) for batch in loader]
    p_BT = np.concatenate([np.zeros((0, len(predictor.tasks))), *parts])
    rows = dataset.split(split)
    here = slice(rows.start, rows.stop)
    table = PredictionTable(
        example_id=dataset.example_ids[here],
        request=dataset.column("request")[here],
        user=dataset.column("user")[here],
        surface=np.array(["other", *dataset.inputs.surfaces])[dataset.column("surface")[here]],
        time=dataset.column("time")[here],
        predictions={task: p_BT[:, i] for i, task in enumerate(predictor.tasks)},
        labels={task: dataset.column(f"y_{task}")[here] for task in predictor.tasks},
        model=str(predictor.package.facts["card"].get("name", "")),
        schema_fingerprint=dataset.schema_fingerprint,
        split=split,
    )
    write_predictions(table, out)
    return len(table)
