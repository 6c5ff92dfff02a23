"""What is installed, what fits together, and which backend would run."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from typing import Literal

from opengem.distributed.fused_tables import fbgemm_problem

_EXTRAS = {
    "fastapi": ("serve", "opengem serve"),
    "uvicorn": ("serve", "opengem serve"),
    "matplotlib": ("report", "opengem report"),
    "jinja2": ("report", "opengem report"),
}


@dataclass(frozen=True)
class Check:
    """One finding of the doctor; `absent` is an optional part that is not there."""

    name: str
    state: Literal["good", "absent", "bad"]
    finding: str


def diagnose() -> list[Check]:
    """Look at Python, torch, FBGEMM, the extras and the compiler; nothing is changed or downloaded."""
    import torch

    checks = [
        Check("python", "good", f"{platform.python_version()}, {os.cpu_count()} cores"),
        _torch(torch.__version__),
        Check("torch threads", "good", str(torch.get_num_threads())),
    ]
    problem = fbgemm_problem()
    installed = "not installed" not in problem
    if not problem:
        checks.append(Check("embedding tables", "good", "FBGEMM fused row-wise AdaGrad"))
    else:
        state: Literal["absent", "bad"] = "bad" if installed else "absent"
        checks.append(Check("embedding tables", state, f"reference row-wise AdaGrad; {problem}"))
    checks.append(Check("operations", "good", _operations()))
    for package, (extra, verb) in _EXTRAS.items():
        found = importlib.util.find_spec(package) is not None
        hint = f"{verb} needs it: pip install 'opengem[{extra}]'"
        finding = importlib.metadata.version(package) if found else hint
        checks.append(Check(package, "good" if found else "absent", finding))
    compiler = shutil.which("g++") or shutil.which("clang++")
    checks.append(
        Check(
            "C++ compiler",
            "good" if compiler else "absent",
            "found" if compiler else "export --format aoti needs one",
        )
    )
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none; everything runs on the CPU"
    checks.append(Check("GPU", "good" if torch.cuda.is_available() else "absent", device))
    return checks


def _operations() -> str:
    """Return the backends that each operation can be asked for, in order of preference."""
    from opengem.ops.block_attention.api import BACKENDS as BLOCK
    from opengem.ops.gdpa.api import BACKENDS as GDPA
    from opengem.ops.jagged_attention.api import BACKENDS as JAGGED
    from opengem.ops.rotary_attention.api import BACKENDS as ROTARY

    operations = {
        "block_attention": BLOCK,
        "gdpa": GDPA,
        "jagged_attention": JAGGED,
        "rotary_attention": ROTARY,
    }
    return "; ".join(
        f"{name}: {', '.join(b.name for b in backends)}" for name, backends in operations.items()
    )


def _torch(version: str) -> Check:
    fits = version.split("+")[0].startswith("2.13.")
    return Check(
        "torch", "good" if fits else "bad", version if fits else f"{version}; tested with 2.13: torch==2.13.0"
    )
