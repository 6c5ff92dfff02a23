"""`opengem report`: one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet

NAME = "report"


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of a quickstart, or of a run.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write (default: report.html in the folder).")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw the report: one self-contained HTML page, only from files in the folder.

    Examples:
        opengem report runs/demo
        opengem report runs/teacher --out teacher.html
    """
    from opengem.report import write_report

    console = Console(as_json, quiet)
    path = write_report(folder, out)
    console.result({"path": path}, f"wrote {path}")
