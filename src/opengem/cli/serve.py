"""`opengem serve`: rank ads over HTTP."""

import os
from pathlib import Path
from typing import Annotated

import typer

NAME = "serve"
TOKEN = "OPENGEM_TOKEN"


def command(
    package: Annotated[Path, typer.Argument(help="Folder of a package, or a link to one.")],
    host: Annotated[str, typer.Option(help="Address to bind to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any that is free.", min=0, max=65535)] = 8080,
    workers: Annotated[int, typer.Option(help="Processes; one a core uses the machine fully.", min=1)] = 1,
    threads: Annotated[int, typer.Option(help="Threads of torch in each process.", min=1)] = 1,
    waiting: Annotated[
        int, typer.Option(help="Requests of each process that wait; more get 503.", min=0)
    ] = 8,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File that holds the bearer token (default: ${TOKEN}).")
    ] = None,
) -> None:
    """Serve a package: POST /rank, GET /health, GET /card.

    Another package that is put in its place is taken over without losing a request: turn a link, never write into it.

    Examples:
        opengem serve package
        opengem serve current --workers 2 --port 9000
        ln -s packages/2 next && mv -T next current
    """
    from opengem.errors import ConfigError
    from opengem.serving.server import serve

    token = os.environ.get(TOKEN, "")
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file must be a file of text. Received: {error}") from None
        if not token:
            raise ConfigError(f"--token-file must hold a token. Received: {token_file}, which is empty")
    serve(package, host, port, workers=workers, threads=threads, waiting=waiting, token=token)
