"""The campaign of faults: kills at random moments, and damage to every kind of artefact.

Each kill is `kill -9` of the whole process group of a command at a random moment of its life; the same command then
runs again, is perhaps killed again, and at last runs to its end. What it leaves must equal, byte by byte, what a run
that was never killed left. Damage is a file cut in half, a flipped byte, a full disk (a small tmpfs, where one may be
mounted) or a folder that cannot be written: the command that reads or writes must end with an exit code and name the
file, and leave what was there before as it was. Prints a table, and exits with 1 if anything fell short.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

RUN = """
data = "{data}"
seed = 5
[model]
type = "gem"
history = 20
[training]
epochs = 1
batch_size = 128
log_every = 1
checkpoint_every = 3
workers = 2
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@dataclass
class Table:
    """What was tried and what came of it."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    bad: bool = False

    def add(self, what: str, good: bool, text: str) -> None:
        """Note one line and print it."""
        self.rows.append((what, "ok" if good else "FALLS SHORT", text))
        self.bad |= not good
        print(f"{self.rows[-1][1]:12} {what}: {text}", flush=True)


def command(*arguments: object) -> list[str]:
    """Return the command line of a verb."""
    return [sys.executable, "-m", "opengem", *map(str, arguments)]


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess:
    """Run a verb to its end."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=ENVIRONMENT, check=False, **options
    )  # type: ignore[call-overload]


def good(*arguments: object) -> float:
    """Run a verb that must end well; return its seconds."""
    began = time.perf_counter()
    done = run(*arguments)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return time.perf_counter() - began


def killed(dice: random.Random, longest: float, *arguments: object) -> bool:
    """Start a verb and kill it and its workers at a random moment; return whether it was still alive then."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT,
        start_new_session=True,
    )  # fmt: skip
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(dice.uniform(0.05, 1.0) * longest)
    alive = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return alive


def contents(folder: Path, leave_out: Callable[[Path], bool] = lambda p: False) -> dict[str, str]:
    """Return the checksum of every file below a folder."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not leave_out(p)
    }


def kill_ingest(table: Table, dice: random.Random, root: Path, count: int) -> None:
    """Kill ingests and appends."""
    schema = root / "world" / "schema.toml"
    longest = good("ingest", schema, "--out", root / "whole")
    whole = contents(root / "whole")
    kills = wrong = 0
    for number in range(count):
        out = root / "killed" / f"{number}"
        for _ in range(1 + number % 3):
            kills += killed(dice, longest, "ingest", schema, "--out", out)
        good("ingest", schema, "--out", out)
        left = [p.name for p in out.parent.iterdir() if p.name.startswith(".")]
        wrong += contents(out) != whole or bool(left)
        shutil.rmtree(out)
    table.add(
        "ingest", not wrong, f"{kills} kills in {count} runs, {wrong} data sets differ from the unbroken one"
    )


def kill_training(table: Table, dice: random.Random, root: Path, count: int) -> None:
    """Kill training runs with two loader workers and a checkpoint every three steps."""
    file = root / "run.toml"
    file.write_text(RUN.format(data=root / "whole"))
    longest = good("train", file, "--run-dir", root / "unbroken")
    whole = _trained(root / "unbroken")
    kills = wrong = 0
    for number in range(count):
        out = root / f"resumed-{number}"
        for _ in range(1 + number % 3):
            kills += killed(dice, longest, "train", file, "--run-dir", out, "--resume")
        good("train", file, "--run-dir", out, "--resume")
        wrong += _trained(out) != whole
        shutil.rmtree(out)
    table.add("train", not wrong, f"{kills} kills in {count} runs, {wrong} runs differ in a loss or a weight")


def _trained(folder: Path) -> tuple[list[tuple[int, float]], dict[str, str]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["loss"]) for row in rows if row["kind"] == "train"]
    last = max(p for p in (folder / "checkpoints").iterdir() if p.is_dir() and not p.name.startswith("."))
    return losses, {n: c for n, c in contents(last).items() if n.endswith(".safetensors")}


def kill_export(table: Table, dice: random.Random, root: Path, count: int) -> None:
    """Kill exports."""
    student = root / "student"
    settings = RUN.format(data=root / "whole").replace('"gem"', '"vertical"')
    (root / "student.toml").write_text(settings)
    good("train", root / "student.toml", "--run-dir", student)
    longest = good("export", student, "--out", root / "package")
    good("predict", root / "package", root / "whole", "--out", root / "scores.parquet")
    whole = hashlib.sha256((root / "scores.parquet").read_bytes()).hexdigest()
    kills = wrong = 0
    for number in range(count):
        out = root / f"package-{number}"
        kills += killed(dice, longest, "export", student, "--out", out)
        if not out.exists():  # else the kill came after the end
            good("export", student, "--out", out)
        good("predict", out, root / "whole", "--out", root / "again.parquet")
        wrong += hashlib.sha256((root / "again.parquet").read_bytes()).hexdigest() != whole
        shutil.rmtree(out)
    table.add("export", not wrong, f"{kills} kills in {count} runs, {wrong} packages predict something else")


@contextlib.contextmanager
def damaged(path: Path, how: str) -> Iterator[None]:
    """Damage a file for a while."""
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(
        content[:half]
        if how == "cut in half"
        else content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
    )
    try:
        yield
    finally:
        path.write_bytes(content)


def damage(table: Table, root: Path) -> None:
    """Damage one file of each kind of artefact and run what reads it."""
    good("transfer", "label", root / "unbroken", "--out", root / "labels.parquet")
    last = max(p for p in (root / "unbroken" / "checkpoints").iterdir() if p.is_dir())
    distill = root / "distill.toml"
    distill.write_text(
        (root / "student.toml").read_text() + f'[transfer]\nlabels = "{root / "labels.parquet"}"\n'
    )
    never = ("--run-dir", root / "never")
    whole, package, unbroken = root / "whole", root / "package", root / "unbroken"
    reads = {
        "store": (whole / "sequences/organic/bucket-00000.arrow", ("train", root / "run.toml", *never)),
        "examples": (whole / "examples.arrow", ("evaluate", unbroken)),
        "checkpoint": (last / "model.safetensors", ("evaluate", unbroken)),
        "label store": (root / "labels.parquet", ("transfer", "distill", distill, *never)),
        "package": (package / "model.pt2", ("predict", package, whole, "--out", root / "no.parquet")),
    }
    for kind, (path, verb) in reads.items():
        for how in ("cut in half", "flipped byte"):
            before = contents(root / "unbroken") | contents(root / "package")
            with damaged(path, how):
                done = run(*verb)
            named = path.name in done.stderr or path.parent.name in done.stderr
            same = before == contents(root / "unbroken") | contents(root / "package")
            well = done.returncode in (1, 2, 3, 4) and named and same and "Traceback" not in done.stderr
            first = done.stderr.strip().splitlines()[0][:110] if done.stderr.strip() else "nothing said"
            table.add(f"{kind}, {how}", well, f"exit {done.returncode}: {first}".replace(str(root), ""))
            shutil.rmtree(root / "never", ignore_errors=True)


def full_disk(table: Table, root: Path) -> None:
    """Fill the disk under an ingest and under a training run."""
    small = root / "small"
    small.mkdir()
    size = int(1.2 * sum(p.stat().st_size for p in (root / "whole").rglob("*") if p.is_file()))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        print("skipped      full disk: no tmpfs may be mounted here", flush=True)
        return
    try:
        schema = root / "world" / "schema.toml"
        good("synth", root / "tiny", "--users", 20, "--days", 12)
        good("ingest", root / "tiny" / "schema.toml", "--out", small / "data")
        before = contents(small / "data")
        for what, verb in {
            "full disk, ingest": ("ingest", schema, "--out", small / "data"),
            "full disk, train": ("train", root / "run.toml", "--run-dir", small / "run"),
        }.items():
            done = run(*verb)
            well = (
                done.returncode in (2, 3)
                and "Traceback" not in done.stderr
                and contents(small / "data") == before
            )
            text = done.stderr.strip().splitlines()
            table.add(
                what,
                well,
                f"exit {done.returncode}: {text[0][:110] if text else 'nothing said'}".replace(str(root), ""),
            )
    finally:
        subprocess.run(["umount", str(small)], check=False)


def read_only(table: Table, root: Path) -> None:
    """Write to a folder that is a file's child, which nobody can: the one refusal that holds for every user."""
    (root / "file").write_text("x")
    for what, verb in {
        "no folder, ingest": ("ingest", root / "world" / "schema.toml", "--out", root / "file" / "data"),
        "no folder, train": ("train", root / "run.toml", "--run-dir", root / "file" / "run"),
        "no folder, export": ("export", root / "student", "--out", root / "file" / "package"),
        "no folder, label": (
            "transfer",
            "label",
            root / "unbroken",
            "--out",
            root / "file" / "labels.parquet",
        ),
    }.items():
        done = run(*verb)
        text = done.stderr.strip().splitlines()
        well = done.returncode in (2, 3) and "Traceback" not in done.stderr and "file" in done.stderr
        table.add(
            what,
            well,
            f"exit {done.returncode}: {text[0][:110] if text else 'nothing said'}".replace(str(root), ""),
        )


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ingest", type=int, default=50, help="runs of ingest, each killed one to three times"
    )
    parser.add_argument("--train", type=int, default=50, help="training runs, each killed one to three times")
    parser.add_argument("--export", type=int, default=20, help="exports, each killed once")
    parser.add_argument("--users", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice, table = random.Random(options.seed), Table()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        good("synth", root / "world", "--users", options.users, "--days", 20)
        kill_ingest(table, dice, root, options.ingest)
        kill_training(table, dice, root, options.train)
        kill_export(table, dice, root, options.export)
        damage(table, root)
        full_disk(table, root)
        read_only(table, root)
    return int(table.bad)


if __name__ == "__main__":
    sys.exit(main())
