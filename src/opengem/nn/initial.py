"""Initial values that keep residual branches small."""

from torch import nn

BRANCH_GAIN = 0.1
"""Size of a residual branch at the start, relative to the stream that it is added to."""


def small(linear: nn.Linear) -> nn.Linear:
    """Initialise the last map of a residual branch: unit inputs give outputs of size `BRANCH_GAIN`; bias zero."""
    nn.init.normal_(linear.weight, std=BRANCH_GAIN * linear.in_features**-0.5)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def even(linear: nn.Linear) -> nn.Linear:
    """Initialise a map so that unit inputs give unit outputs; bias zero."""
    nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear
