"""The training loss: masked, weighted binary cross-entropy over the tasks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from opengem.jagged import Batch
from opengem.schema.inputs import InputSpec


def labels_and_masks(batch: Batch, inputs: InputSpec) -> tuple[Tensor, Tensor]:
    """Return labels and masks `(B, T)` float32 in task order; the mask carries the example's weight."""
    labels_BT = torch.stack([batch.labels[t.name] for t in inputs.tasks], dim=1)
    mask_BT = torch.stack([batch.label_mask[t.name] for t in inputs.tasks], dim=1)
    return labels_BT, mask_BT * batch.weight[:, None]


def binary_cross_entropy(logits_BT: Tensor, targets_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean loss of each task over its unmasked examples, `(T,)`.

    `sum_b m_bt BCE(z_bt, y_bt) / sum_b m_bt`; a task with no unmasked example counts 0.

    Args:
        logits_BT: Log-odds.
        targets_BT: Labels or probabilities in [0, 1].
        mask_BT: Weights, 0 where masked.
    """
    losses = F.binary_cross_entropy_with_logits(logits_BT.float(), targets_BT, reduction="none")
    return (losses * mask_BT).sum(0) / mask_BT.sum(0).clamp_min(1e-12)
