"""Gates of the cross arch."""

from typing import Literal

from torch import Tensor, nn

from opengem.errors import ConfigError
from opengem.nn.initial import even

GateForm = Literal["signed", "printed", "none"]


class Gate(nn.Module):
    """Weighs each value of a token by what the token itself says.

    `signed`: `x * sigmoid(W x + b)`. `printed`: `sigmoid(x * (W x + b))`, the form that stands in the paper; it
    loses the sign of x. `none`: x.

    Args:
        width: D.
        form: `signed`, `printed` or `none`.

    Source: InterFormer (2411.09852), personalised gating; `signed` is our reconstruction of its intent.
    """

    def __init__(self, width: int, form: GateForm = "signed") -> None:
        super().__init__()
        if form not in ("signed", "printed", "none"):
            raise ConfigError(f'gate must be "signed", "printed" or "none", got "{form}"')
        self.form = form
        self.score = even(nn.Linear(width, width)) if form != "none" else None

    def forward(self, x: Tensor) -> Tensor:
        """Gate tokens `(..., D)`."""
        if self.score is None:
            return x
        if self.form == "printed":
            return (x * self.score(x)).sigmoid()
        return x * self.score(x).sigmoid()

    def flops(self, tokens: float) -> float:
        """Return forward FLOPs of `tokens` tokens."""
        return 0.0 if self.score is None else 2 * tokens * self.score.weight.numel()
