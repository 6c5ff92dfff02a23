"""What a package needs of the machine that it runs on: the torch release, the device, and the features of the CPU."""

import platform
from pathlib import Path
from typing import Any

import torch

from opengem.errors import BackendUnavailable

ANY_CPU = "any"


def made_for(kind: str, device: torch.device) -> dict[str, str]:
    """Return the needs of a package that is made here, for its record.

    Args:
        kind: `pt2` runs on any CPU; `aoti` is compiled for this one, and needs its features.
        device: Device of the model.
    """
    cpu = _cpu() if kind == "aoti" else ANY_CPU
    return {"torch": torch.__version__, "device": str(device), "cpu": cpu}


def check_machine(facts: dict[str, Any], path: Path) -> None:
    """Refuse a package that was made for something else than what is here.

    Args:
        facts: Record of the package.
        path: Its model, for the error.

    Raises:
        BackendUnavailable: The torch release, the device or the CPU does not fit; says what it was made with, what was
            found, and what to do.
    """
    exact = facts["kind"] == "aoti"
    made, found = str(facts["torch"]), torch.__version__
    if (made if exact else _release(made)) != (found if exact else _release(found)):
        fix = f"Export it again with torch {found}, or install torch {made}."
        raise BackendUnavailable(f"{path} was made with torch {made}. Received: torch {found}. {fix}")
    device = str(facts["device"]).partition(":")[0]
    here = "cpu and cuda" if torch.cuda.is_available() else "cpu"
    if device not in here.split(" and "):
        fix = "Export it again from a model on a device that is here."
        raise BackendUnavailable(
            f"{path} was made for device {facts['device']}. Received: a machine with {here}. {fix}"
        )
    if facts["cpu"] == ANY_CPU:
        return
    lacking = sorted(set(str(facts["cpu"]).split()) - set(_cpu().split()))
    if lacking:
        raise BackendUnavailable(
            f"{path} was compiled for a CPU with {facts['cpu']}. Received: one without {', '.join(lacking)}. Export it "
            'again on a machine like this one, or in format "pt2", which runs on any CPU.'
        )


def check_device(facts: dict[str, Any], path: Path, found: str) -> None:
    """Refuse a model whose own device is not that of its record.

    Raises:
        BackendUnavailable: The record names another device.
    """
    made = str(facts["device"])
    if made.partition(":")[0] != found.partition(":")[0]:
        raise BackendUnavailable(
            f"{path} must run on device {made}, as its record says. Received: a model for {found}. Export it again."
        )


def _release(version: str) -> tuple[str, ...]:
    """Return the first two numbers of a version: within them a `torch.export` program can be read."""
    return tuple(version.split(".")[:2])


def _cpu() -> str:
    """Return the architecture and the features of this CPU, separated by spaces."""
    features = (name for name, here in torch.cpu.get_capabilities().items() if here is True)
    return " ".join([platform.machine(), *sorted(features)])
