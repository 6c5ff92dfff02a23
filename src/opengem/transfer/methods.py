"""Transfer methods: what a student learns from beside the true labels."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opengem.config import Family
from opengem.jagged import Batch
from opengem.models.loss import binary_cross_entropy, labels_and_masks
from opengem.models.output import Output
from opengem.schema.inputs import InputSpec
from opengem.training.objective import LabelObjective


class TransferMethod(Family):
    """Base of every transfer method's configuration: a member has `build(inputs, task_weights) -> objective`."""

    def build(self, inputs: InputSpec, task_weights: Mapping[str, float]) -> LabelObjective:
        """Return the objective of the student."""
        raise NotImplementedError(f"{type(self).__name__} must define build(inputs, task_weights)")


@dataclass(frozen=True, kw_only=True)
class PlainDistillation(TransferMethod, type="plain"):
    """Settings of plain distillation.

    Attributes:
        weight: Weight of the teacher's term, 0 or more.
    """

    weight: float = 1.0

    def build(self, inputs: InputSpec, task_weights: Mapping[str, float]) -> LabelObjective:
        """Return the objective of the student."""
        return DistillationObjective(inputs, task_weights, self.weight)


@dataclass(frozen=True, kw_only=True)
class StudentAdapter(TransferMethod, type="adapter"):
    """Settings of distillation through a student adapter.

    Attributes:
        weight: Weight of the adapted teacher's term, 0 or more.
        hidden: Hidden width of the adapter.
        learning_rate: Of the adapter's own AdamW.
    """

    weight: float = 1.0
    hidden: int = 16
    learning_rate: float = 3e-3

    def build(self, inputs: InputSpec, task_weights: Mapping[str, float]) -> LabelObjective:
        """Return the objective of the student."""
        return AdapterObjective(inputs, task_weights, self)


class DistillationObjective(LabelObjective):
    """`BCE(y_s, y) + w BCE(y_s, y_T)`: the teacher's probability as a soft label.

    The teacher's term stands on every example that the label store holds, also where the true label is masked.

    Args:
        inputs: Tasks.
        task_weights: Weight of a task.
        weight: w.

    Source: Hinton et al. 2015 (1503.02531) for binary labels.
    """

    def __init__(self, inputs: InputSpec, task_weights: Mapping[str, float], weight: float) -> None:
        super().__init__(inputs, task_weights)
        self.weight = weight

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the soft labels and their mask, `(B, T)`."""
        z_BT = torch.stack([batch.extras[f"teacher_{t.name}"] for t in self.inputs.tasks], dim=1)
        mask_BT = torch.isfinite(z_BT).float() * batch.weight[:, None]
        return torch.sigmoid(torch.nan_to_num(z_BT)), mask_BT

    def forward(self, output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss to minimise and the label loss of each task."""
        loss, per_task = super().forward(output, batch)
        soft_BT, mask_BT = self.targets(batch)
        soft = binary_cross_entropy(output.logits_BT, soft_BT, mask_BT)
        return loss + self.weight * (soft * self.task_weights).sum(), per_task


class AdapterObjective(DistillationObjective):
    """Distillation from an adapted teacher: `y_A = sigmoid(z_T + MLP(z_T, surface))`.

    At each step the adapter is first trained on the true labels of the step, then frozen; the student learns from
    `stop_grad(y_A)`. The adapter starts as the identity. The older the teacher, the more it can help.

    Args:
        inputs: Tasks and surfaces.
        task_weights: Weight of a task.
        config: Settings.

    Source: student adapter, Meta's GEM post; ExFM (2502.17494); the residual form is our reconstruction.
    """

    def __init__(self, inputs: InputSpec, task_weights: Mapping[str, float], config: StudentAdapter) -> None:
        super().__init__(inputs, task_weights, config.weight)
        T = len(inputs.tasks)
        # its initial values are drawn apart, so that the student's dropout sees the same random numbers without it
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.surface = nn.Embedding(len(inputs.surfaces) + 1, config.hidden)
            self.first = nn.Linear(T, config.hidden)
            self.last = nn.Linear(config.hidden, T)
        nn.init.zeros_(self.surface.weight)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=config.learning_rate)

    def adapted(self, batch: Batch) -> Tensor:
        """Return the adapted log-odds `(B, T)`."""
        z_BT = torch.stack([batch.extras[f"teacher_{t.name}"] for t in self.inputs.tasks], dim=1)
        z_BT = torch.nan_to_num(z_BT).clamp(-15, 15)
        hidden = torch.nn.functional.silu(self.first(z_BT) + self.surface(batch.surface))
        return z_BT + self.last(hidden)

    def prepare(self, batch: Batch) -> None:
        """Train the adapter one step on the true labels."""
        labels_BT, mask_BT = labels_and_masks(batch, self.inputs)
        _, taught_BT = super().targets(batch)
        loss = binary_cross_entropy(self.adapted(batch), labels_BT, mask_BT * (taught_BT > 0)).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the adapted soft labels and their mask, `(B, T)`."""
        _, mask_BT = super().targets(batch)
        return torch.sigmoid(self.adapted(batch)), mask_BT

    def state(self) -> dict[str, Tensor]:
        """Return parameters and optimizer state."""
        tensors = dict(self.state_dict())
        for name, parameter in self.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{name}/{key}"] = torch.as_tensor(value).clone()
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("optimizer/")})
        for name, parameter in self.named_parameters():
            prefix = f"optimizer/{name}/"
            found = {k.removeprefix(prefix): v.clone() for k, v in tensors.items() if k.startswith(prefix)}
            if found:
                self.optimizer.state[parameter] = found
