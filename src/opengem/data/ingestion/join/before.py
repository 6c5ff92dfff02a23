"""What was ingested already: what an append numbers on from, joins with, and may not change."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from opengem.data.encoder import Encoder
from opengem.data.matured_labels import MaturedLabels
from opengem.data.segments import Segments
from opengem.schema.words import Attribute, Schema, Stream

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Before:
    """The data set that an append continues; as it stands by default, nothing: the first ingest.

    Attributes:
        examples: Number of examples.
        requests: Number of requests.
        users: Number of users who acted.
        user_rows: Rows of `users.arrow`, row 0 included.
        ad_rows: Rows of `ads.arrow`, row 0 included.
        splits: Split -> half-open range of example rows.
        train_end: Unix ms; see `Examples.train_end`.
        latest: Unix ms of the latest request, and of the latest moment at which anything became available.
        log_ends: Event table -> Unix ms of its last event.
        surfaces: Names of the surfaces, as the encoder numbers them.
        sizes: Vector feature -> its length.
        segments: Its segments.
    """

    examples: int = 0
    requests: int = 0
    users: int = 0
    user_rows: int = 1
    ad_rows: int = 1
    splits: dict[str, tuple[int, int]] = field(default_factory=dict)
    train_end: int = 0
    latest: int = 0
    log_ends: dict[str, int] = field(default_factory=dict)
    surfaces: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    segments: Segments | None = None

    @classmethod
    def of(cls, folder: Path, manifest: dict[str, Any], encoder: Encoder) -> "Before":
        """Return what the data set in `folder` holds."""
        segments = Segments(folder, manifest)
        return cls(
            examples=manifest["counts"]["examples"],
            requests=manifest["counts"]["requests"],
            users=manifest["counts"]["users"],
            user_rows=segments.file("users.arrow").num_rows,
            ad_rows=segments.file("ads.arrow").num_rows,
            splits={name: (rows[0], rows[1]) for name, rows in manifest["splits"].items()},
            train_end=manifest["train_end"],
            latest=manifest["latest"],
            log_ends=manifest["log_ends"],
            surfaces=encoder.surfaces,
            sizes=encoder.sizes,
            segments=segments,
        )

    @property
    def last_rank(self) -> int:
        """Number of the last split that holds an example: 1 train, 2 validation, 3 test."""
        return max((k for k, n in enumerate(SPLITS, 1) if np.ptp(self.splits.get(n, (0, 0)))), default=0)

    def unknown_ads(self) -> pa.Table:
        """Return the keys of ads that were named but not described, `ad_key`."""
        assert self.segments is not None
        return self.segments.file("unknown_ads.arrow").table(["ad_key"])

    def register(self, con: Any) -> None:
        """Make the tables `people_before`, `users_before` and `ads_before` of the work database."""
        people: dict[str, Any] = {"user": pa.array([], pa.string()), "number": pa.array([], pa.int64())}
        entities = {
            name: {"key": pa.array([], pa.string()), "known": pa.array([], pa.int64())}
            for name in ("users", "ads")
        }
        rows = {name: np.empty(0, np.int64) for name in entities}
        if self.segments is not None:
            keys = self.segments.file("people.arrow").table(["user_key"]).column(0)
            people = {"user": keys, "number": pa.array(np.arange(self.users))}
            for name, key in (("users", "user_key"), ("ads", "ad_key")):
                table = self.segments.file(f"{name}.arrow").table([key, "known_from"]).slice(1)
                entities[name] = {"key": table.column(0), "known": table.column(1)}
                rows[name] = np.arange(1, table.num_rows + 1)
        con.register("people_before", pa.table(people))
        for name, columns in entities.items():
            con.register(f"{name}_before", pa.table({**columns, "row": pa.array(rows[name])}))

    def register_shown(self, con: Any, schema: Schema, since: int) -> None:
        """Make the table `shown_before`: the examples from `since` (Unix ms) on, with their labels as they are now.

        Args:
            con: Connection of the work database.
            schema: The schema.
            since: Earliest example that an event may still credit, or whose label may still mature.
        """
        tasks = [t.name for t in schema.tasks if t.event]
        empty = {
            n: pa.array([], k) for n, k in (("row", pa.int64()), ("user", pa.string()), ("ad", pa.string()))
        }
        empty |= {n: pa.array([], k) for n, k in (("time", pa.int64()), ("request", pa.string()))}
        columns: dict[str, Any] = empty | {"surface": pa.array([], pa.string())}
        columns |= {f"y_{t}": pa.array([], pa.float32()) for t in tasks}
        if self.segments is not None and tasks:
            examples = self.segments.file("examples.arrow")
            rows = np.flatnonzero(examples.column("time").values >= since)
            index = pa.array(rows)
            taken = examples.table(["user_key", "ad_key", "time", "request"]).take(index)
            named = pa.array([None, *self.surfaces], pa.string())
            key: Any = pa.nulls(len(rows), pa.string())
            if schema.impressions.key:
                requests = self.segments.requests.table(["request_key"]).column(0)
                key = requests.take(taken.column("request"))
            columns = {
                "row": index,
                "user": taken.column("user_key"),
                "ad": taken.column("ad_key"),
                "time": taken.column("time"),
                "request": key,
                "surface": named.take(pa.array(examples.column("surface").gather(rows))),
            }
            for task in tasks:
                labels = MaturedLabels(examples.column(f"y_{task}"), self.segments, task)
                columns[f"y_{task}"] = pa.array(labels.gather(rows), from_pandas=True)  # NaN is null
        con.register("shown_before", pa.table(columns))

    def of_ads(
        self, stream: Stream, attribute: Attribute, rows: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """Return encoded `values`, replaced by what was written with the ad wherever `rows` names one (above 0)."""
        assert self.segments is not None
        known = rows > 0
        written = self.segments.file("ads.arrow").column(f"a_{stream.name}.{attribute.name}").gather(rows)
        return np.where(known, written, values).astype(values.dtype)

    def lengths(self, stream: str, users: np.ndarray) -> np.ndarray:
        """Return how many events of a stream each user has, `(n,)` int64."""
        total = np.zeros(len(users), np.int64)
        if self.segments is not None:
            for number in range(len(self.segments.all)):
                start, end = self.segments.of_users(number, stream, users)
                total += end - start
        return total
