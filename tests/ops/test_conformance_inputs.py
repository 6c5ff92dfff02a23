"""Inputs that are not plain, on every backend of every attention operation."""

import dataclasses

import pytest
import torch

from opengem.errors import ConfigError
from opengem.ops.block_attention import api as block_api
from opengem.ops.gdpa import api as gdpa_api
from opengem.ops.jagged_attention import api as jagged_api
from tests.ops.cases import PAIRS, assert_near, solve
from tests.ops.rows import offsets_of, rotation

LENGTHS = [70, 0, 3, 65]
every_backend = pytest.mark.parametrize(("case", "backend"), PAIRS)


def floats(case, lengths=LENGTHS, width=16):
    return [t.float() for t in case.tensors(lengths, 2, width)]


@every_backend
def test_strided_inputs_and_gradients(case, backend):
    plain = floats(case)
    # every second value of every dimension of a larger tensor
    strided = []
    for x in plain:
        large = torch.full([2 * n for n in x.shape], float("nan"))
        view = large[tuple(slice(None, None, 2) for _ in x.shape)]
        strided.append(view.copy_(x))
        assert x.numel() == 0 or not strided[-1].is_contiguous()
    expected = case.call(plain, LENGTHS, backend)
    assert_near([case.call(strided, LENGTHS, backend)], [expected.double()], 1e-6)
    results = []
    for make in (torch.Tensor.contiguous, lambda g: g.repeat_interleave(2, -1)[..., ::2]):
        leaves = [x.clone().requires_grad_() for x in strided]
        case.call(leaves, LENGTHS, backend).backward(make(torch.ones_like(expected).cumsum(0)))
        results.append([x.grad for x in leaves])
    assert_near(results[1], [x.double() for x in results[0]], 1e-6)


@every_backend
def test_used_twice_under_autocast(case, backend):
    """Both uses bring their gradients, in the dtype of the leaves, near those of float64."""
    if backend == "native" or (backend == "cpu" and case.name.startswith("block")):
        pytest.skip("takes no bfloat16")
    if "relu" in case.name or "pooled" in case.name:
        pytest.skip("the slope of relu jumps where bfloat16 rounds")
    weight = torch.eye(16, dtype=torch.float64) + 0.01
    tensors = case.tensors(LENGTHS, 2, 16)

    def run(leaves, weight, backend):
        # autocast makes the operands bfloat16
        once = case.call([x @ weight for x in leaves], LENGTHS, backend)
        twice = case.call([x @ weight for x in leaves], LENGTHS, backend)
        (once.double() - 3 * twice.double()).sum().backward()
        return [x.grad for x in leaves]

    expected = run([t.clone().requires_grad_() for t in tensors], weight, "reference")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run([t.float().requires_grad_() for t in tensors], weight.float(), backend)
    assert all(x.dtype == torch.float32 for x in got)
    assert_near(got, expected, 0.06)


@every_backend
def test_float32_leaves_under_autocast(case, backend):
    if case.name == "gdpa self relu":
        pytest.skip("the slope of relu jumps where bfloat16 rounds")
    expected = solve(case, floats(case), LENGTHS, backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = solve(case, floats(case), LENGTHS, backend)
    assert_near(got, [x.double() for x in expected], 0.06)


@every_backend
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_bad_value_comes_through_and_stays_in_its_row(case, backend, bad):
    """Every answer that depends on the bad value shows it, if the reference does; answers of other rows do not."""
    plain = case.call([t.double() for t in floats(case)], LENGTHS, "reference")
    alike = plain.shape[0] == sum(LENGTHS)
    row_of = (
        torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
        if alike
        else torch.arange(len(plain))
    )
    places = [(0, i) for i in range(3)] if len(floats(case)) == 1 else [(i, 0) for i in range(3)]
    for which, beside in places:

        def with_value(value, dtype, which=which, beside=beside):
            tensors = [t.to(dtype) for t in floats(case)]
            flat = tensors[which].view(-1, *tensors[which].shape[-2:])
            at = (len(flat) // 2 // 3 * 3 + beside, 1, 3)
            flat[at] = flat[at] + 1 if value is None else value
            return tensors

        depends = (
            (case.call(with_value(None, torch.float64), LENGTHS, "reference") != plain).flatten(1).any(1)
        )
        shows = ~case.call(with_value(bad, torch.float64), LENGTHS, "reference").isfinite().flatten(1).all(1)
        got = ~case.call(with_value(bad, torch.float32), LENGTHS, backend).isfinite().flatten(1).all(1)
        # an infinite key can be one that nobody looks at: there the answer is finite, in the reference too
        assert got[depends & shows].all()
        if bad != bad and which == len(places) - 1:
            assert got.any()
        if case.name != "gdpa pooled" or which > 0:  # seeds are part of every row
            touched = row_of[depends].unique()
            # what a mask hides may show, but in its own row alone
            assert not got[~torch.isin(row_of, touched)].any() or len(touched) == 0


@every_backend
@pytest.mark.parametrize("factor", [900.0, -900.0])
def test_huge_scores(case, backend, factor):
    """Softmax of scores 900 times as large is one key, or a tie: finite, and as the reference in float64."""
    if case.name.startswith("gdpa"):
        pytest.skip("no softmax")
    tensors = floats(case)
    if len(tensors) == 3:
        tensors[0] = tensors[0] * factor
    else:
        tensors[0][:, 0] *= factor
    got = solve(case, tensors, LENGTHS, backend)
    assert all(x.isfinite().all() for x in got)
    expected = solve(case, [t.double() for t in tensors], LENGTHS, "reference")
    assert_near(got[:1], expected[:1], 2e-3)


@every_backend
def test_rows_in_another_order_give_the_same_answers(case, backend):
    if case.name in ("jagged cross", "gdpa cross, requests") or any(
        n.shape[0] != sum(LENGTHS) for n in floats(case)
    ):
        pytest.skip("rows of this form are not alike")
    order = [2, 3, 0, 1]
    tensors = floats(case)
    if " turned " in case.name:
        pytest.skip("the rotation goes by place")
    expected = case.call(tensors, LENGTHS, backend).split(LENGTHS)
    moved = [torch.cat([x.split(LENGTHS)[i] for i in order]) for x in tensors]
    got = case.call(moved, [LENGTHS[i] for i in order], backend)
    assert_near([got], [torch.cat([expected[i] for i in order]).double()], 1e-5)


def ran(*_args, **_kwargs):
    raise AssertionError("a kernel ran on bad input")


@pytest.fixture
def no_kernels(monkeypatch):
    for api in (block_api, gdpa_api, jagged_api):
        backends = tuple(dataclasses.replace(b, run=ran) for b in api.BACKENDS)
        monkeypatch.setattr(api, "BACKENDS", backends)


OPERATIONS = {
    "jagged_attention": lambda x, offsets: jagged_api.jagged_attention(x, x, x, offsets),
    "jagged_attention, keys": lambda x, offsets: jagged_api.jagged_attention(
        x, x, x, offsets_of([3, 2]), offsets
    ),
    "block_attention": lambda x, offsets: block_api.block_attention(torch.stack([x] * 3, 1), offsets),
    "gdpa": lambda x, offsets: gdpa_api.gdpa(x, x, x, q_offsets=offsets, k_offsets=offsets_of([3, 2])),
    "gdpa, keys": lambda x, offsets: gdpa_api.gdpa(x, x, x, q_offsets=offsets_of([3, 2]), k_offsets=offsets),
}


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("name", OPERATIONS)
def test_wrong_offsets_are_refused_before_any_kernel(name):
    x, call = torch.zeros(5, 2, 16), OPERATIONS[name]
    argument = {"block_attention": "offsets"}.get(name, "k_offsets" if "keys" in name else "q_offsets")
    for offsets, message in (
        ([0, 6, 5], "must never fall, got 6 before 5 at entry 2"),
        ([0, 3, 4], r"end at the number of values \(5\), got 0 and 4"),
        ([1, 3, 5], "must begin at 0"),
        ([0.0, 3.0, 5.0], "1-D integer tensor"),
        ([[0, 3, 5]], "1-D integer tensor"),
    ):
        if name == "jagged_attention, keys" and isinstance(offsets[0], list):
            continue  # both offsets are of one shape: the first is refused
        with pytest.raises(ConfigError, match=f"{name.split(',')[0]}: {argument} .*{message}"):
            call(x, torch.tensor(offsets))


@pytest.mark.usefixtures("no_kernels")
def test_operands_that_do_not_fit_are_refused_before_any_kernel():
    x, offsets = torch.zeros(5, 2, 16), offsets_of([3, 2])
    qkv, keys = torch.zeros(5, 3, 2, 16), torch.zeros(3, 7, 2, 16)
    jagged, block, gdpa = jagged_api.jagged_attention, block_api.block_attention, gdpa_api.gdpa

    def of_rows(request_of_row):
        return gdpa(x, keys, keys, q_offsets=offsets, request_of_row=torch.tensor(request_of_row))

    for message, call in (
        ("k must have the dtype of q", lambda: jagged(x, x.double(), x, offsets)),
        ("v must be on the device of q", lambda: jagged(x, x, x.to("meta"), offsets)),
        ("q_offsets must be on the device of q", lambda: jagged(x, x, x, offsets.to("meta"))),
        ("q must be floating point", lambda: jagged(x.int(), x.int(), x.int(), offsets)),
        (r"k \(5, 2, 8\)", lambda: jagged(x, x[..., :8], x[..., :8], offsets)),
        ("rotation must be on the device", lambda: block(qkv, offsets, rotation(5, 8).to("meta"))),
        ("qkv must be floating point", lambda: block(qkv.long(), offsets)),
        ("v must have the dtype of q", lambda: gdpa(x, keys, keys.half(), q_offsets=offsets)),
        ("q must have as many rows as k, got 2 and 3", lambda: gdpa(x, keys, keys, q_offsets=offsets)),
        ("request_of_row must hold rows from 0 to 2, got 3", lambda: of_rows([0, 3])),
        ("request_of_row must be a 1-D tensor", lambda: of_rows([0.0, 1.0])),
    ):
        with pytest.raises(ConfigError, match=message):
            call()


@pytest.mark.usefixtures("no_kernels")
def test_2_to_the_31_elements_are_refused_before_any_kernel():
    rows = 2**31 // 32
    x = torch.zeros(1, 1, 1).expand(rows, 2, 16)  # no memory behind it
    offsets = torch.tensor([0, rows])
    small = torch.zeros(1, 4, 2, 16)
    message = "must have fewer than 2\\^31 elements"
    with pytest.raises(ConfigError, match=f"q {message}"):
        jagged_api.jagged_attention(x, x, x, offsets)
    with pytest.raises(ConfigError, match=f"qkv {message}"):
        block_api.block_attention(x[:, None].expand(-1, 3, -1, -1), offsets)
    with pytest.raises(ConfigError, match=f"q {message}"):
        gdpa_api.gdpa(x, small, small, q_offsets=offsets)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_either_width_of_offsets(name, dtype):
    x = torch.randn(5, 2, 16)
    expected = OPERATIONS[name](x, offsets_of([3, 2]))
    assert torch.equal(OPERATIONS[name](x, offsets_of([3, 2]).to(dtype)), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_either_width_of_a_map(dtype):
    q, keys, offsets = torch.randn(5, 2, 16), torch.randn(2, 7, 2, 16), offsets_of([3, 2])
    request = torch.tensor([1, 1])
    expected = gdpa_api.gdpa(q, keys, keys, q_offsets=offsets, request_of_row=request)
    got = gdpa_api.gdpa(q, keys, keys, q_offsets=offsets, request_of_row=request.to(dtype))
    assert torch.equal(got, expected)
