"""`opengem data`: what is done with a data set itself."""

from pathlib import Path
from typing import Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet


def compact_command(
    data: Annotated[Path, typer.Argument(help="Folder of a data set.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Join the segments that appended days left into one. The logs are not read again, and no answer changes.

    Examples:
        opengem data compact dataset
        opengem data compact dataset --json
    """
    from opengem.data.compaction import compact

    console = Console(as_json, quiet)
    with console.progress("compact") as bar:
        segments = compact(data, progress=console.stage(bar))
    line = (
        f"joined {segments} segments of {data}" if segments > 1 else f"{data} has one segment, nothing to do"
    )
    console.result({"folder": data, "segments": segments}, line)
