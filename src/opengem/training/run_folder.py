"""The folder of a run: the only code that knows the names in it."""

import datetime
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w

from opengem.config import to_plain
from opengem.data.encoder import Encoder
from opengem.errors import ConfigError, DataError
from opengem.schema.inputs import InputSpec
from opengem.training.run_lock import only_here


class RunFolder:
    """Names, reads and writes the files of one run.

    Args:
        path: The folder; see `create` and `open`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_file = path / "run.toml"
        self.inputs_file = path / "inputs.json"
        self.metrics_file = path / "metrics.jsonl"
        self.eval_file = path / "eval.json"
        self.predictions_file = path / "predictions.parquet"
        self.checkpoints = path / "checkpoints"
        self.schema_file = path / "schema.toml"
        self.environment_file = path / "environment.json"
        self.end_file = path / "end.json"
        self.calibration_file = path / "calibration.json"
        self.encoder = path / "encoder"
        self.warm_start_file = path / "warm_start.json"
        self.lock_file = path / "run.lock"

    @classmethod
    def create(cls, path: Path | None, name: str) -> "RunFolder":
        """Make the folder of a run; without a path, `runs/DATE_NAME_xxxxxx`."""
        if path is None:
            day = datetime.datetime.now(datetime.UTC).date().isoformat()
            path = Path("runs") / f"{day}_{name}_{secrets.token_hex(3)}"
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of a run; `last` is the newest below `runs/`."""
        if str(path) == "last":
            runs = sorted(Path("runs").glob("*/run.toml"), key=lambda p: p.stat().st_mtime)
            if not runs:
                raise ConfigError('"last" must stand for a run below runs/. Received: no run there')
            return cls(runs[-1].parent)
        if not (path / "run.toml").exists():
            raise ConfigError(f"{path} must be the folder of a run. Received: no run.toml in it")
        return cls(path)

    def only_here(self) -> AbstractContextManager[None]:
        """Hold the folder's lock; a second process that trains in it is refused."""
        return only_here(self.lock_file)

    def write_start(self, run: Any, schema_text: str, inputs: dict[str, Any], encoder: Encoder) -> None:
        """Write what the run is, before its first step.

        Args:
            run: The settings.
            schema_text: The schema file.
            inputs: What the model is built for.
            encoder: What the data set is read with: the vocabularies say which id each row of an embedding table stands
                for, also when the data set grows or is made anew.
        """
        shutil.rmtree(self.encoder, ignore_errors=True)
        encoder.save(self.encoder)
        self.cut_metrics(0)
        write_atomically(self.run_file, tomli_w.dumps(to_plain(run)).encode())
        write_atomically(self.environment_file, json.dumps(environment(), indent=2).encode())
        write_atomically(self.schema_file, schema_text.encode())
        write_atomically(self.inputs_file, json.dumps(inputs, indent=1).encode())

    def inputs(self) -> InputSpec:
        """Return what the model was built for."""
        return InputSpec.from_dict(json.loads(self.inputs_file.read_text(encoding="utf-8")))

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append one line to the metrics.

        Raises:
            DataError: The disk is full or cannot be written; the checkpoints are as they were.
        """
        try:
            with self.metrics_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise _not_written(self.metrics_file, error) from None

    def cut_metrics(self, size: int) -> None:
        """Cut the metrics back to `size` bytes: what a killed run wrote after its last checkpoint."""
        if self.metrics_file.exists():
            with self.metrics_file.open("r+b") as file:
                file.truncate(size)

    def metrics_size(self) -> int:
        """Size of the metrics file in bytes."""
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    def metrics(self) -> list[dict[str, Any]]:
        """Return all lines of the metrics."""
        if not self.metrics_file.exists():
            return []
        return [json.loads(line) for line in self.metrics_file.read_text(encoding="utf-8").splitlines()]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, force it to disk, and rename it.

    Raises:
        DataError: The disk is full or cannot be written; an older file of the name is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{path} must take what is written to it. Received: {error}. Make room; a run goes on with --resume"
    )


def environment() -> dict[str, Any]:
    """Return versions, machine, commit and command: the provenance of a result."""
    packages = ("opengem", "torch", "numpy", "pyarrow", "duckdb", "fbgemm-gpu-cpu")
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": versions,
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        commit = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(commit, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
