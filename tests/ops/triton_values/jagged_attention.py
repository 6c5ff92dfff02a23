import pytest
import torch

from opengem.errors import BackendUnavailable
from opengem.ops.jagged_attention import jagged_attention
from opengem.ops.jagged_attention.triton import _forward
from opengem.ops.tiles import rows_of_offsets, tile_list
from tests.ops.rows import LENGTHS, offsets_of
from tests.ops.triton_values.agreement import DEVICE, DTYPES, INTERPRETER_WARNS, assert_agree, random

pytestmark = INTERPRETER_WARNS

FORMS = [
    {},
    {"causal": True},
    {"window": 0},
    {"window": 5},
    {"window": 5, "causal": True},
    {"window": 200},
    {"scale": 0.3},
]


def qkv(length, width=16, heads=1, dtype=torch.float32, keys=None):
    lengths = (length, *(2 * (length if keys is None else keys,)))
    return [random(n, heads, width, seed=s, dtype=dtype) for s, n in enumerate(lengths)]


def offsets(lengths):
    return offsets_of(lengths).to(DEVICE)


def assert_self_attention_agrees(tensors, bounds, **form):
    assert_agree(lambda q, k, v, b: jagged_attention(q, k, v, bounds, backend=b, **form), tensors)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_forms(form):
    lengths = LENGTHS["mixed"]
    assert_self_attention_agrees(qkv(sum(lengths), dtype=DTYPES[0]), offsets(lengths), **form)


@pytest.mark.parametrize("form", [{}, {"window": 5, "causal": True}], ids=str)
@pytest.mark.parametrize("name", [name for name in LENGTHS if name != "mixed"])
def test_lengths(name, form):
    lengths = LENGTHS[name]
    assert_self_attention_agrees(qkv(sum(lengths), dtype=DTYPES[0]), offsets(lengths), **form)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_widths_and_heads(width, dtype):
    tensors = qkv(39, width, heads=3, dtype=dtype)
    assert_self_attention_agrees(tensors, offsets([20, 0, 2, 17]), causal=True)


@pytest.mark.skipif(DEVICE == "cpu", reason="rows of many tiles take too long in the interpreter")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_rows_of_many_tiles(form, width, dtype):
    lengths = [513, 0, 1, 900, 128, 257]
    assert_self_attention_agrees(qkv(sum(lengths), width, 2, dtype), offsets(lengths), **form)


@pytest.mark.parametrize(
    ("q_lengths", "k_lengths"), [([3, 0, 5, 2], [1, 4, 0, 70]), ([0, 0], [3, 2]), ([4, 1], [0, 0])]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cross_attention(q_lengths, k_lengths, dtype):
    tensors = qkv(sum(q_lengths), dtype=dtype, keys=sum(k_lengths))
    bounds = offsets(q_lengths), offsets(k_lengths)
    assert_agree(lambda q, k, v, b: jagged_attention(q, k, v, *bounds, backend=b), tensors)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_views_and_kinds_of_offsets(kind):
    packed = random(12, 3, 16, 2, dtype=DTYPES[0])
    bounds = offsets([5, 0, 7]).to(kind)

    def run(x, backend):
        q, k, v = x.unbind(1)
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        out = jagged_attention(q, k, v.transpose(1, 2).contiguous(), bounds, backend=backend)
        return out.transpose(0, 1)

    assert_agree(run, [packed])


def test_two_uses_of_the_same_tensors_under_autocast():
    bounds = offsets([5, 0, 7])

    def run(q, k, v, backend):
        with torch.autocast(DEVICE, dtype=torch.float16, enabled=backend == "triton"):
            once = jagged_attention(q, k, v, bounds, backend=backend)
            return once + jagged_attention(once, k, v, bounds, causal=True, backend=backend)

    assert_agree(run, qkv(12, dtype=torch.float16))


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_value_stays_in_its_row_and_shows_there(place, bad):
    tensors = qkv(12, dtype=DTYPES[0])
    tensors[place][6] = bad
    out = jagged_attention(*tensors, offsets([5, 3, 4]), backend="triton")
    assert out[:5].isfinite().all()
    assert out[8:].isfinite().all()
    assert not out[5:8].isfinite().all()


def test_huge_scores_stay_finite():
    q, k, v = (x.requires_grad_() for x in qkv(20, dtype=DTYPES[0]))
    out = jagged_attention(q * 900, k, v, offsets([20]), backend="triton")
    out.sum().backward()
    assert all(x.isfinite().all() for x in (out, q.grad, k.grad, v.grad))


def test_operator_is_fit_for_tracing():
    q, k, v = (x.requires_grad_() for x in qkv(8, dtype=DTYPES[0]))
    bounds = offsets([5, 3])
    tiles = tile_list(rows_of_offsets(bounds, bounds), 8, 64)
    torch.library.opcheck(_forward, (q, k, v, *tiles, bounds, bounds, 0.25, 1 << 30, 0))


def test_compiles_whole_with_any_lengths():
    def run(q, k, v, bounds):
        return jagged_attention(q, k, v, bounds, causal=True, backend="triton") * 2

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ([5, 3], [2, 9, 4]):
        q, k, v = qkv(sum(lengths), dtype=DTYPES[0])
        torch.testing.assert_close(
            compiled(q, k, v, offsets(lengths)), run(q, k, v, offsets(lengths)), atol=0, rtol=0
        )


def test_refusals():
    def refused(tensors, match, **form):
        with pytest.raises(BackendUnavailable, match=match):
            jagged_attention(*tensors, offsets([3]), backend="triton", **form)

    q, k, v = qkv(3, dtype=DTYPES[0])
    refused(qkv(3, width=24, dtype=DTYPES[0]), "width K of a head must be one of")
    refused(qkv(3, dtype=torch.float64), "computes in")
    refused([q, k, v], "scale must be above 0", scale=-1.0)
