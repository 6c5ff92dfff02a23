"""The manifest: what ingest counted, and the checksums of what it wrote. It is written last."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from opengem.data.encoder import Encoder
from opengem.data.ingestion.join.examples import Examples, training
from opengem.data.ingestion.read.plan import Plan
from opengem.data.ingestion.read.sources import sha256_of
from opengem.data.ingestion.work_database import one_row
from opengem.schema.inputs import (
    AttributeInput,
    FeatureInput,
    InputSpec,
    StreamInput,
    TableInput,
    TaskInput,
)
from opengem.schema.words import Schema

FORMAT = 1
_NOT_DATA = ("manifest.json", "schema.toml", "quarantine.parquet")


@dataclass
class Facts:
    """What an ingest counts on its way."""

    read: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    null_elements: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    early: dict[str, int] = field(default_factory=dict)
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    base_rates: dict[str, float] = field(default_factory=dict)
    vocabularies: dict[str, dict[str, int]] = field(default_factory=dict)
    history_lengths: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    storage: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    splits: dict[str, tuple[int, int]] = field(default_factory=dict)
    train_end: int = 0

    def set_examples(self, examples: Examples) -> None:
        """Take over what is known of the examples."""
        self.counts = {"examples": examples.count, "requests": examples.requests, "users": examples.users}
        self.splits = examples.splits
        self.train_end = examples.train_end


def label_counts(con: Any, schema: Schema, facts: Facts) -> None:
    """Count labels of each task, over all examples, and the base rate of the training window."""
    facts.labels = {task.name: facts.labels.get(task.name, {}) for task in schema.tasks}
    for task in schema.tasks:
        y = f'"y_{task.name}"'
        here = "TRUE"
        if task.surfaces:
            here = "surface IN (" + ", ".join("'" + s.replace("'", "''") + "'" for s in task.surfaces) + ")"
        labelled, positives, masked, elsewhere, rate = one_row(
            con,
            f"SELECT count({y}), coalesce(sum({y}), 0), count(*) FILTER ({y} IS NULL AND {here}), "
            f"count(*) FILTER (NOT coalesce({here}, FALSE)), avg({y}) FILTER ({training(schema)}) FROM labelled",
        )
        counts = facts.labels[task.name]
        counts |= {"labelled": labelled, "positives": int(positives), "other_surfaces": elsewhere}
        counts["immature" if task.event else "missing"] = masked
        facts.base_rates[task.name] = 0.5 if rate is None else float(rate)


def input_spec(schema: Schema, plan: Plan, encoder: Encoder, facts: Facts) -> InputSpec:
    """Return what a model must know of the data set."""
    keys = {schema.impressions.ad}
    if "ads" in schema.tables:
        keys.add(schema.tables["ads"].key or "")
    own = [f.name for f in schema.features if f.owner == "ad" and f.kind == "id" and f.column in keys]
    return InputSpec(
        tables=tuple(TableInput(name=n, rows=encoder.table_rows(n)) for n in encoder.vocabularies),
        features=tuple(
            FeatureInput(
                name=f.name, owner=f.owner, kind=f.kind, table=f.table, size=encoder.sizes.get(f.name, 1)
            )
            for f in schema.features
        ),
        streams=tuple(
            StreamInput(
                name=s.name,
                attributes=tuple(
                    AttributeInput(name=a.name, kind=a.kind, table=a.table) for a in s.attributes
                ),
                item=plan.item[s.name],
            )
            for s in schema.streams
        ),
        tasks=tuple(
            TaskInput(name=t.name, given=t.given, base_rate=facts.base_rates[t.name]) for t in schema.tasks
        ),
        surfaces=encoder.surfaces,
        ad_feature=own[0] if own else "",
        fingerprint=schema.fingerprint,
    )


def storage(con: Any, folder: Path, slices: dict[str, tuple[np.ndarray, np.ndarray]], facts: Facts) -> None:
    """Weigh the store against one copy of the history for each example."""
    per_request = con.sql("SELECT request, count(*) AS n FROM examples GROUP BY request ORDER BY request")
    examples = per_request.fetchnumpy()["n"]
    store, copied = 0, 0.0
    for name, (start, end) in slices.items():
        size = sum(f.stat().st_size for f in (folder / "sequences" / name).iterdir())
        store += size
        copied += float(np.dot(end - start, examples)) * size / max(facts.events[name], 1)
    events = sum(facts.events.values())
    rows = (folder / "examples.arrow").stat().st_size + (folder / "requests.arrow").stat().st_size
    facts.storage = {
        "bytes_store": store,
        "bytes_copied_estimate": int(copied),
        "bytes_per_event": round(store / max(events, 1), 3),
        "bytes_per_example": round(rows / facts.counts["examples"], 3),
    }
    (ads,) = one_row(con, "SELECT count(*) FROM ads")
    facts.counts["ads"] = ads


def write_manifest(
    folder: Path, schema: Schema, facts: Facts, source_fingerprint: str, sources: list[dict[str, Any]]
) -> dict[str, Any]:
    """Write `manifest.json`, last and in one step, and return it."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and not _is_hidden(p, folder))
    files = {
        str(p.relative_to(folder)): {"bytes": p.stat().st_size, "sha256": sha256_of(p)}
        for p in paths
        if p.name != "manifest.json"
    }
    content = json.dumps([(name, f["sha256"]) for name, f in files.items() if name not in _NOT_DATA])
    manifest = {
        "format": FORMAT,
        "schema": {"name": schema.name, "fingerprint": schema.fingerprint},
        "source_fingerprint": source_fingerprint,
        "data_fingerprint": hashlib.sha256(content.encode()).hexdigest(),
        "counts": facts.counts | {"events": facts.events},
        "rows": {
            "read": facts.read,
            "kept": facts.kept,
            "quarantined": facts.quarantined,
            "deduplicated": sum(facts.copies.values()),
            "copies": facts.copies,
            "passed_over": facts.passed_over,
        },
        "splits": {name: list(rows) for name, rows in facts.splits.items()},
        "train_end": facts.train_end,
        "history_lengths": facts.history_lengths,
        "storage": facts.storage,
        "immature": {task: n["immature"] for task, n in facts.labels.items() if "immature" in n},
        "labels": facts.labels,
        "vocabularies": facts.vocabularies,
        "null_elements": facts.null_elements,
        "events_before_own_request": facts.early,
        "files": files,
        "sources": sources,
    }
    waiting = folder / ".manifest.json"
    waiting.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    os.replace(waiting, folder / "manifest.json")
    return manifest


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
