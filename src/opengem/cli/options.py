"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the result only.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run from its newest checkpoint.")]
RunDir = Annotated[
    Path | None, typer.Option("--run-dir", help="Folder of the run (default: runs/DATE_NAME_xxxxxx).")
]
Split = Annotated[str, typer.Option("--split", help="train, validation or test.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings over the file's: section.key=value.", metavar="[KEY=VALUE]..."),
]
