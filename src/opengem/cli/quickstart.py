"""`opengem quickstart`: the whole loop, by one command."""

from pathlib import Path
from typing import Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet

NAME = "quickstart"


def command(
    out: Annotated[Path, typer.Option("--out", help="Folder of all results.")] = Path("runs/quickstart"),
    data: Annotated[
        Path | None, typer.Option("--data", help="Schema file of real logs (default: a synthetic world).")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder that the schema's paths are relative to.")] = None,
    users: Annotated[int, typer.Option(help="Users of the synthetic world.")] = 6_000,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the whole loop: logs, teacher, labels, student, baselines, package, ranked ads, report.

    Called again on the same folder it goes on where it stopped.

    Examples:
        opengem quickstart
        opengem quickstart --data recipes/kuairand/schema.toml --out runs/kuairand
    """
    from opengem.data.synth import SynthConfig
    from opengem.loop.quickstart import quickstart

    console = Console(as_json, quiet)
    result = quickstart(out, console, schema=data, root=root, world=SynthConfig(users=users))
    models = result.summary["models"]
    task = next(iter(models["teacher"]))
    lines = [f"{task:22}{'NE':>9}{'AUC':>9}{'calibration':>13}"]
    for name, found in sorted(models.items(), key=lambda item: item[1][task]["ne"]):
        m = found[task]
        lines.append(f"{name:22}{m['ne']:>9.4f}{m['auc']:>9.4f}{m['calibration']:>13.3f}")
    closed = (result.summary.get("gap_closed") or {}).get(task)
    if closed is not None:
        lines.append(
            f"the teacher closes {closed:.0%} of the NE between the best baseline and the best possible"
        )
    lines += ["", "the same by hand:", *(f"  {c}" for c in result.summary["commands"]), ""]
    lines.append(
        f"wrote {out / 'summary.json'} and {result.report} in {sum(result.summary['seconds'].values()):,.0f} s; "
        f"next: open the report, or serve the student: opengem serve {out / 'package'}"
    )
    console.result({"folder": out, **result.summary}, *lines)
