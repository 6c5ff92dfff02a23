import math

import pytest
import torch
import torch.nn.functional as F

from opengem.errors import ConfigError
from opengem.ops.gdpa import ACTIVATIONS, gdpa
from tests.ops.rows import LENGTHS, offsets_of

BACKENDS = ("cpu", "padded", "reference")


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def run(backend, tensors, **form):
    leaves = [t.clone().requires_grad_() for t in tensors]
    out = gdpa(*leaves, backend=backend, **form)
    if out.requires_grad:
        (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out).sin()).sum().backward()
    zero_if_unused = (torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)
    return [out.detach(), *zero_if_unused]


def assert_agree(tensors, **form):
    expected = run("reference", tensors, **form)
    for backend in ("cpu", "padded"):
        for left, right in zip(run(backend, tensors, **form), expected, strict=True):
            torch.testing.assert_close(left, right)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, ("gelu", "identity")], ids=str)
def test_activations_agree_on_self_form(activation):
    tensors = [random(10, 2, 4, seed=s) * 0.5 for s in range(3)]
    offsets = offsets_of([4, 0, 5, 1])
    assert_agree(tensors, q_offsets=offsets, k_offsets=offsets, activation=activation, alpha=0.2)


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_agree_on_self_and_pooled_forms(name):
    lengths = LENGTHS[name]
    offsets = offsets_of(lengths)
    tensors = [random(sum(lengths), 2, 4, seed=s) for s in range(3)]
    assert_agree(tensors, q_offsets=offsets, k_offsets=offsets, alpha=1 / 64)
    assert_agree([random(3, 2, 4), *tensors[1:]], k_offsets=offsets)


def test_cross_forms_agree_and_the_map_equals_copies():
    q_lengths, request_of_row = [3, 0, 2, 4], torch.tensor([1, 0, 0, 1])
    q, k, v = random(9, 2, 4), random(2, 5, 2, 4, seed=1), random(2, 5, 2, 4, seed=2)
    offsets = offsets_of(q_lengths)
    assert_agree([q, k, v], q_offsets=offsets, request_of_row=request_of_row)
    shared = gdpa(q, k, v, q_offsets=offsets, request_of_row=request_of_row)
    copied = gdpa(q, k[request_of_row], v[request_of_row], q_offsets=offsets)
    torch.testing.assert_close(shared, copied)
    dense = random(4, 6, 2, 4, seed=3)
    assert_agree([dense, k, v], request_of_row=request_of_row)
    jagged = [random(7, 2, 4, seed=s) for s in (4, 5)]
    assert_agree([q, *jagged], q_offsets=offsets, k_offsets=offsets_of([3, 4]), request_of_row=request_of_row)


def test_backward_is_the_printed_formula():
    q, k, v, grad = (random(5, 1, 3, seed=s) for s in range(4))
    alpha, offsets = 0.7, offsets_of([5])
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    gdpa(*leaves, q_offsets=offsets, k_offsets=offsets, activation="silu", alpha=alpha).backward(grad)
    q, k, v, grad = (x[:, 0] for x in (q, k, v, grad))
    S = alpha * q @ k.T
    sigmoid = torch.sigmoid(S)
    dS = (grad @ v.T) * (sigmoid * (1 + S * (1 - sigmoid)))
    expected = alpha * dS @ k, alpha * dS.T @ q, (S * sigmoid).T @ grad
    for leaf, value in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad[:, 0], value)


def test_generated_feed_forward():
    """With dense keys and values a row of GDPA is a two-layer network whose weights are data."""
    q, k, v = random(6, 1, 4), random(1, 8, 1, 4, seed=1), random(1, 8, 1, 4, seed=2)
    out = gdpa(q, k, v, q_offsets=offsets_of([6]), activation="gelu")
    torch.testing.assert_close(out[:, 0], F.gelu(q[:, 0] @ k[0, :, 0].T) @ v[0, :, 0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ["identity", "gelu", "silu", ("gelu_tanh", "gelu_taylor")], ids=str)
def test_gradcheck(backend, activation):
    tensors = tuple((random(5, 2, 2, seed=s) * 0.5).requires_grad_() for s in range(3))
    offsets = offsets_of([2, 0, 3])
    assert torch.autograd.gradcheck(
        lambda q, k, v: gdpa(
            q, k, v, q_offsets=offsets, k_offsets=offsets, activation=activation, backend=backend
        ),
        tensors,
    )


def test_taylor_gelu_is_near_gelu_on_its_range():
    x = torch.linspace(-1.5, 1.5, 301, dtype=torch.float64)
    exact = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    assert (ACTIVATIONS["gelu_taylor"](x) - exact).abs().max() < 0.04
    inner = x.abs() <= 1.0
    assert (ACTIVATIONS["gelu_taylor"](x) - exact)[inner].abs().max() < 0.003


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_value_stays_in_its_row(backend):
    tensors = [random(12, 1, 4, seed=s) for s in range(3)]
    tensors[1][6] = float("nan")
    offsets = offsets_of([5, 3, 4])
    out = gdpa(*tensors, q_offsets=offsets, k_offsets=offsets, backend=backend)
    assert out[:5].isfinite().all()
    assert out[8:].isfinite().all()
    assert out[5:8].isnan().all()


def test_wrong_arguments_are_named():
    x, offsets = random(3, 2, 4), offsets_of([3])
    with pytest.raises(ConfigError, match='did you mean "gelu"'):
        gdpa(x, x, x, q_offsets=offsets, k_offsets=offsets, activation="glu")
    with pytest.raises(ConfigError, match="one a head"):
        gdpa(x, x, x, q_offsets=offsets, k_offsets=offsets, activation=("gelu",) * 3)
    with pytest.raises(ConfigError, match="without offsets"):
        gdpa(x, x, x, q_offsets=offsets)
