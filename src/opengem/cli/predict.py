"""`opengem predict`: score stored examples with a package."""

from pathlib import Path
from typing import Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet, Split

NAME = "predict"


def command(
    package: Annotated[Path, typer.Argument(help="Folder of a package.")],
    data: Annotated[Path, typer.Argument(help="Folder of a data set.")],
    out: Annotated[Path, typer.Option("--out", help="Parquet file to write.")] = Path("predictions.parquet"),
    split: Split = "test",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a split of a data set with a package.

    Examples:
        opengem predict package dataset --out predictions.parquet
        opengem predict package dataset --split validation --json
    """
    from opengem.serving.predict import predict

    console = Console(as_json, quiet)
    rows = predict(package, data, split, out)
    console.result({"path": out, "rows": rows}, f"wrote {out}: {rows:,} rows")
