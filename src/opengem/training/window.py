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
        tasks: Names of the tasks -> their weights in the loss; NE and calibration in the line are the first task's.
        roof: Measured peak of the machine in FLOP/s, for the MFU.
    """

    SUMS = ("extra", "weight", "examples", "events", "flops", "rows", "n", "nll", "p", "y")
    PARTS = ("data", "forward", "backward", "optimizer")

    def __init__(self, tasks: dict[str, float], roof: float) -> None:
        self.tasks, self.roof = tasks, roof
        self.totals: dict[str, float] = dict.fromkeys(self.PARTS, 0.0)
        self.clear()

    def clear(self) -> None:
        """Begin a new window."""
        of_tasks = [f"{sum} {task}" for task in self.tasks for sum in ("loss", "weight")]
        self.sums: dict[str, float] = dict.fromkeys([*self.SUMS, *of_tasks], 0.0)
        self.parts: dict[str, float] = dict.fromkeys(self.PARTS, 0.0)
        self.began = time.perf_counter()

    def spend(self, part: str, seconds: float) -> None:
        """Add time to one part of the step."""
        self.parts[part] += seconds
        self.totals[part] += seconds

    def add(
        self,
        loss: Tensor,
        per_task: Tensor,
        logits_BT: Tensor,
        labels_BT: Tensor,
        mask_BT: Tensor,
        batch: Batch,
        flops: float,
    ) -> None:
        """Add one step.

        Args:
            loss: What the step minimised.
            per_task: Mean loss of each task over the labelled rows of the step, `(T,)`.
            logits_BT: Log-odds.
            labels_BT: Labels.
            mask_BT: Weights, 0 where masked.
            batch: The batch.
            flops: Floating-point operations of the step.
        """
        z, y, m = logits_BT[:, 0].detach().double(), labels_BT[:, 0].double(), mask_BT[:, 0].double()
        nll = torch.nn.functional.softplus(z) - z * y
        weight = float(batch.weight.double().sum())
        added = {
            "extra": weight * loss.item(),
            "weight": weight,
            "examples": batch.num_examples,
            "events": batch.num_events(),
            "flops": flops,
            "rows": float((m > 0).sum()),
            "n": float(m.sum()),
            "nll": float((nll * m).sum()),
            "p": float((torch.sigmoid(z) * m).sum()),
            "y": float((y * m).sum()),
        }
        weights_T, losses_T = mask_BT.double().sum(0).tolist(), per_task.tolist()
        for (task, of_task), n, mean in zip(self.tasks.items(), weights_T, losses_T, strict=True):
            added |= {f"loss {task}": n * mean, f"weight {task}": n}
            added["extra"] -= weight * of_task * mean
        for key, value in added.items():
            self.sums[key] += value

    def _loss(self) -> float:
        """Return the mean over rows, not over steps: each task over its labelled rows, what is left over all rows."""
        s = self.sums
        parts = [(w, s[f"loss {task}"], s[f"weight {task}"]) for task, w in self.tasks.items()]
        parts.append((1.0, s["extra"], s["weight"]))
        return sum(w * total / weight for w, total, weight in parts if weight)

    def _undefined(self) -> str | None:
        """Return why there is no NE, or None."""
        n, y, rows = self.sums["n"], self.sums["y"], int(self.sums["rows"])
        if not rows:
            return "no labelled row"
        of = f"{rows} row{'s' if rows > 1 else ''}"
        return f"no positive in {of}" if y <= 0 else f"no negative in {of}" if y >= n else None

    def row(self) -> dict[str, Any]:
        """Return the figures of the window; NE is None where its rows are of one class, or have no weight."""
        s, seconds = self.sums, max(time.perf_counter() - self.began, 1e-9)
        rate = s["y"] / s["n"] if s["n"] else math.nan
        entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)) if 0 < rate < 1 else math.nan
        return {
            "loss": self._loss(),
            "rows": int(s["rows"]),
            "ne": _or_none(s["nll"] / s["n"] / entropy if s["n"] else math.nan),
            "calibration": _or_none(s["p"] / s["y"] if s["y"] else math.nan),
            "undefined": self._undefined(),
            "examples_per_second": s["examples"] / seconds,
            "events_per_second": s["events"] / seconds,
            "mfu": s["flops"] / seconds / self.roof if self.roof else None,
            "data_wait": self.parts["data"] / seconds,
        }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
