"""`opengem train`: train a model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Overrides, Quiet, Resume, RunDir

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
        opengem train recipes/gem_tiny.toml data=dataset
        opengem train runs/2026-12-01_gem_a1b2c3 --resume
    """
    from opengem.config import build
    from opengem.training.run import TrainRun
    from opengem.training.trainer import train

    settings, run_dir = read_settings(run, overrides, run_dir, resume)
    if "transfer" in settings:
        from opengem.cli.transfer import run_distill

        run_distill(settings, run_dir, resume, Console(as_json, quiet))
        return
    made = build(TrainRun, settings)
    console = Console(as_json, quiet)
    with console.progress(made.name or made.model.type) as bar:
        result = train(made, run_dir, resume=resume, observer=console.training(bar))
    show_trained(console, result)


def read_settings(
    run: Path, overrides: list[str] | None, run_dir: Path | None, resume: bool
) -> tuple[dict[str, Any], Path | None]:
    """Return the settings of a run file or run folder with overrides laid over, and the run's folder."""
    import opengem.models
    from opengem.config import load_toml, merge, parse_overrides
    from opengem.errors import ConfigError

    del opengem.models  # imported for the model types that it registers
    if run.is_dir() or str(run) == "last":
        from opengem.training.run_folder import RunFolder

        folder = RunFolder.open(run)
        if not resume:
            raise ConfigError(f"{run} holds a run already: continue it with --resume, or name a run file")
        run, run_dir = folder.run_file, run_dir or folder.path
    return merge(load_toml(run), parse_overrides(overrides or [])), run_dir


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
