"""`opengem synth`: write a synthetic world with planted truth."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet

NAME = "synth"


def command(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    users: Annotated[int, typer.Option(help="Number of users: the dial of its size.")] = 2_000,
    days: Annotated[int, typer.Option(help="Days with ads.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a synthetic ads world: ordinary logs, a schema file, and the planted truth beside them.

    Examples:
        opengem synth world
        opengem synth big --users 100000 --workers 2
    """
    from opengem.data.synth import SynthConfig, synth

    console = Console(as_json, quiet)
    with console.progress("synth") as bar:
        info = synth(SynthConfig(users=users, days=days, seed=seed, workers=workers), out, bar)
    console.result(
        asdict(info),
        f"wrote {out}: {info.impressions:,} impressions, {info.events:,} events of {users:,} users",
        f"next: opengem ingest {out / 'schema.toml'} --out dataset",
    )
