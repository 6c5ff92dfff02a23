"""How answers and gradients of a Triton backend are held against the reference in double precision."""

import pytest
import torch

from opengem.ops.triton_target import INTERPRETED

# values behind the end of a row are computed and thrown away; the interpreter's numpy warns of them
INTERPRETER_WARNS = pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning")

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = (torch.float32, torch.float16) if INTERPRETED else (torch.bfloat16, torch.float16)
"""The interpreter's arithmetic in bfloat16 is wrong without a word, so it never sees bfloat16."""

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference in units of the largest value: a few roundings of weights and answers."""


def random(*shape, seed=0, dtype=torch.float32):
    """Return normal values that `dtype` holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype).to(DEVICE)


def answer_and_gradients(run, tensors):
    """Return what `run` answers to leaves of these tensors, and the leaves' gradients of a fixed mix of it."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = run(*leaves)
    mix = torch.arange(out.numel(), device=out.device).view_as(out).sin().to(out.dtype)
    if out.requires_grad:
        out.backward(mix)
    return [out.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)]


def assert_near(found, expected):
    """Assert that tensors are near those in double precision, place by place."""
    for left, right in zip(found, expected, strict=True):
        assert left.shape == right.shape
        largest = right.abs().max().item() if right.numel() else 0.0
        near = TOLERANCE[left.dtype] * max(1.0, largest)
        torch.testing.assert_close(left.double(), right, atol=near, rtol=0)


def assert_agree(run, tensors):
    """Assert that `run(*tensors, backend)` agrees between `triton` and the reference, gradients too."""
    found = answer_and_gradients(lambda *x: run(*x, "triton"), tensors)
    expected = answer_and_gradients(lambda *x: run(*x, "reference"), [x.double() for x in tensors])
    assert_near(found, expected)
