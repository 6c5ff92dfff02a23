"""Builds the attention library with the wheel; `python hatch_build.py` builds it in place.

From one C file one shared library for each level of the processor that it may meet. Where there is no C compiler one
line says so, and the package is installed without: its operations then run on torch alone.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, outside a build
    BuildHookInterface = object

FOLDER = "src/opengem/ops/native"
X86 = {
    "v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    "portable": ["-march=x86-64-v3"],
}
OTHER = {"portable": []}
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread"]


def compiler() -> list[str] | None:
    """Return the command of the C compiler: $CC, else cc, gcc or clang."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        return named if shutil.which(named[0]) else None
    return next(([c] for c in ("cc", "gcc", "clang") if shutil.which(c)), None)


def build(root: Path) -> list[Path]:
    """Compile every level that this machine's compiler can make; return the libraries."""
    command = compiler()
    if command is None:
        print("opengem: no C compiler ($CC, cc, gcc, clang): attention runs on torch alone", file=sys.stderr)
        return []
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    folder, made = root / FOLDER, []
    for level, flags in (X86 if x86 else OTHER).items():
        library = folder / f"attention_{level}.so"
        part = library.with_suffix(".part")
        done = subprocess.run(
            [*command, *FLAGS, *flags, str(folder / "attention.c"), "-o", str(part), "-lm"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            library.unlink(missing_ok=True)
            line = (done.stderr.strip().splitlines() or ["no message"])[0]
            print(f"opengem: {command[0]} made no attention library {level}: {line}", file=sys.stderr)
        else:
            part.replace(library)  # in one step: a running process keeps the file that it has open
            made.append(library)
        part.unlink(missing_ok=True)
    return made


class CustomBuildHook(BuildHookInterface):
    """Hatchling's hook: the libraries go into the wheel, whose name then says for which platform it is."""

    def initialize(self, version: str, build_data: dict) -> None:
        """Build before the wheel is put together."""
        if self.target_name != "wheel":
            return
        if build(Path(self.root)):
            build_data["pure_python"] = False
            build_data["artifacts"].append(f"/{FOLDER}/*.so")
            # plain C through ctypes: bound to the platform, to no version of Python
            from packaging.tags import sys_tags

            build_data["tag"] = f"py3-none-{next(sys_tags()).platform}"


if __name__ == "__main__":
    print(*build(Path(__file__).parent), sep="\n")
