import pytest
import torch
import torch.nn.functional as F

from opengem.errors import BackendUnavailable, ConfigError
from opengem.ops.rotary_attention import rotary_attention, rotate
from tests.ops.rows import rotation

BACKENDS = ("fused", "composed", "reference")


def qkv_for(rows, length, heads=2, width=4):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, length, 3, heads, width, dtype=torch.float64, generator=generator)


def masks(rows, length):
    seen = torch.rand(rows, length, generator=torch.Generator().manual_seed(1)) < 0.5
    seen[:, 0] = True
    place = torch.arange(length)
    band = ((place[:, None] - place).abs() <= 2) | (place == 0)
    return seen, band


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("band", [False, True])
@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (0, 5)], ids=str)
def test_values_and_gradients_agree(shape, seen, band):
    qkv, turn = qkv_for(*shape), rotation(shape[1], 2)
    seen_BN, band_NN = masks(*shape)
    form = {"seen_BN": seen_BN if seen else None, "band_NN": band_NN if band else None}
    results = []
    for backend in BACKENDS:
        leaf = qkv.clone().requires_grad_()
        out = rotary_attention(leaf, turn, backend=backend, **form)
        (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out).sin()).sum().backward()
        results.append((out.detach(), leaf.grad))
    for other in results[:2]:
        for left, right in zip(other, results[2], strict=True):
            torch.testing.assert_close(left, right)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_rotation_it_is_plain_attention(backend):
    qkv = qkv_for(2, 5)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    torch.testing.assert_close(rotary_attention(qkv, backend=backend), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend):
    seen, band = masks(2, 4)
    leaf, turn = qkv_for(2, 4, heads=1).requires_grad_(), rotation(4, 2)
    assert torch.autograd.gradcheck(
        lambda x: rotary_attention(x, turn, seen_BN=seen, band_NN=band, backend=backend), (leaf,)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_by_hand(dtype):
    quarter = torch.tensor([[0.0, 1.0]])
    assert rotate(torch.tensor([3.0, 4.0], dtype=dtype), quarter).tolist() == [-4.0, 3.0]


def test_fused_refuses_what_it_cannot_do():
    with pytest.raises(BackendUnavailable, match="float32 or float64"):
        rotary_attention(qkv_for(1, 2).bfloat16(), backend="fused")


def test_wrong_arguments_are_named():
    with pytest.raises(ConfigError, match=r"\(B, N, 3, H, K\)"):
        rotary_attention(torch.zeros(2, 3, 2, 1, 4))
    with pytest.raises(ConfigError, match="rotation must be"):
        rotary_attention(qkv_for(1, 3), rotation(2, 2))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turned", [False, True])
def test_strided_input_and_gradient(backend, turned):
    qkv, turn = qkv_for(2, 5), rotation(5, 2) if turned else None
    results = []
    for make in (torch.Tensor.contiguous, lambda x: x.repeat_interleave(2, -1)[..., ::2]):
        leaf = make(qkv).detach().requires_grad_()
        out = rotary_attention(leaf, turn, backend=backend)
        out.backward(make(torch.ones_like(out).cumsum(-1)))
        results.append((out.detach(), leaf.grad))
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right)
