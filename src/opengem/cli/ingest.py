"""`opengem ingest`: from logs to a data set."""

from pathlib import Path
from typing import Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet

NAME = "ingest"


def command(
    schema: Annotated[Path, typer.Argument(help="Schema file of the logs (TOML).")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the data set.")] = Path("dataset"),
    root: Annotated[Path | None, typer.Option(help="Folder that the schema's paths are relative to.")] = None,
    workers: Annotated[int | None, typer.Option(help="Threads and processes (default: all cores).")] = None,
    memory: Annotated[
        str, typer.Option(help="Memory that sorting and joining may take before it spills to disk.")
    ] = "2GB",
    temporary_folder: Annotated[
        Path | None, typer.Option(help="Where to spill (default: beside the data set).")
    ] = None,
    temporary_limit: Annotated[
        str | None,
        typer.Option(help="Most that may be spilled, such as 50GB (default: what the disk holds)."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read logs into point-in-time examples and a sequence store.

    The same input a second time does nothing; new files of later days are appended.

    Examples:
        opengem ingest world/schema.toml --out dataset
        opengem ingest schema.toml --root s3-mirror/ --out dataset --memory 8GB
    """
    from opengem.data import ingest
    from opengem.data.storage import times_smaller
    from opengem.schema import load_schema

    console = Console(as_json, quiet)
    with console.progress("ingest") as bar:
        result = ingest(
            load_schema(schema, root),
            out,
            workers=workers,
            memory_limit=memory,
            temporary_folder=temporary_folder,
            temporary_limit=temporary_limit,
            progress=console.stage(bar),
        )
    counts, rows = result.manifest["counts"], result.manifest["rows"]
    done = f"appended {len(result.appended)} files to" if result.appended else "wrote"
    lines = [f"made anew, because {result.why}"] if result.why else []
    lines += [
        f"{done if result.fresh else 'unchanged, nothing to do:'} {out}: {counts['examples']:,} examples in "
        f"{counts['requests']:,} requests, events: "
        + ", ".join(f"{k} {v:,}" for k, v in counts["events"].items())
    ]
    stored = result.manifest["storage"]
    lines.append(
        f"storage: {stored['bytes_per_event']:,.1f} bytes an event, {stored['bytes_per_example']:,.1f} an example "
        f"beside its history; {times_smaller(stored):,.1f} times smaller than with histories copied into examples"
    )
    if rows.get("deduplicated"):
        lines.append(f"dropped as exact duplicates: {rows['deduplicated']:,} rows")
    for reason, count in rows["quarantined"].items():
        lines.append(f"quarantined: {count:,} rows, {reason} (quarantine.parquet in {out} and its segments)")
    lines.append(f"next: opengem train RUN.toml data={out}")
    did = {"fresh": result.fresh, "appended": result.appended, "why": result.why}
    console.result({"folder": out, **did, **result.manifest}, *lines)
