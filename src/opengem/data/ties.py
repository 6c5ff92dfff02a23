"""The order of events that became known at one moment: the same in every ingest, append and request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from opengem.schema.inputs import UNSEEN_ROW

pc: Any = pyarrow.compute  # its functions are made at run time, out of a type checker's sight

Text = Callable[[np.ndarray], pa.Array]
"""The ids of events by their places, `(n,)` int64."""


@dataclass(frozen=True)
class TiedIds:
    """The ids of an event attribute, as far as their order goes.

    Attributes:
        rows: `(L,)` codes of the dictionary, or rows of a vocabulary that begins with that of the training window.
        window: Number of rows of the training window's vocabulary; ids beyond it have numbers that come from elsewhere.
        text: The ids themselves; None where they are not known.
    """

    rows: np.ndarray
    window: int
    text: Text | None


def tie_keys(
    attributes: Mapping[str, np.ndarray], ids: Mapping[str, TiedIds], places: np.ndarray
) -> list[np.ndarray]:
    """Return the keys by which tied events are ordered, the first decides.

    First the attributes in their order, an id by its row in the vocabulary of the training window, where all others are
    unseen. Then the text of the unseen ones: their numbers depend on when a segment or a model first had them.

    Args:
        attributes: Name -> `(L,)` rows or numbers.
        ids: Name -> the ids of it, for attributes that are ids; those whose text is to decide first come first.
        places: `(n,)` int64 places of the tied events.

    Returns:
        Arrays `(n,)`.
    """
    keys = [
        _in_window(ids[name], places) if name in ids else values[places]
        for name, values in attributes.items()
    ]
    for tied in ids.values():
        rows = tied.rows[places]
        outside = np.flatnonzero((rows >= tied.window) | (rows == UNSEEN_ROW))
        if len(outside):
            ranks = np.zeros(len(places), np.int64)
            ranks[outside] = (
                rows[outside] if tied.text is None else text_ranks(tied.text(places[outside])) + 1
            )
            keys.append(ranks)
    return keys


def text_ranks(text: pa.Array) -> np.ndarray:
    """Return the place of each text in the order of all that differ, int64; equal texts have one place."""
    words = text.dictionary_encode()
    order = np.asarray(pc.sort_indices(words.dictionary), dtype=np.int64)  # by bytes, as DuckDB does
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks[words.indices.to_numpy(zero_copy_only=False)]


def _in_window(ids: TiedIds, places: np.ndarray) -> np.ndarray:
    rows = ids.rows[places]
    return np.where(rows >= ids.window, UNSEEN_ROW, rows)
