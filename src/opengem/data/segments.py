"""The segments of a data set: what each ingest or append wrote, read as one."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from opengem.data.arrow_file import ArrowFile

BASE = "."
"""Folder of the first segment: the data set's own."""


@dataclass(frozen=True)
class Segment:
    """What one ingest or append wrote.

    Attributes:
        folder: Where its files lie.
        first_example: Number of its first example.
        first_request: Number of its first request.
        buckets: Number of buckets of its sequence store; user n is in bucket `n % buckets`.
    """

    folder: Path
    first_example: int
    first_request: int
    buckets: int


class Segments:
    """All segments of a data set, oldest first.

    The history of a request of segment s is the user's whole part of each segment before s, then the slice of segment
    s that its own row names. Examples, requests, users and ads are numbered through.

    Args:
        folder: The data set.
        manifest: Its manifest.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.all: list[Segment] = []
        examples = requests = 0
        for record in manifest["segments"]:
            self.all.append(Segment(folder / record["folder"], examples, requests, record["buckets"]))
            examples += record["examples"]
            requests += record["requests"]
        self._first_requests = np.array([s.first_request for s in self.all], np.int64)
        self._sequences: dict[tuple[str, str, int, int], ArrowFile] = {}

    def file(self, name: str) -> ArrowFile:
        """Open a file that each segment has a part of, such as `examples.arrow`, as one."""
        return ArrowFile(*(s.folder / name for s in self.all))

    @cached_property
    def requests(self) -> ArrowFile:
        """The requests."""
        return self.file("requests.arrow")

    def newest(
        self, stream: str, requests: np.ndarray, longest: int | None = None
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield where the newest events of each request's history lie, newest segment first.

        Args:
            stream: Name of the stream.
            requests: `(R,)` int64 request numbers.
            longest: Most events a request, over all segments; None for all.

        Yields:
            Segment, start and end `(R,)` int64 rows of the segment's bucket; equal where it holds none of them.
        """
        own = np.searchsorted(self._first_requests, requests, side="right") - 1
        start_of = self.requests.column(f"start_{stream}").gather(requests)
        end_of = self.requests.column(f"end_{stream}").gather(requests)
        if len(self.all) == 1:
            start = start_of if longest is None else np.maximum(start_of, end_of - longest)
            yield 0, start, end_of
            return
        users = self.requests.column("user").gather(requests)
        left = np.full(len(requests), np.iinfo(np.int64).max if longest is None else longest, np.int64)
        for number in range(int(own.max(initial=0)), -1, -1):
            start, end = np.where(own == number, start_of, 0), np.where(own == number, end_of, 0)
            older = np.flatnonzero((own > number) & (left > 0))
            if len(older):
                start[older], end[older] = self.of_users(number, stream, users[older])
            start = np.maximum(start, end - left)
            left -= end - start
            yield number, start, end

    def of_users(self, number: int, stream: str, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return start and end of all events of users in one segment, `(n,)` int64; equal where there is none."""
        start, end = np.zeros(len(users), np.int64), np.zeros(len(users), np.int64)
        buckets = users % self.all[number].buckets
        for bucket in np.unique(buckets):
            inside = np.flatnonzero(buckets == bucket)
            file = self.users(number, stream, int(bucket))
            known = file.column("user").values
            if not len(known):
                continue
            places = np.minimum(np.searchsorted(known, users[inside]), len(known) - 1)
            found = known[places] == users[inside]
            start[inside] = np.where(found, file.column("start").gather(places), 0)
            end[inside] = np.where(found, file.column("end").gather(places), 0)
        return start, end

    def events(self, number: int, stream: str, bucket: int) -> ArrowFile:
        """Open the events of one bucket of a segment."""
        return self._sequence("bucket", stream, number, bucket)

    def users(self, number: int, stream: str, bucket: int) -> ArrowFile:
        """Open where each user's events lie in one bucket of a segment: `user` (sorted), `start`, `end`."""
        return self._sequence("users", stream, number, bucket)

    def _sequence(self, what: str, stream: str, number: int, bucket: int) -> ArrowFile:
        key = (what, stream, number, bucket)
        if key not in self._sequences:
            path = self.all[number].folder / "sequences" / stream / f"{what}-{bucket:05d}.arrow"
            self._sequences[key] = ArrowFile(path)
        return self._sequences[key]
