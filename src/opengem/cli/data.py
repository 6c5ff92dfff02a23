"""`opengem data`: what is done with logs before they are ingested, and with a data set itself."""

from pathlib import Path
from typing import Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet


def check_command(
    schema: Annotated[Path, typer.Argument(help="Schema file of the logs (TOML).")],
    root: Annotated[Path | None, typer.Option(help="Folder that the schema's paths are relative to.")] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(help="A column known before the example though it looks like a leak; may be repeated."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Threads (default: all cores).")] = None,
    memory: Annotated[
        str, typer.Option(help="Memory that sorting and joining may take before it spills to disk.")
    ] = "2GB",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read logs, build nothing, and report keys that do not join, doubles, times, drift, and leaks of the label.

    Leaves with 1 where something is wrong, such as a feature that is known only after the example.

    Examples:
        opengem data check schema.toml
        opengem data check schema.toml --known last_score --json
    """
    from opengem.data.checking.run import check_data
    from opengem.errors import CheckFailed
    from opengem.schema import load_schema

    console = Console(as_json, quiet)
    with console.progress("check") as bar:
        check = check_data(
            load_schema(schema, root),
            known=known or (),
            workers=workers,
            memory_limit=memory,
            progress=console.stage(bar),
        )
    console.result(check.to_dict(), *check.lines())
    if not check.ok:
        wrong = dict.fromkeys(f.where for f in check.of("error"))
        raise CheckFailed(f"the logs must be good to build on. Not so: {', '.join(wrong)}")


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
