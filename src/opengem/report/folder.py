"""The files that a report is drawn from; what is missing or broken is said, and nothing stops."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opengem.errors import DataError

TRAINED = ("teacher", "student", "student_alone", "din", "dcnv2", "dlrm", "logistic_regression")
"""Models in the order of every table and figure; others follow by name."""

BASELINES = ("din", "dcnv2", "dlrm", "logistic_regression")
"""Models that the teacher is held against."""

BEST_POSSIBLE = "best_possible"
"""The true probability, known in a synthetic world only."""


@dataclass(kw_only=True)
class RunFiles:
    """What one run folder holds; empty where a file is missing.

    Attributes:
        name: name of the folder.
        settings: ``run.toml`` as text.
        environment: ``environment.json``.
        metrics: lines of ``metrics.jsonl``.
        eval: ``eval.json``.
    """

    name: str
    settings: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    eval: dict[str, Any] = field(default_factory=dict)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Give the lines of the metrics of one kind, in order."""
        return [line for line in self.metrics if line.get("kind") == kind]


@dataclass(kw_only=True)
class ReportFiles:
    """All that a page is drawn from.

    Attributes:
        name: name of the folder.
        is_run: True for the folder of a single run.
        summary: ``summary.json``; for a single run, its totals in the same form.
        runs: run name to files, in the order of ``TRAINED``.
        manifest: ``dataset/manifest.json``.
        ranked: ``ranked.json``.
        comparisons: ``comparisons.json``.
        missing: file to the reason why it is not used.
    """

    name: str
    is_run: bool
    summary: dict[str, Any] = field(default_factory=dict)
    runs: dict[str, RunFiles] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    ranked: dict[str, Any] = field(default_factory=dict)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def models(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Model to task to values, in the order of ``TRAINED``, the best possible last."""
        found = self.summary.get("models", {})
        return {name: found[name] for name in in_order(found)}

    @property
    def tasks(self) -> list[str]:
        """Tasks of all models, in the order of their first mention."""
        return list(dict.fromkeys(task for values in self.models.values() for task in values))

    def comparison(self, a: str, b: str) -> dict[str, Any] | None:
        """Give the comparison of two models, or None where it was not made."""
        return next((c for c in self.comparisons if (c.get("a"), c.get("b")) == (a, b)), None)

    def best_baseline(self, task: str) -> str | None:
        """Name the baseline with the lowest NE on the task, or None without a baseline."""
        ne = {name: self.models[name].get(task, {}).get("ne") for name in BASELINES if name in self.models}
        known = {name: value for name, value in ne.items() if value is not None}
        return min(known, key=known.__getitem__) if known else None


def in_order(names: Any) -> list[str]:
    """Sort model names: those of ``TRAINED`` first, then others by name, the best possible last."""
    known = {name: place for place, name in enumerate(TRAINED)}
    return sorted(names, key=lambda name: (name == BEST_POSSIBLE, known.get(name, len(known)), name))


def read_report_files(folder: Path) -> ReportFiles:
    """Read a quickstart folder, or the folder of a single run.

    Args:
        folder: a folder with ``summary.json`` or ``runs/``, or one with ``run.toml``, ``eval.json`` or
            ``metrics.jsonl``.

    Returns:
        The files; those that are missing or broken are named in ``missing``.

    Raises:
        DataError: the folder holds none of these.
    """
    folder = Path(folder)
    name = folder.resolve().name
    missing: dict[str, str] = {}
    if (folder / "summary.json").exists() or (folder / "runs").is_dir():
        places = {path.name: path for path in sorted((folder / "runs").glob("*")) if path.is_dir()}
        runs = {run: _read_run(places[run], f"runs/{run}/", missing) for run in in_order(places)}
        if not runs:
            missing["runs/"] = "not there"
        comparisons = _read_json(folder / "comparisons.json", "comparisons.json", missing, list)
        return ReportFiles(
            name=name,
            is_run=False,
            summary=_read_json(folder / "summary.json", "summary.json", missing, dict),
            runs=runs,
            manifest=_read_json(folder / "dataset" / "manifest.json", "dataset/manifest.json", missing, dict),
            ranked=_read_json(folder / "ranked.json", "ranked.json", missing, dict),
            comparisons=[part for part in comparisons if isinstance(part, dict)],
            missing=missing,
        )
    if any((folder / file).exists() for file in ("run.toml", "eval.json", "metrics.jsonl")):
        run = _read_run(folder, "", missing)
        summary = {"models": {name: _totals(run.eval, missing)}} if run.eval else {}
        return ReportFiles(name=name, is_run=True, summary=summary, runs={name: run}, missing=missing)
    raise DataError(
        f"a report is drawn from a quickstart folder (summary.json, runs/) or a run folder (run.toml, eval.json, "
        f"metrics.jsonl). Received {folder}, which holds none of them."
    )


def _read_run(place: Path, prefix: str, missing: dict[str, str]) -> RunFiles:
    """Read the files of one run."""
    settings = ""
    try:
        settings = (place / "run.toml").read_text(encoding="utf-8")
        tomllib.loads(settings)
    except FileNotFoundError:
        missing[f"{prefix}run.toml"] = "not there"
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        missing[f"{prefix}run.toml"] = f"cannot be read: {error}"
    return RunFiles(
        name=place.name,
        settings=settings,
        environment=_read_json(place / "environment.json", f"{prefix}environment.json", missing, dict),
        metrics=_read_lines(place / "metrics.jsonl", f"{prefix}metrics.jsonl", missing),
        eval=_read_json(place / "eval.json", f"{prefix}eval.json", missing, dict),
    )


def _read_json(path: Path, name: str, missing: dict[str, str], kind: type) -> Any:
    """Read a JSON file of one kind; empty, and a reason in ``missing``, where that fails."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        missing[name] = "not there"
    except (OSError, ValueError) as error:
        missing[name] = f"cannot be read: {error}"
    else:
        if isinstance(found, kind):
            return found
        missing[name] = f"holds a {type(found).__name__}, not a {kind.__name__}"
    return kind()


def _read_lines(path: Path, name: str, missing: dict[str, str]) -> list[dict[str, Any]]:
    """Read JSON lines; a line that is cut off is left out and said."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        missing[name] = "not there"
        return []
    except (OSError, UnicodeDecodeError) as error:
        missing[name] = f"cannot be read: {error}"
        return []
    found, broken = [], 0
    for line in lines:
        try:
            made = json.loads(line)
        except ValueError:
            made = None
        if isinstance(made, dict):
            found.append(made)
        else:
            broken += 1
    if broken:
        missing[name] = f"{broken} of {len(lines)} lines cannot be read"
    return found


def _totals(found: dict[str, Any], missing: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Give the totals of an ``eval.json`` in the form of ``summary.json``."""
    made: dict[str, dict[str, Any]] = {}
    try:
        for task, parts in found["tasks"].items():
            made[task] = {}
            for name, value in parts["total"]["metrics"].items():
                made[task] |= {name: value["value"], f"{name}_interval": [value["low"], value["high"]]}
    except (KeyError, TypeError, AttributeError) as error:
        missing["eval.json"] = f"does not have the expected form ({type(error).__name__}: {error})"
        return {}
    return made
