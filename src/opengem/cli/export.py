"""`opengem export`: a package to serve."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet

NAME = "export"


class Form(enum.Enum):
    """Formats of a package."""

    pt2 = "pt2"
    aoti = "aoti"


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run, or last.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the package.")] = Path("package"),
    data: Annotated[Path | None, typer.Option(help="Data set (default: the run's own).")] = None,
    form: Annotated[
        Form, typer.Option("--format", help="pt2 (torch.export), or aoti (compiled).")
    ] = Form.pt2,
    force: Annotated[bool, typer.Option(help="Export a teacher all the same.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a package and check that it scores stored examples as the trained model does.

    Examples:
        opengem export runs/student --out package
        opengem export runs/student --format aoti --out package-compiled
    """
    from opengem.serving.export_run import export_run

    console = Console(as_json, quiet)
    package = export_run(run, out, data, format=form.value, force=force)
    console.result(
        {"package": out, **package.facts},
        f"wrote {out}; largest difference to the trained model {package.facts['parity']['largest_difference']:.2g}",
        f"next: opengem serve {out}",
    )
