"""`opengem serve`: rank ads over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

NAME = "serve"


def command(
    package: Annotated[Path, typer.Argument(help="Folder of a package.")],
    host: Annotated[str, typer.Option(help="Address to bind to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port.")] = 8080,
) -> None:
    """Serve a package: POST /rank, GET /health, GET /card.

    Examples:
        opengem serve package
        opengem serve package --port 9000
    """
    from opengem.serving.service import serve

    serve(package, host=host, port=port)
