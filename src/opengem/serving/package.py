"""A package: the folder in which a model leaves for serving, the only code that knows the names in it."""

import hashlib
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opengem.errors import BackendUnavailable, DataError
from opengem.schema.inputs import InputSpec
from opengem.serving.checked_inputs import InputChecker
from opengem.serving.machine import check_device, check_machine
from opengem.serving.signature import input_names

FORMAT = 2
"""Version of the layout of packages."""

Program = Callable[[dict[str, Tensor]], Tensor]
"""Named tensors in, log-odds `(B, T)` out."""

FACTS = "package.json"
MODEL = "model.pt2"
INPUTS = "inputs.json"
SCHEMA = "schema.toml"
ENCODER = "encoder"
ADS = "ads.arrow"
SAMPLE = "sample.safetensors"
CALIBRATION = "calibration.json"


@dataclass(frozen=True)
class Package:
    """A package on disk. Made by `export`, opened by `Package.open`.

    Attributes:
        folder: The folder.
        facts: `package.json`: format, role, tasks, surfaces, history limits, what it needs of the machine (torch,
            device, cpu), parity, sizes, model card, checksums.
        inputs: What the model reads.
        fingerprint: First 16 digits of the SHA-256 of `package.json`, which stands for all files by their checksums.
    """

    folder: Path
    facts: dict[str, Any]
    inputs: InputSpec
    fingerprint: str

    @classmethod
    def open(cls, folder: str | Path) -> "Package":
        """Open a package and check that its files are those that were exported, no more and no less.

        Raises:
            DataError: The folder is no package, of another format, or a file was changed or added.
        """
        folder = Path(folder)
        try:
            record = (folder / FACTS).read_bytes()
            facts = json.loads(record)
            if facts["format"] != FORMAT:
                raise DataError(
                    f"{folder} must be a package of format {FORMAT}. Received: {facts['format']}. Export it again."
                )
            _ = [facts[key] for key in ("kind", "torch", "device", "cpu", "history", "parity", "card")]
            _check_files(folder, facts["files"])
            inputs = InputSpec.from_dict(json.loads((folder / INPUTS).read_text("utf-8")))
        except FileNotFoundError as error:
            name = Path(error.filename).name
            raise DataError(
                f"{folder} must be a package made by export. Received: no {name} in it."
            ) from None
        except DataError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"{folder} holds a damaged {FACTS} or {INPUTS} ({error!r}). Export it again."
            ) from None
        return cls(folder, facts, inputs, hashlib.sha256(record).hexdigest()[:16])

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks, in the order of the columns of the log-odds."""
        return tuple(t.name for t in self.inputs.tasks)

    @property
    def history(self) -> dict[str, int]:
        """Most events of each stream that the model reads."""
        return self.facts["history"]

    def program(self) -> Program:
        """Load the model.

        Raises:
            BackendUnavailable: The package was made for another torch release, device or CPU.
        """
        return load_program(self.folder / MODEL, self.facts, self.inputs)


def load_program(path: Path, facts: dict[str, Any], inputs: InputSpec) -> Program:
    """Load the model file of a package, which checks its inputs before it runs.

    Args:
        path: The file.
        facts: Record of the package: `kind`, and what it needs of the machine.
        inputs: What the model reads.

    Raises:
        BackendUnavailable: It was made for another torch release, device or CPU.
    """
    check_machine(facts, path)
    program = _load(path, facts)
    order, checker = input_names(inputs), InputChecker(inputs)

    @torch.no_grad()
    def checked(tensors: dict[str, Tensor]) -> Tensor:
        checker.check(tensors)
        # compiled code takes tensors by their place and does not look at their names
        return program({name: tensors[name] for name in order})

    return checked


def _check_files(folder: Path, sums: dict[str, str]) -> None:
    here = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {FACTS}
    for name, sha256 in sums.items():
        if name in here and checksum(folder / name) != sha256:
            raise DataError(f"{folder / name} is not the file that was exported. Export the package again.")
    required = {MODEL, INPUTS, SCHEMA, ADS, SAMPLE, f"{ENCODER}/encoder.json", *sums}
    for name in sorted(required - here):
        raise DataError(f"{folder} must be a package made by export. Received: no {name} in it.")
    for name in sorted(here - set(sums)):
        raise DataError(f"{folder} must hold what was exported. Received: {name} beside it. Remove it.")


def _load(path: Path, facts: dict[str, Any]) -> Program:
    unreadable = (RuntimeError, ValueError, KeyError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError)
    try:
        if facts["kind"] == "aoti":
            program = torch._inductor.aoti_load_package(str(path))
            check_device(facts, path, program.loader.get_metadata()["AOTI_DEVICE_KEY"])  # type: ignore[union-attr]
            return program
        module = torch.export.load(path).module()
    except unreadable as error:
        if isinstance(error, BackendUnavailable):
            raise
        raise BackendUnavailable(
            f"{path} of torch {facts['torch']} cannot be read by torch {torch.__version__}: {error}"
        ) from error
    for tensor in module.state_dict().values():
        check_device(facts, path, tensor.device.type)
    return module


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write `package.json` with the checksums of all files that are there."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    facts["files"] = {p.relative_to(folder).as_posix(): checksum(p) for p in files}
    facts["sizes"]["bytes"] = sum(p.stat().st_size for p in files)
    (folder / FACTS).write_text(json.dumps(facts, indent=1, allow_nan=False) + "\n", encoding="utf-8")
