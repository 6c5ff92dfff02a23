"""The examples: labels by surface and split, labels still open, and histories."""

from typing import Any

from opengem.data.checking.logs import SPLITS, Logs
from opengem.data.checking.report import DataCheck, percent
from opengem.data.ingestion.join.before import Before
from opengem.data.ingestion.join.events import drop_events, make_events
from opengem.schema.words import Task

MANY_WITHOUT_HISTORY = 0.5
MANY_IMMATURE = 0.2
MANY_ORPHANS = 0.5
"""Shares from which a warning is given."""
NAMED = 5


def check_examples(logs: Logs, check: DataCheck) -> None:
    """Check labels and histories of the examples.

    Args:
        logs: The logs, joined.
        check: Gets the facts `labels` and `histories`, and the findings.
    """
    check.facts["labels"] = {task.name: _labels(logs, task, check) for task in logs.schema.tasks}
    check.facts["histories"] = _histories(logs, check)


def _labels(logs: Logs, task: Task, check: DataCheck) -> dict[str, Any]:
    y = f'"y_{task.name}"'
    found = logs.rows(
        f"SELECT split, surface, count(*), count({y}), coalesce(sum({y}), 0)::BIGINT FROM labelled_rows "
        "WHERE split IS NOT NULL GROUP BY ALL ORDER BY ALL"
    )
    if task.surfaces:
        found = [row for row in found if row[1] in task.surfaces]
    splits: dict[str, dict[str, int]] = {}
    for split in SPLITS:
        here = [row[2:] for row in found if row[0] == split]
        if here:
            rows, labelled, positives = (sum(column) for column in zip(*here, strict=True))
            splits[split] = {"rows": rows, "labelled": labelled, "positives": positives}
    _check_splits(task, splits, check)
    surfaces: dict[str, dict[str, int]] = {}
    for split, surface, _, labelled, positives in found:
        surfaces.setdefault(surface, {})[f"{split}_labelled"] = labelled
        surfaces[surface][f"{split}_positives"] = positives
    _check_surfaces(task, surfaces, check)
    credited = logs.credited.get(task.name, {"events": 0, "orphans": 0})
    if credited["orphans"]:
        events, orphans = credited["events"], credited["orphans"]
        text = f"{percent(orphans, events)} of the events that make it ({orphans:,} of {events:,}) credit no example"
        say = check.warn if orphans > MANY_ORPHANS * events else check.note
        say(
            "labels",
            f"tasks.{task.name}",
            f"{text}: none of their user and item comes before them within the window",
        )
    return {"splits": splits, "surfaces": surfaces, **logs.credited.get(task.name, {})}


def _check_surfaces(task: Task, surfaces: dict[str, dict[str, int]], check: DataCheck) -> None:
    """Name the surfaces without a positive; where there is none at all, `_check_splits` has said so."""
    none: dict[str, list[str]] = {}
    for split in SPLITS:
        labelled = {s: n[f"{split}_labelled"] for s, n in surfaces.items() if n.get(f"{split}_labelled")}
        empty = [s for s in labelled if not surfaces[s][f"{split}_positives"]]
        for surface in empty if len(empty) < len(labelled) else ():
            none.setdefault(surface, []).append(f"{labelled[surface]:,} of {split}")
    if none:
        named = ", ".join(f"{surface} ({', '.join(rows)})" for surface, rows in list(none.items())[:NAMED])
        more = f" and {len(none) - NAMED:,} more surfaces" if len(none) > NAMED else ""
        text = f"no positive among the labels on {named}{more}; AUC and NE are not defined there"
        check.warn("surfaces", f"tasks.{task.name}", text)


def _check_splits(task: Task, splits: dict[str, dict[str, int]], check: DataCheck) -> None:
    where = f"tasks.{task.name}"
    for split, n in splits.items():
        missing = n["rows"] - n["labelled"]
        share = f"{percent(missing, n['rows'])} of the labels in {split} ({missing:,} of {n['rows']:,})"
        if task.event and missing:
            say = check.warn if missing > MANY_IMMATURE * n["rows"] else check.note
            window = f"their window of {_length(task.event.within_ms)} is open where the log of {task.event.table} ends"
            say("labels", where, f"{share} are immature: {window}")
        elif missing:
            check.note("labels", where, f"{share} are missing, and are masked")
        if n["positives"] in (0, n["labelled"]):
            what = "positive" if n["positives"] == 0 else "negative"
            text = f"no {what} label among {n['labelled']:,} in {split}"
            if split == "train":
                check.error("labels", where, f"{text}; nothing can be learned from one class")
            else:
                check.warn("labels", where, f"{text}; it cannot be measured there")


def _histories(logs: Logs, check: DataCheck) -> dict[str, Any]:
    """Count examples that have no event before their request, by stream and over all streams."""
    if not logs.schema.streams:
        return {}
    facts: dict[str, Any] = {}
    for stream in logs.schema.streams:
        events, early = make_events(logs.con, logs.schema, logs.plan, stream, Before())
        logs.con.execute(
            f'CREATE TABLE "first_{stream.name}" AS SELECT p.number, min(s.available) AS available '
            f'FROM "s_{stream.name}" s JOIN people p ON p."user" = s."user" GROUP BY 1'
        )
        drop_events(logs.con, stream)
        facts[stream.name] = {"events": events, "before_their_request": early}
    names = [s.name for s in logs.schema.streams]
    joins = " ".join(f'LEFT JOIN "first_{n}" "f_{n}" ON "f_{n}".number = e.number' for n in names)
    none = {n: f'NOT coalesce("f_{n}".available < e.request_time, FALSE)' for n in names}
    counted = ", ".join(f"count(*) FILTER ({c})" for c in [*none.values(), " AND ".join(none.values())])
    rows, *without = logs.one(f"SELECT count(*), {counted} FROM labelled_rows e {joins}")
    for name, count in zip([*names, ""], without, strict=True):
        if name:
            facts[name] |= {"examples": rows, "without": count}
    _check_history(check, "streams", without[-1], rows)
    if len(names) > 1:
        for name, count in zip(names, without, strict=False):
            if count == rows > without[-1]:
                _check_history(check, f"streams.{name}", count, rows)
    return facts | {"examples": rows, "without_any": without[-1]}


def _check_history(check: DataCheck, where: str, without: int, rows: int) -> None:
    if not without:
        return
    text = f"{percent(without, rows)} of examples have no history ({without:,} of {rows:,})"
    if without > MANY_WITHOUT_HISTORY * rows:
        look = (
            "Look at the units and zones of the times of events and impressions, and at how both write users"
        )
        check.warn("history", where, f"{text}. {look}")
    else:
        check.note("history", where, text)


def _length(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
