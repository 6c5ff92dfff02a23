"""Activations that GDPA can put on its scores, by name."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _gelu_taylor(x: Tensor) -> Tensor:
    # x Phi(x) with Phi's series at 0 to the fifth power; the error stays below 0.01 for |x| <= 1.5
    square = x.square()
    series = 1 - square / 6 * (1 - 3 * square / 20)
    return x * (0.5 + x * series / math.sqrt(2 * math.pi))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_taylor": _gelu_taylor,
    "relu": F.relu,
    "relu_squared": _relu_squared,
    "silu": F.silu,
    "hardswish": F.hardswish,
}
"""Name -> function. `gelu_taylor` is a polynomial: its inputs must stay within about [-1.5, 1.5]."""


_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
    "relu": torch.ops.aten.relu_,
    "silu": torch.ops.aten.silu_,
    "hardswish": torch.ops.aten.hardswish_,
}
"""Name -> function that overwrites its argument, where torch has it as one call."""

_BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": lambda grad, x: grad,
    "gelu": torch.ops.aten.gelu_backward,
    "gelu_tanh": lambda grad, x: torch.ops.aten.gelu_backward(grad, x, approximate="tanh"),
    "relu": lambda grad, x: torch.ops.aten.threshold_backward(grad, x, 0),
    "silu": torch.ops.aten.silu_backward,
    "hardswish": torch.ops.aten.hardswish_backward,
}
"""Name -> gradient of the scores from that of the weights, where torch has it as one call."""


def activate(scores: Tensor, activation: tuple[str, ...], head_dim: int) -> Tensor:
    """Apply one activation, or one a head along `head_dim`."""
    if len(set(activation)) == 1:
        return ACTIVATIONS[activation[0]](scores)
    heads = scores.unbind(head_dim)
    return torch.stack([ACTIVATIONS[a](h) for a, h in zip(activation, heads, strict=True)], dim=head_dim)


def activate_(scores: Tensor, activation: tuple[str, ...], head_dim: int) -> Tensor:
    """As `activate`, without gradients and in place where that is one call."""
    if len(set(activation)) == 1 and activation[0] in _IN_PLACE:
        return _IN_PLACE[activation[0]](scores)
    return activate(scores, activation, head_dim)


def activate_backward(grad: Tensor, scores: Tensor, activation: tuple[str, ...], head_dim: int) -> Tensor:
    """Return the gradient of the scores from `grad`, that of `activate`'s result."""
    if len(set(activation)) == 1 and activation[0] in _BACKWARD:
        return _BACKWARD[activation[0]](grad, scores)
    with torch.enable_grad():
        leaf = scores.detach().requires_grad_()
        return torch.autograd.grad(activate(leaf, activation, head_dim), leaf, grad)[0]
