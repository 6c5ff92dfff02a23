"""Attention over the outputs of all earlier layers."""

import torch
from torch import Tensor, nn

from opengem.nn.initial import even


class CrossLayerAttention(nn.Module):
    """What a layer reads: the last layer's output, plus what it asks for from all earlier ones.

    For each token with outputs `x_0 .. x_{i-1}` of the earlier layers:
    `x_{i-1} + g * sum_j softmax_j(<W x_{i-1}, x_j> / sqrt(D)) x_j`, g of width D started at zero. At the start it is
    the identity, so that depth can only help.

    Args:
        width: D.

    Source: Meta's GEM posts name cross-layer attention and give no formula; the form is our reconstruction.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = even(nn.Linear(width, width, bias=False))
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, outputs: list[Tensor]) -> Tensor:
        """Read the outputs of the earlier layers.

        Args:
            outputs: One or more tensors `(B, n, D)`, oldest first.

        Returns:
            `(B, n, D)`.
        """
        last = outputs[-1]
        query = self.query(last) * last.shape[-1] ** -0.5
        # products and sums, not batched products: each token has only as many keys as there are layers
        scores = torch.stack([(query * x).sum(-1) for x in outputs], dim=-1)
        weights = scores.float().softmax(-1).to(last.dtype)
        read = torch.zeros_like(last)
        for j, x in enumerate(outputs):
            read = read + weights[..., j : j + 1] * x
        return last + self.gain.to(last.dtype) * read

    def flops(self, tokens: float) -> float:
        """Return forward FLOPs (matrix products) of `tokens` tokens."""
        return 2 * tokens * self.query.weight.numel()
