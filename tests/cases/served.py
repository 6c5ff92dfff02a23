"""A student of the quickstart's kind on the base world, its package, and the service in a process of its own."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opengem import TrainingConfig, TrainRun, export_run, train
from opengem.loop.settings import QuickstartSettings
from opengem.schema import load_schema
from opengem.serving import Package, Predictor
from opengem.serving.package import checksum
from opengem.serving.stored_request import RawLogs
from opengem.training.inference import TrainedModel
from tests.cases.inputs import DAYS, T0, Case, Stored

NOW = T0 + 3 * 86_400_000
SEGMENTS = ("12", "7", "x", "012x")


@dataclass(frozen=True)
class Student:
    """A run, its data set and its logs; the package is exported when it is first asked for.

    Two tasks, in this order: `zeta` (click) and `alpha` (no click). Beside the columns of the base world the users have
    a text id `segment`, and the ads a list `tags`, which is empty for every third ad.
    """

    case: Case
    stored: Stored
    run: Path

    @cached_property
    def package(self) -> Package:
        """The package in the default format."""
        return export_run(self.run, self.run.parent / "package")

    @cached_property
    def compiled(self) -> Package:
        """The package compiled ahead of time."""
        return export_run(self.run, self.run.parent / "compiled", format="aoti")

    @cached_property
    def predictor(self) -> Predictor:
        """The package in the default format, ready to score."""
        return Predictor.load(self.package)

    @cached_property
    def trained(self) -> TrainedModel:
        """The model itself."""
        return TrainedModel.load(self.run)

    @cached_property
    def logs(self) -> RawLogs:
        """The logs, to send stored requests again."""
        return RawLogs(load_schema(self.stored.folder / "schema.toml", self.case.folder), self.stored.data)

    def named(self, format: str) -> Package:
        """Return the package in a format."""
        return self.compiled if format == "aoti" else self.package


def make_student(case: Case) -> Student:
    """Bend the base world, ingest it and train the quickstart's student until it knows the ads apart."""
    for name, column, values in (
        ("impressions", "not_click", lambda t: pa.array([1 - c for c in t["click"].to_pylist()], pa.int8())),
        ("users", "segment", lambda t: pa.array([SEGMENTS[u % 4] for u in t["user_id"].to_pylist()])),
        (
            "ads",
            "tags",
            lambda t: pa.array([[f"t{a}", "all"][: 2 * (a % 3 > 0)] for a in t["ad_id"].to_pylist()]),
        ),
    ):
        path = case.folder / f"{name}.parquet"
        table = pq.read_table(path)
        pq.write_table(table.append_column(column, values(table)), path)
    case.schema["features"] |= {
        "segment": {"owner": "user", "kind": "id"},
        "tags": {"owner": "ad", "kind": "ids"},
    }
    case.schema["tasks"] = {"zeta": {"label": "click"}, "alpha": {"label": "not_click"}}
    case.schema["splits"] = DAYS
    stored = case.ingest()
    run = TrainRun(
        data=str(stored.folder),
        model=QuickstartSettings().student.model,
        training=TrainingConfig(
            batch_size=64, epochs=12, workers=0, learning_rate=0.01, table_learning_rate=0.1
        ),
    )
    return Student(case, stored, train(run, case.out / "run").folder)


def sign(folder: Path) -> None:
    """Write the checksums of a package anew, as someone does who changes it knowingly."""
    facts = json.loads((folder / "package.json").read_text())
    facts["files"] = {name: checksum(folder / name) for name in facts["files"]}
    (folder / "package.json").write_text(json.dumps(facts))


def strict(body: bytes) -> Any:
    """Read JSON, in which NaN and Infinity have no place."""

    def fail(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(body, parse_constant=fail)


@contextlib.contextmanager
def served(package: Path, *options: str) -> Iterator[tuple[int, subprocess.Popen]]:
    """Serve a package in a process of its own; gives the port and the process."""
    command = [sys.executable, "-m", "opengem", "serve", str(package), "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stderr
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, line
        _wait_until_it_answers(int(found[1]))
        yield int(found[1]), process
    finally:
        process.terminate()
        process.wait(60)
        assert process.stderr
        process.stderr.close()


def _wait_until_it_answers(port: int) -> None:
    for _ in range(600):
        with (
            contextlib.suppress(OSError),
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection,
        ):
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.1)
    raise AssertionError("the service does not answer")
