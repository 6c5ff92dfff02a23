"""Inputs of the catalogue of cases: each script run once a session, and a plain schema that fits what it writes.

The scripts and their catalogue lie beside the project, in `../shared/cases`, and are read in place.
"""

import contextlib
import copy
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch
from typer.testing import CliRunner, Result

from opengem import ingest
from opengem.cli.app import app
from opengem.data import Dataset, Encoder, Loader
from opengem.data.ingestion.run import IngestResult
from opengem.jagged import Batch
from opengem.schema import load_schema
from opengem.serving.stored_request import RawLogs

PROJECT = Path(__file__).parents[2]
CASES = PROJECT.parent / "shared" / "cases"

T0 = 1_767_225_600_000  # 2026-01-01T00:00:00Z
HOUR, DAY = 3_600_000, 86_400_000

WHOLE_YEAR = {"train": ["2026-01-01", "2026-12-31"]}
DAYS = {
    "train": ["2026-01-01", "2026-01-02"],
    "validation": ["2026-01-03", "2026-01-03"],
    "test": ["2026-01-04", "2026-01-04"],
}

_SCHEMA: dict[str, Any] = {
    "name": "case",
    "tables": {
        "impressions": {
            "path": "impressions",
            "id": "example_id",
            "key": "request_id",
            "user": "user_id",
            "ad": "ad_id",
            "surface": "surface",
            "time": "ts",
        },
        "events": {"path": "events", "user": "user_id", "item": "item_id", "type": "type", "time": "ts"},
        "users": {"path": "users", "key": "user_id"},
        "ads": {"path": "ads", "key": "ad_id"},
    },
    "features": {
        "user_id": {"owner": "user", "kind": "id"},
        "country": {"owner": "user", "kind": "id"},
        "ad_id": {"owner": "ad", "kind": "id"},
        "category": {"owner": "ad", "kind": "id"},
        "price": {"owner": "context", "kind": "number"},
    },
    "streams": {"acts": {"from": "events", "attributes": ["item_id", "type"]}},
    "tasks": {"click": {"label": "click"}},
    "splits": WHOLE_YEAR,
}


def run_script(name: str, out: Path, *arguments: str) -> Path:
    """Run a script of the catalogue, which writes its input to `out`; skip the test where there is no catalogue."""
    if not CASES.is_dir():
        pytest.skip(f"the catalogue of cases must lie in {CASES}: there is no such folder")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, CASES / name, out, *arguments], check=True, env=environment)
    return out


def opengem(*arguments: str | Path, cwd: Path) -> Result:
    """Run the command line; that it ends by an exit code, not by an exception, is checked here."""
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


class Case:
    """The folder of a case's input, and the schema that describes it: a plain one, for the test to bend."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.schema = copy.deepcopy(_SCHEMA)
        for name, table in self.schema["tables"].items():
            table["path"] = name if (folder / name).is_dir() else f"{name}.parquet"

    def __getitem__(self, table: str) -> dict[str, Any]:
        return self.schema["tables"][table]

    def write_schema(self) -> Path:
        """Write the schema as it now is."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / "schema.toml"
        path.write_text(tomli_w.dumps(self.schema))
        return path

    def ingest(self, name: str = "dataset", **options: Any) -> "Stored":
        """Ingest with the schema as it now is."""
        return Stored(ingest(load_schema(self.write_schema(), self.folder), self.out / name, **options))

    def command(self, *arguments: str | Path) -> Result:
        """Run `opengem ingest` with the schema as it now is."""
        schema = self.write_schema()
        given = ("ingest", schema, "--root", self.folder, "--out", self.out / "dataset", *arguments)
        return opengem(*given, cwd=self.out)

    def check(self, *arguments: str | Path) -> Result:
        """Run `opengem data check` with the schema as it now is."""
        return opengem("data", "check", self.write_schema(), "--root", self.folder, *arguments, cwd=self.out)


class Stored:
    """A data set, read back through the public reader, with embedding rows turned into the ids they stand for."""

    def __init__(self, result: IngestResult) -> None:
        self.folder, self.manifest, self.fresh = result.folder, result.manifest, result.fresh
        self.rows: dict[str, Any] = result.manifest["rows"]
        self.fingerprint: str = result.manifest["data_fingerprint"]
        self.data = Dataset.open(result.folder)
        self.encoder = Encoder.load(result.folder)

    def batch(self, history: int = 10_000) -> Batch:
        """Return all examples as one batch, in the order of the data set."""
        return self.data.read(np.arange(self.data.num_requests), history)

    def example_ids(self) -> list[int]:
        """Return the ids of the examples that were kept, ascending."""
        return sorted(self.data.example_ids.tolist())

    def words(self, table: str) -> list[str | None]:
        """Return what each row of an embedding table stands for: None is missing, "?" unseen."""
        return [None, "?", *self.encoder.vocabularies[table].ids.to_pylist()]

    def vocabulary(self, table: str) -> dict[str, int]:
        """Return the ids of a vocabulary with how often each was seen."""
        read = pq.read_table(self.folder / "encoder" / "vocabulary" / f"{table}.parquet")
        return dict(zip(read["id"].to_pylist(), read["count"].to_pylist(), strict=True))

    def ids(self, feature: str) -> dict[int, str | None]:
        """Return the id of a feature for each example id."""
        batch, words = self.batch(), self.words(self._table(feature))
        rows = batch.ids[feature]
        return self._by_example(batch, [words[k] for k in self._of_example(batch, feature, rows).tolist()])

    def lists(self, feature: str) -> dict[int, list[str | None]]:
        """Return the list of ids of a feature for each example id."""
        batch, words = self.batch(), self.words(self._table(feature))
        return self._by_example(batch, [[words[k] for k in row] for row in batch.bags[feature].to_list()])

    def numbers(self, feature: str) -> dict[int, float | None]:
        """Return a number as it was before it was standardised for each example id; None where missing."""
        batch = self.batch()
        mean, std = self.encoder.numbers[feature]
        values = batch.numbers[feature].double() * std + mean
        missing = batch.missing[feature].bool()
        found = [None if gone else x for x, gone in zip(values.tolist(), missing.tolist(), strict=True)]
        return self._by_example(batch, found)

    def labels(self, task: str = "click") -> dict[int, float | None]:
        """Return the label for each example id; None where masked."""
        labels = self.data.column(f"y_{task}").tolist()
        return dict(zip(self.data.example_ids.tolist(), [None if y != y else y for y in labels], strict=True))

    def histories(
        self, attribute: str = "item_id", stream: str = "acts", longest: int = 10_000
    ) -> dict[int, list[Any]]:
        """Return the history of each example id, oldest event first: ids of an attribute, or `times`."""
        batch = self.batch(longest)
        history = batch.history[stream]
        if attribute == "times":
            values: list[Any] = history.times.tolist()
        else:
            spec = next(s for s in self.data.inputs.streams if s.name == stream)
            table = next(a.table for a in spec.attributes if a.name == attribute)
            values = [self.words(table)[k] for k in history.ids[attribute].tolist()]
        offsets = history.offsets.tolist()
        parts = [values[a:b] for a, b in itertools.pairwise(offsets)]
        return self._by_example(batch, [parts[r] for r in batch.request_of_example.tolist()])

    def sent_again(self, logs: Path) -> dict[int, dict[str, Any]]:
        """Return for each example id its request as a caller would have sent it, read again from the logs."""
        raw = RawLogs(load_schema(self.folder / "schema.toml", logs), self.data)
        sent = [raw.request(number) for number in range(self.data.num_requests)]
        batch = self.batch(0)
        return self._by_example(batch, [sent[r] for r in batch.request_of_example.tolist()])

    def quarantine(self) -> list[dict[str, Any]]:
        """Return the rows of the quarantine file."""
        return pq.read_table(self.folder / "quarantine.parquet").to_pylist()

    def check_balance(self) -> None:
        """Check that of each table, rows read = kept + quarantined + dropped as exact copies."""
        filed = [q["table"] for q in self.quarantine()]
        for table, read in self.rows["read"].items():
            counted = sum(n for key, n in self.rows["quarantined"].items() if key.startswith(f"{table}: "))
            assert filed.count(table) == counted
            assert read == self.rows["kept"][table] + counted + self.rows["copies"][table], table

    def loader(self, batch_size: int, history: int = 10_000) -> Loader:
        """Return the training examples in batches, in the order of the log."""
        return Loader(self.data, "train", batch_size=batch_size, history=history, order="time")

    def _table(self, feature: str) -> str:
        return next(f.table for f in self.data.inputs.features if f.name == feature)

    def _of_example(self, batch: Batch, feature: str, rows: torch.Tensor) -> torch.Tensor:
        owner = next(f.owner for f in self.data.inputs.features if f.name == feature)
        return rows[batch.request_of_example] if owner == "user" else rows

    def _by_example(self, batch: Batch, values: list[Any]) -> dict[int, Any]:
        return dict(zip(batch.example_id.tolist(), values, strict=True))
