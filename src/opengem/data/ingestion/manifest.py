"""The manifest: what ingest counted, and the checksums of what it wrote. It is written last."""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from opengem.data.arrow_file import ArrowFile
from opengem.data.checksum import sha256_of
from opengem.data.encoder import Encoder
from opengem.data.ingestion.folder import segment_name
from opengem.data.ingestion.join.examples import Examples, training
from opengem.data.ingestion.read.plan import Plan
from opengem.data.ingestion.work_database import one_row
from opengem.data.manifest import FORMAT
from opengem.data.segments import BASE
from opengem.schema.inputs import (
    AttributeInput,
    FeatureInput,
    InputSpec,
    StreamInput,
    TableInput,
    TaskInput,
)
from opengem.schema.words import Schema, Vocabulary

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
    vocabularies: dict[str, dict[str, int]] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    history_lengths: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    storage: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    splits: dict[str, tuple[int, int]] = field(default_factory=dict)
    train_end: int = 0
    latest: int = 0
    log_ends: dict[str, int | None] = field(default_factory=dict)
    buckets: int = 1
    spec: InputSpec | None = None

    def set_examples(self, examples: Examples) -> None:
        """Take over what is known of the examples."""
        self.counts = {"examples": examples.count, "requests": examples.requests, "users": examples.users}
        self.splits = examples.splits
        self.train_end = examples.train_end

    def count_matured(self, matured: dict[str, np.ndarray]) -> None:
        """Count labels of earlier examples that matured.

        Args:
            matured: `row` `(n,)`, and task -> `(2, n)` float32, the label before and now, NaN where masked.
        """
        train = self.splits["train"]
        inside = (matured["row"] >= train[0]) & (matured["row"] < train[1])
        for task, counts in self.labels.items():
            if task in matured:
                before, now = matured[task]
                counts["labelled"] += int(np.isnan(before).sum() - np.isnan(now).sum())
                counts["immature"] -= int(np.isnan(before).sum() - np.isnan(now).sum())
                counts["positives"] += int(np.nansum(now) - np.nansum(before))
                counts["train_labelled"] += int(np.isnan(before[inside]).sum() - np.isnan(now[inside]).sum())
                counts["train_positives"] += int(np.nansum(now[inside]) - np.nansum(before[inside]))


def label_counts(con: Any, schema: Schema, facts: Facts) -> None:
    """Count labels of each task, over all examples, and in the training window."""
    facts.labels = {task.name: facts.labels.get(task.name, {}) for task in schema.tasks}
    for task in schema.tasks:
        y = f'"y_{task.name}"'
        here = "TRUE"
        if task.surfaces:
            here = "surface IN (" + ", ".join("'" + s.replace("'", "''") + "'" for s in task.surfaces) + ")"
        labelled, positives, masked, elsewhere, trained, trained_positives = one_row(
            con,
            f"SELECT count({y}), coalesce(sum({y}), 0), count(*) FILTER ({y} IS NULL AND {here}), "
            f"count(*) FILTER (NOT coalesce({here}, FALSE)), count({y}) FILTER ({training(schema)}), "
            f"coalesce(sum({y}) FILTER ({training(schema)}), 0) FROM labelled",
        )
        counts = facts.labels[task.name]
        counts |= {"labelled": labelled, "positives": int(positives), "other_surfaces": elsewhere}
        counts |= {"train_labelled": trained, "train_positives": int(trained_positives)}
        counts["immature" if task.event else "missing"] = masked


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
            TaskInput(name=t.name, given=t.given, base_rate=_base_rate(facts.labels[t.name]))
            for t in schema.tasks
        ),
        surfaces=encoder.surfaces,
        ad_feature=own[0] if own else "",
        fingerprint=schema.fingerprint,
    )


def _base_rate(counts: dict[str, int]) -> float:
    return counts["train_positives"] / counts["train_labelled"] if counts["train_labelled"] else 0.5


def storage(con: Any, folder: Path, lengths: dict[str, np.ndarray], facts: Facts) -> None:
    """Weigh a segment against one whole copy of the history, as raw values, in each of its examples.

    Args:
        con: Connection of the work database.
        folder: The segment.
        lengths: Stream -> length of each request's history.
        facts: Gets `storage` and the number of ads.
    """
    per_request = con.sql("SELECT request, count(*) AS n FROM examples GROUP BY request ORDER BY request")
    examples = per_request.fetchnumpy()["n"]
    store, copied = 0, 0.0
    for name, length in lengths.items():
        target = folder / "sequences" / name
        store += sum(f.stat().st_size for f in target.iterdir())
        copied += float(np.dot(length, examples)) * _event_bytes(target)
    rows = (folder / "examples.arrow").stat().st_size + (folder / "requests.arrow").stat().st_size
    facts.storage = {"bytes_store": store, "bytes_copied_estimate": int(copied), "bytes_rows": rows}
    (facts.counts["ads"],) = one_row(con, "SELECT count(*) FROM ads")


def _event_bytes(folder: Path) -> float:
    """Return the bytes of the values of one event, on average over the buckets in `folder`."""
    widths, events = [], []
    for path in folder.glob("bucket-*.arrow"):
        file = ArrowFile(path)
        widths.append(sum(kind.bit_width for kind in file.table(file.names).schema.types) / 8)
        events.append(file.num_rows)
    return float(np.average(widths, weights=events if any(events) else None))


def schema_content(schema: Schema) -> str:
    """Return a fingerprint of all that the schema says, whatever the place of its file."""
    said = dataclasses.asdict(dataclasses.replace(schema, root="", text=""))
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def write_manifest(
    folder: Path, schema: Schema, facts: Facts, source_fingerprint: str, sources: list[dict[str, Any]]
) -> dict[str, Any]:
    """Write `schema.toml` and, last and in one step, `manifest.json` of a new data set; return the manifest."""
    assert facts.spec is not None
    (folder / "schema.toml").write_text(schema.text, encoding="utf-8")
    files = _describe(folder, folder)
    content = json.dumps([(name, f["sha256"]) for name, f in files.items() if name not in _NOT_DATA])
    segment = {"folder": BASE, "buckets": facts.buckets} | _counted(facts)
    manifest = {
        "format": FORMAT,
        "schema": {"name": schema.name, "fingerprint": schema.fingerprint, "content": schema_content(schema)},
        "source_fingerprint": source_fingerprint,
        "data_fingerprint": hashlib.sha256(content.encode()).hexdigest(),
        "inputs": facts.spec.to_dict(),
        **_record(facts),
        "vocabularies": facts.vocabularies,
        "codes": facts.codes,
        "admission": {
            name: dataclasses.asdict(schema.vocabularies.get(name, Vocabulary())) for name in facts.codes
        },
        "segments": [segment],
        "files": files,
        "sources": sources,
    }
    return _replace(folder, manifest)


def append_to_manifest(
    out: Path,
    number: int,
    schema: Schema,
    old: dict[str, Any],
    facts: Facts,
    source_fingerprint: str,
    sources: list[dict[str, Any]],
) -> dict[str, Any]:
    """Make segment `number` part of the data set `out`, by its manifest in one step; return the manifest."""
    folder = segment_name(number)
    files = _describe(out / folder, out)
    content = json.dumps([old["data_fingerprint"], [(n, f["sha256"]) for n, f in files.items()]])
    record = _sum(old, _record(facts))
    assert facts.spec is not None
    tasks = tuple(
        dataclasses.replace(t, base_rate=_base_rate(record["labels"][t.name])) for t in facts.spec.tasks
    )
    manifest = old | record
    manifest |= {
        "source_fingerprint": source_fingerprint,
        "data_fingerprint": hashlib.sha256(content.encode()).hexdigest(),
        "segments": [*old["segments"], {"folder": folder, "buckets": facts.buckets} | _counted(facts)],
        "inputs": dataclasses.replace(facts.spec, tasks=tasks).to_dict(),
        "codes": facts.codes,
        "files": old["files"] | files,
        "sources": sources,
    }
    return _replace(out, manifest)


def compacted_manifest(folder: Path, old: dict[str, Any], buckets: int) -> dict[str, Any]:
    """Write the manifest of a data set whose segments became one, written to `folder`; return it."""
    files = _describe(folder, folder)
    content = json.dumps([(name, f["sha256"]) for name, f in files.items() if name not in _NOT_DATA])
    counts = {name: old["counts"][name] for name in ("examples", "requests")}
    sequences = sum(f["bytes"] for name, f in files.items() if name.startswith("sequences/"))
    rows = sum(files[name]["bytes"] for name in ("examples.arrow", "requests.arrow"))
    manifest = old | {
        "data_fingerprint": hashlib.sha256(content.encode()).hexdigest(),
        "segments": [{"folder": BASE, "buckets": buckets} | counts],
        "files": files,
        "storage": old["storage"] | {"bytes_store": sequences, "bytes_rows": rows},
    }
    return _replace(folder, _derived(manifest))


def _counted(facts: Facts) -> dict[str, int]:
    return {name: facts.counts[name] for name in ("examples", "requests")}


def _record(facts: Facts) -> dict[str, Any]:
    """Return what was counted; numbers of an append are added to those before, see `_sum`."""
    record: dict[str, Any] = {
        "counts": facts.counts | {"events": facts.events},
        "rows": {
            "read": facts.read,
            "kept": facts.kept,
            "quarantined": facts.quarantined,
            "deduplicated": sum(facts.copies.values()),
            "copies": facts.copies,
            "passed_over": facts.passed_over,
        },
        "history_lengths": facts.history_lengths,
        "labels": facts.labels,
        "null_elements": facts.null_elements,
        "events_before_own_request": facts.early,
        "storage": facts.storage,
        "splits": {name: list(rows) for name, rows in facts.splits.items()},
        "train_end": facts.train_end,
        "latest": facts.latest,
        "log_ends": facts.log_ends,
    }
    return _derived(record)


def _derived(record: dict[str, Any]) -> dict[str, Any]:
    """Fill in what follows from what was counted."""
    record["immature"] = {task: n["immature"] for task, n in record["labels"].items() if "immature" in n}
    storage, counts = record["storage"], record["counts"]
    storage["bytes_per_event"] = round(storage["bytes_store"] / max(sum(counts["events"].values()), 1), 3)
    storage["bytes_per_example"] = round(storage["bytes_rows"] / max(counts["examples"], 1), 3)
    return record


def _sum(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the record of both together."""
    added = ("counts", "rows", "labels", "null_elements", "events_before_own_request", "storage")
    total = {name: _added(old[name], new[name]) for name in added}
    total |= {name: new[name] for name in ("splits", "train_end", "latest", "log_ends")}
    total["history_lengths"] = {
        stream: _joined(found, new["history_lengths"][stream])
        for stream, found in old["history_lengths"].items()
    }
    return _derived(total)


def _added(a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {
            k: _added(a[k], b[k]) if k in a and k in b else a.get(k, b.get(k)) for k in [*a, *(b.keys() - a)]
        }
    return a + b


def _joined(a: dict[str, list[int]], b: dict[str, list[int]]) -> dict[str, list[int]]:
    size = max(len(a["counts"]), len(b["counts"]))
    counts = [sum(h["counts"][i] for h in (a, b) if i < len(h["counts"])) for i in range(size)]
    return {"edges": max(a["edges"], b["edges"], key=len), "counts": counts}


def _describe(folder: Path, root: Path) -> dict[str, dict[str, Any]]:
    """Return size and checksum of all files below `folder`, named relative to `root`."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and not _is_hidden(p, folder))
    return {str(p.relative_to(root)): _file(p) for p in paths if p.name != "manifest.json"}


def _file(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _replace(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    waiting = folder / ".manifest.json"
    text = json.dumps(manifest, indent=1) + "\n"
    waiting.write_text(text, encoding="utf-8")
    os.replace(waiting, folder / "manifest.json")
    return json.loads(text)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
