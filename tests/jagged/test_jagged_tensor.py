import torch
from hypothesis import given
from hypothesis import strategies as st

from made_batch import made_batch
from opengem.jagged import JaggedTensor, offsets_of, row_of_value


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


def test_a_batch_moves_as_a_whole():
    batch = made_batch()
    moved = batch.to("meta")
    assert moved.history["watched"].ids["ad_id"].device.type == "meta"
    assert moved.bags["tags"].offsets.device.type == "meta"
    assert moved.num_examples == batch.num_examples
    assert batch.num_events() == sum(int(h.offsets[-1]) for h in batch.history.values())
