"""Row-wise AdaGrad for embedding tables: the readable reference."""

import torch
from torch import Tensor


class RowWiseAdaGrad:
    """AdaGrad with one second moment a row; a step touches only the rows that were used.

    For each used row with gradient g (summed over its uses) and value w of width E:
    `g <- g + l2 w; s <- s + mean_E(g^2); w <- w - lr g / (sqrt(s) + eps)`.

    Args:
        tables: Name -> parameter `(rows, E)` whose gradient is sparse (or dense).
        eps: Added to the root.
        l2: L2 penalty on the rows that are used.

    Source: FBGEMM's EXACT_ROWWISE_ADAGRAD with L2 weight decay, as its CUDA kernel has it.
    """

    def __init__(self, tables: dict[str, Tensor], eps: float = 1e-8, l2: float = 0.0) -> None:
        self.tables, self.eps, self.l2 = tables, eps, l2
        self.moments = {name: torch.zeros(w.shape[0]) for name, w in tables.items()}

    def not_finite(self) -> str:
        """Return which gradient is not finite, in words, or an empty string."""
        for name, weight in self.tables.items():
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                weight.grad = weight.grad.coalesce()
            values = weight.grad.values() if weight.grad.is_sparse else weight.grad
            if not torch.isfinite(values).all():
                wrong = int((~torch.isfinite(values)).sum())
                return f"{wrong} of {values.numel()} values of the gradient of table {name}"
        return ""

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Apply and clear the gradients."""
        for name, weight in self.tables.items():
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                gradient = weight.grad.coalesce()
                rows, g = gradient.indices()[0], gradient.values()
            else:
                rows = weight.grad.abs().sum(1).nonzero().squeeze(1)
                g = weight.grad[rows]
            if self.l2:
                g = g + self.l2 * weight[rows]
            moment = self.moments[name]
            moment[rows] += g.pow(2).mean(1)
            weight[rows] -= rate * g / (moment[rows].sqrt() + self.eps)[:, None]
            weight.grad = None
