import pytest
import torch

from opengem.jagged import offsets_of
from opengem.nn.time_encoding import TimeEncoding
from opengem.schema.inputs import MISSING_TIME

NOW = 1_700_000_000_000


def _encode(encoding, times, lengths):
    offsets = offsets_of(torch.tensor(lengths))
    return encoding(torch.tensor(times, dtype=torch.int64), offsets, torch.full((len(lengths),), NOW))


def test_only_gaps_count_not_the_clock():
    encoding = TimeEncoding(8)
    a = _encode(encoding, [NOW - 5000, NOW - 1000], [2])
    offsets = offsets_of(torch.tensor([2]))
    b = encoding(torch.tensor([NOW - 5000, NOW - 1000]) + 10**9, offsets, torch.tensor([NOW + 10**9]))
    torch.testing.assert_close(a, b)


def test_the_first_event_of_a_row_has_no_gap_to_the_row_before():
    encoding = TimeEncoding(8)
    alone = _encode(encoding, [NOW - 1000], [1])
    behind = _encode(encoding, [NOW - 9000, NOW - 1000], [1, 1])
    torch.testing.assert_close(alone[0], behind[1])
    joined = _encode(encoding, [NOW - 9000, NOW - 1000], [2])
    assert not torch.equal(alone[0], joined[1])


def test_missing_times_are_their_own_bucket_and_old_times_are_legal():
    encoding = TimeEncoding(8)
    x = _encode(encoding, [MISSING_TIME, MISSING_TIME, NOW - 10 * 365 * 86_400_000, NOW - 1], [4])
    assert bool(torch.isfinite(x).all())
    tables = [t.weight for t in encoding.tables]
    expected = tables[0][0] + tables[1][0] + tables[2][0] + tables[3][3]
    torch.testing.assert_close(x[0], expected)


@pytest.mark.parametrize("position", [0, 63, 64, 128, 5000])
def test_positions_are_exact_for_the_newest_and_grow_by_logarithm(position):
    encoding = TimeEncoding(2)
    bucket = int(encoding._position_bucket(torch.tensor([position]))[0])
    assert bucket == {0: 0, 63: 63, 64: 64, 128: 72, 5000: 114}[position]


def test_a_gap_longer_than_any_in_training_reads_as_the_longest_seen():
    encoding = TimeEncoding(8)
    hour = 3_600_000
    seen = torch.tensor([NOW - 30 * hour, NOW - 10 * hour])
    offsets, now = offsets_of(torch.tensor([1, 1])), torch.full((2,), NOW)
    encoding(seen, offsets, now)  # in training
    encoding.eval()
    longest, older = encoding(torch.tensor([NOW - 30 * hour, NOW - 900 * hour]), offsets, now)
    torch.testing.assert_close(longest, older)
    newer = encoding(seen, offsets, now)[1]
    assert not torch.allclose(newer, older)


def test_no_event_at_all():
    assert _encode(TimeEncoding(8), [], [0, 0]).shape == (0, 8)
