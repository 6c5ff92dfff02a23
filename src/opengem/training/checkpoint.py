"""Checkpoints: whole or not there, without pickle."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from opengem.errors import ConfigError, DataError


def save_checkpoint(
    folder: Path,
    step: int,
    model: dict[str, Tensor],
    other: dict[str, Tensor],
    state: dict[str, Any],
    keep: int = 2,
) -> Path:
    """Write `folder/step-N` under a temporary name, force it to disk, rename it, and drop all but the newest `keep`.

    Args:
        folder: The run's folder of checkpoints.
        step: Steps done.
        model: The model's state dict.
        other: Optimizer state, random state and objective state.
        state: Counters and positions, for JSON.
        keep: How many checkpoints stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:09d}"
    temporary = folder / f".step-{step:09d}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    save_file(_plain(model), temporary / "model.safetensors")
    save_file(_plain(other), temporary / "other.safetensors")
    (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
    for path in [*temporary.iterdir(), temporary]:
        _force(path)
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    _force(folder)
    for old in _steps(folder)[:-keep]:
        shutil.rmtree(old)
    for stale in folder.glob(".step-*"):
        shutil.rmtree(stale, ignore_errors=True)
    return final


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest whole checkpoint, or None."""
    steps = _steps(folder)
    return steps[-1] if steps else None


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return load_file(path / "model.safetensors"), load_file(path / "other.safetensors"), state
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"{path} must be a whole checkpoint. Received: {error}. Remove that folder to use an older one"
        ) from None


def load_model_state(path: Path) -> dict[str, Tensor]:
    """Read the model's state dict alone."""
    file = path / "model.safetensors"
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file} must be a safetensors file. Received: {error}") from None


def require_checkpoint(folder: Path) -> Path:
    """Return the newest checkpoint, or raise."""
    found = latest_checkpoint(folder)
    if found is None:
        raise ConfigError(f"{folder.parent} must hold a checkpoint: train it first. Received: no checkpoint")
    return found


def _steps(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("step-*") if (p / "state.json").exists())


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    # views of one storage (fused tables) cannot be saved side by side
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def _force(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def random_state() -> dict[str, Tensor]:
    """Return torch's random state as a tensor."""
    return {"random/torch": torch.get_rng_state()}


def restore_random_state(tensors: dict[str, Tensor]) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(tensors["random/torch"])
