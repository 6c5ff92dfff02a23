import pytest
import torch

from opengem.errors import BackendUnavailable
from opengem.ops.block_attention import block_attention
from opengem.ops.block_attention.triton import _forward, _places
from tests.ops.rows import LENGTHS, offsets_of, rotation
from tests.ops.triton_values.agreement import DEVICE, DTYPES, INTERPRETER_WARNS, assert_agree, random

pytestmark = INTERPRETER_WARNS


def offsets(lengths):
    return offsets_of(lengths).to(DEVICE)


def assert_blocks_agree(lengths, width=16, heads=1, dtype=DTYPES[0], rotated=True, **form):
    qkv = random(sum(lengths), 3, heads, width, dtype=dtype)
    turn = rotation(len(qkv), width // 2, torch.float32).to(DEVICE) if rotated else None

    def run(qkv, backend):
        return block_attention(qkv, offsets(lengths), turn, backend=backend, **form)

    assert_agree(run, [qkv])


@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("shift", [0, 32, 63])
@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_and_shifts(name, shift, rotated):
    assert_blocks_agree(LENGTHS[name], shift=shift, rotated=rotated)


@pytest.mark.parametrize("block", [1, 5, 16, 40])
def test_blocks(block):
    assert_blocks_agree([3, 0, 21], block=block, shift=block // 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_widths_and_heads(width, dtype):
    assert_blocks_agree([20, 0, 2], width, heads=3, dtype=dtype, scale=0.2)


def test_views_and_int32_offsets():
    turn = rotation(12, 8, torch.float32).to(DEVICE)

    def run(x, backend):
        qkv = x.permute(3, 0, 2, 1)
        return block_attention(qkv, offsets([5, 7]).int(), turn, block=4, backend=backend).transpose(0, 1)

    assert_agree(run, [random(3, 16, 2, 12, dtype=DTYPES[0])])


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_value_stays_in_its_row_and_shows_there(bad, place):
    qkv = random(12, 3, 1, 16, dtype=DTYPES[0])
    qkv[6, place] = bad
    out = block_attention(qkv, offsets([5, 3, 4]), block=4, backend="triton")
    assert out[:5].isfinite().all()
    assert out[8:].isfinite().all()
    assert not out[5:8].isfinite().all()


def test_huge_scores_stay_finite():
    qkv = (random(70, 3, 1, 16, dtype=DTYPES[0]) * 100).requires_grad_()
    out = block_attention(qkv, offsets([70]), backend="triton")
    out.sum().backward()
    assert out.isfinite().all()
    assert qkv.grad.isfinite().all()


def test_operator_is_fit_for_tracing():
    qkv = random(8, 3, 1, 16, dtype=DTYPES[0]).requires_grad_()
    turn = rotation(8, 8, torch.float32).flatten(1).to(DEVICE)
    places = _places(offsets([5, 3]), 8, 16, 4)
    torch.library.opcheck(_forward, (qkv, turn, *places, 16, 0.25))


def test_compiles_whole_with_any_lengths():
    def run(qkv, bounds, turn):
        return block_attention(qkv, bounds, turn, block=4, shift=2, backend="triton") * 2

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ([5, 3], [2, 9, 4]):
        turn = rotation(sum(lengths), 8, torch.float32).to(DEVICE)
        given = random(sum(lengths), 3, 1, 16, dtype=DTYPES[0]), offsets(lengths), turn
        torch.testing.assert_close(compiled(*given), run(*given), atol=0, rtol=0)


def test_refusals():
    qkv, bounds = random(3, 3, 1, 16, dtype=DTYPES[0]), offsets([3])
    turn = rotation(3, 8, torch.float32).to(DEVICE)
    with pytest.raises(BackendUnavailable, match="at most 64 events, got 65"):
        block_attention(qkv, bounds, block=65, backend="triton")
    with pytest.raises(BackendUnavailable, match="rotation gets no gradient"):
        block_attention(qkv, bounds, turn.requires_grad_(), backend="triton")
    with pytest.raises(BackendUnavailable, match="computes in"):
        block_attention(qkv.double(), bounds, backend="triton")
