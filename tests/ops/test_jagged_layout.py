import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opengem.errors import ConfigError
from opengem.ops import jagged_layout as layout
from tests.ops.rows import LENGTHS, offsets_of

BACKENDS = ("vectorised", "reference")
lengths_strategy = st.lists(st.integers(0, 9), min_size=0, max_size=6)


def values_for(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), 2, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pad_by_hand(backend):
    values, offsets = torch.tensor([1.0, 2.0, 3.0, 4.0]), offsets_of([1, 0, 3])
    right = layout.pad(values, offsets, 2, newest_last=True, backend=backend)
    assert right.tolist() == [[0, 1], [0, 0], [3, 4]]
    left = layout.pad(values, offsets, 2, newest_last=False, backend=backend)
    assert left.tolist() == [[1, 0], [0, 0], [3, 4]]
    mask = layout.pad_mask(offsets, 2, newest_last=True, backend=backend)
    assert mask.tolist() == [[False, True], [False, False], [True, True]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_concat_split_gather_reduce_by_hand(backend):
    a, a_offsets = torch.tensor([1.0, 2.0, 3.0]), offsets_of([2, 1])
    b, b_offsets = torch.tensor([4.0, 5.0]), offsets_of([0, 2])
    values, offsets = layout.concat(a, a_offsets, b, b_offsets, backend=backend)
    assert values.tolist() == [1, 2, 3, 4, 5]
    assert offsets.tolist() == [0, 2, 5]
    older, older_offsets, recent, recent_offsets = layout.split(values, offsets, 1, backend=backend)
    assert (older.tolist(), older_offsets.tolist()) == ([1, 3, 4], [0, 1, 3])
    assert (recent.tolist(), recent_offsets.tolist()) == ([2, 5], [0, 1, 2])
    picked, picked_offsets = layout.gather(values, offsets, torch.tensor([1, 0, 1]), backend=backend)
    assert picked.tolist() == [3, 4, 5, 1, 2, 3, 4, 5]
    assert picked_offsets.tolist() == [0, 3, 5, 8]
    for how, expected in (("sum", [3, 12]), ("mean", [1.5, 4]), ("max", [2, 5])):
        assert layout.segment_reduce(values, offsets, how, backend=backend).tolist() == expected


@given(lengths_strategy, st.integers(0, 10), st.booleans())
def test_pad_agrees_and_unpad_inverts(lengths, length, newest_last):
    values, offsets = values_for(lengths), offsets_of(lengths)
    dense = layout.pad(values, offsets, length, newest_last=newest_last)
    assert torch.equal(
        dense, layout.pad(values, offsets, length, newest_last=newest_last, backend="reference")
    )
    for backend in BACKENDS:
        assert layout.pad_mask(offsets, length, newest_last=newest_last, backend=backend).sum() == sum(
            min(n, length) for n in lengths
        )
    if length:
        back = [
            layout.unpad(dense, offsets, newest_last=newest_last, backend=backend) for backend in BACKENDS
        ]
        assert torch.equal(*back)
        if length >= max(lengths, default=0):
            assert torch.equal(back[0], values)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=5), st.integers(0, 4))
def test_joins_agree(pairs, newest):
    a_lengths, b_lengths = [p[0] for p in pairs], [p[1] for p in pairs]
    a, b = values_for(a_lengths), values_for(b_lengths, seed=1)
    joined = [layout.concat(a, offsets_of(a_lengths), b, offsets_of(b_lengths), backend=x) for x in BACKENDS]
    for left, right in zip(*joined, strict=True):
        assert torch.equal(left, right)
    parts = [layout.split(*joined[0], newest, backend=x) for x in BACKENDS]
    for left, right in zip(*parts, strict=True):
        assert torch.equal(left, right)
    older, older_offsets, recent, recent_offsets = parts[0]
    whole, offsets = layout.concat(older, older_offsets, recent, recent_offsets)
    assert torch.equal(whole, joined[0][0])
    assert torch.equal(offsets, joined[0][1])


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", LENGTHS)
def test_segment_reduce_agrees(how, name):
    lengths = LENGTHS[name]
    values, offsets = values_for(lengths), offsets_of(lengths)
    results = [layout.segment_reduce(values, offsets, how, backend=x) for x in BACKENDS]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend):
    lengths = [2, 0, 3]
    values, offsets = values_for(lengths).requires_grad_(), offsets_of(lengths)
    other = values_for([1, 1, 1], seed=2).requires_grad_()
    functions = (
        lambda v: layout.pad(v, offsets, 2, backend=backend),
        lambda v: layout.unpad(layout.pad(v, offsets, 4), offsets, backend=backend),
        lambda v: layout.split(v, offsets, 1, backend=backend)[0],
        lambda v: layout.split(v, offsets, 1, backend=backend)[2],
        lambda v: layout.gather(v, offsets, torch.tensor([2, 0, 2]), backend=backend)[0],
        *(
            lambda v, how=how: layout.segment_reduce(v, offsets, how, backend=backend)
            for how in ("sum", "mean", "max")
        ),
    )
    for function in functions:
        assert torch.autograd.gradcheck(function, (values,))
    assert torch.autograd.gradcheck(
        lambda a, b: layout.concat(a, offsets, b, offsets_of([1, 1, 1]), backend=backend)[0], (values, other)
    )


def test_expand_gives_each_example_its_request():
    rows = torch.arange(6.0).view(3, 2)
    assert torch.equal(layout.expand(rows, torch.tensor([0, 0, 2])), rows[[0, 0, 2]])


def test_wrong_arguments_are_named():
    with pytest.raises(ConfigError, match="offsets must be a 1-D integer"):
        layout.pad(torch.zeros(3), torch.zeros(2), 3)
    with pytest.raises(ConfigError, match="length must be at least 0, got -1"):
        layout.pad(torch.zeros(3), offsets_of([3]), -1)
    with pytest.raises(ConfigError, match="R = 1"):
        layout.unpad(torch.zeros(2, 3), offsets_of([3]))
    with pytest.raises(ConfigError, match='got "median"'):
        layout.segment_reduce(torch.zeros(3), offsets_of([3]), "median")
    with pytest.raises(ConfigError, match="same number of rows"):
        layout.concat(torch.zeros(3), offsets_of([3]), torch.zeros(3), offsets_of([1, 2]))
