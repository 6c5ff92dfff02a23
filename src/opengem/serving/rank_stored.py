"""A stored request ranked from its raw log rows, and the answer held against the stored features."""

from pathlib import Path
from typing import Any

import numpy as np

from opengem.data import Dataset
from opengem.errors import CheckFailed, ConfigError
from opengem.schema.words import Schema
from opengem.serving.predictor import Predictor
from opengem.serving.stored_request import RawLogs


def rank_stored(
    package: str | Path | Predictor,
    data: str | Path | Dataset,
    schema: Schema,
    request: int | None = None,
    tolerance: float = 1e-4,
) -> dict[str, Any]:
    """Rank the ads of a stored request twice: from its raw log rows, and from what ingest stored of it.

    The two must agree, for a model must see in serving what it saw in training.

    Args:
        package: A package, its folder or a loaded predictor.
        data: The data set that the model was trained on, or its folder.
        schema: The schema, with the root of the logs.
        request: Request of the data set; the first of the test split with most ads if not given.
        tolerance: Largest allowed difference of probabilities.

    Returns:
        What `Predictor.rank` returns, with `request` (number, example ids, and the raw request that was sent) and
        `largest_difference`.

    Raises:
        ConfigError: There is no such request.
        CheckFailed: The answers differ by more than `tolerance`.
    """
    predictor = package if isinstance(package, Predictor) else Predictor.load(package)
    dataset = predictor.read(data if isinstance(data, Dataset) else Dataset.open(data))
    if request is None:
        request = _request_with_most_ads(dataset)
    if not 0 <= request < dataset.num_requests:
        raise ConfigError(f"request must lie in [0, {dataset.num_requests}). Received: {request}.")
    batch = dataset.read(np.array([request]), predictor.package.history)
    raw = RawLogs(schema, dataset).request(request)
    answer = predictor.rank(raw)
    stored_BT = predictor.score(batch)
    served_BT = np.zeros_like(stored_BT)
    for ad in answer["ads"]:
        served_BT[ad["index"]] = [ad["scores"][task] for task in predictor.tasks]
    difference = float(np.abs(served_BT - stored_BT).max())
    if not difference <= tolerance:
        raise CheckFailed(
            f"request {request} must be scored from raw rows as from the data set, to {tolerance:g}. Received: a "
            f"difference of {difference:.3g}. The logs, the schema or the package do not belong to the data set."
        )
    about = {"number": request, "example_ids": batch.example_id.tolist(), "raw": raw}
    return answer | {"request": about, "largest_difference": difference}


def _request_with_most_ads(dataset: Dataset) -> int:
    requests = dataset.requests_of_split("test") or range(dataset.num_requests)
    if not len(requests):
        raise ConfigError(f"{dataset.folder} must hold at least one request. Received: none.")
    firsts = dataset.first_examples(np.arange(requests.start, requests.stop + 1))
    return requests.start + int(np.argmax(np.diff(firsts)))
