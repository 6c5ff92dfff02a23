"""The loop: each stage is the same call as its verb, and a stage that is done is not done again."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from opengem.data import ingest
from opengem.data.synth import SynthConfig, synth
from opengem.errors import ConfigError
from opengem.loop.settings import BASELINES, ModelSettings, QuickstartSettings, load_settings
from opengem.loop.summary import write_summary
from opengem.report import write_report
from opengem.schema import load_schema
from opengem.serving.export_run import export_run
from opengem.serving.rank_stored import rank_stored
from opengem.training.evaluate import compare_runs, evaluate
from opengem.training.run import TrainRun
from opengem.training.run_folder import write_atomically
from opengem.training.trainer import train
from opengem.transfer.distill import DistillRun, TransferConfig, distill
from opengem.transfer.labelling import label

MODELS = ("teacher", *BASELINES, "student", "student_alone")


class Screen(Protocol):
    """Where the loop shows how far it is."""

    def say(self, text: str) -> None:
        """Print a line."""

    def progress(self, label: str) -> AbstractContextManager[Any]:
        """Show a bar."""
        ...

    def stage(self, bar: Any) -> Callable[..., None]:
        """Return a callback `(stage, done, total)`."""
        ...

    def training(self, bar: Any) -> Callable[[dict[str, Any]], None]:
        """Return an observer of a training run."""
        ...


@dataclass(frozen=True, kw_only=True)
class QuickstartResult:
    """Where the quickstart left its results."""

    folder: Path
    summary: dict[str, Any]
    report: Path


def quickstart(
    out: Path,
    screen: Screen,
    *,
    schema: Path | None = None,
    root: Path | None = None,
    settings: QuickstartSettings | None = None,
    world: SynthConfig | None = None,
) -> QuickstartResult:
    """Run the whole loop; what `opengem quickstart` calls.

    Args:
        out: Folder of everything it makes. Called again on the same folder it goes on where it stopped.
        screen: Where it shows how far it is.
        schema: Schema file of real logs; a synthetic world is made if not given.
        root: Folder that the schema's paths are relative to.
        settings: Models and training; those beside the schema file, or the defaults, if not given.
        world: Size of the synthetic world.
    """
    loop = Loop(out, screen, settings or load_settings(schema))
    world_folder = None if schema else out / "world"
    if schema is None and world_folder is not None:
        schema = world_folder / "schema.toml"
        command = f"opengem synth {world_folder} --users {(world or SynthConfig()).users}"
        loop.synth(world or SynthConfig(), world_folder, command)
    assert schema is not None
    loop.ingest(schema, root)
    loop.train("teacher", loop.settings.teacher)
    for name in BASELINES:
        loop.train(name, getattr(loop.settings, name))
    loop.label()
    loop.train("student_alone", loop.settings.student)
    loop.train("student", loop.settings.student, taught=True)
    loop.evaluate()
    loop.export_and_rank(schema, root)
    summary = write_summary(out, world_folder, loop.seconds, loop.commands, loop.settings)
    began = time.perf_counter()
    write_report(out)
    loop.done("report", f"opengem report {out}", time.perf_counter() - began)
    summary = write_summary(out, world_folder, loop.seconds, loop.commands, loop.settings, summary)
    return QuickstartResult(folder=out, summary=summary, report=out / "report.html")


class Loop:
    """The stages, what they took, and the plain command of each.

    Args:
        out: Folder of everything.
        screen: Where progress is shown.
        settings: Models and training.
    """

    def __init__(self, out: Path, screen: Screen, settings: QuickstartSettings) -> None:
        self.out, self.screen, self.settings = out, screen, settings
        self.data, self.runs = out / "dataset", out / "runs"
        self.labels = out / "labels.parquet"
        out.mkdir(parents=True, exist_ok=True)
        self.stages_file = out / "stages.json"
        stages = json.loads(self.stages_file.read_text()) if self.stages_file.exists() else {}
        self.seconds: dict[str, float] = {k: v["seconds"] for k, v in stages.items()}
        self.commands: dict[str, str] = {k: v["command"] for k, v in stages.items()}

    def done(self, name: str, command: str, seconds: float) -> None:
        """Note that a stage is done, and what it took."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.commands[name] = command
        stages = {k: {"seconds": v, "command": self.commands[k]} for k, v in self.seconds.items()}
        write_atomically(self.stages_file, json.dumps(stages, indent=1).encode())
        self.screen.say(f"{name}: {seconds:,.1f} s")

    def stage(self, name: str, command: str, work: Callable[[Callable[..., None]], Any]) -> None:
        """Do a stage unless it is done."""
        if name in self.seconds:
            self.screen.say(f"{name}: done already")
            return
        began = time.perf_counter()
        with self.screen.progress(name) as bar:
            work(self.screen.stage(bar))
        self.done(name, command, time.perf_counter() - began)

    def synth(self, world: SynthConfig, folder: Path, command: str) -> None:
        """Make the synthetic world; its folder is there as a whole or not at all."""

        def work(report: Callable[..., None]) -> None:
            if not folder.exists():
                synth(world, folder, lambda done, total: report("users", done, total))

        self.stage("synth", command, work)

    def ingest(self, schema: Path, root: Path | None) -> None:
        """Ingest the logs; on unchanged input nothing happens."""
        began = time.perf_counter()
        with self.screen.progress("ingest") as bar:
            made = ingest(load_schema(schema, root), self.data, progress=self.screen.stage(bar))
        if made.fresh or "ingest" not in self.seconds:
            if len(self.seconds) > 1:
                raise ConfigError(
                    f"{self.out} must hold results of the same logs. Received: logs that changed. Name another --out"
                )
            command = f"opengem ingest {schema} --out {self.data}" + (f" --root {root}" if root else "")
            self.done("ingest", command, time.perf_counter() - began)
        else:
            self.screen.say("ingest: logs unchanged, done already")

    def train(self, name: str, settings: ModelSettings, taught: bool = False) -> None:
        """Train one model, or go on with it."""
        folder = self.runs / name
        common: dict[str, Any] = {
            "data": str(self.data),
            "model": settings.model,
            "training": settings.training,
            "name": name,
            "seed": self.settings.seed,
        }
        command = (
            f"opengem {'transfer distill' if taught else 'train'} {folder / 'run.toml'} --run-dir NEW_FOLDER"
        )
        if name in self.seconds:
            self.screen.say(f"{name}: done already")
            return
        began = time.perf_counter()
        with self.screen.progress(name) as bar:
            observer = self.screen.training(bar)
            if taught:
                transfer = TransferConfig(labels=str(self.labels), method=self.settings.transfer)
                distill(DistillRun(**common, transfer=transfer), folder, resume=True, observer=observer)
            else:
                train(TrainRun(**common), folder, resume=True, observer=observer)
        self.done(name, command, time.perf_counter() - began)

    def label(self) -> None:
        """Make the label store for what the student trains on."""
        splits = self.settings.student.training.splits
        teacher = self.runs / "teacher"
        command = f"opengem transfer label {teacher} --out {self.labels} --splits {','.join(splits)}"
        self.stage(
            "label",
            command,
            lambda report: label(
                teacher, self.labels, splits=splits, progress=lambda done, total: report("label", done, total)
            ),
        )

    def evaluate(self) -> None:
        """Evaluate every model on the test split, and compare those that the report compares."""

        def work(report: Callable[..., None]) -> None:
            for number, name in enumerate(MODELS):
                report(name, number, len(MODELS))
                evaluate(self.runs / name, replicates=self.settings.replicates)
            pairs = [("teacher", name) for name in BASELINES] + [("student", "student_alone")]
            found = [
                compare_runs(self.runs / a, self.runs / b, replicates=self.settings.replicates).to_dict()
                for a, b in pairs
            ]
            write_atomically(self.out / "comparisons.json", json.dumps(found, indent=1).encode())

        self.stage("evaluate", f"opengem evaluate {self.runs / 'teacher'}", work)

    def export_and_rank(self, schema: Path, root: Path | None) -> None:
        """Export the student, and rank the ads of a stored request with the package."""
        package, student = self.out / "package", self.runs / "student"
        self.stage(
            "export", f"opengem export {student} --out {package}", lambda report: export_run(student, package)
        )

        def work(report: Callable[..., None]) -> None:
            ranked = rank_stored(package, self.data, load_schema(schema, root))
            write_atomically(self.out / "ranked.json", json.dumps(ranked, indent=1).encode())

        self.stage("rank", f"opengem serve {package}", work)
