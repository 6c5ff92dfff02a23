"""`opengem compare`: two runs on the same rows."""

from pathlib import Path
from typing import Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet

NAME = "compare"


def command(
    a: Annotated[Path, typer.Argument(help="Folder of a run that was evaluated.")],
    b: Annotated[Path, typer.Argument(help="Folder of another, on the same data.")],
    replicates: Annotated[int, typer.Option(help="Bootstrap replicates over users.")] = 500,
    expect_better: Annotated[
        bool, typer.Option(help="Leave with 1 unless A is better in every task.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare two runs, paired on the same rows, with intervals over users.

    Examples:
        opengem compare runs/teacher runs/din
        opengem compare runs/student runs/student_alone --json
    """
    from opengem.errors import CheckFailed
    from opengem.training.evaluate import compare_runs

    console = Console(as_json, quiet)
    comparison = compare_runs(a, b, replicates=replicates)
    console.result(comparison.to_dict(), comparison.verdict())
    if expect_better:
        worse = [t for t, c in comparison.totals.items() if not c.differences["ne"].high < 0]
        if worse:
            raise CheckFailed(
                f"{comparison.a} must be better than {comparison.b} in every task. Not shown: {', '.join(worse)}"
            )
