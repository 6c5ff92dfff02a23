"""What a run minimises."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from opengem.jagged import Batch
from opengem.models.loss import binary_cross_entropy, labels_and_masks
from opengem.models.output import Output
from opengem.schema.inputs import InputSpec


class LabelObjective(nn.Module):
    """The true labels: the weighted sum of the tasks' masked cross-entropies.

    An objective may hold parameters of its own; it then trains them in `prepare`, and its `state` and `load_state`
    carry all that a resumed run needs.

    Args:
        inputs: Tasks.
        task_weights: Weight of a task, 1 where not named.
    """

    task_weights: Tensor

    def __init__(self, inputs: InputSpec, task_weights: Mapping[str, float]) -> None:
        super().__init__()
        self.inputs = inputs
        weights = torch.tensor([task_weights.get(t.name, 1.0) for t in inputs.tasks])
        self.register_buffer("task_weights", weights, persistent=False)

    def prepare(self, batch: Batch) -> None:
        """Do what must come before the model's step."""

    def forward(self, output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss to minimise and the label loss of each task `(T,)`, for the log."""
        labels_BT, mask_BT = labels_and_masks(batch, self.inputs)
        per_task = binary_cross_entropy(output.logits_BT, labels_BT, mask_BT)
        return (per_task * self.task_weights).sum(), per_task.detach()

    def state(self) -> dict[str, Tensor]:
        """Return what a resumed run needs."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
