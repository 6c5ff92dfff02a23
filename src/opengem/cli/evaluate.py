"""`opengem evaluate`: metrics of a run, with intervals."""

from pathlib import Path
from typing import Annotated

import typer

from opengem.cli.console import Console
from opengem.cli.options import Json, Quiet, Split

NAME = "evaluate"


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or last.")],
    data: Annotated[Path | None, typer.Argument(help="Data set (default: the run's own).")] = None,
    split: Split = "test",
    replicates: Annotated[int, typer.Option(help="Bootstrap replicates over users.")] = 200,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a split and write NE, log loss, AUC, per-user AUC and calibration with intervals.

    Examples:
        opengem evaluate runs/teacher
        opengem evaluate last dataset --split validation --json
    """
    from opengem.evaluation import history_warnings, unseen_text
    from opengem.training.evaluate import evaluate

    console = Console(as_json, quiet)
    with console.progress("evaluate") as bar:
        result = evaluate(run, data, split=split, replicates=replicates, progress=bar)
    lines = [f"{'task':16}{'rows':>10}{'NE':>9}{'interval':>20}{'AUC':>9}{'calibration':>13}"]
    for task, found in result.summary().items():
        low, high = found["ne_interval"]
        interval = f"{low:.4f} to {high:.4f}" if low is not None else "-"
        lines.append(
            f"{task:16}{found['rows']:>10,}{_number(found['ne']):>9}{interval:>20}{_number(found['auc']):>9}"
            f"{_number(found['calibration'], 3):>13}"
        )
    if unseen := unseen_text(result.coverage):
        lines.append(f"ids that the training window did not hold: {unseen}")
    lines += [f"warning: {text}" for text in history_warnings(result.coverage)]
    lines.append(f"wrote {run / 'eval.json'}; next: opengem compare {run} OTHER_RUN, or opengem report {run}")
    console.result(result.to_dict(), *lines)


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
