"""Checkpoints: whole or not there, proved by checksums, without pickle."""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from opengem.errors import ConfigError, DataError

SUMS = "SHA256SUMS"
"""File of a checkpoint with the SHA-256 of each other one, as `sha256sum` writes it."""

_FILES = ("model.safetensors", "other.safetensors", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        path: Its folder.
        model: The model's state dict.
        other: Optimizer state, random state and objective state.
        state: Counters and positions.
        passed_over: Newer checkpoints that are not whole, each with the reason.
    """

    path: Path
    model: dict[str, Tensor]
    other: dict[str, Tensor]
    state: dict[str, Any]
    passed_over: tuple[str, ...] = ()


def save_checkpoint(
    folder: Path,
    step: int,
    model: dict[str, Tensor],
    other: dict[str, Tensor],
    state: dict[str, Any],
    keep: int = 2,
) -> Path:
    """Write `folder/step-N` under a temporary name, force it to disk and rename it.

    Then only the newest `keep` stay; what lies behind this step is of another life of the run and goes too.

    Args:
        folder: The run's folder of checkpoints.
        step: Steps done.
        model: The model's state dict.
        other: Optimizer state, random state and objective state.
        state: Counters and positions, for JSON.
        keep: How many checkpoints stay.

    Raises:
        DataError: The disk is full or cannot be written; the older checkpoints are as they were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:09d}"
    temporary = folder / f".step-{step:09d}.{os.getpid()}"
    try:
        _write(temporary, model, other, state)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        _force(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        left = [p.name for p in _steps(folder)]
        raise DataError(
            f"{folder} must take the checkpoint of step {step:,}. Received: {error}. Older ones are whole: "
            f"{', '.join(left) or 'none'}. Make room, then continue with --resume"
        ) from None
    older = [p for p in _steps(folder) if p.name <= final.name]
    for old in {*_steps(folder)} - {*older[-keep:]}:
        shutil.rmtree(old)
    for stale in folder.glob(".step-*"):
        shutil.rmtree(stale, ignore_errors=True)
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """Read what `save_checkpoint` wrote.

    Raises:
        DataError: A file is missing, cut short or changed; names it.
    """
    sums = _sums(path)
    for name in _FILES:
        _check(path / name, sums)
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return Checkpoint(
        path, load_file(path / "model.safetensors"), load_file(path / "other.safetensors"), state
    )


def load_newest(folder: Path) -> Checkpoint | None:
    """Read the newest checkpoint that is whole, and name the newer ones that are not; None where there is none.

    Raises:
        DataError: There are checkpoints, and none of them is whole.
    """
    passed_over: list[str] = []
    for path in reversed(_steps(folder)):
        try:
            found = load_checkpoint(path)
        except DataError as error:
            passed_over.append(str(error))
            continue
        return Checkpoint(found.path, found.model, found.other, found.state, tuple(passed_over))
    if passed_over:
        raise DataError(f"{folder} must hold a whole checkpoint. Received: {'; '.join(passed_over)}")
    return None


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the folder of the newest checkpoint, whole or not, or None."""
    steps = _steps(folder)
    return steps[-1] if steps else None


def require_checkpoint(folder: Path) -> Path:
    """Return the folder of the newest checkpoint, or raise."""
    found = latest_checkpoint(folder)
    if found is None:
        raise ConfigError(f"{folder.parent} must hold a checkpoint: train it first. Received: no checkpoint")
    return found


def load_model_state(path: Path) -> dict[str, Tensor]:
    """Read the model's state dict alone.

    Raises:
        DataError: Its file is missing, cut short or changed.
    """
    _check(path / "model.safetensors", _sums(path))
    return load_file(path / "model.safetensors")


def random_state() -> dict[str, Tensor]:
    """Return torch's random state as a tensor."""
    return {"random/torch": torch.get_rng_state()}


def restore_random_state(tensors: dict[str, Tensor]) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(tensors["random/torch"])


def _write(folder: Path, model: dict[str, Tensor], other: dict[str, Tensor], state: dict[str, Any]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_file(_plain(model), folder / "model.safetensors")
    save_file(_plain(other), folder / "other.safetensors")
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    sums = "".join(f"{_sum(folder / name)}  {name}\n" for name in _FILES)
    (folder / SUMS).write_text(sums, encoding="utf-8")
    for path in [*folder.iterdir(), folder]:
        _force(path)


def _sums(path: Path) -> dict[str, str]:
    try:
        lines = (path / SUMS).read_text(encoding="utf-8").splitlines()
        return {name: digest for digest, name in (line.split("  ") for line in lines)}
    except (OSError, ValueError) as error:
        raise _broken(path / SUMS, str(error)) from None


def _check(file: Path, sums: dict[str, str]) -> None:
    if not file.exists():
        raise _broken(file, "no such file")
    if _sum(file) != sums.get(file.name):
        raise _broken(file, f"{file.stat().st_size:,} bytes of another checksum than in {SUMS}")


def _broken(file: Path, received: str) -> DataError:
    return DataError(
        f"{file} must be as it was written. Received: {received}. Remove its folder to use an older checkpoint; "
        "--resume passes over it"
    )


def _sum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    # views of one storage (fused tables) cannot be saved side by side
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def _force(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
