"""OpenGEM: logs in, one large ads teacher trained, many small rankers taught, exported and served."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opengem.data import Dataset, ingest
    from opengem.data.checking.run import check_data
    from opengem.data.compaction import compact
    from opengem.data.synth import SynthConfig, synth
    from opengem.loop.quickstart import quickstart
    from opengem.report import write_report
    from opengem.schema import load_schema
    from opengem.serving.export_run import export_run
    from opengem.serving.predict import predict
    from opengem.serving.server import serve
    from opengem.training.evaluate import compare_runs, evaluate
    from opengem.training.run import TrainingConfig, TrainRun
    from opengem.training.trainer import train
    from opengem.transfer.distill import DistillRun, distill
    from opengem.transfer.labelling import label

_HOME = {
    "Dataset": "opengem.data",
    "DistillRun": "opengem.transfer.distill",
    "SynthConfig": "opengem.data.synth",
    "TrainRun": "opengem.training.run",
    "TrainingConfig": "opengem.training.run",
    "check_data": "opengem.data.checking.run",
    "compact": "opengem.data.compaction",
    "compare_runs": "opengem.training.evaluate",
    "distill": "opengem.transfer.distill",
    "evaluate": "opengem.training.evaluate",
    "export_run": "opengem.serving.export_run",
    "ingest": "opengem.data",
    "label": "opengem.transfer.labelling",
    "load_schema": "opengem.schema",
    "predict": "opengem.serving.predict",
    "quickstart": "opengem.loop.quickstart",
    "serve": "opengem.serving.server",
    "synth": "opengem.data.synth",
    "train": "opengem.training.trainer",
    "write_report": "opengem.report",
}

__all__ = [
    "Dataset",
    "DistillRun",
    "SynthConfig",
    "TrainRun",
    "TrainingConfig",
    "check_data",
    "compact",
    "compare_runs",
    "distill",
    "evaluate",
    "export_run",
    "ingest",
    "label",
    "load_schema",
    "predict",
    "quickstart",
    "serve",
    "synth",
    "train",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import a verb's function when it is first asked for: `import opengem` stays light."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
