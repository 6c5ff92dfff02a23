"""The dictionary of an embedding table: a code for every id that was ever written, and when each was read.

Stored columns hold codes; a model reads rows. Which ids have a row of their own is a question of what was known when
the model was trained, so it is answered when the data set is read, and no answer needs a file to be written again.
"""

import numpy as np
import pyarrow as pa

from opengem.data.encoder import FIRST_ROW, Vocabulary
from opengem.data.segments import Segments
from opengem.data.ties import text_ranks
from opengem.schema.words import Vocabulary as VocabularyWords

WINDOW = 0
"""Day of all readings in the training window; other days are counted from 1 January 1970, UTC."""

DAY_MS = 86_400_000


def ids_file(table: str) -> str:
    """Return the name of a segment's file of the ids that it was the first to hold: `id`."""
    return f"ids/{table}.arrow"


def readings_file(table: str) -> str:
    """Return the name of a segment's file of readings: `day` and `code` int32, `n` int64."""
    return f"readings/{table}.arrow"


class Dictionary:
    """All ids of an embedding table that a data set ever wrote.

    Codes 0 and 1 are reserved as rows are; then come the ids of the training window's vocabulary, in its order, then
    all others.

    Args:
        segments: The segments of the data set.
        table: The embedding table.
        window: The vocabulary of the training window.
    """

    def __init__(self, segments: Segments, table: str, window: Vocabulary) -> None:
        self._segments, self._table, self._window = segments, table, window
        others = segments.file(ids_file(table)).table(["id"]).column(0)
        self.ids: pa.Array = pa.concat_arrays([window.ids, *others.chunks])

    def vocabulary(self, words: VocabularyWords, until: int | None) -> Vocabulary:
        """Return the training window's vocabulary, grown by what was read on later days.

        An id is admitted at the end of the first day by which it was seen `min_count` times, the training window
        included. Ids of one day stand in the order of their counts by then, the greatest first, equals by their text.
        So an id keeps its row whatever follows, and the vocabulary of a day depends on the log alone, not on how often
        it was appended to.

        Args:
            words: The rule.
            until: Days before this one count (days since 1 January 1970, UTC); all if None.
        """
        file = self._segments.file(readings_file(self._table))
        day, code, n = (file.column(name).values.astype(np.int64) for name in ("day", "code", "n"))
        if until is not None:
            early = day < until
            day, code, n = day[early], code[early], n[early]
        order = np.lexsort((day, code))
        day, code, n = day[order], code[order], n[order]
        last = np.ones(len(code), bool)  # of an id and a day: several segments may hold parts of one day
        last[:-1] = (code[1:] != code[:-1]) | (day[1:] != day[:-1])
        total = np.cumsum(n)
        first = (
            np.flatnonzero(np.insert(code[1:] != code[:-1], 0, True)) if len(code) else np.empty(0, np.int64)
        )
        lengths = np.diff(np.append(first, len(code)))
        total -= np.repeat(total[first] - n[first], lengths)
        enough = np.flatnonzero(last & (total >= words.min_count))
        codes, at = np.unique(code[enough], return_index=True)
        at = enough[at]
        text = self.ids.take(pa.array(codes - FIRST_ROW))
        order = np.lexsort((text_ranks(text), -total[at], day[at]))
        if words.limit:
            order = order[: max(0, words.limit - len(self._window))]
        new = text.take(pa.array(order))
        return Vocabulary(pa.concat_arrays([self._window.ids, new])) if len(new) else self._window

    def rows(self, vocabulary: Vocabulary) -> np.ndarray:
        """Return the int64 row of each code in a vocabulary, the reserved ones included."""
        window = len(self._window)
        if vocabulary.ids.slice(0, window).equals(self._window.ids):  # as it is wherever one grew from here
            return np.concatenate([np.arange(FIRST_ROW + window), vocabulary.rows(self.ids.slice(window))])
        return np.concatenate([np.arange(FIRST_ROW), vocabulary.rows(self.ids)])
