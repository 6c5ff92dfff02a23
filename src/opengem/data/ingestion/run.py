"""Ingest from end to end: read, settle, order, label, count, encode, write, and only then replace the old."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opengem.data.arrow_sink import write_table
from opengem.data.encoder import FIRST_ROW, Encoder
from opengem.data.ingestion.append import DoesNotContinue, check_continues, new_files, unknown_ads
from opengem.data.ingestion.folder import check_replaceable, fresh_folder, fresh_segment, only_writer
from opengem.data.ingestion.join.before import Before
from opengem.data.ingestion.join.events import encode_events, make_events
from opengem.data.ingestion.join.examples import Examples, make_examples
from opengem.data.ingestion.join.ids import count_ids, write_ids
from opengem.data.ingestion.join.labels import log_end, make_labels
from opengem.data.ingestion.join.rows import settle_rows
from opengem.data.ingestion.join.statistics import make_encoder
from opengem.data.ingestion.manifest import (
    Facts,
    append_to_manifest,
    input_spec,
    label_counts,
    schema_content,
    storage,
    write_manifest,
)
from opengem.data.ingestion.read.kinds import column_kinds
from opengem.data.ingestion.read.plan import Plan, make_plan
from opengem.data.ingestion.read.quarantine import write_quarantine
from opengem.data.ingestion.read.ready import read_ready
from opengem.data.ingestion.read.sources import Source, describe_files, find_files, open_source
from opengem.data.ingestion.read.table import Counts, check_times, content_columns, read_table
from opengem.data.ingestion.work_database import Room, memory_limit_bytes, one_row
from opengem.data.ingestion.writing import (
    BUCKETS_AT_ONCE,
    write_entities,
    write_examples,
    write_people,
    write_requests,
    write_stream,
)
from opengem.data.manifest import FORMAT
from opengem.data.matured_labels import write_matured
from opengem.data.sequence_store import length_histogram
from opengem.errors import DataError
from opengem.schema.load import load_schema
from opengem.schema.words import Schema

Progress = Callable[[str, int, int | None], None]
BYTES_PER_EVENT = 300
"""Memory that an event of a bucket at hand is reckoned to take while it is sorted and written."""

MOST_BUCKETS = 512
"""Each has a file open while events are dealt out to them; a process may have 1,024 by the defaults of Linux."""


@dataclass(frozen=True)
class IngestResult:
    """What ingest made.

    Attributes:
        folder: The data set.
        manifest: Its manifest.
        fresh: False where the data set was already that of this schema and these files, so nothing was done.
        appended: Names of the files that were appended to the data set that was there; none where it was made anew.
        why: Why a data set that was there had to be made anew; empty otherwise.
    """

    folder: Path
    manifest: dict[str, Any]
    fresh: bool
    appended: tuple[str, ...] = ()
    why: str = ""


def ingest(
    schema: Schema | str | Path,
    out: str | Path,
    *,
    workers: int | None = None,
    memory_limit: str = "2GB",
    temporary_folder: str | Path | None = None,
    temporary_limit: str | None = None,
    progress: Progress | None = None,
) -> IngestResult:
    """Turn the logs that a schema describes into a data set, or add new files of the logs to it.

    Where `out` holds a data set of the same schema, and all rows of new files are later than what it holds and than
    the training window, they are appended as a segment of their own: the work is that of the new files, old files
    stay as they are, and the examples are those of one ingest of all. Otherwise all is made anew.

    Everything is written beside `out` and put in its place at the end: a killed ingest leaves the old data set
    whole. Rows that break a rule go to `quarantine.parquet` with the reason, and are counted; nothing is dropped in
    silence.

    Args:
        schema: The schema, or its file.
        out: Folder of the data set; an older data set there is replaced.
        workers: Threads; by default all cores that the process may use.
        memory_limit: Memory of the joins, such as "2GB"; beyond it they spill to the temporary folder.
        temporary_folder: Where to spill; by default inside the folder that is being written.
        temporary_limit: Most that may be spilled, such as "50GB"; by default what the disk holds.
        progress: Called as `progress(stage, done, total)`.

    Returns:
        The folder, its manifest, and what was done.

    Raises:
        ConfigError: The schema or an argument is wrong.
        DataError: A file or column breaks what the schema says of it, or room runs out.
    """
    schema = schema if isinstance(schema, Schema) else load_schema(schema)
    out = Path(out)
    check_replaceable(out)
    room = Room(memory_limit, temporary_limit, Path(temporary_folder) if temporary_folder else None, workers)
    with only_writer(out):
        old = _read_manifest(out)
        if old is not None and not (old.get("format") == FORMAT and _is_whole(out, old)):
            old = None
        files = _describe(schema, old["sources"] if old else None)
        if old is not None and old["source_fingerprint"] == _fingerprint(schema, files):
            return IngestResult(out, old, False)
        why = ""
        if old is not None:
            try:
                return _append(schema, out, old, files, room, progress)
            except DoesNotContinue as reason:
                why = str(reason)
        with fresh_folder(out) as folder, room.database(folder) as (con, work):
            facts = _Run(schema, folder, work, con, progress).run()
            manifest = write_manifest(folder, schema, facts, _fingerprint(schema, files), files)
        return IngestResult(out, manifest, True, why=why)


def _append(
    schema: Schema,
    out: Path,
    old: dict[str, Any],
    files: list[dict[str, Any]],
    room: Room,
    progress: Progress | None,
) -> IngestResult:
    if old["schema"]["content"] != schema_content(schema):
        raise DoesNotContinue("the schema has changed")
    names = new_files(old["sources"], files)
    encoder = Encoder.load(out)
    before = Before.of(out, old, encoder)
    number = len(old["segments"])
    with fresh_segment(out, number) as folder, room.database(folder) as (con, work):
        facts = _Run(schema, folder, work, con, progress, before, encoder, names).run()
    manifest = append_to_manifest(out, number, schema, old, facts, _fingerprint(schema, files), files)
    return IngestResult(out, manifest, True, appended=tuple(sorted(names)))


def _read_manifest(out: Path) -> dict[str, Any] | None:
    try:
        return json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _is_whole(out: Path, manifest: dict[str, Any]) -> bool:
    sizes = {name: facts["bytes"] for name, facts in manifest["files"].items()}
    return all((out / n).is_file() and (out / n).stat().st_size == size for n, size in sizes.items())


def _paths(schema: Schema) -> dict[str, str]:
    """Return what is read: table, or `STREAM.ready`, -> path."""
    paths = {name: table.path for name, table in schema.tables.items()}
    return paths | {f"{s.name}.ready": s.ready.path for s in schema.streams if s.ready}


def _describe(schema: Schema, known: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return what the files of the logs are."""
    root = Path(schema.root)
    paths = {p for name, pattern in _paths(schema).items() for p in find_files(root, pattern, name)}
    return describe_files(sorted(paths), root, known)


def _fingerprint(schema: Schema, files: list[dict[str, Any]]) -> str:
    """Return a fingerprint of the schema and the contents of all files."""
    text = json.dumps([schema_content(schema), [(f["path"], f["sha256"]) for f in files]])
    return hashlib.sha256(text.encode()).hexdigest()


class _Run:
    """One ingest or append under way.

    Args:
        schema: The schema.
        folder: Where to write.
        work: Folder to spill to.
        con: Connection of the work database.
        progress: Called as `progress(stage, done, total)`.
        before: What was ingested already.
        encoder: The encoder of what was ingested already; it stays as it is.
        names: The files to read; all if None.
    """

    def __init__(
        self,
        schema: Schema,
        folder: Path,
        work: Path,
        con: Any,
        progress: Progress | None,
        before: Before | None = None,
        encoder: Encoder | None = None,
        names: set[str] | None = None,
    ) -> None:
        self.before, self.encoder, self.names = before or Before(), encoder, names
        self.schema = schema
        self.folder = folder
        self.work = work
        self.con = con
        self._progress = progress
        self._stage, self._done, self._total = "", 0, 0

    def _begin(self, stage: str, total: int = 0) -> None:
        self._stage, self._done, self._total = stage, 0, total
        self._advance(0)

    def _advance(self, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(self._stage, self._done, self._total or None)

    def run(self) -> Facts:
        facts, schema, before = Facts(), self.schema, self.before
        sources = self._open()
        plan = make_plan(schema, {n: s for n, s in sources.items() if n in schema.tables})
        sources = {name: self._to_read(source) for name, source in sources.items()}
        counts = self._read(sources, plan, facts)
        before.register(self.con)
        if before.examples:
            check_continues(self.con, schema, before)
        self._begin("order")
        examples = make_examples(self.con, schema, plan, before)
        facts.set_examples(examples)
        before.register_shown(self.con, schema, self._label_start())
        facts.labels = make_labels(self.con, schema, before)
        facts.log_ends = {
            t.event.table: log_end(self.con, t.event.table, before) for t in schema.tasks if t.event
        }
        buckets = facts.buckets = self._number_of_buckets()
        for stream in schema.streams:
            counted = make_events(self.con, schema, plan, stream, before)
            facts.events[stream.name], facts.early[stream.name] = counted
        facts.latest = max(before.latest, self._latest())
        self._begin("statistics")
        tables = count_ids(self.con, schema, plan, examples.train_end)
        encoder = self.encoder
        if encoder is None:
            sizes = self._vector_sizes(counts)
            encoder, facts.vocabularies = make_encoder(
                self.con, schema, plan, examples.train_end, sizes, tables
            )
            encoder.column_kinds = column_kinds(schema, plan, sources)
            (self.folder / "encoder").mkdir()
            encoder.save(self.folder / "encoder")
        codes = write_ids(self.con, plan, schema, encoder, before, examples.train_end, self.folder)
        facts.codes = {name: len(ids) + FIRST_ROW for name, ids in codes.items()}
        label_counts(self.con, schema, facts)
        lengths = self._write(plan, encoder.with_vocabularies(codes), examples, buckets, facts)
        facts.count_matured(self._write_matured())
        facts.spec = input_spec(schema, plan, encoder, facts)
        facts.quarantined = write_quarantine(self.con, sources, self.folder / "quarantine.parquet")
        self._begin("manifest")
        storage(self.con, self.folder, lengths, facts)
        return facts

    def _to_read(self, source: Source) -> Source:
        """Return the files of a source that are read now."""
        if self.names is None:
            return source
        files = tuple(f for f in source.files if f.name in self.names)
        if files and source.table not in self.schema.tables:
            raise DoesNotContinue(
                f"{files[0].name} brings ready-made histories, which come before all events"
            )
        return dataclasses.replace(source, files=files)

    def _label_start(self) -> int:
        """Return the earliest time of an example that a new event may credit, or whose label may mature."""
        starts = []
        for task in self.schema.tasks:
            if task.event:
                (first,) = one_row(self.con, f'SELECT min("time") FROM "t_{task.event.table}"')
                ends = [e for e in (first, self.before.log_ends.get(task.event.table)) if e is not None]
                starts += [min(ends) - task.event.within_ms] if ends else []
        return min(starts, default=0)

    def _latest(self) -> int:
        """Return when the last of what was read became known: requests, events, and profiles with a time."""
        queries = ["SELECT max(request_time) FROM examples"]
        queries += [f'SELECT max(available) FROM "s_{s.name}"' for s in self.schema.streams]
        queries += ["SELECT max(known) FROM users"]
        found = [one_row(self.con, query)[0] for query in queries]
        return max((f for f in found if f is not None), default=0)

    def _write_matured(self) -> dict[str, np.ndarray]:
        """Write the labels of earlier examples that are other ones now, and return them with their rows."""
        matured = self.con.sql("SELECT * FROM matured").fetchnumpy()
        rows = matured.pop("row")
        labels = {
            n.removeprefix("y_"): np.ma.filled(v.astype(np.float32), np.nan) for n, v in matured.items()
        }
        write_matured(self.folder, rows, labels)
        before = self.con.sql("SELECT s.* FROM shown_before s JOIN matured m ON m.row = s.row ORDER BY s.row")
        was = before.fetchnumpy()
        return {"row": rows} | {
            task: np.stack([np.ma.filled(was[f"y_{task}"].astype(np.float32), np.nan), y])
            for task, y in labels.items()
        }

    def _open(self) -> dict[str, Source]:
        root = Path(self.schema.root)
        return {name: open_source(root, pattern, name) for name, pattern in _paths(self.schema).items()}

    def _read(self, sources: dict[str, Source], plan: Plan, facts: Facts) -> dict[str, Counts]:
        self.con.execute("CREATE TABLE quarantine (tab VARCHAR, src BIGINT, reason VARCHAR)")
        self._begin("read", sum(s.rows for s in sources.values()))
        counts: dict[str, Counts] = {}
        for name, table in self.schema.tables.items():
            source, uses = sources[name], plan.uses[name]
            content = content_columns(name, table, source, [u.column for u in uses])
            counts[name] = read_table(
                self.con, source, table, uses, content, self.before.sizes, self._advance
            )
            facts.read[name] = counts[name].read
            facts.passed_over[name] = counts[name].passed_over
            facts.null_elements |= {
                f"{name}: {c}": n for c, n in counts[name].findings.null_elements.items() if n
            }
            facts.copies[name] = settle_rows(self.con, self.schema, name)
            (facts.kept[name],) = one_row(self.con, f'SELECT count(*) FROM "t_{name}"')
            check_times(self.con, name, table)
        for stream in self.schema.streams:
            if stream.ready:
                name = f"{stream.name}.ready"
                facts.read[name] = read_ready(
                    self.con, sources[name], stream, plan.item[stream.name], self._advance
                )
                (bad,) = one_row(self.con, "SELECT count(*) FROM quarantine WHERE tab = ?", [name])
                facts.kept[name] = facts.read[name] - bad
                facts.copies[name] = 0
        return counts

    def _vector_sizes(self, counts: dict[str, Counts]) -> dict[str, int]:
        found = {n: s for c in counts.values() for n, s in c.findings.sizes.items()}
        sizes = {}
        for feature in self.schema.features:
            if feature.kind == "vector":
                if f"f_{feature.name}" not in found:
                    raise DataError(f"features.{feature.name} must hold at least one vector. Received: none")
                sizes[feature.name] = found[f"f_{feature.name}"]
        return sizes

    def _number_of_buckets(self) -> int:
        """Return how many buckets keep one of them well inside the memory limit."""
        most = 0
        for stream in self.schema.streams:
            table = "examples" if stream.from_table == "impressions" else f"t_{stream.from_table}"
            tables = [table, *([f"r_{stream.name}"] if stream.ready else [])]
            most = max(most, sum(one_row(self.con, f'SELECT count(*) FROM "{t}"')[0] for t in tables))
        wanted = -(-most * BYTES_PER_EVENT * BUCKETS_AT_ONCE // memory_limit_bytes(self.con))
        return min(max(1, wanted), MOST_BUCKETS)

    def _write(
        self, plan: Plan, encoder: Encoder, examples: Examples, buckets: int, facts: Facts
    ) -> dict[str, np.ndarray]:
        """Write everything of the segment, and return the length of each request's history in each stream."""
        before = self.before
        self._begin("users and ads")
        write_people(self.con, before, self.folder)
        for name in ("users", "ads"):
            write_entities(self.con, self.schema, plan, encoder, before, self.folder, name)
        write_table(
            self.folder / "unknown_ads.arrow", unknown_ads(self.con, self.schema, plan, before.examples > 0)
        )
        self._begin("sequences", sum(facts.events.values()))
        slices: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        lengths: dict[str, np.ndarray] = {}
        users = self.con.sql("SELECT number FROM requests ORDER BY request").fetchnumpy()["number"]
        for stream in self.schema.streams:
            encode_events(self.con, stream, encoder, buckets, self.work)
            slices[stream.name] = write_stream(
                self.con,
                stream,
                plan,
                encoder,
                self.folder,
                buckets,
                examples.requests,
                before,
                self.work,
                self._advance,
            )
            start, end = slices[stream.name]
            lengths[stream.name] = end - start + before.lengths(stream.name, users)
            facts.history_lengths[stream.name] = length_histogram(lengths[stream.name])
        self._begin("examples", examples.count)
        write_examples(self.con, self.schema, plan, encoder, self.folder, self._advance)
        write_requests(self.con, self.schema, plan, encoder, self.folder, slices)
        return lengths
