"""Scores from a package: for raw requests and for batches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from opengem.data.dataset import Dataset
from opengem.data.encoder import Encoder
from opengem.errors import CheckFailed, DataError
from opengem.evaluation import PlattCalibration
from opengem.jagged import Batch
from opengem.schema import load_schema
from opengem.serving import package as names
from opengem.serving.ads import AdsTable
from opengem.serving.package import Package
from opengem.serving.request import Limits, RequestReader
from opengem.serving.signature import to_named


class Predictor:
    """A package, loaded and ready to score. Made by `Predictor.load`; safe to share between threads.

    Attributes:
        package: The package.
        limits: How large a request may be.
    """

    def __init__(self, package: Package, limits: Limits):
        self.package = package
        self.limits = limits
        schema = load_schema(package.folder / names.SCHEMA)
        if schema.fingerprint != package.inputs.fingerprint:
            raise DataError(
                f"{package.folder / names.SCHEMA} must be of fingerprint {package.inputs.fingerprint}, for which the "
                f"model was made. Received: {schema.fingerprint}. Export the package again."
            )
        self._encoder = Encoder.load(package.folder / names.ENCODER)
        ads = AdsTable(package.folder / names.ADS)
        self._reader = RequestReader(schema, package.inputs, self._encoder, ads, package.history, limits)
        calibrated = names.CALIBRATION in package.facts["files"]
        self._calibration = PlattCalibration.load(package.folder / names.CALIBRATION) if calibrated else None
        self._program = package.program()
        self._device = torch.device(package.facts["device"])
        self._check_sample()

    @classmethod
    def load(cls, package: Package | str | Path, limits: Limits | None = None) -> "Predictor":
        """Load a package, and check that it answers its stored sample as it did when it was exported.

        Raises:
            DataError: The package is damaged or was changed.
            BackendUnavailable: The package was made for another torch release, device or CPU.
            CheckFailed: It answers its sample otherwise on this machine.
        """
        if not isinstance(package, Package):
            package = Package.open(package)
        return cls(package, limits or Limits())

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks, in schema order."""
        return self.package.tasks

    def read(self, dataset: Dataset) -> Dataset:
        """Return a data set as the package's model reads it.

        Raises:
            ConfigError: The data set has other inputs than the package.
        """
        return dataset.for_model(self.package.folder, self.package.inputs, self._encoder)

    def rank(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Score the ads of a raw request and sort them, best first.

        Args:
            request: `time_ms`: Unix ms. `ads`: keys, or objects of the ads' columns (a known ad needs only its key;
                a column that is given counts instead of the known one; context columns may differ by ad).
                `surface`, `user` and `context`: what the log would hold, by column. `history`: stream -> column ->
                list of values. `sort_by`: task; the first by default. `schema_fingerprint`: refuse the request unless
                the package is of this schema. What is left out or null is missing. Every value is written as the log
                writes it: whole numbers as whole numbers, text as text.

        Returns:
            `package`, its fingerprint; `surface`; `sort_by`; `ignored_events` by stream; and `ads`: for each, `ad` as
            sent, `index` in the request, whether it is `known`, and `scores`, the probability of each task. Ads of
            equal scores stay in the order of the request; an ad that is sent twice comes back twice.

        Raises:
            RequestError: The request breaks a rule; it names the field.
            CheckFailed: The model's answer is not finite.
        """
        read = self._reader.read(request)
        surfaces = np.full(len(read.ads), read.surface)
        p_BT = self._calibrated(self._probabilities(read.batch), surfaces)
        order = np.argsort(-p_BT[:, self.tasks.index(read.sort_by)], kind="stable").tolist()
        return {
            "package": self.package.fingerprint,
            "surface": read.surface,
            "sort_by": read.sort_by,
            "ignored_events": read.ignored_events,
            "ads": [
                {
                    "ad": read.ads[i],
                    "index": i,
                    "known": bool(read.known[i]),
                    "scores": dict(zip(self.tasks, p_BT[i].tolist(), strict=True)),
                }
                for i in order
            ],
        }

    def score(self, batch: Batch) -> np.ndarray:
        """Return the probabilities of a batch, `(B, T)` float64, calibrated where the package carries it.

        Raises:
            DataError: A part of the batch is missing, or of a wrong type, shape or range; names it.
            CheckFailed: The model's answer is not finite.
        """
        surfaces = np.array(["other", *self.package.inputs.surfaces])[batch.surface.cpu().numpy()]
        return self._calibrated(self._probabilities(batch), surfaces)

    def _probabilities(self, batch: Batch) -> np.ndarray:
        if batch.num_examples == 0:
            return np.zeros((0, len(self.tasks)))
        named = to_named(batch.to(self._device), self.package.inputs)
        with torch.inference_mode():
            p_BT = torch.sigmoid(self._program(named).double()).cpu().numpy()
        if not np.isfinite(p_BT).all():
            raise CheckFailed(
                f"{self.package.folder} must answer with finite numbers. Received: "
                f"{int((~np.isfinite(p_BT)).sum())} of {p_BT.size} are not. Train and export the model again."
            )
        return p_BT

    def _calibrated(self, p_BT: np.ndarray, surfaces: np.ndarray) -> np.ndarray:
        if self._calibration is None or not len(p_BT):
            return p_BT
        columns = [self._calibration.probabilities(t, p_BT[:, i], surfaces) for i, t in enumerate(self.tasks)]
        return np.stack(columns, axis=1)

    def _check_sample(self) -> None:
        """Answer the stored sample, and refuse to serve where the answers are not those of the export."""
        stored = load_file(self.package.folder / names.SAMPLE, device=str(self._device))
        tolerance = self.package.facts["parity"]["tolerance"]
        cases: dict[str, dict[str, torch.Tensor]] = {}
        for key, tensor in stored.items():
            case, _, name = key.partition("/")
            cases.setdefault(case, {})[name] = tensor
        for case, named in cases.items():
            expected = named.pop("expected")
            with torch.inference_mode():
                difference = float((self._program(named) - expected).abs().max())
            if not difference <= tolerance:
                raise CheckFailed(
                    f'{self.package.folder} must answer its sample "{case}" as it was exported, to {tolerance:g} in '
                    f"log-odds. Received: a difference of {difference:.3g}. Export it on this machine."
                )
