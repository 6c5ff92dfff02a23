"""The order of tied events must not depend on the numbers that ids happen to have."""

import numpy as np
import pyarrow as pa

from opengem.data.sequence_store import BucketEvents, event_order
from opengem.data.ties import TiedIds, text_ranks, tie_keys

WINDOW = ["w1", "w2", "w3"]


def _order(ids: list[str | None], known: list[str], kinds: list[int]) -> list[tuple[str | None, int]]:
    """Order events of one moment, their ids numbered as a vocabulary does that begins with the window."""
    row_of = {word: row for row, word in enumerate([None, "?", *WINDOW, *known])}
    rows = np.array([row_of.get(word, 1) for word in ids])
    text = pa.array(ids, pa.string())
    attributes = {"item": rows, "kind": np.array(kinds)}
    tied = {"item": TiedIds(rows, len(WINDOW) + 2, lambda places: text.take(pa.array(places)))}
    zero = np.zeros(len(ids), np.int64)
    events = BucketEvents(
        zero, zero, zero, zero, attributes, lambda places: tie_keys(attributes, tied, places)
    )
    return [(ids[k], kinds[k]) for k in event_order(events)]


def test_the_window_first_then_the_text_of_what_it_does_not_hold():
    ids = ["z", "w2", "a", None, "w1", "m", "a"]
    kinds = [1, 1, 2, 1, 1, 1, 1]
    expected = [(None, 1), ("a", 1), ("m", 1), ("z", 1), ("a", 2), ("w1", 1), ("w2", 1)]
    for known in ([], ["z", "a", "m"], ["m", "z"], ["a"]):
        assert _order(ids, known, kinds) == expected
        assert _order(ids[::-1], known, kinds[::-1]) == expected


def test_ranks_of_text_are_by_bytes():
    text = pa.array(["b", "ä", "a", "B", "b", "10", "9"])
    assert text_ranks(text).tolist() == [4, 5, 3, 2, 4, 0, 1]
