"""`opengem train`: train a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Overrides, Quiet, Resume, RunDir

if TYPE_CHECKING:
    from opengem.training.run import TrainRun

NAME = "train"


def command(
    run: Annotated[Path, typer.Argument(help="Run file (TOML), or the folder of a run to continue.")],
    overrides: Overrides = None,
    run_dir: RunDir = None,
    resume: Resume = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model: a teacher, a student alone, or a baseline.

    Examples:
        opengem train recipes/teacher.toml data=dataset
        opengem train runs/2026-12-01_gem_a1b2c3 --resume
    """
    from opengem.training.run import TrainRun
    from opengem.training.trainer import train

    made, run_dir = read_run(run, overrides, run_dir, resume)
    console = Console(as_json, quiet)
    if type(made) is not TrainRun:  # a student's run is one with a teacher
        from opengem.cli.transfer import run_distill

        run_distill(made, run_dir, resume, console)
        return
    with console.progress(made.name or made.model.type) as bar:
        result = train(made, run_dir, resume=resume, observer=console.training(bar))
    show_trained(console, result)


def read_run(
    run: Path, overrides: list[str] | None, run_dir: Path | None, resume: bool, taught: bool = False
) -> tuple["TrainRun", Path | None]:
    """Return the settings of a run file or run folder with overrides laid over, and the run's folder.

    Args:
        run: Run file, folder of a run, or `last`.
        overrides: Settings of the command line.
        run_dir: Folder that was asked for.
        resume: Whether a run in a folder may be continued.
        taught: Whether the run must be one of a student; else it is where the settings hold `transfer`.
    """
    import opengem.models  # noqa: F401 - registers the model types
    from opengem.config import build, load_toml, located, merge, parse_overrides
    from opengem.errors import ConfigError
    from opengem.training.run import TrainRun

    if run.is_dir() or str(run) == "last":
        from opengem.training.run_folder import RunFolder

        folder = RunFolder.open(run)
        if not resume:
            raise ConfigError(f"{run} holds a run already: continue it with --resume, or name a run file")
        run, run_dir = folder.run_file, run_dir or folder.path
    settings = merge(load_toml(run), parse_overrides(overrides or []))
    with located(run, overrides or []):
        if not (taught or "transfer" in settings):
            return build(TrainRun, settings), run_dir
        from opengem.transfer.distill import DistillRun

        return build(DistillRun, settings), run_dir


def show_trained(console: Console, result) -> None:
    """Print what a training run gave."""
    console.result(
        {
            "folder": result.folder,
            "steps": result.steps,
            "seconds": result.seconds,
            "resumed_from": result.resumed_from,
        },
        f"trained {result.steps:,} steps in {result.seconds:,.0f} s; wrote {result.folder}",
        f"next: opengem evaluate {result.folder}",
    )
