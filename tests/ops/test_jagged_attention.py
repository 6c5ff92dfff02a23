import pytest
import torch
import torch.nn.functional as F

from opengem.errors import ConfigError
from opengem.ops.jagged_attention import jagged_attention
from tests.ops.rows import LENGTHS, offsets_of

BACKENDS = ("cpu", "padded", "reference")
FORMS = [
    {},
    {"causal": True},
    {"window": 0},
    {"window": 5},
    {"window": 5, "causal": True},
    {"window": 200},
    {"scale": 0.3},
]


def random(length, seed=0, heads=2, width=4):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, heads, width, dtype=torch.float64, generator=generator)


def run(backend, tensors, *offsets, **form):
    leaves = [t.clone().requires_grad_() for t in tensors]
    out = jagged_attention(*leaves, *offsets, backend=backend, **form)
    if out.requires_grad:
        (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out).sin()).sum().backward()
    zero_if_unused = (torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)
    return [out.detach(), *zero_if_unused]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", LENGTHS)
def test_self_attention_agrees(name, form):
    lengths = LENGTHS[name]
    tensors = [random(sum(lengths), seed) for seed in range(3)]
    expected = run("reference", tensors, offsets_of(lengths), **form)
    for backend in ("cpu", "padded"):
        for left, right in zip(run(backend, tensors, offsets_of(lengths), **form), expected, strict=True):
            torch.testing.assert_close(left, right)


@pytest.mark.parametrize(
    ("q_lengths", "k_lengths"), [([3, 0, 5, 2], [1, 4, 0, 70]), ([0, 0], [3, 2]), ([4, 1], [0, 0])]
)
def test_cross_attention_agrees(q_lengths, k_lengths):
    tensors = [random(sum(q_lengths)), random(sum(k_lengths), 1), random(sum(k_lengths), 2)]
    offsets = offsets_of(q_lengths), offsets_of(k_lengths)
    expected = run("reference", tensors, *offsets)
    for backend in ("cpu", "padded"):
        for left, right in zip(run(backend, tensors, *offsets), expected, strict=True):
            torch.testing.assert_close(left, right)
            assert left.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_row_is_plain_attention(backend):
    q, k, v = (random(9, seed) for seed in range(3))
    dense = F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (q, k, v)), is_causal=True)
    out = jagged_attention(q, k, v, offsets_of([9]), causal=True, backend=backend)
    torch.testing.assert_close(out, dense.transpose(0, 1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", [{}, {"window": 2}, {"causal": True}], ids=str)
def test_gradcheck(backend, form):
    tensors = tuple(random(7, seed, heads=1).requires_grad_() for seed in range(3))
    offsets = offsets_of([4, 0, 3])
    assert torch.autograd.gradcheck(
        lambda q, k, v: jagged_attention(q, k, v, offsets, backend=backend, **form), tensors
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_value_stays_in_its_row_and_shows_there(backend, place, bad):
    lengths = [5, 3, 4]
    tensors = [random(12, seed) for seed in range(3)]
    tensors[place][6] = bad
    out = jagged_attention(*tensors, offsets_of(lengths), backend=backend)
    assert out[:5].isfinite().all()
    assert out[8:].isfinite().all()
    assert not out[5:8].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_huge_scores_stay_finite(backend):
    q, k, v = (random(70, seed).float() for seed in range(3))
    out = jagged_attention(q * 900, k, v, offsets_of([70]), backend=backend)
    assert out.isfinite().all()


def test_known_longest_rows_change_nothing():
    tensors = [random(8, seed) for seed in range(3)]
    offsets = offsets_of([5, 3])
    expected = jagged_attention(*tensors, offsets)
    torch.testing.assert_close(jagged_attention(*tensors, offsets, max_q=9, backend="padded"), expected)


def test_wrong_arguments_are_named():
    x, offsets = random(3), offsets_of([3])
    with pytest.raises(ConfigError, match="need self-attention"):
        jagged_attention(x, x, x, offsets, offsets, causal=True)
    with pytest.raises(ConfigError, match="window must be at least 0"):
        jagged_attention(x, x, x, offsets, window=-1)
    with pytest.raises(ConfigError, match="got q"):
        jagged_attention(x, x[:2], x[:2], offsets)
