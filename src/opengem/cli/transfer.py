"""`opengem transfer`: from a teacher to its students."""

from pathlib import Path
from typing import Annotated, Any

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Overrides, Quiet, Resume, RunDir


def label_command(
    teacher: Annotated[Path, typer.Argument(help="Folder of the teacher's run.")],
    out: Annotated[Path, typer.Option("--out", help="Parquet file of the label store.")] = Path(
        "labels.parquet"
    ),
    data: Annotated[Path | None, typer.Option(help="Data set (default: the teacher's own).")] = None,
    splits: Annotated[str, typer.Option(help="Splits to label, by commas.")] = "train,validation",
    embeddings: Annotated[bool, typer.Option(help="Store the teacher's embeddings too.")] = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score examples with a teacher, once for all students.

    Examples:
        opengem transfer label runs/teacher --out labels.parquet
        opengem transfer label last --splits train --no-embeddings
    """
    from opengem.transfer.labelling import label

    console = Console(as_json, quiet)
    chosen = tuple(s.strip() for s in splits.split(",") if s.strip())
    with console.progress("label") as bar:
        store = label(teacher, out, data, splits=chosen, embeddings=embeddings, progress=bar)
    console.result(
        {"path": store.path, "teacher": store.teacher, "rows": store.rows, "tasks": store.tasks},
        f"wrote {store.path}: {store.rows:,} examples labelled by {store.teacher}",
        f"next: opengem transfer distill RUN.toml transfer.labels={store.path}",
    )


def distill_command(
    run: Annotated[
        Path, typer.Argument(help="Run file (TOML) with a [transfer] table, or a run to continue.")
    ],
    overrides: Overrides = None,
    run_dir: RunDir = None,
    resume: Resume = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a student on the true labels and a teacher's.

    Examples:
        opengem transfer distill recipes/student.toml data=dataset transfer.labels=labels.parquet
        opengem transfer distill recipes/student.toml transfer.method.type=adapter
    """
    from opengem.cli.train import read_run

    made, run_dir = read_run(run, overrides, run_dir, resume, taught=True)
    run_distill(made, run_dir, resume, Console(as_json, quiet))


def run_distill(made: Any, run_dir: Path | None, resume: bool, console: Console) -> None:
    """Train the student of a `DistillRun`."""
    from opengem.cli.train import show_trained
    from opengem.transfer.distill import distill

    with console.progress(made.name or made.model.type) as bar:
        result = distill(made, run_dir, resume=resume, observer=console.training(bar))
    show_trained(console, result)
