import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from made_batch import made_batch
from opengem.jagged import History, JaggedTensor, offsets_of, row_of_value


@given(st.lists(st.integers(0, 5), max_size=12))
def test_rows_and_their_values(lengths):
    values = torch.arange(sum(lengths))
    jagged = JaggedTensor.from_lengths(values, torch.tensor(lengths, dtype=torch.int64))
    expected, start = [], 0
    for n in lengths:
        expected.append(list(range(start, start + n)))
        start += n
    assert jagged.to_list() == expected
    assert jagged.rows == len(lengths)
    rows = row_of_value(offsets_of(jagged.lengths), len(values)).tolist()
    assert rows == [i for i, n in enumerate(lengths) for _ in range(n)]


@pytest.mark.parametrize(
    ("offsets", "place"),
    [
        ([0, 5, 3], "offsets[2] = 3 after offsets[1] = 5"),
        ([0, 4], "offsets[1] = 4 after offsets[0] = 0"),
        ([0, 2], "offsets[1] = 2"),
        ([1, 3], "offsets[0] = 1"),
        ([0, -1, 3], "offsets[1] = -1"),
        ([3], "offsets[0] = 3"),
        ([], "(0,)"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(offsets, place):
    with pytest.raises(ValueError, match=r"of 3 values|R \+ 1 numbers") as error:
        JaggedTensor(torch.zeros(3), torch.tensor(offsets, dtype=torch.int64))
    assert place in str(error.value)
    with pytest.raises(ValueError, match="int64"):
        JaggedTensor(torch.zeros(3), torch.tensor([0, 3], dtype=torch.int32))
    history = made_batch().history["watched"]
    with pytest.raises(ValueError, match="offsets"):
        History(ids=history.ids, numbers=history.numbers, times=history.times, offsets=history.offsets + 1)


def test_a_batch_moves_as_a_whole():
    batch = made_batch()
    moved = batch.to("meta")
    assert moved.history["watched"].ids["ad_id"].device.type == "meta"
    assert moved.bags["tags"].offsets.device.type == "meta"
    assert moved.num_examples == batch.num_examples
    assert batch.num_events() == sum(int(h.offsets[-1]) for h in batch.history.values())
