"""CK01, CK02, CK03, CK07: kills, full disks, flipped bytes, resume to the last bit; one process a folder."""

import dataclasses
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from opengem import TrainRun, train
from opengem.config import to_plain
from opengem.data import Dataset
from opengem.errors import ConfigError, DataError
from opengem.jagged import Batch
from opengem.models.gem import GEMConfig
from opengem.training import trainer as trainer_module
from opengem.training.checkpoint import load_checkpoint, load_newest
from opengem.training.inference import TrainedModel
from opengem.training.objective import LabelObjective
from opengem.training.run_folder import RunFolder
from opengem.training.trainer import Interrupted, Trainer
from tests.cases.inputs import opengem
from tests.cases.made import equal, lines, saved, script_data, tiny, world_data


@pytest.fixture(autouse=True)
def _no_roof(monkeypatch):
    """Leave out what is measured for the MFU: it takes longer than these runs."""
    monkeypatch.setattr(trainer_module, "matmul_roof", lambda: 1e9)
    monkeypatch.setattr(trainer_module, "FlopsPerExample", lambda model, every: lambda batch: 0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return world_data(tmp_path_factory)


def notes_of(run: TrainRun, folder: Path, **kwargs: Any) -> list[str]:
    """Train, and return the notes of the start row."""
    found: list[str] = []
    train(run, folder, observer=lambda row: found.extend(row.get("notes", [])), **kwargs)
    return found


def stopped_at(step: int, run: TrainRun, folder: Path, **kwargs: Any) -> None:
    """Train until a step, then press Ctrl-C."""

    def observer(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        train(run, folder, observer=observer, **kwargs)


# CK01


def killed(run: TrainRun, folder: Path, steps: int, seconds: float) -> bool:
    """Train in a child process, kill it some steps and some seconds later; return whether it was still at work."""
    log = folder / "metrics.jsonl"
    wanted = steps + (log.read_bytes().count(b"\n") if log.exists() else 0)
    child = os.fork()
    if child == 0:
        try:
            train(run, folder, resume=True)
        finally:
            os._exit(0)
    deadline = time.monotonic() + 60
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        assert time.monotonic() < deadline
        if log.exists() and log.read_bytes().count(b"\n") >= wanted:
            break
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_ck01_killed_at_random_moments(data, tmp_path, kills):
    run = tiny(data, checkpoint_every=1, epochs=20, max_steps=4 * kills, batch_size=24)
    train(run, tmp_path / "whole")
    chance = random.Random(5)
    moments = [(chance.randint(0, 6), chance.uniform(0, 0.05)) for _ in range(kills)]
    inside = sum(killed(run, tmp_path / "run", *moment) for moment in moments)
    assert inside > kills // 2
    notes = notes_of(run, tmp_path / "run", resume=True)
    assert not notes
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    assert equal(saved(tmp_path / "run").model, saved(tmp_path / "whole").model)
    left = [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()]
    assert len(left) == 2
    assert all(name.startswith("step-") for name in left)


def cut_in_half(folder: Path) -> str:
    file = max(folder.iterdir(), key=lambda p: p.stat().st_size)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file.name


def without_smallest(folder: Path) -> str:
    file = min(folder.iterdir(), key=lambda p: p.stat().st_size)
    file.unlink()
    return file.name


def flipped(name: str):
    def flip(folder: Path) -> str:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        return name

    return flip


def without(name: str):
    def remove(folder: Path) -> str:
        (folder / name).unlink()
        return name

    return remove


@pytest.fixture(scope="module")
def twelve(data, tmp_path_factory) -> tuple[TrainRun, Path]:
    """A run of twelve steps with checkpoints at 10 and 12; to be copied, not changed."""
    run = tiny(data, checkpoint_every=5, max_steps=12, batch_size=24)
    return run, train(run, tmp_path_factory.mktemp("twelve") / "run").folder


@pytest.mark.parametrize(
    "harm",
    [
        cut_in_half,
        without_smallest,
        flipped("model.safetensors"),
        flipped("other.safetensors"),
        flipped("state.json"),
        without("SHA256SUMS"),
        without("other.safetensors"),
    ],
)
def test_ck01_a_harmed_checkpoint_is_passed_over_and_named(twelve, tmp_path, harm):
    run, whole = twelve
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    newest = folder / "checkpoints" / "step-000000012"
    name = harm(newest)
    if name != "other.safetensors" and (newest / name).exists() != (name == "state.json"):
        with pytest.raises(DataError, match="step-000000012"):
            TrainedModel.load(folder)  # what is scored is never an older model in silence
    (folder / "end.json").unlink()
    notes = notes_of(run, folder, resume=True)
    assert len(notes) == 1
    assert re.search(rf"passed over .*step-000000012/({name}|model.safetensors).*", notes[0])
    assert lines(folder) == lines(whole)
    assert equal(saved(folder).model, saved(whole).model)
    assert equal(saved(folder).other, saved(whole).other)
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["step-000000010", "step-000000012"]


def test_ck01_no_whole_checkpoint_is_an_error_not_a_new_beginning(twelve, tmp_path):
    run, whole = twelve
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    for checkpoint in (folder / "checkpoints").iterdir():
        cut_in_half(checkpoint)
    with pytest.raises(DataError, match=r"step-000000012.*step-000000010"):
        train(run, folder, resume=True)
    assert lines(folder) == lines(whole)


def test_ck01_the_log_names_what_was_passed_over(twelve, tmp_path):
    _, whole = twelve
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    cut_in_half(folder / "checkpoints" / "step-000000012")
    done = opengem("train", folder, "--resume", cwd=tmp_path)
    assert done.exit_code == 0
    assert "resumed from step 10" in done.output
    assert done.output.count("passed over") == 1
    assert "step-000000012" in done.output


@pytest.mark.parametrize("room", [20_000, 40_000])
def test_ck01_a_full_disk_leaves_the_older_checkpoints_whole(data, tmp_path, room):
    run = tiny(data, checkpoint_every=2, max_steps=8)
    sizes: list[int] = []

    def observer(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] == 5:  # from here on files end at `room` bytes
            largest = (tmp_path / "run" / "checkpoints").rglob("*.safetensors")
            sizes.append(max(p.stat().st_size for p in largest))
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(
            DataError, match=r"checkpoint of step 6.*File too large.*step-000000002, step-000000004"
        ):
            train(run, tmp_path / "run", observer=observer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sizes[0] > room > (tmp_path / "run" / "metrics.jsonl").stat().st_size
    left = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [p.name for p in left] == ["step-000000002", "step-000000004"]
    for checkpoint in left:
        load_checkpoint(checkpoint)
    assert not notes_of(run, tmp_path / "run", resume=True)
    train(run, tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


def test_ck01_a_log_that_cannot_be_written_is_an_error_and_loses_nothing(data, tmp_path):
    run = tiny(data, checkpoint_every=2, max_steps=8)

    def observer(row: dict[str, Any]) -> None:
        if row["kind"] == "train" and row["step"] == 5:
            written = (tmp_path / "run" / "metrics.jsonl").stat().st_size
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (written + 10, before[1])
            )  # ends in the middle of a line

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(DataError, match=r"metrics\.jsonl must take.*File too large.*--resume"):
            train(run, tmp_path / "run", observer=observer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    train(run, tmp_path / "run", resume=True)
    train(run, tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


# CK02, CK03


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_ck02_ten_and_ten_are_twenty(data, tmp_path, backend):
    model = GEMConfig(width=16, embedding_width=8, layers=1, over=(8,), history=20, dropout=0.3)
    # the log line comes at 7 and 14: the running sums are in the middle of a window when it stops
    run = tiny(data, model=model, max_steps=20, batch_size=24, log_every=7, table_backend=backend)
    stop = {"steps": 0}

    class Counting(LabelObjective):
        def prepare(self, batch: Batch) -> None:
            stop["steps"] += 1
            if stop["steps"] == 10:
                signal.raise_signal(signal.SIGINT)

    inputs = Dataset.open(data).inputs
    with pytest.raises(Interrupted, match="step 10 of 20"):
        train(run, tmp_path / "halves", objective=Counting(inputs, {}))
    assert saved(tmp_path / "halves").state["window"]["examples"] == 3 * 24
    assert not notes_of(run, tmp_path / "halves", resume=True)
    train(run, tmp_path / "whole")
    a, b = saved(tmp_path / "halves"), saved(tmp_path / "whole")
    assert lines(tmp_path / "halves") == lines(tmp_path / "whole")
    assert [r["step"] for r in lines(tmp_path / "whole")] == [7, 14, 20]
    assert equal(a.model, b.model)
    assert equal(a.other, b.other)
    kinds = {name.split("/")[0] for name in b.other}
    assert kinds == {"adamw", "adagrad", "random"}
    assert a.state["window"] == b.state["window"]
    assert a.state["loader"] == b.state["loader"]
    for name, value in b.model.items():
        if ".weights." in name:
            sums = b.other[f"adagrad/{name.replace('.weights', '')}"]
            assert sums.shape == value.shape[:1]
            assert float(sums.sum()) > 0


def test_ck02_an_optimizer_without_its_state_is_refused(twelve, tmp_path):
    run, whole = twelve
    checkpoint = saved(whole)
    trainer = Trainer(run, Dataset.open(run.data), RunFolder(tmp_path), None, None, lambda row: None)
    for gone in ("adamw/", "adagrad/"):
        rest = {k: v for k, v in checkpoint.other.items() if not k.startswith(gone)}
        with pytest.raises(ConfigError, match="AdaGrad" if gone == "adagrad/" else "optimizer state"):
            trainer.optimizers.load_state(rest)


class Noting(LabelObjective):
    """The labels, with a note of the ids of each step."""

    def __init__(self, inputs) -> None:
        super().__init__(inputs, {})
        self.ids: list[list[int]] = []

    def prepare(self, batch: Batch) -> None:
        self.ids.append(batch.example_id.tolist())


@pytest.mark.parametrize("stop", [5, 13], ids=["in the middle", "at the end of an epoch"])
def test_ck03_workers_go_on_where_the_data_stopped(tmp_path_factory, tmp_path, stop):
    hundred = script_data(tmp_path_factory, "ba01_hundred_rows.py")
    run = tiny(hundred, batch_size=8, workers=2, epochs=2, max_steps=0)
    inputs = Dataset.open(hundred).inputs
    before, after, whole = (Noting(inputs) for _ in range(3))
    stopped_at(stop, run, tmp_path / "run", objective=before)
    rows: list[dict[str, Any]] = []
    train(run, tmp_path / "run", resume=True, objective=after, observer=rows.append)
    train(run, tmp_path / "whole", objective=whole)
    assert [len(b.ids) for b in (before, after, whole)] == [stop, 26 - stop, 26]
    assert before.ids + after.ids == whole.ids
    first, second = (list(itertools.chain(*part)) for part in (whole.ids[:13], whole.ids[13:]))
    assert sorted(first) == sorted(second) == list(range(1, 101))
    assert first != second
    left = list(itertools.chain(*after.ids[: 13 - stop]))
    assert len(left) == (60 if stop == 5 else 0)
    assert next(r["step"] for r in rows if r["kind"] == "train") == stop + 1
    assert [r["step"] for r in lines(tmp_path / "run")] == list(range(1, 27))


# CK07


def test_ck07_a_resume_with_other_settings_is_refused_by_name(data, tmp_path, capsys):
    run = tiny(data, max_steps=100, epochs=10, batch_size=48)
    stopped_at(50, run, tmp_path / "run")
    before = lines(tmp_path / "run")
    for changed, words in (
        ({"max_steps": 200}, "training.max_steps was 100 and is 200"),
        ({"batch_size": 24}, "training.batch_size was 48 and is 24"),
        ({"learning_rate": 0.01}, "training.learning_rate was 0.001 and is 0.01"),
    ):
        other = dataclasses.replace(run, training=dataclasses.replace(run.training, **changed))
        with pytest.raises(ConfigError) as error:
            train(other, tmp_path / "run", resume=True)
        assert words in str(error.value)
        assert "training.start_from" in str(error.value)
        assert lines(tmp_path / "run") == before
    several = dataclasses.replace(run.training, clip=2.0, warmup=0.5)
    other = dataclasses.replace(run, seed=4, training=several)
    with pytest.raises(ConfigError) as error:
        train(other, tmp_path / "run", resume=True)
    for words in (
        "training.clip was 1.0 and is 2.0",
        "training.warmup was 0.05 and is 0.5",
        "seed was 3 and is 4",
    ):
        assert words in str(error.value)
    train(run, tmp_path / "run", resume=True)
    train(run, tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    rates = {r["step"]: r["learning_rate"] for r in lines(tmp_path / "run")}
    assert (rates[50], rates[51]) == pytest.approx((0.001 * 0.51, 0.001 * 0.50), rel=1e-12)
    with capsys.disabled():
        print(f"\nCK07, rate at step 50: {rates[50]}, at step 51 after the resume: {rates[51]}")


# One process a run folder

_TRAIN = """
import sys, time
from pathlib import Path
import opengem.models
from opengem import TrainRun, train
from opengem.config import build, load_toml
def observer(row):
    print(row["kind"], flush=True)
    if row["kind"] == "train":
        time.sleep(600)
train(build(TrainRun, load_toml(Path(sys.argv[1]))), Path(sys.argv[2]), observer=observer)
"""


def test_two_runs_on_one_folder_and_the_lock_of_a_dead_one(data, tmp_path):
    run = tiny(data, max_steps=3, workers=1)
    (tmp_path / "run.toml").write_text(tomli_w.dumps(to_plain(run)))
    folder = tmp_path / "run"
    given = [sys.executable, "-c", _TRAIN, str(tmp_path / "run.toml"), str(folder)]
    first = subprocess.Popen(given, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    try:
        assert first.stdout.readline() == "start\n"
        assert first.stdout.readline() == "train\n"
        for resume in (False, True):
            with pytest.raises(
                ConfigError, match=rf"one process at a time.*process {first.pid} \(since 20\d\d-"
            ):
                train(run, folder, resume=resume)
    finally:
        first.kill()  # its worker may live on for a moment, and must not keep the lock
        first.wait()
        first.stdout.close()
    assert json.loads((folder / "run.lock").read_text())["process"] == first.pid
    train(run, folder, resume=True)
    train(run, tmp_path / "whole")
    assert lines(folder) == lines(tmp_path / "whole")
    assert load_newest(folder / "checkpoints").state["steps"] == 3
    assert np.isfinite([r["loss"] for r in lines(folder)]).all()
