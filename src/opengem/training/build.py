"""From a run's settings to a model that is ready to train: one fixed order of passes."""

import torch
from torch import nn

from opengem.distributed.fused_tables import fbgemm_problem, fuse_tables
from opengem.errors import BackendUnavailable, ConfigError
from opengem.nn.embedding import EmbeddingTables
from opengem.schema.inputs import InputSpec
from opengem.training.optimizers import TABLE_EPS
from opengem.training.run import TrainRun


def build_model(run: TrainRun, inputs: InputSpec) -> nn.Module:
    """Return the eager model, its initial values drawn from the run's seed."""
    torch.manual_seed(run.seed)
    return run.model.build(inputs)


def apply_passes(model: nn.Module, run: TrainRun) -> tuple[nn.Module, str]:
    """Apply the passes of a run.

    Returns:
        The model, and the table backend that runs, with the reason where `auto` had a choice.
    """
    config = run.training
    unknown = set(config.task_weights) - {t.name for t in model.inputs.tasks}  # type: ignore[union-attr]
    if unknown:
        raise ConfigError(f"training.task_weights names no task of the data. Received: {sorted(unknown)}")
    widths = [m.width for m in model.modules() if isinstance(m, EmbeddingTables)]
    problem = fbgemm_problem()
    if not problem and any(w % 4 for w in widths):
        problem = f"FBGEMM needs embedding widths that are multiples of 4 (here {widths})"
    if not problem and config.table_l2:
        problem = "FBGEMM's CPU kernel ignores weight decay, and training.table_l2 is set"
    if config.table_backend == "fbgemm" and problem:
        raise BackendUnavailable(f'training.table_backend "fbgemm" cannot run: {problem}')
    if config.table_backend == "reference":
        return model, "reference (as set)"
    if config.table_backend == "auto" and problem:
        return model, f"reference ({problem})"
    return fuse_tables(model, TABLE_EPS), "fbgemm"
