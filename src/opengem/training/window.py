"""Figures of the last steps, for the log line."""

import math
import time
from typing import Any

import torch
from torch import Tensor

from opengem.jagged import Batch


class Window:
    """Sums over the steps since the last log line: loss, NE, calibration, rates and where the time went.

    Args:
        tasks: Names of the tasks; NE and calibration in the line are those of the first.
        roof: Measured peak of the machine in FLOP/s, for the MFU.
    """

    SUMS = ("steps", "loss", "examples", "events", "flops", "n", "nll", "p", "y")
    PARTS = ("data", "forward", "backward", "optimizer")

    def __init__(self, tasks: list[str], roof: float) -> None:
        self.tasks, self.roof = tasks, roof
        self.totals: dict[str, float] = dict.fromkeys(self.PARTS, 0.0)
        self.clear()

    def clear(self) -> None:
        """Begin a new window."""
        self.sums: dict[str, float] = dict.fromkeys(self.SUMS, 0.0)
        self.parts: dict[str, float] = dict.fromkeys(self.PARTS, 0.0)
        self.began = time.perf_counter()

    def spend(self, part: str, seconds: float) -> None:
        """Add time to one part of the step."""
        self.parts[part] += seconds
        self.totals[part] += seconds

    def add(
        self, loss: Tensor, logits_BT: Tensor, labels_BT: Tensor, mask_BT: Tensor, batch: Batch, flops: float
    ) -> None:
        """Add one step."""
        z, y, m = logits_BT[:, 0].detach().double(), labels_BT[:, 0].double(), mask_BT[:, 0].double()
        nll = torch.nn.functional.softplus(z) - z * y
        added = {
            "steps": 1.0,
            "loss": loss.item(),
            "examples": batch.num_examples,
            "events": batch.num_events(),
            "flops": flops,
            "n": float(m.sum()),
            "nll": float((nll * m).sum()),
            "p": float((torch.sigmoid(z) * m).sum()),
            "y": float((y * m).sum()),
        }
        for key, value in added.items():
            self.sums[key] += value

    def row(self) -> dict[str, Any]:
        """Return the figures of the window."""
        s, seconds = self.sums, max(time.perf_counter() - self.began, 1e-9)
        rate = s["y"] / s["n"] if s["n"] else math.nan
        entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)) if 0 < rate < 1 else math.nan
        return {
            "loss": s["loss"] / max(s["steps"], 1),
            "ne": _or_none(s["nll"] / s["n"] / entropy if s["n"] else math.nan),
            "calibration": _or_none(s["p"] / s["y"] if s["y"] else math.nan),
            "examples_per_second": s["examples"] / seconds,
            "events_per_second": s["events"] / seconds,
            "mfu": s["flops"] / seconds / self.roof if self.roof else None,
            "data_wait": self.parts["data"] / seconds,
        }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
