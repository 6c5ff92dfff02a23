import pytest
import torch
import torch.nn.functional as F

from opengem.errors import ConfigError
from opengem.ops.block_attention import block_attention
from tests.ops.rows import LENGTHS, offsets_of, rotation

BACKENDS = ("cpu", "packed", "reference")


def qkv_for(lengths, heads=2, width=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(sum(lengths), 3, heads, width, dtype=dtype, generator=generator)


@pytest.mark.parametrize("shift", [0, 32, 63])
@pytest.mark.parametrize("name", LENGTHS)
def test_values_and_gradients_agree(name, shift):
    lengths = LENGTHS[name]
    qkv, offsets = qkv_for(lengths), offsets_of(lengths)
    turn = rotation(len(qkv), 2)
    results = []
    for backend in BACKENDS:
        leaf = qkv.clone().requires_grad_()
        out = block_attention(leaf, offsets, turn, shift=shift, backend=backend)
        (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out).sin()).sum().backward()
        results.append((out.detach(), leaf.grad))
    for other in results[:2]:
        for left, right in zip(other, results[2], strict=True):
            torch.testing.assert_close(left, right)


def test_one_block_is_plain_attention():
    qkv = qkv_for([10])
    q, k, v = (x.transpose(0, 1) for x in qkv.unbind(1))
    expected = F.scaled_dot_product_attention(q, k, v).transpose(0, 1)
    torch.testing.assert_close(block_attention(qkv, offsets_of([10])), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_borders(backend):
    """An event changes the answers of its own block only, and the shift moves the borders by half a block."""
    lengths = [5, 12]
    qkv, offsets = qkv_for(lengths), offsets_of(lengths)
    other = qkv.clone()
    other[5 + 3] += 1.0
    changed = {}
    for shift in (0, 2):
        a, b = (block_attention(x, offsets, block=4, shift=shift, backend=backend) for x in (qkv, other))
        changed[shift] = (a != b).flatten(1).any(1).nonzero().flatten().tolist()
    assert changed == {0: [5, 6, 7, 8], 2: [7, 8, 9, 10]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_rotation_makes_scores_depend_on_distance_alone(backend):
    """With rotation of all three, moving every position by one turns the whole answer by one step."""
    qkv = qkv_for([6])
    turn = rotation(7, 2)
    first = block_attention(qkv, offsets_of([6]), turn[:6], backend=backend)
    second = block_attention(qkv, offsets_of([6]), turn[1:], backend=backend)
    step = torch.view_as_complex(turn[1].contiguous())
    turned = torch.view_as_complex(first.unflatten(-1, (-1, 2)).contiguous()) * step
    torch.testing.assert_close(second, torch.view_as_real(turned).flatten(-2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend):
    qkv, offsets = qkv_for([3, 0, 6], heads=1).requires_grad_(), offsets_of([3, 0, 6])
    turn = rotation(9, 2)
    assert torch.autograd.gradcheck(
        lambda x: block_attention(x, offsets, turn, block=4, shift=2, backend=backend), (qkv,)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_permuted_rows_give_permuted_answers(backend):
    lengths = [7, 3, 0, 9]
    qkv = qkv_for(lengths)
    rows = qkv.split(lengths)
    order = [2, 3, 0, 1]
    a = block_attention(qkv, offsets_of(lengths), block=4, backend=backend).split(lengths)
    b = block_attention(
        torch.cat([rows[i] for i in order]), offsets_of([lengths[i] for i in order]), block=4, backend=backend
    )
    torch.testing.assert_close(torch.cat([a[i] for i in order]), b)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("lengths", [[5, 3, 4], [4, 4, 4]], ids=["padded", "full"])
def test_bad_value_stays_in_its_row_and_shows_there(backend, bad, place, lengths):
    qkv = qkv_for(lengths)
    qkv[6, place] = bad
    out = block_attention(qkv, offsets_of(lengths), block=4, backend=backend).split(lengths)
    assert out[0].isfinite().all()
    assert out[2].isfinite().all()
    assert not out[1].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_huge_scores_stay_finite(backend):
    out = block_attention(qkv_for([70], dtype=torch.float32) * 900, offsets_of([70]), backend=backend)
    assert out.isfinite().all()


def test_bfloat16_is_near_double():
    lengths = [70, 3]
    qkv, offsets = qkv_for(lengths), offsets_of(lengths)
    turn = rotation(73, 2)
    exact = block_attention(qkv, offsets, turn, backend="reference")
    out = block_attention(qkv.bfloat16(), offsets, turn.float())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), exact, atol=0.05, rtol=0.05)


def test_exports_with_any_lengths():
    class Blocks(torch.nn.Module):
        def forward(self, qkv, offsets, turn):
            return block_attention(qkv, offsets, turn, block=8, shift=4)

    def inputs(lengths):
        return (
            qkv_for(lengths, dtype=torch.float32),
            offsets_of(lengths),
            rotation(sum(lengths), 2, torch.float32),
        )

    length, rows = torch.export.Dim("L", min=2), torch.export.Dim("R", min=3)
    shapes = ({0: length}, {0: rows}, {0: length})
    program = torch.export.export(Blocks(), inputs([5, 17, 0]), dynamic_shapes=shapes).module()
    for lengths in ([5, 17, 0], [0, 2], [8] * 9, [100, 1]):
        torch.testing.assert_close(program(*inputs(lengths)), Blocks()(*inputs(lengths)))


def test_wrong_arguments_are_named():
    with pytest.raises(ConfigError, match="shift from 0 to block - 1"):
        block_attention(qkv_for([3]), offsets_of([3]), block=4, shift=4)
    with pytest.raises(ConfigError, match=r"\(L, 3, H, K\)"):
        block_attention(torch.zeros(3, 2, 1, 4), offsets_of([3]))
    with pytest.raises(ConfigError, match="rotation must be"):
        block_attention(qkv_for([3]), offsets_of([3]), rotation(3, 4))
