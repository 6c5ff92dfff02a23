"""Ingest from end to end: read, settle, order, label, count, encode, write, and only then replace the old."""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opengem.data.encoder import Encoder
from opengem.data.ingestion.folder import check_replaceable, fresh_folder
from opengem.data.ingestion.join.events import make_events
from opengem.data.ingestion.join.examples import Examples, make_examples
from opengem.data.ingestion.join.labels import make_labels
from opengem.data.ingestion.join.rows import settle_rows
from opengem.data.ingestion.join.statistics import make_encoder
from opengem.data.ingestion.manifest import Facts, input_spec, label_counts, storage, write_manifest
from opengem.data.ingestion.read.kinds import column_kinds
from opengem.data.ingestion.read.plan import Plan, make_plan
from opengem.data.ingestion.read.quarantine import write_quarantine
from opengem.data.ingestion.read.ready import read_ready
from opengem.data.ingestion.read.sources import Source, describe_files, find_files, open_source
from opengem.data.ingestion.read.table import Counts, read_table
from opengem.data.ingestion.work_database import (
    memory_limit_bytes,
    one_row,
    open_work_database,
    translated_errors,
)
from opengem.data.ingestion.writing import write_entities, write_examples, write_requests, write_stream
from opengem.data.sequence_store import length_histogram
from opengem.errors import DataError
from opengem.schema.load import load_schema
from opengem.schema.words import Schema, Table

Progress = Callable[[str, int, int | None], None]
_EARLIEST, _LATEST = 315_532_800_000, 4_102_444_800_000  # 1980 and 2100
BYTES_PER_EVENT = 600
"""Memory that an event of the bucket at hand is reckoned to take while it is sorted and written."""


@dataclass(frozen=True)
class IngestResult:
    """What ingest made.

    Attributes:
        folder: The data set.
        manifest: Its manifest.
        fresh: False where the data set was already that of this schema and these files, so nothing was done.
    """

    folder: Path
    manifest: dict[str, Any]
    fresh: bool


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
    """Turn the logs that a schema describes into a data set.

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
        The folder, its manifest, and whether anything was done.

    Raises:
        ConfigError: The schema or an argument is wrong.
        DataError: A file or column breaks what the schema says of it, or room runs out.
    """
    schema = schema if isinstance(schema, Schema) else load_schema(schema)
    out = Path(out)
    check_replaceable(out)
    old = _read_manifest(out)
    files, sources_known = _describe(schema, (old or {}).get("sources"))
    if old is not None and old["source_fingerprint"] == files and _is_whole(out, old):
        return IngestResult(out, old, False)
    room = {
        "memory_limit": memory_limit,
        "temporary_folder": temporary_folder,
        "temporary_limit": temporary_limit,
    }
    with fresh_folder(out) as folder:
        spill = Path(temporary_folder) if temporary_folder else folder
        work = spill / f".work-{os.getpid()}"
        work.mkdir(parents=True)
        try:
            with translated_errors(room, work):
                con = open_work_database(work, workers, memory_limit, temporary_limit)
                try:
                    facts = _Run(schema, folder, work, con, progress).run()
                finally:
                    con.close()
                manifest = write_manifest(folder, schema, facts, files, sources_known)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return IngestResult(out, manifest, True)


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


def _describe(schema: Schema, known: list[dict[str, Any]] | None) -> tuple[str, list[dict[str, Any]]]:
    """Return a fingerprint of the schema and the contents of all files, and what the files are."""
    root = Path(schema.root)
    paths = {p for name, pattern in _paths(schema).items() for p in find_files(root, pattern, name)}
    described = describe_files(sorted(paths), root, known)
    said = dataclasses.asdict(dataclasses.replace(schema, root="", text=""))
    content = [said, [(f["path"], f["sha256"]) for f in described]]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest(), described


class _Run:
    """One ingest under way."""

    def __init__(self, schema: Schema, folder: Path, work: Path, con: Any, progress: Progress | None) -> None:
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
        facts = Facts()
        sources = self._open()
        plan = make_plan(self.schema, {n: s for n, s in sources.items() if n in self.schema.tables})
        counts = self._read(sources, plan, facts)
        self._begin("order")
        examples = make_examples(self.con, self.schema, plan)
        facts.set_examples(examples)
        facts.labels = make_labels(self.con, self.schema)
        buckets = self._number_of_buckets()
        for stream in self.schema.streams:
            counted = make_events(self.con, self.schema, plan, stream, buckets)
            facts.events[stream.name], facts.early[stream.name] = counted
        self._begin("statistics")
        sizes = self._vector_sizes(counts)
        encoder, facts.vocabularies = make_encoder(self.con, self.schema, plan, examples.train_end, sizes)
        encoder.column_kinds = column_kinds(self.schema, plan, sources)
        (self.folder / "encoder").mkdir()
        encoder.save(self.folder / "encoder")
        label_counts(self.con, self.schema, facts)
        slices = self._write(plan, encoder, examples, buckets, facts)
        spec = input_spec(self.schema, plan, encoder, facts)
        (self.folder / "inputs.json").write_text(
            json.dumps(spec.to_dict(), indent=1) + "\n", encoding="utf-8"
        )
        (self.folder / "schema.toml").write_text(self.schema.text, encoding="utf-8")
        facts.quarantined = write_quarantine(self.con, sources, self.folder / "quarantine.parquet")
        self._begin("manifest")
        storage(self.con, self.folder, slices, facts)
        return facts

    def _open(self) -> dict[str, Source]:
        root = Path(self.schema.root)
        return {name: open_source(root, pattern, name) for name, pattern in _paths(self.schema).items()}

    def _read(self, sources: dict[str, Source], plan: Plan, facts: Facts) -> dict[str, Counts]:
        self.con.execute("CREATE TABLE quarantine (tab VARCHAR, src BIGINT, reason VARCHAR)")
        self._begin("read", sum(s.rows for s in sources.values()))
        counts: dict[str, Counts] = {}
        for name, table in self.schema.tables.items():
            source, uses = sources[name], plan.uses[name]
            content = _content(name, table, source, [u.column for u in uses])
            counts[name] = read_table(self.con, source, table, uses, content, self._advance)
            facts.read[name] = counts[name].read
            facts.passed_over[name] = counts[name].passed_over
            facts.null_elements |= {
                f"{name}: {c}": n for c, n in counts[name].findings.null_elements.items() if n
            }
            facts.copies[name] = settle_rows(self.con, self.schema, name)
            (facts.kept[name],) = one_row(self.con, f'SELECT count(*) FROM "t_{name}"')
            self._check_times(name, table)
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

    def _check_times(self, name: str, table: Table) -> None:
        if table.time is None:
            return
        first, last = one_row(self.con, f'SELECT min("time"), max("time") FROM "t_{name}"')
        if first is not None and (last < _EARLIEST or first > _LATEST):
            raise DataError(
                f"tables.{name}.time must lie between 1980 and 2100. Received: {first} to {last} ms since 1970, read "
                f'from column "{table.time.column}" as unit "{table.time.unit}"\n  fix: set the unit in the schema'
            )

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
        return max(1, -(-most * BYTES_PER_EVENT // memory_limit_bytes(self.con)))

    def _write(
        self, plan: Plan, encoder: Encoder, examples: Examples, buckets: int, facts: Facts
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        self._begin("users and ads")
        for name in ("users", "ads"):
            write_entities(self.con, self.schema, plan, encoder, self.folder, name)
        self._begin("sequences", sum(facts.events.values()))
        slices: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for stream in self.schema.streams:
            slices[stream.name] = write_stream(
                self.con, stream, encoder, self.folder, buckets, examples.requests, self.work, self._advance
            )
            self.con.execute(f'DROP TABLE "s_{stream.name}"')
            start, end = slices[stream.name]
            facts.history_lengths[stream.name] = length_histogram(end - start)
        self._begin("examples", examples.count)
        write_examples(self.con, self.schema, plan, encoder, self.folder, self._advance)
        write_requests(self.con, self.schema, plan, encoder, self.folder, buckets, slices)
        return slices


def _content(name: str, table: Table, source: Source, used: list[str]) -> list[str]:
    """Return the columns that tell whether two rows of a table are alike; none where nobody asks."""
    if table.id or name in ("users", "ads"):
        return sorted(c for c in set(used) if c in source.columns)
    return sorted(source.columns) if table.deduplicate else []
