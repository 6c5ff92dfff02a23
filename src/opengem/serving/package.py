"""A package: the folder in which a model leaves for serving, the only code that knows the names in it."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opengem.errors import BackendUnavailable, DataError
from opengem.schema.inputs import InputSpec
from opengem.serving.signature import input_names

FORMAT = 1
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
        facts: `package.json`: format, role, tasks, surfaces, history limits, torch version, device, parity, sizes,
            model card, checksums.
        inputs: What the model reads.
    """

    folder: Path
    facts: dict[str, Any]
    inputs: InputSpec

    @classmethod
    def open(cls, folder: str | Path) -> "Package":
        """Open a package and check that every file is the one that was exported.

        Raises:
            DataError: The folder is no package, of another format, or a file was changed.
        """
        folder = Path(folder)
        try:
            facts = json.loads((folder / FACTS).read_text("utf-8"))
            if facts["format"] != FORMAT:
                raise DataError(
                    f"{folder} must be a package of format {FORMAT}. Received: {facts['format']}. Export it again."
                )
            for name, sha256 in facts["files"].items():
                if checksum(folder / name) != sha256:
                    raise DataError(
                        f"{folder / name} is not the file that was exported. Export the package again."
                    )
            inputs = InputSpec.from_dict(json.loads((folder / INPUTS).read_text("utf-8")))
        except FileNotFoundError as error:
            name = Path(error.filename).name
            raise DataError(
                f"{folder} must be a package made by export. Received: no {name} in it."
            ) from None
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise DataError(
                f"{folder} holds a damaged {FACTS} or {INPUTS} ({error!r}). Export it again."
            ) from None
        return cls(folder, facts, inputs)

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
            BackendUnavailable: The package was compiled for another torch version or device.
        """
        return load_program(self.folder / MODEL, self.facts, self.inputs)


def load_program(path: Path, facts: dict[str, Any], inputs: InputSpec) -> Program:
    """Load the model file of a package; `facts` says its `kind`, `torch` version and `device`."""
    program = _load(path, facts)
    order = input_names(inputs)

    def ordered(tensors: dict[str, Tensor]) -> Tensor:
        # compiled code takes tensors by their place and does not look at their names
        return program({name: tensors[name] for name in order})

    return ordered


def _load(path: Path, facts: dict[str, Any]) -> Program:
    device = torch.device(facts["device"])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(
            f"{path} needs a CUDA device. Received: none. Export it from a model on the CPU."
        )
    if facts["kind"] == "aoti":
        if facts["torch"] != torch.__version__:
            raise BackendUnavailable(
                f"{path} was compiled for torch {facts['torch']}. Received: torch {torch.__version__}. Export it "
                'again, or use format "pt2".'
            )
        return torch._inductor.aoti_load_package(str(path))
    try:
        return torch.export.load(path).module()
    except RuntimeError as error:
        raise BackendUnavailable(
            f"{path} of torch {facts['torch']} cannot be read by torch {torch.__version__}: {error}"
        ) from error


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
