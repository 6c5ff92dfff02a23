"""The folder of a run: the only code that knows the names in it."""

import datetime
import json
import os
import platform
import secrets
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w

from opengem.config import to_plain
from opengem.errors import ConfigError


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

    @classmethod
    def create(cls, path: Path | None, name: str) -> "RunFolder":
        """Make the folder of a new run; without a path, `runs/DATE_NAME_xxxxxx`. A run is never overwritten."""
        if path is None:
            day = datetime.datetime.now(datetime.UTC).date().isoformat()
            path = Path("runs") / f"{day}_{name}_{secrets.token_hex(3)}"
        if (path / "run.toml").exists():
            raise ConfigError(
                f"{path} holds a run already: name another folder, or continue it with --resume"
            )
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

    def write_start(self, run: Any, schema_text: str, inputs: dict[str, Any]) -> None:
        """Write what the run is, before its first step."""
        write_atomically(self.run_file, tomli_w.dumps(to_plain(run)).encode())
        write_atomically(self.environment_file, json.dumps(environment(), indent=2).encode())
        write_atomically(self.schema_file, schema_text.encode())
        write_atomically(self.inputs_file, json.dumps(inputs, indent=1).encode())

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append one line to the metrics."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

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
    """Write a file under a temporary name, force it to disk, and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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
