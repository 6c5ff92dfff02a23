"""Compaction: many segments become one, and no answer changes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from opengem.data.arrow_file import rows_of_slices
from opengem.data.arrow_sink import ArrowSink, write_table
from opengem.data.dictionary import ids_file, readings_file
from opengem.data.ingestion.folder import fresh_folder, only_writer
from opengem.data.ingestion.manifest import compacted_manifest
from opengem.data.matured_labels import MaturedLabels
from opengem.data.segments import Segments
from opengem.data.sequence_store import smallest
from opengem.errors import DataError

pc: Any = pyarrow.compute  # its functions are made at run time, out of a type checker's sight

_ROWS = 1 << 20
EVENTS_A_BUCKET = 4_000_000
"""Events of one bucket; they are in memory together while it is written."""


def compact(folder: str | Path, *, progress: Callable[[str, int, int | None], None] | None = None) -> int:
    """Join the segments of a data set into one; what `opengem data compact` calls.

    The logs are not read again. Every example, history, label and count stays what it is; reading gets faster, for
    a history lies in one piece again. The new files take the place of the old ones in one step.

    Args:
        folder: The data set.
        progress: Called as `progress(stage, done, total)`.

    Returns:
        Number of segments that there were; 1 where there was nothing to do.

    Raises:
        DataError: The folder holds no finished data set.
        ConfigError: Another process writes it.
    """
    folder = Path(folder)
    with only_writer(folder):
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{folder} must hold a finished data set. Received: {error}") from None
        segments = Segments(folder, manifest)
        if len(segments.all) == 1:
            return 1
        with fresh_folder(folder) as out:
            _Compaction(segments, manifest, out, progress or (lambda stage, done, total: None)).run()
        return len(segments.all)


class _Compaction:
    """One compaction under way."""

    def __init__(
        self, segments: Segments, manifest: dict[str, Any], out: Path, progress: Callable[..., None]
    ) -> None:
        self.segments, self.manifest, self.out, self.progress = segments, manifest, out, progress
        self.folder = segments.all[0].folder
        self.streams = [s["name"] for s in manifest["inputs"]["streams"]]
        most = max(manifest["counts"]["events"].values(), default=0)
        self.buckets = max(1, -(-most // EVENTS_A_BUCKET))

    def run(self) -> None:
        shutil.copytree(self.folder / "encoder", self.out / "encoder")
        shutil.copy(self.folder / "schema.toml", self.out / "schema.toml")
        for name in ("people", "users", "ads"):
            self._join(f"{name}.arrow")
        for folder in ("ids", "readings"):
            (self.out / folder).mkdir()
        for table in self.manifest["codes"]:
            self._join(ids_file(table))
            self._join(readings_file(table))
        self._write_unknown_ads()
        self._write_quarantine()
        self._write_examples()
        starts = {stream: self._write_stream(stream) for stream in self.streams}
        self._write_requests(starts)
        compacted_manifest(self.out, self.manifest, self.buckets)

    def _join(self, name: str) -> None:
        file = self.segments.file(name)
        table = file.table(file.names)
        with ArrowSink(self.out / name, table.schema) as sink:
            for first in range(0, table.num_rows, _ROWS):
                sink.add(table.slice(first, _ROWS))

    def _write_unknown_ads(self) -> None:
        named = self.segments.file("unknown_ads.arrow").table(["ad_key"]).column(0).unique()
        known = self.segments.file("ads.arrow").table(["ad_key"]).column(0)
        unknown = named.filter(pc.invert(pc.is_in(named, value_set=known.combine_chunks())))
        write_table(self.out / "unknown_ads.arrow", pa.table({"ad_key": unknown.sort()}))

    def _write_quarantine(self) -> None:
        parts = [s.folder / "quarantine.parquet" for s in self.segments.all]
        with pq.ParquetWriter(
            self.out / "quarantine.parquet", pq.read_schema(parts[0]), compression="zstd"
        ) as writer:
            for part in parts:
                for batch in pq.ParquetFile(part).iter_batches():
                    writer.write_batch(batch)

    def _write_examples(self) -> None:
        file = self.segments.file("examples.arrow")
        table = file.table(file.names)
        tasks = [t["name"] for t in self.manifest["inputs"]["tasks"]]
        labels = {t: MaturedLabels(file.column(f"y_{t}"), self.segments, t) for t in tasks}
        with ArrowSink(self.out / "examples.arrow", table.schema) as sink:
            for first in range(0, table.num_rows, _ROWS):
                part = table.slice(first, _ROWS)
                rows = np.arange(first, first + part.num_rows)
                for task, found in labels.items():
                    at = part.column_names.index(f"y_{task}")
                    part = part.set_column(at, part.schema.field(at), pa.array(found.gather(rows)))
                sink.add(part)
                self.progress("examples", first + part.num_rows, table.num_rows)

    def _write_stream(self, stream: str) -> np.ndarray:
        """Write all buckets of a stream, and return where the events of each user begin, `(users,)` int64."""
        target = self.out / "sequences" / stream
        target.mkdir(parents=True)
        starts = np.zeros(self.manifest["counts"]["users"], np.int64)
        for bucket in range(self.buckets):
            self.progress(f"sequences of {stream}", bucket, self.buckets)
            columns, owner = self._bucket(stream, bucket)
            write_table(target / f"bucket-{bucket:05d}.arrow", pa.table(columns))
            users, firsts = np.unique(owner, return_index=True)
            spans = {"user": users, "start": firsts, "end": np.append(firsts, len(owner))[1:]}
            write_table(
                target / f"users-{bucket:05d}.arrow",
                pa.table({n: pa.array(v, pa.int64()) for n, v in spans.items()}),
            )
            starts[users] = firsts
        return starts

    def _bucket(self, stream: str, bucket: int) -> tuple[dict[str, pa.Array], np.ndarray]:
        """Return the columns of the events of a new bucket, and whose each is, users and segments in order."""
        owners: list[np.ndarray] = []
        pieces: dict[str, list[np.ndarray]] = {}
        for number, segment in enumerate(self.segments.all):
            for old in range(segment.buckets):
                spans = self.segments.users(number, stream, old)
                users = spans.column("user").values
                inside = np.flatnonzero(users % self.buckets == bucket)
                start, end = (spans.column(side).values[inside] for side in ("start", "end"))
                rows = rows_of_slices(start, end - start)
                events = self.segments.events(number, stream, old)
                owners.append(np.repeat(users[inside], end - start))
                for name in events.names:
                    pieces.setdefault(name, []).append(events.column(name).gather(rows))
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")  # segments were read oldest first
        columns = {}
        for name, parts in pieces.items():
            values = np.concatenate([p.astype(np.int64) if p.dtype.kind == "i" else p for p in parts])[order]
            columns[name] = pa.array(values if name == "time" else smallest(values))
        return columns, owner[order]

    def _write_requests(self, starts: dict[str, np.ndarray]) -> None:
        file = self.segments.requests
        table = file.table(file.names)
        with ArrowSink(self.out / "requests.arrow", table.schema) as sink:
            for first in range(0, table.num_rows, _ROWS):
                part = table.slice(first, _ROWS)
                requests = np.arange(first, first + part.num_rows)
                users = file.column("user").gather(requests)
                for stream in self.streams:
                    length = np.zeros(len(requests), np.int64)
                    for _, start, end in self.segments.newest(stream, requests):
                        length += end - start
                    begin = starts[stream][users]
                    for side, values in (("start", begin), ("end", begin + length)):
                        at = part.column_names.index(f"{side}_{stream}")
                        part = part.set_column(at, part.schema.field(at), pa.array(values))
                sink.add(part)
                self.progress("requests", first + part.num_rows, table.num_rows)
