"""A synthetic ads world with planted truth: ordinary logs whose best reachable NE is known."""

from opengem.data.synth.build import Progress, WorldInfo, synth
from opengem.data.synth.config import EFFECTS, SynthConfig
from opengem.data.synth.truth import TaskTruth, load_parameters, load_truth, measure_truth

__all__ = [
    "EFFECTS",
    "Progress",
    "SynthConfig",
    "TaskTruth",
    "WorldInfo",
    "load_parameters",
    "load_truth",
    "measure_truth",
    "synth",
]
