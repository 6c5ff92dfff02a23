"""The life of an output folder: written beside the old one, exchanged in one step, cleaned up after kills."""

import ctypes
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opengem.errors import ConfigError

_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_MARK = ".ingest-"
_SEGMENT = ".segment-"


@contextmanager
def fresh_folder(out: Path) -> Iterator[Path]:
    """Give a new folder beside `out` that takes its place when the block ends well, and vanishes when not.

    Whatever happens in between, `out` is either the old folder, whole, or the new one. Leftovers of runs that were
    killed are removed; a run that is alive holds a lock on its own.

    Args:
        out: Where the finished folder shall be. A folder without `manifest.json` that is not empty is not replaced.

    Raises:
        ConfigError: `out` is a file, or a folder of something else.
    """
    check_replaceable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(out)
    folder = out.parent / f".{out.name}{_MARK}{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
        (folder / ".lock").unlink()
        _exchange(folder, out)
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_segment(out: Path, number: int) -> Iterator[Path]:
    """Give a new folder inside the data set `out` that becomes `segments/NNNNN` when the block ends well.

    The data set does not know of it until its manifest is replaced, so a kill leaves the old data set whole; a
    segment that the manifest does not know is what such a kill left, and is replaced.
    """
    for leftover in out.glob(f"{_SEGMENT}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = out / f"{_SEGMENT}{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    try:
        yield folder
        place = out / segment_name(number)
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        os.rename(folder, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def segment_name(number: int) -> str:
    """Return the folder of a segment, relative to the data set."""
    return f"segments/{number:05d}"


@contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Hold the right to write `out`; a process that dies gives it back.

    Raises:
        ConfigError: Another process holds it.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.parent / f".{out.name}.lock"
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(lock)
            raise ConfigError(
                f"out must be written by one process at a time. Received: {out}, held by {holder}"
            ) from None
        if path.exists() and os.stat(path).st_ino == os.fstat(lock).st_ino:
            break
        os.close(lock)  # its holder has just removed it
    try:
        os.truncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def check_replaceable(out: Path) -> None:
    """Refuse to replace what is not a data set.

    Raises:
        ConfigError: `out` is a file, or a folder that is neither empty nor a data set.
    """
    if out.is_file():
        raise ConfigError(f"out must be a folder. Received: {out}, a file")
    if out.is_dir() and any(out.iterdir()) and not (out / "manifest.json").exists():
        raise ConfigError(
            f"out must be new, empty or a data set to replace. Received: {out}, a folder of something else"
        )


def _exchange(new: Path, out: Path) -> None:
    """Put `new` in the place of `out`; where the system can, in one step that nothing can interrupt."""
    if not out.exists():
        os.rename(new, out)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        done = libc.renameat2(
            _AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(out), ctypes.c_uint(_EXCHANGE)
        )
        if done == 0:
            return
    old = new.with_name(new.name + "-old")
    os.rename(out, old)
    os.rename(new, out)
    shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(out: Path) -> None:
    for folder in out.parent.glob(f".{out.name}{_MARK}*"):
        if folder.name.endswith("-old") and not out.exists():
            os.rename(folder, out)
        elif not _is_locked(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_locked(folder: Path) -> bool:
    try:
        lock = os.open(folder / ".lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
