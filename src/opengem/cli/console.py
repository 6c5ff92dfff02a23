"""What a verb says: progress on a terminal, plain lines elsewhere, one JSON object where asked."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Console:
    """Speaks for one verb.

    Args:
        as_json: Print one JSON object on standard output at the end; all else goes to standard error.
        quiet: Print the result only.

    Attributes:
        told: Whether the result of this command was printed.
    """

    told: ClassVar[bool] = False

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        stream = sys.stderr if as_json else sys.stdout
        self.rich = RichConsole(file=stream, highlight=False, soft_wrap=True)
        self.bars = self.rich.is_terminal and not quiet

    def say(self, text: str) -> None:
        """Print a line that is not the result."""
        if not self.quiet:
            self.rich.print(text, markup=False)

    def result(self, data: dict[str, Any], *lines: str) -> None:
        """Print the result: as JSON, or as the given lines."""
        Console.told = True
        if self.as_json:
            print(json.dumps(data, default=str), flush=True)
        else:
            for line in lines:
                self.rich.print(line, markup=False)

    @contextmanager
    def progress(self, label: str) -> Iterator["Bar"]:
        """Show how far a long step is, with `bar(done, total)` or `bar(done, total, "note")`."""
        if not self.bars:
            yield PlainBar(self, label)
            return
        columns = (
            TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
        )  # fmt: skip
        with Progress(*columns, console=self.rich, transient=True) as shown:
            yield RichBar(shown, label)

    def stage(self, bar: "Bar"):
        """Return a callback `(stage, done, total)` that drives a bar."""
        return lambda stage, done, total=None: bar(done, total or 0, stage)

    def training(self, bar: "Bar"):
        """Return an observer of a training run: a start block, then one line per log interval."""
        return TrainingLines(self, bar)


class Bar:
    """A progress bar; called with what is done, the whole (0 if unknown) and a note."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Show the state."""
        raise NotImplementedError


class RichBar(Bar):
    """A bar on a terminal."""

    def __init__(self, shown: Progress, label: str) -> None:
        self.shown, self.label = shown, label
        self.task = shown.add_task(label, total=None, note="")

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Show the state."""
        self.shown.update(self.task, completed=done, total=total or None, note=note)


class PlainBar(Bar):
    """Lines in a log: at most one every ten seconds."""

    def __init__(self, console: Console, label: str) -> None:
        self.console, self.label, self.last = console, label, time.monotonic()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Print a line if the last one is old enough."""
        now = time.monotonic()
        if now - self.last >= 10:
            self.last = now
            of = f" of {total:,}" if total else ""
            self.console.say(f"{self.label}: {done:,}{of} {note}".rstrip())


class TrainingLines:
    """The log of a training run, as lines."""

    def __init__(self, console: Console, bar: Bar) -> None:
        self.console, self.bar = console, bar

    def __call__(self, row: dict[str, Any]) -> None:
        """Print one row of the metrics."""
        if row["kind"] == "start":
            parameters = row["parameters"]
            resumed = f", resumed from step {row['resumed_from']:,}" if row["resumed_from"] else ""
            self.console.say(
                f"{row['model']}: {row['examples']:,} examples an epoch, {row['total_steps']:,} steps{resumed}; "
                f"parameters {parameters['dense']:,} dense, {parameters['tables']:,} in tables; "
                f"tables on {row['table_backend']}; {row['precision']}, "
                f"{row['threads']} threads, roof {row['roof_gflops']:,.0f} GFLOP/s; {row['folder']}"
            )
            for note in row["notes"]:
                self.console.say(note)
        elif row["kind"] == "train":
            text = training_line(row)
            if isinstance(self.bar, RichBar):  # elsewhere the lines say it
                self.bar(row["step"], row["total_steps"], f"loss {row['loss']:.4f}")
            self.console.say(text)


def training_line(row: dict[str, Any]) -> str:
    """Return one log line: only numbers that one acts on."""
    step, total = row["step"], row["total_steps"]
    left = (total - step) * row["seconds"] / max(step, 1)
    mfu = f"  MFU {row['mfu']:.1%}" if row.get("mfu") is not None else ""
    ne = f"  NE {row['ne']:.4f}" if row["ne"] is not None else ""
    calibration = f"  cal {row['calibration']:.3f}" if row["calibration"] is not None else ""
    return (
        f"step {step:,}/{total:,}  {step / total:.0%}  loss {row['loss']:.4f}{ne}{calibration}  "
        f"{row['examples_per_second']:,.0f} ex/s{mfu}  data wait {row['data_wait']:.1%}  eta {left:,.0f} s"
    )
