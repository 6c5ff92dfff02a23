"""What a log says of a user at the time of a request: the observed numbers every planted term is made of.

Everything here is a function of events strictly before the request. The simulator calls it on a block of
users at once, a probe on one history that it has written by hand.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opengem.data.synth.catalogue import FloatArray, IntArray
from opengem.data.synth.config import CATEGORIES, MS_DAY, MS_HOUR, MS_MINUTE

VIEW, LIKE, SEARCH, MESSAGE, IMPRESSION, CLICK, CONVERSION = range(7)
EVENT_TYPES = ("view", "like", "search", "message", "impression", "click", "conversion")
TOUCHES = (VIEW, LIKE, SEARCH)

HALF_LIVES_MS = (10 * MS_MINUTE, MS_DAY, 14 * MS_DAY)
FATIGUE_WINDOW_MS = 2 * MS_DAY
ORDER_GAP_MS = 10 * MS_MINUTE
ORDER_WINDOW_MS = 3 * MS_DAY
BURST_SPAN_MS = MS_HOUR
NEVER_MS = 1e15


@dataclass(frozen=True, kw_only=True)
class Log:
    """Events of some users, in any order, as columns of one length L.

    Args:
        user: (L,) user, small integers from 0.
        time: (L,) Unix ms.
        kind: (L,) place in `EVENT_TYPES`.
        category: (L,) category, -1 where the event has none.
        item: (L,) catalogue row, -1 where the event has none.
        advertiser: (L,) advertiser of ad events, else -1.
    """

    user: IntArray
    time: IntArray
    kind: IntArray
    category: IntArray
    item: IntArray
    advertiser: IntArray

    def __len__(self) -> int:
        return len(self.user)

    def pick(self, rows: npt.NDArray) -> "Log":
        """Keep some rows.

        Args:
            rows: (L,) bool or row numbers.

        Returns:
            The log of these rows.
        """
        return Log(**{name: column[rows] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Ads shown or to be shown: the examples, as columns of one length B.

    Args:
        user: (B,) user, as in `Log`.
        time: (B,) Unix ms of the request.
        category: (B,) category of the ad.
        advertiser: (B,) advertiser of the ad.
        creative: (B, 32) creative vector of the ad.
    """

    user: IntArray
    time: IntArray
    category: IntArray
    advertiser: IntArray
    creative: npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The numbers a history gives for an example, each (B,) unless said otherwise.

    Args:
        touched_days: distinct UTC days with a view, like or search of the ad's category.
        touches: number of such events.
        first_touch_ms: ms since the first, `NEVER_MS` where none.
        last_touch_ms: ms since the last, `NEVER_MS` where none.
        recent: (B, 3) sums over touches and clicks of 0.5 ** (age / half-life), for `HALF_LIVES_MS`.
        recent_likes: the sum over likes of the category, half-life 14 days.
        recent_searches: the sum over searches of the category, half-life 14 days.
        shown: times this advertiser was shown in the 2 days before.
        last_shown_ms: ms since it was last shown, `NEVER_MS` where never.
        ordered: views of the category in the 3 days before that follow a search of it by at most 10 min.
        taste: cosine of the creative and the sum of the creatives of liked items, 0 without likes.
    """

    touched_days: IntArray
    touches: IntArray
    first_touch_ms: FloatArray
    last_touch_ms: FloatArray
    recent: FloatArray
    recent_likes: FloatArray
    recent_searches: FloatArray
    shown: IntArray
    last_shown_ms: FloatArray
    ordered: IntArray
    taste: FloatArray


def observe(log: Log, shown: Shown, creatives: npt.NDArray[np.float32]) -> Observed:
    """Read from a log what is known of each example's user and category strictly before its time.

    Args:
        log: events of the users, later ones may be among them.
        shown: the examples.
        creatives: (N, 32) creative of every catalogue row.

    Returns:
        One number (or three) an example.
    """
    base = int(min(log.time.min(initial=2**62), shown.time.min(initial=2**62)))
    log = log.pick(np.lexsort((log.time, log.user)))
    touch = np.isin(log.kind, TOUCHES)
    topic = _Index(log, touch, log.category, CATEGORIES, base)
    query = _Query(shown, shown.category, CATEGORIES, base)
    before, start = topic.before(query), topic.start(query)
    none = before == start
    liked = _Index(log, log.kind == LIKE, log.category, CATEGORIES, base)
    searched = _Index(log, log.kind == SEARCH, log.category, CATEGORIES, base)
    answered = _Index(log, _after_search(log, searched, base), log.category, CATEGORIES, base)
    ticks = _Index(log, touch | (log.kind == CLICK), log.category, CATEGORIES, base)
    advertisers = int(max(log.advertiser.max(initial=0), shown.advertiser.max(initial=0))) + 1
    ads = _Index(log, log.kind == IMPRESSION, log.advertiser, advertisers, base)
    ad_query = _Query(shown, shown.advertiser, advertisers, base)
    last_ad = ads.before(ad_query)
    return Observed(
        touched_days=topic.first_of_day().count(query),
        touches=before - start,
        first_touch_ms=np.where(none, NEVER_MS, shown.time - topic.time_at(start)),
        last_touch_ms=np.where(none, NEVER_MS, shown.time - topic.time_at(before - 1)),
        recent=np.stack([ticks.decayed(query, half) for half in HALF_LIVES_MS], axis=1),
        recent_likes=liked.decayed(query, HALF_LIVES_MS[2]),
        recent_searches=searched.decayed(query, HALF_LIVES_MS[2]),
        shown=ads.count(ad_query, FATIGUE_WINDOW_MS),
        last_shown_ms=np.where(
            last_ad == ads.start(ad_query), NEVER_MS, shown.time - ads.time_at(last_ad - 1)
        ),
        ordered=answered.count(query, ORDER_WINDOW_MS),
        taste=_taste(log, shown, creatives),
    )


_SPAN = 1 << 38  # ms, eight years: room for the times of one group in a composite key


class _Query:
    """Composite keys of examples: group in the high part, time in the low part."""

    def __init__(self, shown: "Shown | Log", part: IntArray, parts: int, base: int) -> None:
        self.floor = (shown.user * parts + part) * _SPAN
        self.time = shown.time
        self.key = self.floor + (shown.time - base)


class _Index:
    """Some events of a log sorted by group (user and part) and time."""

    def __init__(self, log: Log, rows: npt.NDArray, part: IntArray, parts: int, base: int) -> None:
        rows = np.flatnonzero(rows & (part >= 0))
        group = log.user[rows] * parts + part[rows]
        order = np.lexsort((log.time[rows], group))
        self._group, self._time = group[order], log.time[rows][order]
        self._key = self._group * _SPAN + (self._time - base)
        self._base = base

    def before(self, query: _Query) -> IntArray:
        """Rows strictly before each query, counted from the first row of all."""
        return np.searchsorted(self._key, query.key, side="left")

    def start(self, query: _Query) -> IntArray:
        """First row of each query's group."""
        return np.searchsorted(self._key, query.floor, side="left")

    def time_at(self, row: IntArray) -> IntArray:
        """Time of a row; rows outside answer anything and must be masked by the caller."""
        return self._time[row.clip(0, len(self._time) - 1)] if len(self._time) else np.zeros_like(row)

    def count(self, query: _Query, window: int | None = None) -> IntArray:
        """Rows of the group before each query, at most `window` ms older."""
        low = query.floor if window is None else np.maximum(query.floor, query.key - window)
        return self.before(query) - np.searchsorted(self._key, low, side="left")

    def first_of_day(self) -> "_Index":
        """Keep the first row of each group on each UTC day."""
        day = self._time // MS_DAY
        keep = np.ones(len(day), dtype=bool)
        keep[1:] = (day[1:] != day[:-1]) | (self._group[1:] != self._group[:-1])
        index = object.__new__(_Index)
        index._group, index._time, index._key = self._group[keep], self._time[keep], self._key[keep]
        index._base = self._base
        return index

    def decayed(self, query: _Query, half_life: int) -> FloatArray:
        """Sum of 0.5 ** (age / half-life) over rows before each query, by a doubling scan."""
        if not len(self._time):
            return np.zeros(len(query.key))
        total = np.ones(len(self._time))
        longest = int(np.diff(np.flatnonzero(np.diff(self._group, prepend=-1, append=-1))).max())
        step = 1
        while step < longest:
            same = np.flatnonzero(self._group[step:] == self._group[:-step])
            age = self._time[same + step] - self._time[same]
            add = total[same] * np.exp2(-age / half_life)
            total[same + step] += add
            step *= 2
        row = self.before(query) - 1
        known = row >= self.start(query)
        age = np.where(known, query.time - self.time_at(row), 0)
        return np.where(known, total[row.clip(0)] * np.exp2(-age / half_life), 0.0)


def _after_search(log: Log, searched: _Index, base: int) -> npt.NDArray[np.bool_]:
    """Views that follow a search of the same category by more than 0 and at most 10 min."""
    view = (log.kind == VIEW) & (log.category >= 0)
    query = _Query(log, np.maximum(log.category, 0), CATEGORIES, base)
    row = searched.before(query)
    gap = log.time - searched.time_at(row - 1)
    return view & (row > searched.start(query)) & (gap <= ORDER_GAP_MS)


def _taste(log: Log, shown: Shown, creatives: npt.NDArray[np.float32]) -> FloatArray:
    """Cosine of each creative with the sum of what the user liked before."""
    rows = np.flatnonzero((log.kind == LIKE) & (log.item >= 0))
    total = np.zeros((len(rows) + 1, creatives.shape[1]))
    np.cumsum(creatives[log.item[rows]], axis=0, dtype=np.float64, out=total[1:])
    base = int(min(log.time.min(initial=2**62), shown.time.min(initial=2**62)))
    key = log.user[rows] * _SPAN + (log.time[rows] - base)
    high = np.searchsorted(key, shown.user * _SPAN + (shown.time - base), side="left")
    low = np.searchsorted(key, shown.user * _SPAN, side="left")
    liked = total[high] - total[low]
    creative = shown.creative.astype(np.float64)
    size = np.linalg.norm(liked, axis=1) * np.linalg.norm(creative, axis=1)
    dot = np.einsum("be,be->b", liked, creative)
    return np.where(high > low, dot / np.where(high > low, size, 1.0), 0.0)
