"""Small logs for tests: written with pyarrow, described by a plain schema, read back without the loader."""

import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opengem.data import ingest
from opengem.schema import MISSING_TIME, parse_schema

T0 = 1_767_225_600_000  # 2026-01-01T00:00:00Z
DAY = 86_400_000

_DEFAULTS: dict[str, dict[str, Any]] = {
    "impressions": {"user": 1, "ad": 1, "surface": "feed", "ts": T0, "price": 1.0, "click": 0},
    "events": {"user": 1, "item": 1, "type": "view", "ts": T0},
    "users": {"user": 1, "country": "DE"},
    "ads": {"ad": 1, "category": "c1"},
}

SCHEMA: dict[str, Any] = {
    "name": "small",
    "tables": {
        "impressions": {
            "path": "impressions",
            "user": "user",
            "ad": "ad",
            "surface": "surface",
            "time": "ts",
        },
        "events": {"path": "events", "user": "user", "item": "item", "type": "type", "time": "ts"},
        "users": {"path": "users", "key": "user"},
        "ads": {"path": "ads", "key": "ad"},
    },
    "features": {
        "user": {"owner": "user", "kind": "id"},
        "country": {"owner": "user", "kind": "id"},
        "ad": {"owner": "ad", "kind": "id", "table": "item"},
        "category": {"owner": "ad", "kind": "id"},
        "price": {"owner": "context", "kind": "number"},
    },
    "streams": {"acts": {"from": "events", "attributes": ["item", "type"]}},
    "tasks": {"click": {"label": "click"}},
    "splits": {"train": ["2026-01-01", "2026-12-31"]},
}


def rows(table: str, *given: dict[str, Any], **types: pa.DataType) -> pa.Table:
    """Return rows of a table; what is left out has a plain default."""
    full = [_DEFAULTS[table] | row for row in given]
    names = list(dict.fromkeys(n for row in full for n in row)) or list(_DEFAULTS[table])
    return pa.table({n: pa.array([row.get(n) for row in full], types.get(n)) for n in names})


class Log:
    """A folder of tables and the schema that describes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.schema = copy.deepcopy(SCHEMA)
        self.write("users", rows("users", {}))
        self.write("ads", rows("ads", {}))
        empty = pa.schema(
            [("user", pa.int64()), ("item", pa.int64()), ("type", pa.string()), ("ts", pa.int64())]
        )
        self.write("events", empty.empty_table())

    def write(self, name: str, table: pa.Table, part: str = "part-0", **options: Any) -> Path:
        path = self.folder / name / f"{part}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **options)
        return path

    def impressions(self, *given: dict[str, Any], part: str = "part-0", **types: pa.DataType) -> None:
        self.write("impressions", rows("impressions", *given, **types), part)

    def events(self, *given: dict[str, Any], part: str = "part-0", **types: pa.DataType) -> None:
        self.write("events", rows("events", *given, **types), part)

    def ingest(self, out: str = "out", **options: Any) -> "Stored":
        schema = parse_schema(self.schema, self.folder)
        return Stored(ingest(schema, self.folder / out, workers=1, **options))


class Stored:
    """A data set as plain Python, through Arrow alone."""

    def __init__(self, result: Any) -> None:
        self.folder: Path = result.folder
        self.manifest: dict[str, Any] = result.manifest
        self.fresh: bool = result.fresh

    def file(self, name: str) -> pa.Table:
        with pa.memory_map(str(self.folder / name)) as source:
            return pa.ipc.open_file(source).read_all()

    def column(self, name: str) -> list[Any]:
        return self.file("examples.arrow").column(name).to_pylist()

    def rows(self, codes: list[int], table: str) -> list[int]:
        """Return the rows of codes in the training window's vocabulary."""
        return [k if k < len(self.vocabulary(table)) + 2 else 1 for k in codes]

    def vocabulary(self, table: str) -> dict[str, int]:
        read = pq.read_table(self.folder / "encoder" / "vocabulary" / f"{table}.parquet")
        return dict(zip(read["id"].to_pylist(), read["count"].to_pylist(), strict=True))

    def words(self, table: str) -> list[str | None]:
        """Return what each code of an embedding table stands for to a model of the training window."""
        known = [None, "?", *self.vocabulary(table)]
        return [*known, *["?"] * (self.manifest["codes"][table] - len(known))]

    def histories(self, stream: str, *attributes: tuple[str, str]) -> list[list[tuple[Any, ...]]]:
        """Return for each request its events as tuples of (time or None, ids...); attributes as (name, table)."""
        requests = self.file("requests.arrow").to_pydict()
        words = {table: self.words(table) for _, table in attributes}
        found = []
        (segment,) = self.manifest["segments"]
        for i, user in enumerate(requests["user"]):
            bucket = user % segment["buckets"]
            events = self.file(f"sequences/{stream}/bucket-{bucket:05d}.arrow")
            part = events.slice(
                requests[f"start_{stream}"][i], requests[f"end_{stream}"][i] - requests[f"start_{stream}"][i]
            )
            times = [None if t == MISSING_TIME else t for t in part["time"].to_pylist()]
            ids = [[words[t][k] for k in part[f"a_{n}"].to_pylist()] for n, t in attributes]
            found.append(list(zip(times, *ids, strict=True)))
        return found

    def items(self, stream: str = "acts") -> list[list[Any]]:
        return [[event[1] for event in history] for history in self.histories(stream, ("item", "item"))]

    def quarantine(self) -> list[dict[str, Any]]:
        return pq.read_table(self.folder / "quarantine.parquet").to_pylist()
