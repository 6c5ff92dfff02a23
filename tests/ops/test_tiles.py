import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opengem.ops.tiles import UNBOUNDED, piece_list, rows_of_offsets, tile_list
from tests.ops.rows import offsets_of

LENGTHS = st.lists(st.integers(0, 70), max_size=7)


def filled(tiles):
    return tiles.entries[: int(tiles.count)].tolist()


def pairs_of(entry, block, before, after):
    """Number of pairs that a tile has to look at, by counting them."""
    _, _, at, length, _, other_length = entry
    own = range(at, min(at + block, length))
    return sum(-before <= j - i <= after for i in own for j in range(other_length))


@settings(deadline=None)
@given(LENGTHS, st.sampled_from([1, 16, 64]), st.integers(0, 50))
def test_tiles_hold_each_value_once(lengths, block, spare):
    offsets = offsets_of(lengths)
    tiles = tile_list(rows_of_offsets(offsets, offsets), sum(lengths) + spare, block)
    found = []
    for first, out, at, length, other, other_length in filled(tiles):
        assert (first, length) == (out, other_length) == (other, other_length)
        found += [first + i for i in range(at, min(at + block, length))]
    assert sorted(found) == list(range(sum(lengths)))
    assert tiles.entries[int(tiles.count) :, 2:4].sum() == 0


@pytest.mark.parametrize("reach", [(UNBOUNDED, UNBOUNDED), (UNBOUNDED, 0), (10, 10), (10, 0)])
def test_tiles_fall_in_cost_and_programs_finish_together(reach):
    before, after = reach
    lengths = [700, 0, 30, 1, 300, 90, 64, 500, 500, 11]
    offsets = offsets_of(lengths)
    entries = filled(
        tile_list(rows_of_offsets(offsets, offsets), sum(lengths), 64, before=before, after=after)
    )
    # the part of the other side that a tile walks over, and its own side
    costs = []
    for _, _, at, _, _, other_length in entries:
        low, high = max(at - before, 0), min(other_length, at + 64 + after)
        costs.append(max(high - low, 0) + 64)
    assert costs == sorted(costs, reverse=True)
    programs = 4
    load = [0] * programs
    for nth, cost in enumerate(costs):
        turn, place = divmod(nth, programs)
        load[place if turn % 2 == 0 else programs - 1 - place] += cost
    assert max(load) - min(load) <= max(costs)


def test_no_tile_that_meets_something_counts_as_free():
    own, other = offsets_of([5, 70, 0, 3]), offsets_of([0, 9, 4, 500])
    entries = filled(tile_list(rows_of_offsets(own, other), 78, 16))
    assert sum(pairs_of(e, 16, UNBOUNDED, UNBOUNDED) for e in entries) == 70 * 9 + 3 * 500
    assert entries[0][4:] == [13, 500]


@settings(deadline=None)
@given(LENGTHS, st.randoms(use_true_random=False), st.sampled_from([1, 16]))
def test_pieces_of_one_reader_stand_together(lengths, random, block):
    readers = 3
    reader = torch.tensor([random.randrange(readers) for _ in lengths], dtype=torch.int64)
    offsets = offsets_of(lengths)
    rows = rows_of_offsets(offsets, offsets)
    pieces, begin = piece_list(rows, reader, readers, sum(lengths), block, in_order=False)
    bounds = offsets.tolist()
    for who in range(readers):
        found = []
        for first, out, held in pieces[begin[who] : begin[who + 1]].tolist():
            assert first == out
            assert 1 <= held <= block
            found += range(first, first + held)
        wanted = [
            i for r, n in enumerate(lengths) if reader[r] == who for i in range(bounds[r], bounds[r] + n)
        ]
        assert sorted(found) == wanted
