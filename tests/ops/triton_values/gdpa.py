import pytest
import torch

from opengem.errors import BackendUnavailable
from opengem.ops.gdpa import ACTIVATIONS, gdpa
from opengem.ops.gdpa.triton import _forward
from opengem.ops.gdpa.triton_rows import key_work, sides
from opengem.ops.tiles import tile_list
from tests.ops.rows import LENGTHS, offsets_of
from tests.ops.triton_values.agreement import DEVICE, DTYPES, INTERPRETER_WARNS, assert_agree, random

pytestmark = INTERPRETER_WARNS


def offsets(lengths):
    return offsets_of(lengths).to(DEVICE)


def qkv(*shapes, dtype=DTYPES[0]):
    return [random(*shape, seed=s, dtype=dtype) for s, shape in enumerate(shapes)]


def assert_form_agrees(tensors, **form):
    assert_agree(lambda q, k, v, b: gdpa(q, k, v, backend=b, **form), tensors)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, ("gelu", "identity")], ids=str)
def test_activations(activation):
    bounds = offsets([4, 0, 5, 1])
    tensors = qkv(*[(10, 2, 16)] * 3)
    assert_form_agrees(tensors, q_offsets=bounds, k_offsets=bounds, activation=activation, alpha=0.25)


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_of_self_and_pooled_forms(name):
    L, bounds = sum(LENGTHS[name]), offsets(LENGTHS[name])
    assert_form_agrees(qkv(*[(L, 1, 16)] * 3), q_offsets=bounds, k_offsets=bounds, alpha=1 / 64)
    assert_form_agrees(qkv((3, 1, 16), (L, 1, 16), (L, 1, 16)), k_offsets=bounds, alpha=1 / 16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_widths_and_heads(width, dtype):
    bounds = offsets([20, 0, 2])
    tensors = qkv(*[(22, 3, width)] * 3, dtype=dtype)
    names = ("gelu", "silu", "gelu")
    assert_form_agrees(tensors, q_offsets=bounds, k_offsets=bounds, activation=names, alpha=width**-0.5)


@pytest.mark.skipif(DEVICE == "cpu", reason="rows of many tiles take too long in the interpreter")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_rows_of_many_tiles(width, dtype):
    lengths = [513, 0, 1, 900, 128, 257]
    L, bounds = sum(lengths), offsets(lengths)
    tensors = qkv(*[(L, 2, width)] * 3, dtype=dtype)
    assert_form_agrees(tensors, q_offsets=bounds, k_offsets=bounds, alpha=width**-0.5)


@pytest.mark.parametrize("map_", [None, [1, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]], ids=str)
def test_cross_forms(map_):
    rows = 2 if map_ else 4
    bounds = offsets([3, 0, 2, 4])
    form = {"request_of_row": torch.tensor(map_, device=DEVICE) if map_ else None, "alpha": 0.25}
    dense = [(rows, 5, 2, 16)] * 2
    assert_form_agrees(qkv((9, 2, 16), *dense), q_offsets=bounds, **form)
    assert_form_agrees(qkv((4, 6, 2, 16), *dense), **form)
    assert_form_agrees(qkv((6, 2, 16), *dense), **form)
    lengths = [3, 4] if map_ else [3, 0, 1, 3]
    jagged = [(7, 2, 16)] * 2
    assert_form_agrees(qkv((9, 2, 16), *jagged), q_offsets=bounds, k_offsets=offsets(lengths), **form)


def test_views_and_int32_offsets():
    packed = random(12, 3, 16, 2, dtype=DTYPES[0])
    bounds = offsets([5, 0, 7]).int()

    def run(x, backend):
        q, k, v = (part.transpose(1, 2) for part in x.unbind(1))
        out = gdpa(q, k, v.contiguous(), q_offsets=bounds, k_offsets=bounds, alpha=0.25, backend=backend)
        return out.transpose(0, 1)

    assert_agree(run, [packed])


@pytest.mark.parametrize("activation", ["gelu", "relu", "hardswish"])
def test_bad_value_stays_in_its_row(activation):
    tensors = qkv(*[(12, 1, 16)] * 3)
    tensors[1][6] = float("nan")
    bounds = offsets([5, 3, 4])
    out = gdpa(*tensors, q_offsets=bounds, k_offsets=bounds, activation=activation, backend="triton")
    assert out[:5].isfinite().all()
    assert out[8:].isfinite().all()
    assert out[5:8].isnan().all()


def test_operator_is_fit_for_tracing():
    q, k, v = (x.requires_grad_() for x in qkv(*[(8, 1, 16)] * 3))
    bounds = offsets([5, 3])
    side = sides(q, k, bounds, bounds, None)
    keys, pieces = key_work(side, 8, 64, 16)
    given = (q, k, v, *tile_list(side.queries, 8, 64), *keys, pieces, 8, False, "gelu", 0.25, 64, 64)
    torch.library.opcheck(_forward, given)


def test_compiles_whole_with_any_lengths():
    def run(q, k, v, bounds):
        return gdpa(q, k, v, q_offsets=bounds, k_offsets=bounds, alpha=0.25, backend="triton") * 2

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ([5, 3], [2, 9, 4]):
        given = [*qkv(*[(sum(lengths), 1, 16)] * 3), offsets(lengths)]
        torch.testing.assert_close(compiled(*given), run(*given), atol=0, rtol=0)


def test_refusals():
    bounds = offsets([3])
    for shape, dtype, match in (
        ((3, 1, 24), DTYPES[0], "width K of a head must be one of"),
        ((3, 1, 16), torch.float64, "computes in"),
    ):
        with pytest.raises(BackendUnavailable, match=match):
            gdpa(*qkv(*[shape] * 3, dtype=dtype), q_offsets=bounds, k_offsets=bounds, backend="triton")
