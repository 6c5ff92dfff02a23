"""Every backend of every attention operation against the reference in float64: values and all gradients."""

import pytest
import torch

from opengem.ops.native.library import unavailable
from tests.ops.cases import CASES, PAIRS, assert_near, jagged, solve
from tests.ops.rows import LENGTHS

EXTREME = {**LENGTHS, "long": [300, 17, 0, 140], "many short": [1, 2, 0, 3] * 9}


@pytest.mark.parametrize("lengths", EXTREME.values(), ids=EXTREME)
@pytest.mark.parametrize(("case", "backend"), PAIRS)
def test_float32_is_near_the_reference_in_float64(case, backend, lengths):
    tensors = case.tensors(lengths, 2, 16)
    expected = solve(case, tensors, lengths, "reference")
    assert_near(solve(case, [t.float() for t in tensors], lengths, backend), expected)


needs_library = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@needs_library
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("case", CASES, ids=lambda x: x.name)
def test_every_width_of_the_library(case, width):
    lengths = [70, 0, 131]
    tensors = case.tensors(lengths, 2, width)
    expected = solve(case, tensors, lengths, "reference")
    assert_near(solve(case, [t.float() for t in tensors], lengths, "native"), expected, 5e-5)


@needs_library
def test_many_threads_give_the_same_answer():
    case, lengths = jagged(window=70), [300, 17, 0, 140, 80, 1]
    tensors = [t.float() for t in case.tensors(lengths, 2, 16)]
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(solve(case, tensors, lengths, "native"))
    finally:
        torch.set_num_threads(before)
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)
