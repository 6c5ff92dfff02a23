"""A linear map over the token axis."""

import torch
from torch import Tensor, nn


class TokenLinear(nn.Module):
    """Mixes tokens: `y_m = sum_n W_mn x_n`, the same for each place of the width, without bias.

    Args:
        tokens_in: n.
        tokens_out: m.
        std: Standard deviation of the initial weights; `None` for `n ** -0.5`.
    """

    def __init__(self, tokens_in: int, tokens_out: int, std: float | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(tokens_out, tokens_in))
        nn.init.normal_(self.weight, std=tokens_in**-0.5 if std is None else std)

    def forward(self, x_BND: Tensor) -> Tensor:
        """Map `(B, n, D)` to `(B, m, D)`."""
        # an expanded batch of small products is twice as fast on CPU as one product over a transposed copy
        return torch.bmm(self.weight.to(x_BND.dtype).expand(x_BND.shape[0], -1, -1), x_BND)

    def flops(self, rows: float, width: int) -> float:
        """Return forward FLOPs for `rows` matrices of n tokens of `width`."""
        return 2 * rows * width * self.weight.numel()
