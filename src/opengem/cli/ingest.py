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
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read logs into point-in-time examples and a sequence store. The same input a second time does nothing.

    Examples:
        opengem ingest world/schema.toml --out dataset
        opengem ingest schema.toml --root s3-mirror/ --out dataset --memory 8GB
    """
    from opengem.data import ingest
    from opengem.schema import load_schema

    console = Console(as_json, quiet)
    with console.progress("ingest") as bar:
        result = ingest(
            load_schema(schema, root), out, workers=workers, memory_limit=memory, progress=console.stage(bar)
        )
    counts, rows = result.manifest["counts"], result.manifest["rows"]
    lines = [
        f"{'wrote' if result.fresh else 'unchanged, nothing to do:'} {out}: {counts['examples']:,} examples in "
        f"{counts['requests']:,} requests, events: "
        + ", ".join(f"{k} {v:,}" for k, v in counts["events"].items())
    ]
    if rows.get("deduplicated"):
        lines.append(f"dropped as exact duplicates: {rows['deduplicated']:,} rows")
    for reason, count in rows["quarantined"].items():
        lines.append(f"quarantined: {count:,} rows, {reason} ({out / 'quarantine.parquet'})")
    lines.append(f"next: opengem train RUN.toml data={out}")
    console.result({"folder": out, "fresh": result.fresh, **result.manifest}, *lines)
