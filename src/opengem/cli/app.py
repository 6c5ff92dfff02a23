"""The application: verbs, exit codes, and how errors are shown."""

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from opengem.cli import (
    compare,
    data,
    doctor,
    evaluate,
    export,
    ingest,
    predict,
    quickstart,
    report,
    serve,
    synth,
    train,
    transfer,
)
from opengem.cli.console import Console
from opengem.errors import OpenGEMError


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with errors shown in words and turned into exit codes.

    0 good, 1 failed check or comparison, 2 wrong usage or config, 3 bad data, 4 missing backend, 130 interrupted.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        Console.told = False
        try:
            command(*args, **kwargs)
        except OpenGEMError as error:
            _show(type(error).__name__, str(error))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _show("Interrupted", "stopped by Ctrl-C")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # the reader of a pipe went away: nothing is wrong, and nothing more can be said
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            _show(
                "DataError",
                f"{_place(error)} must be readable or writable. Received: {error.strerror or error}",
            )
            raise typer.Exit(3) from None

    return run


app = typer.Typer(
    name="opengem",
    help="Logs in, one large ads teacher trained, many small rankers taught, exported and served.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (quickstart, synth, ingest, train, evaluate, compare, export, predict, serve, report, doctor):
    app.command(module.NAME)(guarded(module.command))
transfer_app = typer.Typer(help="From a teacher to its students: label, distill.", no_args_is_help=True)
transfer_app.command("label")(guarded(transfer.label_command))
transfer_app.command("distill")(guarded(transfer.distill_command))
app.add_typer(transfer_app, name="transfer")
data_app = typer.Typer(
    help="Logs before they are ingested, and data sets: check, compact.", no_args_is_help=True
)
data_app.command("check")(guarded(data.check_command))
data_app.command("compact")(guarded(data.compact_command))
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line."""
    # threads that wait asleep leave the cores to the loader's processes; it changes no number
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()


def _place(error: OSError) -> str:
    """Return what a system error is about: the file whose name it carries."""
    name = error.filename2 or error.filename
    return str(name) if name is not None else "a file"


def _show(kind: str, text: str) -> None:
    if "--json" in sys.argv and not Console.told:  # one object: a failed check has told its result already
        print(json.dumps({"error": kind, "message": text}), flush=True)
    print(f"{kind}: {text}", file=sys.stderr, flush=True)
