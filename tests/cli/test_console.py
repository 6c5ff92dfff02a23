import io
import json

import pytest
from rich.console import Console as RichConsole

from opengem.cli.console import Console, RichBar, training_line

ROW = {
    "kind": "train", "step": 50, "total_steps": 200, "loss": 0.5, "ne": 0.875, "calibration": 1.25,
    "examples_per_second": 1234.5, "mfu": 0.031, "data_wait": 0.02, "seconds": 10.0,
}  # fmt: skip


def test_a_log_line_says_what_one_acts_on():
    expected = (
        "step 50/200  25%  loss 0.5000  NE 0.8750  cal 1.250  1,234 ex/s  MFU 3.1%  data wait 2.0%  eta 30 s"
    )
    assert training_line(ROW) == expected
    line = training_line(ROW | {"ne": None, "calibration": None, "mfu": None})
    assert not any(word in line for word in ("NE", "cal", "MFU", "None", "nan"))


def test_json_keeps_standard_output_for_the_result(capsys):
    console = Console(as_json=True)
    console.say("on the way")
    with console.progress("work") as bar:
        bar(1, 2, "half")
    console.result({"rows": 3}, "3 rows")
    out, err = capsys.readouterr()
    assert json.loads(out) == {"rows": 3}
    assert "on the way" in err


def test_quiet_says_only_the_result_and_brackets_are_no_markup(capsys):
    console = Console(quiet=True)
    console.say("on the way")
    console.result({}, "columns [a, b] [/red]")
    assert capsys.readouterr().out == "columns [a, b] [/red]\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_a_bar_and_a_log_gets_lines(terminal, monkeypatch):
    console = Console()
    text = io.StringIO()
    console.rich = RichConsole(file=text, force_terminal=terminal, width=100)
    console.bars = terminal
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr("opengem.cli.console.time.monotonic", lambda: float(next(clock)))
    with console.progress("ingest") as bar:
        for done in (10, 20, 30, 40):
            bar(done, 40, "users")
    assert isinstance(bar, RichBar) == terminal
    if not terminal:  # calls every six seconds, a line at most every ten
        assert text.getvalue().splitlines() == ["ingest: 20 of 40 users", "ingest: 40 of 40 users"]
