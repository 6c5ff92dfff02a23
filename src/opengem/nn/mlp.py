"""Multi-layer perceptron."""

import torch.nn.functional as F
from torch import Tensor, nn

from opengem.nn.initial import even


class MLP(nn.Module):
    """Linear layers with SiLU between them, and after the last one too if asked.

    `x_{i+1} = dropout(silu(W_i x_i + b_i))`.

    Args:
        width_in: Input width.
        widths: Width of each layer, at least one.
        dropout: Share of hidden values dropped in training, 0 to 1.
        activate_last: Whether activation and dropout follow the last layer.

    Source: Swish as in InterFormer's (2411.09852) head.
    """

    def __init__(
        self, width_in: int, widths: tuple[int, ...], dropout: float = 0.0, activate_last: bool = False
    ) -> None:
        super().__init__()
        self.activate_last = activate_last
        self.dropout = dropout
        pairs = zip((width_in, *widths), widths, strict=False)
        self.layers = nn.ModuleList(even(nn.Linear(a, b)) for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(..., width_in)` to `(..., widths[-1])`."""
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if self.activate_last or i + 1 < len(self.layers):
                x = F.dropout(F.silu(x), self.dropout, self.training)
        return x

    def flops(self, rows: float) -> float:
        """Return forward FLOPs of `rows` inputs."""
        return sum(2 * rows * layer.weight.numel() for layer in self.layers)  # type: ignore[union-attr, operator]
