"""Sections about how the result came about: learning, data, time, an example, how to repeat it."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from opengem.data.storage import times_smaller
from opengem.report import plots
from opengem.report.folder import ReportFiles, RunFiles
from opengem.report.numbers import MISSING, count, finite, number, seconds, size
from opengem.report.parts import Cell, Section
from opengem.report.plots import Curve
from opengem.report.style import look

STEP_PARTS = ("forward", "backward", "optimizer", "data", "evaluation")


def learning(files: ReportFiles) -> Section:
    """Window NE and calibration in training, and NE on validation, against examples seen."""
    section = Section(id="learning", title="Learning curves")
    panels: list[tuple[str, str, list[Curve]]] = []
    for key, title in (("ne", "NE"), ("calibration", "calibration")):
        made = [_curve(run, "train", key) for run in files.runs.values()]
        curves = [curve for curve in made if curve.values]
        if curves:
            panels.append((f"training window: {title}", title, curves))
    tasks = {
        task: None
        for run in files.runs.values()
        for line in run.lines("validation")
        for task in line["tasks"]
    }
    for task in tasks:
        made = [_curve(run, "validation", "ne", task) for run in files.runs.values()]
        curves = [curve for curve in made if curve.values]
        if curves:
            panels.append((f"validation: {task}", "NE", curves))
    if not panels:
        section.note(f"No curve to draw: {_why(files, 'metrics.jsonl')}.")
        return section
    section.figure(
        plots.learning(panels, "learning"),
        "Against examples seen. A training window covers the steps since the log line before it; the first steps may "
        "lie above the axis.",
    )
    silent = [look(run.name).label for run in files.runs.values() if not run.lines("train")]
    if silent:
        section.note(f"No training lines for {', '.join(silent)}: {_why(files, 'metrics.jsonl')}.")
    return section


def _curve(run: RunFiles, kind: str, key: str, task: str | None = None) -> Curve:
    """One line of a learning curve; points without a value are left out."""
    examples, values = [], []
    for line in run.lines(kind):
        source = line if task is None else line["tasks"].get(task, {})
        x, y = finite(line.get("examples")), finite(source.get(key))
        if x is not None and y is not None:
            examples.append(x)
            values.append(y)
    return Curve(run.name, examples, values)


def _why(files: ReportFiles, ending: str) -> str:
    """What is known of the missing files of one name, or that they hold nothing of the kind."""
    found = [f"{name} {why}" for name, why in files.missing.items() if name.endswith(ending)]
    return "; ".join(found) or f"{ending} holds no such line"


def histories(files: ReportFiles) -> Section:
    """How long the histories are, and what their storage costs."""
    section = Section(id="histories", title="Histories")
    if not files.manifest:
        section.note(f"dataset/manifest.json is {files.missing.get('dataset/manifest.json', 'empty')}.")
        return section
    lengths = {
        stream: (found["edges"], found["counts"])
        for stream, found in files.manifest.get("history_lengths", {}).items()
        if found.get("counts")
    }
    if lengths:
        section.figure(
            plots.histograms(lengths, "histories"),
            "Events that a user's history holds at the time of a request. Bins are drawn equally wide; ticks are "
            "their edges.",
        )
    else:
        section.note("dataset/manifest.json holds no history_lengths.")
    storage = files.manifest.get("storage", {})
    facts: list[tuple[str, str]] = []
    for name, value in files.manifest.get("counts", {}).items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        facts += [(f"{_words(name)} {part}".strip(), count(n)) for part, n in parts]
    if storage:
        store, copied = finite(storage.get("bytes_store")), finite(storage.get("bytes_copied_estimate"))
        facts += [("store", size(store)), ("if histories were copied into each row", size(copied))]
        if store and copied and finite(storage.get("bytes_rows")) is not None:
            facts.append(("saved, rows of examples counted", f"{times_smaller(storage):,.1f} times smaller"))
        facts.append(("bytes an event", number(storage.get("bytes_per_event"), most=1)))
        facts.append(("bytes an example", number(storage.get("bytes_per_example"), most=1)))
    if facts:
        section.facts(facts)
    return section


def _words(name: str) -> str:
    """A key as words."""
    return name.replace("_", " ")


def time(files: ReportFiles) -> Section:
    """Where the time went: stages of the loop, parts of a step, and speed of each run."""
    section = Section(id="time", title="Where the time went")
    stages = [(name, finite(value)) for name, value in files.summary.get("seconds", {}).items()]
    known = [(_words(name), value) for name, value in stages if value is not None]
    if known:
        total = seconds(sum(value for _, value in known))
        svg = plots.durations(known, "stages", "Seconds of each stage")
        section.figure(svg, f"Stages of the loop; {total} in all.")
    elif not files.is_run:
        section.note("summary.json holds no seconds of stages.")
    run = files.runs.get("teacher") or next((run for run in files.runs.values() if run.lines("time")), None)
    parts = _step_parts(run) if run else []
    if run and parts:
        svg = plots.durations(parts, "step", "Seconds of each part of training")
        section.figure(svg, f"Parts of training, {look(run.name).label}, summed over all steps.")
    else:
        section.note(f"No time of the parts of a step: {_why(files, 'metrics.jsonl')}.")
    rows = [_speed(run) for run in files.runs.values() if run.lines("train")]
    if rows:
        head = ["run", "examples", "examples/s", "events/s", "MFU", "data wait", "training time"]
        caption = (
            "Median over log lines. MFU: FLOPs of the model on real lengths, over time and the measured peak."
        )
        section.table(head, rows, caption)
    return section


def _step_parts(run: RunFiles) -> list[tuple[str, float]]:
    """Seconds of the parts of all steps; what no part accounts for is shown too."""
    lines = run.lines("time")
    sums = {part: sum(finite(line.get(part)) or 0.0 for line in lines) for part in STEP_PARTS}
    parts = [(part, value) for part, value in sums.items() if value > 0]
    total = sum(finite(line.get("seconds")) or 0.0 for line in lines)
    rest = total - sum(value for _, value in parts)
    return [*parts, ("other", rest)] if parts and rest > 0.01 * total else parts


def _speed(run: RunFiles) -> list[Cell | str]:
    """One row of the table of speeds."""
    lines = run.lines("train")

    def middle(key: str) -> float | None:
        values = [value for line in lines if (value := finite(line.get(key))) is not None]
        return median(values) if values else None

    mfu, wait = middle("mfu"), middle("data_wait")
    return [
        look(run.name).label,
        count(lines[-1].get("examples")),
        count(middle("examples_per_second")),
        count(middle("events_per_second")),
        MISSING if mfu is None else f"{100 * mfu:.1f}%",
        MISSING if wait is None else f"{100 * wait:.1f}%",
        seconds(lines[-1].get("seconds")),
    ]


def rejected(files: ReportFiles) -> Section:
    """What became of the rows read: kept, quarantined by reason, left out; nothing goes unsaid."""
    section = Section(id="rejected", title="Rejected rows")
    rows = files.summary.get("rows", {})
    if not rows:
        section.note(f"summary.json does not say which rows were read ({_why(files, 'summary.json')}).")
        return section
    reasons, read = rows.get("quarantined") or {}, finite(rows.get("read"))
    passed = rows.get("by_table", {}).get("passed_over") or {}
    ends = {
        "kept": finite(rows.get("kept")) or 0.0,
        "quarantined": float(sum(reasons.values())),
        "exact copies, kept once": finite(rows.get("deduplicated")) or 0.0,
    }
    section.facts([("read", count(read)), *((name, count(value)) for name, value in ends.items())])
    if reasons:
        shares = [
            [reason, count(n), f"{100 * n / read:.2f}%" if read else MISSING]
            for reason, n in sorted(reasons.items(), key=lambda item: -item[1])
        ]
        section.table(["reason of quarantine", "rows", "of rows read"], shares)
    else:
        section.note("No row was quarantined.")
    for table, n in passed.items():
        if n:
            section.note(
                f"{count(n)} more rows of {table} were not read, because the schema's where leaves them out."
            )
    left = (read or 0.0) - sum(ends.values())
    if left:
        section.note(f"{count(left)} of the rows read are not accounted for.")
    return section


def example(files: ReportFiles) -> Section:
    """One request and its ads in the order of the ranker."""
    section = Section(id="example", title="One request, ranked")
    ads = files.ranked.get("ads", [])
    if not ads:
        section.note(f"ranked.json is {files.missing.get('ranked.json', 'without ads')}.")
        return section
    request = files.ranked.get("request", {})
    facts = [
        (_words(str(name)), str(value) if not isinstance(value, list | dict) else f"{len(value)} entries")
        for name, value in (request.items() if isinstance(request, dict) else [("request", request)])
    ]
    if facts:
        section.facts(facts)
    tasks = list(dict.fromkeys(task for ad in ads for task in ad["scores"]))
    rows = [
        [str(place), str(ad["ad"]), *(number(ad["scores"].get(task)) for task in tasks)]
        for place, ad in enumerate(ads[:20], start=1)
    ]
    section.table(["rank", "ad", *(f"p({task})" for task in tasks)], rows)
    if len(ads) > len(rows):
        section.note(f"{len(ads) - len(rows)} more ads were ranked.")
    return section


def repeat(files: ReportFiles) -> Section:
    """The commands that make this again."""
    section = Section(id="repeat", title="Commands to repeat this")
    commands = files.summary.get("commands") or []
    if not commands:
        commands = [_command(run.environment) for run in files.runs.values() if _command(run.environment)]
    if commands:
        section.code("\n".join(str(command) for command in commands))
    else:
        section.note("No command was written down.")
    return section


def _command(environment: dict[str, Any]) -> str:
    """The command line of an environment, as text."""
    command = environment.get("command", "")
    return " ".join(map(str, command)) if isinstance(command, list) else str(command)


def provenance(files: ReportFiles) -> Section:
    """Versions, schema and settings that the numbers come from."""
    section = Section(id="provenance", title="Provenance")
    schema = files.summary.get("schema", {})
    environment = files.summary.get("environment") or next(
        (run.environment for run in files.runs.values() if run.environment), {}
    )
    facts = [(f"schema {name}", str(value)) for name, value in schema.items()]
    facts += [("schema fingerprint", run.eval["schema_fingerprint"]) for run in files.runs.values()
              if not schema and run.eval.get("schema_fingerprint")][:1]  # fmt: skip
    for name, value in environment.items():
        if isinstance(value, dict):
            facts += [(f"{name} {key}", str(inner)) for key, inner in value.items() if inner is not None]
        elif value is not None:
            facts.append((_words(name), " ".join(map(str, value)) if isinstance(value, list) else str(value)))
    if facts:
        section.facts(facts)
    else:
        section.note("Neither summary.json nor environment.json says which versions ran.")
    for run in files.runs.values():
        if run.settings:
            section.code(run.settings, summary=f"Settings of {look(run.name).label} (run.toml)")
    if files.missing:
        rows = [[name, why] for name, why in files.missing.items()]
        section.table(["file not used", "why"], rows)
    if not files.is_run and files.manifest.get("splits"):
        section.code(json.dumps(files.manifest["splits"], indent=1), summary="Splits (dataset/manifest.json)")
    return section
