"""A request of the log, read again from the raw tables as a caller would have sent it."""

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opengem.data import Dataset
from opengem.data.columns import canonical_ids, list_parts
from opengem.data.encoder import Encoder
from opengem.data.ingestion.read.sources import Source, find_files, open_source
from opengem.data.times import read_times
from opengem.errors import DataError
from opengem.schema.check import item_attribute
from opengem.schema.inputs import MISSING_TIME
from opengem.schema.words import Schema, Stream, Table, TimeColumn


class RawLogs:
    """The raw tables of a schema, read for one user at a time.

    Reads whole files: for looking at single requests, not for bulk work. Rows that ingest quarantines, and
    impressions of one ad at one time without an id, are not told apart here.

    Args:
        schema: The schema, with the root of the logs.
        data: The data set that ingest made of them.
    """

    def __init__(self, schema: Schema, data: Dataset):
        self.schema, self.data = schema, data
        self._encoder = Encoder.load(data.folder)

    def request(self, number: int) -> dict[str, Any]:
        """Return a stored request as `Predictor.rank` takes it; its ads are in the order of the data set.

        Args:
            number: Request of the data set.

        Raises:
            DataError: The logs do not hold the request any more.
        """
        schema, words = self.schema, self.schema.impressions
        first, last = self.data.first_examples(np.array([number, number + 1])).tolist()
        user = str(self.data.column("user_key")[first])
        time = int(self.data.column("time")[first:last].min())
        shown = self._impressions(user, first, last)
        raw: dict[str, Any] = {
            "time_ms": time,
            "user": self._user(user, shown[0], time),
            "ads": [self._ad(row) for row in shown],
            "history": {s.name: self._history(s, user, time) for s in schema.streams},
        }
        if words.surface:
            raw["surface"] = as_sent(shown[0][words.surface])
        return raw

    def _impressions(self, user: str, first: int, last: int) -> list[dict[str, Any]]:
        """Return the rows of a request's impressions, in the order of the data set."""
        words = self.schema.impressions
        assert words.user
        assert words.ad
        assert words.time
        wanted = [words.user, words.ad, words.time.column, words.surface, words.id, words.key]
        wanted += [f.column for f in self.schema.features if not f.derive]
        table = self._rows_of("impressions", words.user, user, [w for w in wanted if w])
        count = table.num_rows
        ads = canonical_ids(table.column(words.ad)).to_pylist()
        times = read_times(table.column(words.time.column), words.time)[0].to_pylist()
        ids = table.column(words.id).to_pylist() if words.id else [None] * count
        keys = canonical_ids(table.column(words.key)).to_pylist() if words.key else list(range(count))
        surfaces = (
            self._encoder.encode_surfaces(table.column(words.surface)) if words.surface else [0] * count
        )
        rows = list(zip(ads, times, ids, map(int, surfaces), strict=True))
        requests: dict[Any, list[int]] = {}
        for i, key in enumerate(keys):
            requests.setdefault(key, []).append(i)
        here = slice(first, last)
        names = self.data.example_ids[here].tolist() if words.id else [None] * (last - first)
        ad, time, surface = (self.data.column(name)[here].tolist() for name in ("ad_key", "time", "surface"))
        stored = list(zip(ad, time, names, surface, strict=True))
        for members in requests.values():
            if Counter(rows[i] for i in members) == Counter(stored):
                places: dict[Any, list[int]] = {}
                for i in members:
                    places.setdefault(rows[i], []).append(i)
                return table.take(pa.array([places[row].pop(0) for row in stored])).to_pylist()
        raise DataError(
            f"the logs under {self.schema.root} must hold the impressions of {self.data.folder}. Received: a "
            "request that is not there any more. Run ingest again."
        )

    def _user(self, user: str, shown: dict[str, Any], time: int) -> dict[str, Any]:
        """Return the user's columns, as known at `time`; from the impression where the users table lacks them."""
        columns = {f.column for f in self.schema.features if f.owner == "user"}
        words = self.schema.tables.get("users")
        row: dict[str, Any] = {}
        if words and words.key:
            times = [t for t in (words.time, words.arrival) if t]
            table = self._rows_of("users", words.key, user, [words.key, *columns, *(t.column for t in times)])
            read = [read_times(table.column(t.column), t)[0].to_pylist() for t in times]
            rows = list(zip(*read, strict=True)) if times else [()] * table.num_rows
            # in effect and written by then; of several the last in effect, as ingest has it
            held = [i for i, at in enumerate(rows) if all(t is not None and t <= time for t in at)]
            if held:
                row = table.slice(max(held, key=lambda i: rows[i]), 1).to_pylist()[0]
        key = str(self.schema.impressions.user)
        return _json(
            {key: shown[key]} | {c: row.get(c, shown.get(c)) for c in columns if c in row or c in shown}
        )

    def _ad(self, shown: dict[str, Any]) -> dict[str, Any]:
        """Return an ad's key and what stands beside it in the impression."""
        key = str(self.schema.impressions.ad)
        own = set(self._source("ads").columns) if "ads" in self.schema.tables else set()
        columns = [f.column for f in self.schema.features if f.owner == "ad" and f.column not in own]
        columns += [f.column for f in self.schema.features if f.owner == "context" and not f.derive]
        return _json({key: shown[key]} | {c: shown[c] for c in columns if c in shown})

    def _history(self, stream: Stream, user: str, time: int) -> dict[str, list[Any]]:
        """Return the user's events of a stream before `time`, column by column, ready-made ones first."""
        words = self.schema.tables[stream.from_table]
        item = words.ad if stream.from_table == "impressions" else words.item
        times = [t for t in (words.time, words.arrival) if t]
        wanted = [a.column for a in stream.attributes] + [t.column for t in times]
        request = words.request if self.schema.impressions.key else None
        wanted += [c for c in (words.user, item, words.type if stream.types else None, request) if c]
        assert words.user
        table = self._rows_of(stream.from_table, words.user, user, wanted)
        table = table.filter(pa.array(self._known_times(table, words) < time))
        own = {
            name: _plain(table.column(name))
            for name in table.column_names
            if name not in (words.user, request)
        }
        if stream.ready is None:
            return own
        ready, count = self._ready(stream, user, item, words.time)
        return {name: [*ready.get(name, [None] * count), *values] for name, values in own.items()} | {
            name: [*values, *[None] * table.num_rows] for name, values in ready.items() if name not in own
        }

    def _ready(
        self, stream: Stream, user: str, item: str | None, time: TimeColumn | None
    ) -> tuple[dict[str, list[Any]], int]:
        """Return the ready-made events of a user by the columns of the stream, and how many there are."""
        assert stream.ready
        column_of = {a.name: a.column for a in stream.attributes}
        lists = {column_of.get(name, item or name): column for name, column in stream.ready.lists.items()}
        if stream.ready.times and time:
            lists[time.column] = stream.ready.times.column
        members = {column_of[name]: column for name, column in stream.ready.members.items()}
        items = stream.ready.lists.get(item_attribute(stream, self.schema), "")
        files = find_files(Path(self.schema.root), stream.ready.path, f"{stream.name}.ready")
        for file in files:
            table = pq.read_table(file, columns=[stream.ready.user, *lists.values(), *members.values()])
            mine = table.filter(pa.array([k == user for k in canonical_ids(table.column(0)).to_pylist()]))
            if mine.num_rows:
                parts = {
                    name: list_parts(mine.column(c), c, "lists")[1].to_pylist() for name, c in lists.items()
                }
                count = len(next(iter(parts.values())))
                parts |= {name: _held(mine, items, column) for name, column in members.items()}
                return {n: [as_sent(v) for v in vs] for n, vs in parts.items()}, count
        return {}, 0

    def _known_times(self, table: pa.Table, words: Table) -> np.ndarray:
        """Return the time from which each row of a user's events could be known, as ingest has it."""
        known = np.full(table.num_rows, MISSING_TIME)
        for column in (words.time, words.arrival):
            if column:
                times = read_times(table.column(column.column), column)[0].fill_null(MISSING_TIME)
                known = np.maximum(known, times.to_numpy())
        if words.request and self.schema.impressions.key and table.num_rows:
            made = self._request_times(str(canonical_ids(table.column(str(words.user)))[0]))
            of_event = canonical_ids(table.column(words.request)).to_pylist()
            known = np.maximum(known, [made.get(key, MISSING_TIME) for key in of_event])
        return known

    def _request_times(self, user: str) -> dict[str, int]:
        """Return when each request of a user was made: an event of it is not known before."""
        words = self.schema.impressions
        assert words.user
        assert words.key
        assert words.time
        table = self._rows_of("impressions", words.user, user, [words.user, words.key, words.time.column])
        times: list[int | None] = read_times(table.column(words.time.column), words.time)[0].to_pylist()
        made: dict[str, int] = {}
        for key, time in zip(canonical_ids(table.column(words.key)).to_pylist(), times, strict=True):
            if key is not None and time is not None and time < made.get(key, time + 1):
                made[key] = time
        return made

    def _source(self, table: str) -> Source:
        return open_source(Path(self.schema.root), self.schema.tables[table].path, table)

    def _rows_of(self, table: str, key: str, value: str, wanted: Sequence[str]) -> pa.Table:
        """Return the rows of a table whose `key` is `value`, with those of the wanted columns that are there."""
        words = self.schema.tables[table]
        source = self._source(table)
        columns = source.columns if words.deduplicate else list(dict.fromkeys([*wanted, *words.where]))
        parts = []
        for file in source.files:
            with pq.ParquetFile(file.path) as parquet:
                rows = parquet.read(columns=[c for c in columns if c in file.columns])
            for name in columns:
                if name in file.folders:
                    rows = rows.append_column(name, pa.repeat(pa.scalar(file.folders[name]), rows.num_rows))
            keep = np.array([k == value for k in canonical_ids(rows.column(key)).to_pylist()], bool)
            for column, allowed in words.where.items():
                texts = canonical_ids(pa.array(allowed)).to_pylist()
                keep &= np.array([v in texts for v in canonical_ids(rows.column(column)).to_pylist()], bool)
            if words.span and words.time:
                times = (
                    read_times(rows.column(words.time.column), words.time)[0]
                    .fill_null(MISSING_TIME)
                    .to_numpy()
                )
                keep &= (times >= words.span[0]) & (times < words.span[1])
            parts.append(rows.filter(pa.array(keep, pa.bool_())))
        rows = pa.concat_tables(parts, promote_options="permissive")
        rows = _without_copies(rows) if words.deduplicate else rows
        return rows.select([c for c in rows.column_names if c in wanted])


def _held(user: pa.Table, items: str, column: str) -> list[int | None]:
    """Return 1 where an item of the user's list `items` is in the list `column`, 0 where not, null if unknown."""
    ids = canonical_ids(list_parts(user.column(items), items, "lists")[1]).to_pylist()
    _, values, missing = list_parts(user.column(column), column, "lists")
    listed = set(canonical_ids(values).to_pylist())
    return [None if missing[0] or i is None else int(i in listed) for i in ids]


def _without_copies(rows: pa.Table) -> pa.Table:
    """Return the rows without those equal to an earlier one in every column."""
    firsts = {repr(row): i for i, row in reversed(list(enumerate(rows.to_pylist())))}
    return rows.take(pa.array(sorted(firsts.values()), pa.int64()))


def _plain(column: pa.ChunkedArray) -> list[Any]:
    return [as_sent(value) for value in column.to_pylist()]


def as_sent(value: Any) -> Any:
    """Return a value of a log row as JSON writes it: whole numbers as such whatever their size, NaN as null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return None if np.isnan(value) else value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else f"{value.normalize():f}"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        return [as_sent(v) for v in value]
    return str(value)


def _json(row: dict[Any, Any]) -> dict[str, Any]:
    return {str(name): as_sent(value) for name, value in row.items()}
