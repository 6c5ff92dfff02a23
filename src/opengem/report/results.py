"""Sections about how good the models are: verdicts, tables, surfaces, transfer, reliability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opengem.report import plots
from opengem.report.folder import BEST_POSSIBLE, ReportFiles
from opengem.report.numbers import MISSING, count, ends, finite, number, seconds, span
from opengem.report.parts import Cell, Section, Verdict
from opengem.report.plots import Point
from opengem.report.style import look

METRICS = (("ne", "NE", 4), ("auc", "AUC", 4), ("log_loss", "log loss", 4), ("calibration", "calibration", 3))
"""Key in the files, name shown, most decimals."""


def headline(files: ReportFiles) -> Section:
    """Say what was trained, on what, and what came of it."""
    from opengem.evaluation import (
        history_warnings,
        unseen_text,
    )  # numpy, which importing a report does not need

    section = Section(id="headline", title="In short")
    facts: list[tuple[str, str]] = []
    rows, schema = files.summary.get("rows", {}), files.summary.get("schema", {})
    if schema:
        facts.append(("schema", str(schema.get("name", ""))))
    if rows:
        rejected = sum(rows.get("quarantined", {}).values())
        facts += [("rows read", count(rows.get("read"))), ("rows kept", count(rows.get("kept")))]
        facts.append(("rows quarantined", count(rejected)))
    trained = [name for name in files.models if name != BEST_POSSIBLE]
    facts += [("tasks", ", ".join(files.tasks)), ("models", ", ".join(look(name).label for name in trained))]
    if "seconds" in files.summary:
        facts.append(("whole loop", seconds(sum(files.summary["seconds"].values()))))
    for run in files.runs.values():
        if files.is_run and run.eval:
            facts.append(
                (f"rows of the {run.eval.get('split') or 'evaluated'} split", count(run.eval.get("rows")))
            )
            facts.append(("users", count(run.eval.get("users"))))
    coverage = next((run.eval["coverage"] for run in files.runs.values() if run.eval.get("coverage")), {})
    facts.append(("ids that training did not see", unseen_text(coverage)))
    section.facts([(name, value) for name, value in facts if value])
    found = [verdict for task in files.tasks for verdict in verdicts(files, task)]
    found += [Verdict("bad", f"{text}.") for text in history_warnings(coverage)]
    if found:
        section.verdicts(found)
    else:
        where = "eval.json" if files.is_run else "summary.json"
        section.note(f"No verdict: {where} holds no metric ({files.missing.get(where, 'no model in it')}).")
    return section


def verdicts(files: ReportFiles, task: str) -> list[Verdict]:
    """Judge one task: teacher and student against what they should beat, and what was transferred."""
    found: list[Verdict] = []
    if files.is_run:
        (values,) = files.models.values()
        pair, value = ends(values[task].get("ne_interval")), finite(values[task].get("ne"))
        if value is not None:
            tone = "open" if pair is None or pair[0] <= 1 <= pair[1] else ("good" if pair[1] < 1 else "bad")
            text = f"{task}: NE {number(value, pair)} {span(pair)}; always predicting the base rate has NE 1."
            found.append(Verdict(tone, text))
        return found
    best = files.best_baseline(task)
    if "teacher" in files.models and best:
        found.append(_against(files, task, "teacher", best, f"the best baseline, {look(best).label}"))
    if "student" in files.models and "student_alone" in files.models:
        words = "the same student without the teacher"
        found.append(_against(files, task, "student", "student_alone", words))
    transfer = files.summary.get("transfer", {}).get(task, {})
    if finite(transfer.get("ratio")) is not None:
        pair = ends(transfer.get("ratio_interval"))
        tone = "open" if pair is None or pair[0] <= 0 <= pair[1] else ("good" if pair[0] > 0 else "bad")
        share = f"{number(transfer['ratio'], pair, most=2)} {span(pair, most=2)}"
        text = f"{task}: the student keeps {share} of the teacher's gain (transfer ratio)."
        found.append(Verdict(tone, text))
    gap = finite(files.summary.get("gap_closed", {}).get(task))
    if gap is not None:
        text = f"{task}: the teacher closes {100 * gap:.0f}% of the gap from best baseline to best possible."
        found.append(Verdict("good" if gap > 0 else "bad", text))
    return found


def _against(files: ReportFiles, task: str, a: str, b: str, words: str) -> Verdict:
    """Say in words whether A beats B, by the paired comparison where there is one."""
    comparison = files.comparison(a, b)
    change = _change(comparison, task) if comparison else None
    if change is None:
        values = [finite(files.models[name].get(task, {}).get("ne")) for name in (a, b)]
        if None in values:
            return Verdict("open", f"{task}: {a} against {words}: NE is not defined.")
        shown = " and ".join(number(value) for value in values)
        return Verdict("open", f"{task}: {a} against {words}: NE {shown}; no paired comparison was made.")
    pair = None if change.low is None or change.high is None else (change.low, change.high)
    shown = f"NE {number(change.value, pair, most=2, sign=True)}% {span(pair, most=2, sign=True)}"
    if pair is None or pair[0] <= 0 <= pair[1]:
        return Verdict("open", f"{task}: no difference shown between the {a} and {words}: {shown}.")
    if pair[1] < 0:
        return Verdict("good", f"{task}: the {a} beats {words}: {shown}.")
    return Verdict("bad", f"{task}: the {a} is worse than {words}: {shown}.")


def _change(comparison: Mapping[str, Any], task: str, surface: str | None = None) -> Point | None:
    """Relative change of NE in percent from a comparison, in total or on a surface."""
    found = comparison["tasks"].get(task)
    part = found and (found["total"] if surface is None else found["surfaces"].get(surface))
    return point(part["differences"]["ne_percent"]) if part else None


def point(found: Mapping[str, Any] | None) -> Point | None:
    """Read ``{"value", "low", "high"}``; None where the value does not exist."""
    value = finite((found or {}).get("value"))
    pair = ends(found) if found else None
    return None if value is None else Point(value, *(pair or (None, None)))


def models(files: ReportFiles) -> Section:
    """Table of models and tasks with intervals, and NE as a figure."""
    section = Section(id="models", title="Models and tasks")
    section.lead = (
        "Each value with its 95% interval from resampling users. NE is log loss over the entropy of the base rate: "
        "1 is always predicting the base rate, lower is better. Calibration is the sum of predictions over the sum "
        "of labels, ideally 1. The best value of the trained models is in bold."
    )
    if not files.tasks:
        where = "eval.json" if files.is_run else "summary.json"
        section.note(f"{where} names no model ({files.missing.get(where, 'empty')}).")
        return section
    drawn: dict[str, dict[str, Point]] = {}
    for task in files.tasks:
        of_task = {name: values[task] for name, values in files.models.items() if task in values}
        trained = {name: values for name, values in of_task.items() if name != BEST_POSSIBLE}
        best = {key: _best(trained, key) for key, _, _ in METRICS}
        rows = []
        for name, values in of_task.items():
            row: list[Cell | str] = [look(name).label]
            for key, _, most in METRICS:
                pair = values.get(f"{key}_interval")
                text, small = number(values.get(key), pair, most=most), span(pair, most=most)
                row.append(Cell(text, small, best[key] == name and len(trained) > 1))
            rows.append(row)
            ne = finite(values.get("ne"))
            if ne is not None:
                pair = ends(values.get("ne_interval"))
                drawn.setdefault(task, {})[name] = Point(ne, *(pair or (None, None)))
        section.table([task, *(title for _, title, _ in METRICS)], rows)
    if drawn and len(files.models) > 1:
        svg = plots.models_ne(drawn, "models")
        dashed = " Dashed: the best possible." if BEST_POSSIBLE in files.models else ""
        section.figure(svg, f"NE of each model with its 95% interval.{dashed}")
    return section


def _best(values: Mapping[str, Mapping[str, Any]], key: str) -> str | None:
    """Name of the model with the best value of a metric."""
    better = {"auc": lambda v: -v, "calibration": lambda v: abs(v - 1)}.get(key, lambda v: v)
    known = {name: finite(of_model.get(key)) for name, of_model in values.items()}
    scored = {name: better(value) for name, value in known.items() if value is not None}
    return min(scored, key=scored.__getitem__) if scored else None


def relative(files: ReportFiles) -> Section:
    """Relative NE by paired comparison: in total, and per surface against the best baseline."""
    section = Section(id="relative", title="Relative NE by paired comparison")
    section.lead = (
        "Both models are scored on the same examples and resampled over the same users, so the intervals are much "
        "narrower than those of each model alone. Below zero the first model is better; grey means that the interval "
        "holds zero. Each surface is judged alone; among many, some differ by chance."
    )
    if not files.comparisons:
        section.note(f"comparisons.json is not used: {files.missing.get('comparisons.json', 'it is empty')}.")
        return section
    totals: dict[str, list[tuple[str, Point]]] = {}
    surfaces: dict[str, list[tuple[str, Point]]] = {}
    for task in files.tasks or list(files.comparisons[0]["tasks"]):
        for comparison in files.comparisons:
            change = _change(comparison, task)
            if change is not None:
                row = f"{look(comparison['a']).label} vs {look(comparison['b']).label}"
                totals.setdefault(task, []).append((row, change))
        best = files.comparison("teacher", files.best_baseline(task) or "")
        if best and task in best["tasks"]:
            changes = {name: _change(best, task, name) for name in best["tasks"][task]["surfaces"]}
            known = [(name, change) for name, change in changes.items() if change is not None]
            surfaces[task] = sorted(known, key=lambda row: row[1].value)
    if totals:
        section.table(*_pairs(files, list(totals)))
        svg = plots.changes(totals, "relative", "change of NE (%)", "Relative change of NE by pair of models")
        section.figure(svg, "Relative change of NE on all rows, with 95% intervals.")
    if any(surfaces.values()):
        named = ", ".join(f"{look(files.best_baseline(task) or '').label} on {task}" for task in surfaces)
        svg = plots.changes(
            surfaces, "relative-surface", "change of NE (%)", "Relative change of NE per surface"
        )
        section.figure(svg, f"Teacher against the best baseline ({named}) per surface, with 95% intervals.")
    return section


def _pairs(files: ReportFiles, tasks: list[str]) -> tuple[list[str], list[list[Cell | str]]]:
    """Head and rows of the table of comparisons: change of NE in percent and difference of AUC."""
    rows: list[list[Cell | str]] = []
    for comparison in files.comparisons:
        row: list[Cell | str] = [f"{look(comparison['a']).label} vs {look(comparison['b']).label}"]
        for task in tasks:
            differences = comparison["tasks"].get(task, {}).get("total", {}).get("differences", {})
            for key, most, unit in (("ne_percent", 2, "%"), ("auc", 4, "")):
                found = differences.get(key, {})
                text = number(found.get("value"), found, most=most, sign=True)
                row.append(Cell(text + unit if text != MISSING else text, span(found, most=most, sign=True)))
        rows.append(row)
    return ["A vs B", *(f"{task}: {name}" for task in tasks for name in ("NE", "AUC"))], rows


def per_surface(files: ReportFiles) -> Section:
    """NE and calibration per surface with intervals, from the runs' ``eval.json``."""
    section = Section(id="surfaces", title="Surfaces")
    shown = [name for name in ("teacher", "student") if files.runs.get(name) and files.runs[name].eval]
    best = next((files.best_baseline(task) for task in files.tasks), None)
    if best and files.runs.get(best) and files.runs[best].eval:
        shown.append(best)
    shown = shown or [name for name, run in files.runs.items() if run.eval][:3]
    if not shown:
        section.note(f"No eval.json is there to draw from ({'; '.join(_about(files, 'eval.json'))}).")
        return section
    reasons: list[str] = []
    for place, task in enumerate(files.runs[shown[0]].eval["tasks"]):
        values: dict[str, dict[str, tuple[Point | None, Point | None]]] = {}
        for name in shown:
            surfaces = files.runs[name].eval["tasks"].get(task, {}).get("surfaces", {})
            ordered = sorted(surfaces, key=lambda surface: -surfaces[surface]["rows"])
            values[name] = {
                f"{surface} ({count(surfaces[surface]['rows'])})": (
                    point(surfaces[surface]["metrics"]["ne"]),
                    point(surfaces[surface]["metrics"]["calibration"]),
                )
                for surface in ordered
            }
            for surface in ordered:
                why = surfaces[surface].get("undefined", {}).get("ne")
                reasons += [f"{task} on {surface}: {why}"] if why else []
        if any(values.values()):
            svg = plots.surfaces(values, task, f"surface-{place}")
            section.figure(svg, f"{task}: NE and calibration per surface (rows in brackets), 95% intervals.")
    for reason in dict.fromkeys(reasons):
        section.note(f"NE is not defined for {reason}.")
    return section


def transfer(files: ReportFiles) -> Section:
    """Teacher, student, student alone and best baseline side by side, with the transfer ratio."""
    section = Section(id="transfer", title="From teacher to student")
    section.lead = (
        "The transfer ratio is the NE that the student gains over itself without the teacher, over the NE that the "
        "teacher gains over that same student: 0 means nothing was carried over, 1 means all of it. Gap closed is "
        "how far the teacher goes from the best baseline to the best possible."
    )
    given, gaps = files.summary.get("transfer", {}), files.summary.get("gap_closed", {})
    if not given:
        section.note("summary.json holds no transfer ratio.")
    rows = []
    for task in files.tasks:
        best = files.best_baseline(task)
        names = ["teacher", "student", "student_alone", *([best] if best else []), BEST_POSSIBLE]
        row: list[Cell | str] = [task]
        for name in names:
            values = files.models.get(name, {}).get(task, {})
            pair = values.get("ne_interval")
            label = look(best).label if best and name == best else ""
            row.append(Cell(number(values.get("ne"), pair), label or span(pair)))
        if not best:
            row.insert(4, "–")
        pair = given.get(task, {}).get("ratio_interval")
        row.append(Cell(number(given.get(task, {}).get("ratio"), pair, most=2), span(pair, most=2)))
        gap = finite(gaps.get(task))
        row.append("–" if gap is None else f"{100 * gap:.0f}%")
        rows.append(row)
    head = ["NE", "teacher", "student", "student alone", "best baseline", "best possible"]
    if rows:
        section.table([*head, "transfer ratio", "gap closed"], rows)
    if rows and not gaps:
        section.note("Gap closed needs the best possible NE, known only where the data are synthetic.")
    return section


def reliability(files: ReportFiles) -> Section:
    """Observed rate against mean prediction by decile."""
    section = Section(id="reliability", title="Reliability")
    shown = [name for name in ("teacher", "student") if files.runs.get(name) and files.runs[name].eval]
    shown = shown or [name for name, run in files.runs.items() if run.eval][:2]
    values: dict[str, dict[str, Any]] = {}
    for name in shown:
        for task, found in files.runs[name].eval["tasks"].items():
            if found["total"]["reliability"]:
                values.setdefault(task, {})[name] = found["total"]["reliability"]
    if not values:
        section.note(f"No deciles to draw ({'; '.join(_about(files, 'eval.json'))}).")
        return section
    bins = [part for of_task in values.values() for of_model in of_task.values() for part in of_model]
    typical = sorted(part["count"] for part in bins)[len(bins) // 2]
    section.figure(
        plots.reliability(values, "reliability"),
        f"Deciles of the prediction, about {count(typical)} rows a point; on the line, predictions come true. "
        "Bars are 95% Wilson intervals that take rows as independent, so they are somewhat too short.",
    )
    return section


def _about(files: ReportFiles, ending: str) -> list[str]:
    """What is known to be wrong with files of one name."""
    return [f"{name}: {why}" for name, why in files.missing.items() if name.endswith(ending)] or [
        "no run is there"
    ]
