"""What a run and its checkpoint must have in common, so that it can be continued."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from opengem.config import changes, load_toml, to_plain
from opengem.data.dataset import Dataset
from opengem.errors import ConfigError
from opengem.training.build import build_model
from opengem.training.checkpoint import load_newest
from opengem.training.run import TrainRun
from opengem.training.run_folder import RunFolder

_SHOWN = 8


def require_same_run(place: RunFolder, run: TrainRun, dataset: Dataset) -> None:
    """Refuse to continue a run with other settings or inputs.

    Args:
        place: The run's folder.
        run: The settings that were asked for.
        dataset: The data set that was asked for.

    Raises:
        ConfigError: Something differs; names each setting, and each entry of the checkpoint that would not fit.
    """
    found = [
        *changes(load_toml(place.run_file), to_plain(run)),
        *changes(place.inputs().layout(), dataset.inputs.layout()),
    ]
    if not found:
        return
    checkpoint = load_newest(place.checkpoints)
    wanted = build_model(run, dataset.inputs).state_dict()
    misfits = entry_misfits(checkpoint.model, wanted) if checkpoint else []
    raise ConfigError(
        f"{place.path} must be continued with its own settings and data. Received: "
        + "\n  ".join(["; ".join(found), *misfits])
        + f'\nTo train on from its weights otherwise, begin a run with training.start_from="{place.path}"'
    )


def entry_misfits(
    saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor], free: Iterable[str] = ()
) -> list[str]:
    """Return one line a kind for the entries of a checkpoint that do not fit a model; none where all fit.

    Args:
        saved: State dict of the checkpoint.
        wanted: State dict of the model.
        free: Names of entries whose number of rows may differ.
    """
    free = frozenset(free)
    missing = [f"{n} {tuple(t.shape)}" for n, t in wanted.items() if n not in saved]
    unexpected = [f"{n} {tuple(t.shape)}" for n, t in saved.items() if n not in wanted]
    differing = [
        f"{n} {tuple(saved[n].shape)} for {tuple(t.shape)}"
        for n, t in wanted.items()
        if n in saved and saved[n].shape[n in free :] != t.shape[n in free :]
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "differing": differing}
    return [f"{kind} entries: {_some(names)}" for kind, names in kinds.items() if names]


def data_identity(dataset: Dataset, splits: Iterable[str]) -> dict[str, str]:
    """Return what a checkpoint notes of its data: a digest of the ids trained on, and that of the whole data set."""
    digest = hashlib.sha256()
    for split in splits:
        rows = dataset.split(split)
        digest.update(dataset.example_ids[rows.start : rows.stop].tobytes())
    return {"examples": digest.hexdigest(), "data_set": dataset.manifest.get("data_fingerprint", "")}


def machine_identity(table_backend: str) -> dict[str, Any]:
    """Return what a checkpoint notes of the machine: all that the last digits of a loss depend on."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "table_backend": table_backend.partition(" ")[0],
    }


def compare_identity(state: Mapping[str, Any], data: dict[str, str], machine: dict[str, Any]) -> list[str]:
    """Return what makes the losses that follow other than those of a run never stopped, one line each.

    Raises:
        ConfigError: The examples are others, so that the position in them means nothing.
    """
    if state["data"]["examples"] != data["examples"]:
        raise ConfigError(
            "training.splits must hold the examples that the run was begun with. Received: others (ingested again "
            "or appended to since). To train on with them, begin a run with training.start_from"
        )
    found = changes(state["machine"], machine)
    if state["data"]["data_set"] != data["data_set"]:
        found.append("the data set was written again since (the examples are the same)")
    return [f"not deterministic: {line}" for line in found]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
