"""From logs to batches: ingest, the data set on disk, its loader, the encoder, and a synthetic world."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opengem.data import synth
    from opengem.data.dataset import Dataset
    from opengem.data.encoder import Encoder
    from opengem.data.ingestion.run import IngestResult, ingest
    from opengem.data.loader import Loader

__all__ = ["Dataset", "Encoder", "IngestResult", "Loader", "ingest", "synth"]

_HOME = {
    "Dataset": "opengem.data.dataset",
    "Encoder": "opengem.data.encoder",
    "IngestResult": "opengem.data.ingestion.run",
    "Loader": "opengem.data.loader",
    "ingest": "opengem.data.ingestion.run",
}


def __getattr__(name: str) -> Any:
    """Import a part of the package when it is first asked for, so that light users stay light."""
    if name == "synth":
        return import_module("opengem.data.synth")
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
