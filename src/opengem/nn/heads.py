"""Heads for many surfaces and many tasks on one trunk."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opengem.nn.surface_embedding import SurfaceEmbedding
from opengem.schema.inputs import InputSpec


@dataclass(frozen=True, kw_only=True)
class HeadsConfig:
    """Heads of a model.

    Attributes:
        hidden: Width of each task's tower; 0 for a linear head.
        per_surface: Whether each surface has a gain on the trunk and a bias per task.
    """

    hidden: int = 32
    per_surface: bool = True


class DomainHeads(nn.Module):
    """One tower a task, one gain and bias a surface: domain = surface x task.

    `z_t = tower_t(g_s * trunk) + b_t + c_{s,t}`, `g_s` started at 1, `c` at 0, `b_t` at the training base rate.
    A task with `given` is a product: `p(t) = p(given) p(t | given)`, trained on all impressions, so that the
    rare head is unbiased.

    Args:
        config: Widths and switches.
        inputs: Tasks and surfaces.
        width_in: Width of the trunk.

    Source: cross-surface learning with per-surface objectives is Meta's GEM post; the form is our reconstruction.
    """

    def __init__(self, config: HeadsConfig, inputs: InputSpec, width_in: int) -> None:
        super().__init__()
        self.config, self.tasks = config, inputs.tasks
        self.places = {task.name: i for i, task in enumerate(inputs.tasks)}
        self.towers = nn.ModuleList(_tower(width_in, config.hidden) for _ in inputs.tasks)
        rates = {t.name: min(max(t.base_rate, 1e-6), 1 - 1e-6) for t in inputs.tasks}
        own = [rates[t.name] / rates[t.given] if t.given else rates[t.name] for t in inputs.tasks]
        own = [min(max(p, 1e-6), 1 - 1e-4) for p in own]
        self.bias = nn.Parameter(torch.tensor([math.log(p / (1 - p)) for p in own]))
        if config.per_surface:
            self.gain = SurfaceEmbedding(inputs, width_in)
            self.surface_bias = SurfaceEmbedding(inputs, len(inputs.tasks))
            nn.init.ones_(self.gain.weight)
            nn.init.zeros_(self.surface_bias.weight)

    def forward(self, trunk_BD: Tensor, surface_B: Tensor) -> Tensor:
        """Return log-odds `(B, T)` float32, conditional tasks multiplied out."""
        if self.config.per_surface:
            trunk_BD = trunk_BD * self.gain(surface_B)
        own_BT = torch.cat([tower(trunk_BD) for tower in self.towers], dim=1).float() + self.bias
        if self.config.per_surface:
            own_BT = own_BT + self.surface_bias(surface_B)
        columns: list[Tensor] = []
        for i, task in enumerate(self.tasks):
            z = own_BT[:, i]
            columns.append(product_logit(columns[self.places[task.given]], z) if task.given else z)
        return torch.stack(columns, dim=1)


def product_logit(a: Tensor, b: Tensor) -> Tensor:
    """Return the log-odds of the product of two probabilities given by their log-odds.

    `logit(sigmoid(a) sigmoid(b)) = -log(e^-a + e^-b + e^-a-b)`, computed without overflow for any finite input.
    """
    return -torch.logsumexp(torch.stack([-a, -b, -a - b]), dim=0)


def _tower(width_in: int, hidden: int) -> nn.Module:
    last = nn.Linear(hidden or width_in, 1, bias=False)
    nn.init.normal_(last.weight, std=0.01)
    if not hidden:
        return last
    return nn.Sequential(nn.Linear(width_in, hidden), nn.SiLU(), last)


def probability(logits: Tensor) -> Tensor:
    """Return probabilities of log-odds, in float32."""
    return F.sigmoid(logits.float())
