"""The package that is being served, and its successor once one is put in its place."""

import gc
import json
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from opengem.errors import OpenGEMError
from opengem.serving.package import FACTS
from opengem.serving.predictor import Predictor
from opengem.serving.request import Limits

_LOG = logging.getLogger("opengem.serving")


@dataclass(frozen=True)
class _Place:
    """What stands at a path: the folder behind its links, and the record in it."""

    folder: Path
    inode: tuple[int, int]
    record: tuple[int, int, int]


class LivePackage:
    """Holds the predictor of the package at a path, and exchanges it when another package stands there.

    Put a new package in place by turning a link (`ln -s packages/2 next && mv -T next current`) or by renaming folders;
    never write into a folder that is served. The new one is loaded and answers its sample before it takes over, in one
    step; a request is answered wholly by the predictor that it began with. A package that cannot be served is refused,
    noted in `problem`, and looked at again; the old one goes on.

    Args:
        path: Folder of a package, or a link to one.
        limits: How large a request may be.

    Attributes:
        predictor: The predictor now.
        problem: Why what stands at the path is not served; empty where it is.

    Raises:
        DataError: The first package is damaged.
        BackendUnavailable: It was made for another machine.
        CheckFailed: It does not answer its sample as it was exported.
    """

    def __init__(self, path: str | Path, limits: Limits | None = None):
        self._path, self._limits = Path(path), limits
        self._place = _place(self._path)
        self.predictor = Predictor.load(self._place.folder if self._place else self._path, limits)
        self.problem = ""
        self._refused: _Place | None = None
        self._wait, self._again = 0.0, 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> bool:
        """Serve what stands at the path now; return whether that is another package than before."""
        place = _place(self._path)
        if place is None or place == self._place:
            return False
        if place == self._refused and time.monotonic() < self._again:
            return False
        try:
            predictor = Predictor.load(place.folder, self._limits)
        except (OpenGEMError, OSError) as error:
            self._refuse(place, f"{type(error).__name__}: {error}")
            return False
        except Exception as error:
            _LOG.exception("a new package failed to load")
            self._refuse(place, f"{type(error).__name__}; the log says more")
            return False
        if _place(self._path) != place:
            return False  # exchanged again while it was read: its files may be of two packages
        same = predictor.package.fingerprint == self.predictor.package.fingerprint
        self._place, self.predictor, self.problem, self._refused = place, predictor, "", None
        gc.collect()  # a package holds cycles: its memory shall not wait for chance
        if not same:
            _LOG.warning(json.dumps({"event": "package", "package": predictor.package.fingerprint}))
        return not same

    def watch(self, seconds: float = 1.0) -> None:
        """Look every so many seconds, in a thread, until `close`."""

        def run() -> None:
            while not self._stop.wait(seconds):
                self.look()

        self._thread = threading.Thread(target=run, name="opengem-package", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _refuse(self, place: _Place, problem: str) -> None:
        """Note a package that cannot be served; its files may be on their way, so it is tried again, ever later."""
        self._wait = min(60.0, 2 * self._wait) if place == self._refused else 2.0
        self._refused, self._again = place, time.monotonic() + self._wait
        if problem != self.problem:
            _LOG.error(json.dumps({"event": "package refused", "problem": problem}))
        self.problem = problem


def _place(path: Path) -> _Place | None:
    """Return what stands at a path; None where there is no package, as in the middle of an exchange."""
    try:
        folder = path.resolve(strict=True)
        of_folder, of_record = os.stat(folder), os.stat(folder / FACTS)
    except OSError:
        return None
    record = (of_record.st_ino, of_record.st_mtime_ns, of_record.st_size)
    return _Place(folder, (of_folder.st_dev, of_folder.st_ino), record)
