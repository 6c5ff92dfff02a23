"""One process a run folder: a lock that goes with the process that holds it."""

import datetime
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opengem.errors import ConfigError

_held: set[int] = set()


@contextmanager
def only_here(file: Path) -> Iterator[None]:
    """Hold the lock of a run folder; the file names the process that holds it and when it began.

    The system drops the lock when the process ends, however it ends: a file that a dead process left locks nothing.

    Args:
        file: The lock's file; made where it is missing, and left where it is.

    Raises:
        ConfigError: Another process holds the lock; names it.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{file.parent} must be trained by one process at a time. Received: {_holder(file)} trains it. "
                "Wait for it, end it, or name another folder"
            ) from None
        began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps({"process": os.getpid(), "since": began}).encode())
        _held.add(descriptor)
        yield
    finally:
        if descriptor in _held:
            _held.discard(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # for a child too that has not closed it yet
        os.close(descriptor)


def _holder(file: Path) -> str:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return f"process {record['process']} (since {record['since']})"
    except (OSError, ValueError, KeyError):  # it is just being written
        return "another process"


def _close_in_child() -> None:
    # a process that reads batches must not keep the lock of a trainer that was killed
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
