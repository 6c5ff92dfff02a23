import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
import torch

from opengem.config import build, to_plain
from opengem.errors import ConfigError
from opengem.models.baselines import DINConfig, LogisticRegressionConfig
from opengem.models.gem import GEMConfig
from opengem.training.checkpoint import latest_checkpoint, load_checkpoint, load_model_state, load_newest
from opengem.training.inference import TrainedModel
from opengem.training.run import TrainingConfig, TrainRun
from opengem.training.run_folder import RunFolder
from opengem.training.trainer import train


def _run(data: Path, **training) -> TrainRun:
    settings = {
        "epochs": 2,
        "batch_size": 64,
        "log_every": 1,
        "checkpoint_every": 4,
        "workers": 0,
        **training,
    }
    return TrainRun(
        data=str(data), model=DINConfig(width=8, layers=(16,)), training=TrainingConfig(**settings), seed=5
    )


def _losses(folder: Path) -> list[tuple[int, float]]:
    return [(r["step"], r["loss"]) for r in RunFolder(folder).metrics() if r["kind"] == "train"]


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_model_state(latest_checkpoint(folder / "checkpoints"))


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_the_loss_falls_and_files_stand(small_data, tmp_path):
    result = train(_run(small_data, epochs=3), tmp_path / "run")
    losses = [loss for _, loss in _losses(result.folder)]
    third = len(losses) // 3
    assert sum(losses[-third:]) < sum(losses[:third])
    assert [s for s, _ in _losses(result.folder)] == list(range(1, result.steps + 1))
    environment = json.loads((result.folder / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert build(TrainRun, to_plain(_run(small_data, epochs=3))) == _run(small_data, epochs=3)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_same_seed_gives_the_same_run(small_data, tmp_path, backend):
    a = train(_run(small_data, table_backend=backend, max_steps=20), tmp_path / "a")
    b = train(_run(small_data, table_backend=backend, max_steps=20, workers=2), tmp_path / "b")
    assert _losses(a.folder) == _losses(b.folder)
    assert _same(_weights(a.folder), _weights(b.folder))


_KILLED = """
import sys
from pathlib import Path
from opengem.config import build, load_toml
import opengem.models
from opengem.training.inference import TrainedModel
from opengem.training.run import TrainRun
from opengem.training.trainer import train
train(build(TrainRun, load_toml(Path(sys.argv[1]))), Path(sys.argv[2]), resume=True)
"""


@pytest.mark.parametrize(("model", "backend"), [("din", "auto"), ("din", "reference"), ("gem", "auto")])
def test_killed_anywhere_and_resumed_gives_the_same_losses_to_the_last_digit(
    small_data, tmp_path, model, backend
):
    run = _run(small_data, table_backend=backend, workers=1, max_steps=24)
    if model == "gem":
        run = dataclasses.replace(run, model=GEMConfig(history=20))
    whole = train(run, tmp_path / "whole")
    (tmp_path / "run.toml").write_text(tomli_w.dumps(to_plain(run)))
    folder = tmp_path / "killed"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for wanted in (
        3,
        11,
    ):  # lines of the log after which it is killed: before the first checkpoint, and later
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(tmp_path / "run.toml"), str(folder)], env=environment
        )
        try:
            deadline = time.monotonic() + 120
            while process.poll() is None and len(_losses_so_far(folder)) < wanted:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    finished = train(run, folder, resume=True)
    assert finished.resumed_from < finished.steps
    assert _losses(folder) == _losses(whole.folder)
    assert _same(_weights(folder), _weights(whole.folder))


def _losses_so_far(folder: Path) -> list[str]:
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().splitlines() if metrics.exists() else []


def test_a_finished_run_resumed_does_nothing_more(small_data, tmp_path):
    first = train(_run(small_data), tmp_path / "run")
    before = _losses(first.folder), _weights(first.folder)
    again = train(_run(small_data), tmp_path / "run", resume=True)
    assert again.steps == first.steps == again.resumed_from
    assert _losses(again.folder) == before[0]
    assert _same(_weights(again.folder), before[1])


def test_a_run_killed_between_its_last_checkpoint_and_its_end_takes_no_further_step(small_data, tmp_path):
    run = _run(small_data, max_steps=8)  # in the middle of an epoch, at a checkpoint
    first = train(run, tmp_path / "run")
    before = _losses(first.folder), _weights(first.folder)
    RunFolder(first.folder).end_file.unlink()
    assert train(run, tmp_path / "run", resume=True).steps == 8
    assert _losses(first.folder) == before[0]
    assert _same(_weights(first.folder), before[1])


def test_a_run_is_never_overwritten_and_never_resumed_as_another(small_data, tmp_path):
    train(_run(small_data, max_steps=2), tmp_path / "run")
    with pytest.raises(ConfigError, match="holds a run already"):
        train(_run(small_data), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"training\.batch_size.*64.*32"):
        train(_run(small_data, max_steps=2, batch_size=32), tmp_path / "run", resume=True)


def test_half_a_checkpoint_is_not_a_checkpoint(small_data, tmp_path):
    result = train(_run(small_data, max_steps=6), tmp_path / "run")
    newest = latest_checkpoint(result.folder / "checkpoints")
    broken = newest.with_name("step-999999999")
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"half")
    found = load_newest(result.folder / "checkpoints")
    assert found.path == newest
    assert len(found.passed_over) == 1
    assert "step-999999999" in found.passed_over[0]
    (broken / "state.json").write_text("{}")
    with pytest.raises(ValueError, match="step-999999999"):
        load_checkpoint(broken)
    with pytest.raises(ValueError, match="step-999999999"):
        TrainedModel.load(result.folder)


def test_bf16_trains_close_to_fp32(small_data, tmp_path):
    full = train(_run(small_data), tmp_path / "fp32")
    half = train(_run(small_data, precision="bf16"), tmp_path / "bf16")
    last = [sum(x for _, x in _losses(r.folder)[-10:]) / 10 for r in (full, half)]
    assert last[1] == pytest.approx(last[0], rel=0.05)


@pytest.mark.parametrize(
    ("training", "word"),
    [({"epochs": 0}, "epochs"), ({"warmup": 1.0}, "warmup"), ({"learning_rate": -1.0}, "learning_rate")],
)
def test_settings_out_of_range_are_refused(training, word):
    with pytest.raises(ConfigError, match=rf"training\.{word}"):
        TrainingConfig(**training)


def test_a_task_weight_that_names_no_task_is_refused(small_data, tmp_path):
    with pytest.raises(ConfigError, match="clik"):
        train(_run(small_data, task_weights={"clik": 2.0}), tmp_path / "run")


def test_logistic_regression_of_width_that_no_kernel_takes_still_trains(small_data, tmp_path):
    run = TrainRun(
        data=str(small_data),
        model=LogisticRegressionConfig(),
        training=TrainingConfig(max_steps=3, log_every=1, workers=0),
    )
    assert len(_losses(train(run, tmp_path / "run").folder)) == 3
