"""Personalised feed-forward network in GDPA form."""

from torch import Tensor, nn

from opengem.nn.initial import even, small
from opengem.nn.norm import LayerNorm
from opengem.ops.gdpa import gdpa


class PersonalisedFFN(nn.Module):
    """A feed-forward network over sequence tokens whose weights are made from the summary of the features.

    `LN(S + Act(Q K^T / sqrt(head width)) V)`, `Q = S`, `K = W_1(X_sum)`, `V = W_2(X_sum)`: two layers with as many
    hidden units a head as there are summary tokens. With the identity activation, constant K and `V = X_sum` it is
    InterFormer's linear form `(X_sum W_0) s`.

    Args:
        width: D.
        heads: H, divides D.
        activation: A name of `opengem.ops.gdpa.ACTIVATIONS`, or one a head.

    Source: InterFormer (2411.09852) for the idea; Kunlun (2602.10016) and Meta's released GDPA code for the form.
    """

    def __init__(self, width: int, heads: int, activation: str | tuple[str, ...] = "gelu") -> None:
        super().__init__()
        self.heads, self.activation = heads, activation
        self.norm = LayerNorm(width)
        self.key = even(nn.Linear(width, width))
        self.value = small(nn.Linear(width, width))

    def forward(self, s_BND: Tensor, summary_BMD: Tensor) -> Tensor:
        """Transform tokens.

        Args:
            s_BND: Sequence tokens `(B, N, D)`, normalised.
            summary_BMD: Summary tokens `(B, M, D)`.

        Returns:
            `(B, N, D)`.
        """
        split = (self.heads, -1)
        k, v = self.key(summary_BMD).unflatten(2, split), self.value(summary_BMD).unflatten(2, split)
        q = s_BND.unflatten(2, split).to(k.dtype)
        out = gdpa(q, k, v, activation=self.activation, alpha=q.shape[3] ** -0.5)
        return self.norm(s_BND + out.reshape(s_BND.shape).to(s_BND.dtype))

    def flops(self, rows: float, length: int, summary: int) -> float:
        """Return forward FLOPs of `rows` sequences of `length` tokens against `summary` tokens."""
        maps = 4 * rows * summary * self.key.weight.numel()
        return maps + 4 * rows * length * summary * self.key.in_features
