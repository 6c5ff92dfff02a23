"""The sequence store, writing side: each event once, sorted so that every history is a slice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from opengem.data.arrow_sink import write_table


@dataclass(frozen=True)
class BucketEvents:
    """The events of one bucket's users, in any order; all arrays have length L.

    Attributes:
        user: int64 number of the user.
        available: int64 Unix ms from which the event may be known.
        time: int64 Unix ms at which it happened, `MISSING_TIME` if it has none.
        position: int64 place among ready-made events of one time; 0 for others.
        attributes: Name -> int64 codes or rows of ids, or float32 standardised numbers.
        ties: Places of events `(n,)` -> the keys by which they are ordered where all before is equal, the first
            decides; the attributes if not given. See `tie_keys`.
    """

    user: np.ndarray
    available: np.ndarray
    time: np.ndarray
    position: np.ndarray
    attributes: dict[str, np.ndarray]
    ties: Callable[[np.ndarray], Sequence[np.ndarray]] | None = None

    def tie_keys(self, places: np.ndarray) -> Sequence[np.ndarray]:
        """Return the keys that order tied events at these places."""
        if self.ties is not None:
            return self.ties(places)
        return [values[places] for values in self.attributes.values()]


def write_bucket(
    folder: Path,
    bucket: int,
    events: BucketEvents,
    request_user: np.ndarray,
    request_time: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Write the files of one bucket and return where the history of each of its requests lies.

    Events are sorted by user, then by when they became available, when they happened, their position and their
    attributes; so the file does not depend on the order in which they come. The history of a request at t is the
    user's events available strictly before t: a prefix of the user's events, so `[start, end)`.

    Args:
        folder: Folder of the stream; gets `bucket-NNNNN.arrow` and `users-NNNNN.arrow`.
        bucket: Number of the bucket.
        events: The events of the bucket's users.
        request_user: `(R,)` int64 user of each request of these users.
        request_time: `(R,)` int64 Unix ms.

    Returns:
        `start` and `end`, `(R,)` int64 rows of the bucket's file, end exclusive.
    """
    order = _order(events)
    user, available = events.user[order], events.available[order]
    columns: dict[str, pa.Array] = {"time": pa.array(events.time[order], pa.int64())}
    for name, values in events.attributes.items():
        columns[f"a_{name}"] = pa.array(smallest(values)[order])
    write_table(folder / f"bucket-{bucket:05d}.arrow", pa.table(columns))
    numbers, firsts = np.unique(user, return_index=True)
    lasts = np.append(firsts, len(user))[1:]
    spans = {"user": numbers, "start": firsts, "end": lasts}
    write_table(
        folder / f"users-{bucket:05d}.arrow", pa.table({n: pa.array(v, pa.int64()) for n, v in spans.items()})
    )
    start = np.searchsorted(user, request_user, side="left")
    return start.astype(np.int64), _ends(user, available, request_user, request_time)


def event_order(events: BucketEvents) -> np.ndarray:
    """Return the order in which a history holds events, for ingest and serving alike, `(L,)` int64.

    By user, available, time and position; only events that are equal in all of these are compared by `tie_keys`.
    """
    return np.arange(len(events.user))[_order(events)]


def _order(events: BucketEvents) -> np.ndarray | slice:
    """Return the order of the events; a slice of all where they are in order."""
    keys = (events.position, events.time, events.available, events.user)
    joint = _joint(events.user, events.available)
    if joint is None:
        order: np.ndarray | slice = np.lexsort(keys)
    else:
        in_order = bool((joint[1:] >= joint[:-1]).all())
        # argsort is not stable, and several times as fast as a lexsort
        order = slice(None) if in_order else np.argsort(joint)
        order = _resorted(order, [joint], lambda rows: [events.time[rows], events.position[rows]])
    return _resorted(order, keys, events.tie_keys)


def _resorted(
    order: np.ndarray | slice,
    equal: Sequence[np.ndarray],
    by: Callable[[np.ndarray], Sequence[np.ndarray]],
) -> np.ndarray | slice:
    """Return an order with runs of rows that are equal in some keys sorted by others, the first of these first."""
    count = len(equal[0])
    if count < 2:
        return order
    same = np.ones(count - 1, bool)
    for key in equal:
        ordered = key[order]
        same &= ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    if not len(tied):
        return order
    group = np.cumsum(~np.insert(same, 0, False))[tied]
    rows = tied if isinstance(order, slice) else order[tied]
    resorted = rows[np.lexsort((*reversed(by(rows)), group))]
    if not np.array_equal(rows, resorted):
        order = np.arange(count) if isinstance(order, slice) else order
        order[tied] = resorted
    return order


def _joint(user: np.ndarray, time: np.ndarray) -> np.ndarray | None:
    """Return one int64 that orders by user, then time; None if both do not fit into one."""
    if not len(user):
        return np.empty(0, np.int64)
    first, last = int(time.min()), int(time.max())
    span = last - first + 1
    return user * span + (time - first) if (int(user.max()) + 1) * span < 2**63 else None


def _ends(
    user: np.ndarray, available: np.ndarray, request_user: np.ndarray, request_time: np.ndarray
) -> np.ndarray:
    """Count the events that sort before each request: those of lesser users, and the user's own before its time.

    Args:
        user: `(L,)` int64 user of each event, sorted.
        available: `(L,)` int64, sorted within a user.
        request_user: `(R,)` int64.
        request_time: `(R,)` int64.
    """
    count = len(request_user)
    joint = _joint(np.concatenate([request_user, user]), np.concatenate([request_time, available]))
    if joint is not None:
        return np.searchsorted(joint[count:], joint[:count], side="left").astype(np.int64)
    is_event = np.concatenate([np.zeros(count, np.int8), np.ones(len(user), np.int8)])
    merged = np.lexsort(
        (is_event, np.concatenate([request_time, available]), np.concatenate([request_user, user]))
    )
    before = np.cumsum(is_event[merged], dtype=np.int64)
    ends = np.empty(len(merged), np.int64)
    ends[merged] = before
    return ends[:count]


def smallest(values: np.ndarray) -> np.ndarray:
    """Return embedding rows in the smallest integer type that holds them; numbers as they are."""
    if values.dtype.kind == "f":
        return values.astype(np.float32, copy=False)
    top = int(values.max()) if len(values) else 0
    for kind in (np.int8, np.int16, np.int32):
        if top <= np.iinfo(kind).max:
            return values.astype(kind)
    return values


def length_histogram(lengths: np.ndarray) -> dict[str, list[int]]:
    """Return how many histories have lengths of [0, 1), [1, 2), [2, 4), [4, 8), ... events."""
    edges = [0, 1]
    while edges[-1] <= (int(lengths.max()) if len(lengths) else 0):
        edges.append(edges[-1] * 2)
    counts = np.histogram(lengths, bins=edges)[0] if len(lengths) else np.zeros(len(edges) - 1, np.int64)
    return {"edges": edges, "counts": [int(c) for c in counts]}
