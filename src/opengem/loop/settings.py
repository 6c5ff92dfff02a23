"""What the quickstart trains, and how."""

from dataclasses import dataclass, field
from pathlib import Path

import opengem.models  # registers the model types
from opengem.config import build, load_toml, located
from opengem.models.baselines import DCNv2Config, DINConfig, DLRMConfig, LogisticRegressionConfig
from opengem.models.gem import GEMConfig
from opengem.models.output import ModelConfig
from opengem.models.vertical import VerticalConfig
from opengem.nn.pyramid import StreamTowerConfig
from opengem.training.run import TrainingConfig
from opengem.transfer.methods import PlainDistillation, TransferMethod

__all__ = ["ModelSettings", "QuickstartSettings", "load_settings", "opengem"]

BASELINES = ("logistic_regression", "dlrm", "dcnv2", "din")


# half of the tiny tower's tokens: on two cores the same minutes are better spent on twice the examples
TEACHER = GEMConfig(tower=StreamTowerConfig(tokens=32, recent=24))
ONE_PASS = TrainingConfig(epochs=1, batch_size=256)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """One model of the quickstart.

    Attributes:
        model: The model, by `type`.
        training: How it is trained.
    """

    model: ModelConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)


@dataclass(frozen=True, kw_only=True)
class QuickstartSettings:
    """All that the quickstart trains; a `quickstart.toml` beside the schema file changes it.

    Attributes:
        teacher: The large model.
        student: The small one, trained with and without the teacher.
        transfer: How the student is taught.
        logistic_regression: Baseline.
        dlrm: Baseline.
        dcnv2: Baseline.
        din: Baseline.
        seed: Seed of all runs.
        replicates: Bootstrap replicates of the intervals.
    """

    teacher: ModelSettings = ModelSettings(model=TEACHER, training=ONE_PASS)
    student: ModelSettings = ModelSettings(model=VerticalConfig(), training=ONE_PASS)
    transfer: TransferMethod = field(default_factory=PlainDistillation)
    logistic_regression: ModelSettings = ModelSettings(model=LogisticRegressionConfig(), training=ONE_PASS)
    dlrm: ModelSettings = ModelSettings(model=DLRMConfig(), training=ONE_PASS)
    dcnv2: ModelSettings = ModelSettings(model=DCNv2Config(), training=ONE_PASS)
    din: ModelSettings = ModelSettings(model=DINConfig(), training=ONE_PASS)
    seed: int = 0
    replicates: int = 200


def load_settings(schema: Path | None) -> QuickstartSettings:
    """Return the settings in `quickstart.toml` beside a schema file, or the defaults."""
    path = schema.parent / "quickstart.toml" if schema else None
    if path is None or not path.exists():
        return QuickstartSettings()
    with located(path):
        return build(QuickstartSettings, load_toml(path))
