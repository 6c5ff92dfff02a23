"""From the raw events of a request to the history that a model reads, cut and ordered as ingest does it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from opengem.data.columns import canonical_ids, canonical_lists, list_parts
from opengem.data.encoder import Encoder
from opengem.data.sequence_store import BucketEvents, event_order
from opengem.data.ties import TiedIds, tie_keys
from opengem.errors import DataError
from opengem.jagged import History
from opengem.schema.inputs import MISSING_TIME
from opengem.schema.words import Attribute, Schema, Stream, TimeColumn
from opengem.serving.ads import AdsTable
from opengem.serving.fields import (
    RequestError,
    each,
    finite_float32,
    id_array,
    mapping,
    number_array,
    only,
    sequence,
    time_array,
)


class EventReader:
    """Reads the events of one stream: one list a column, of equal lengths.

    Events are ordered as in the sequence store, by the time at which they could be known (the later of event and
    arrival time); those not known strictly before the request are left out; the newest are kept. Events without a
    time, as ready-made histories have them, come first, as they were sent.

    Args:
        stream: The stream.
        schema: The schema.
        encoder: The data set's encoder.
        ads: Ads, for attributes that an event's item brings along.
        history: Most events that the model reads.
        longest: Most events that a request may send.
    """

    def __init__(
        self, stream: Stream, schema: Schema, encoder: Encoder, ads: AdsTable, history: int, longest: int
    ):
        self.name = stream.name
        table = schema.tables[stream.from_table]
        self._stream, self._table = stream, table
        self._encoder, self._ads = encoder, ads
        self._history, self._longest = history, longest
        item = table.ad if stream.from_table == "impressions" else table.item
        key = schema.tables["ads"].key if "ads" in schema.tables else None
        self._items = tuple(dict.fromkeys(c for c in (item, key if item else None) if c))
        times = (table.time, table.arrival)
        self._type = table.type if stream.types else None
        self._columns = {
            *(a.column for a in stream.attributes),
            *self._items,
            *(t.column for t in times if t),
            *((self._type,) if self._type else ()),
        }
        self._kinds = {c: encoder.kinds_of((stream.from_table, "ads"), (c,)) for c in self._columns}

    def read(self, raw: Any, request_time: int) -> tuple[History, int]:
        """Read the events of one request.

        Args:
            raw: Object: column -> list of values; what is missing in a list is null.
            request_time: Unix ms.

        Returns:
            The history of one request, and how many events were left out because they were not known before
            the request or are of a type that the stream does not hold.

        Raises:
            RequestError: A column is unknown, of a wrong kind, or of another length.
        """
        field = f"history.{self.name}"
        raw = mapping(raw, field)
        only(raw, self._columns, field)
        if len(given := [item for item in self._items if item in raw]) > 1:
            raise RequestError(field, f"must hold one of {' and '.join(given)}: they name the same item.")
        columns = {name: sequence(values, self._longest, f"{field}.{name}") for name, values in raw.items()}
        sizes = {len(values) for values in columns.values()}
        if len(sizes) > 1:
            raise RequestError(field, "must hold columns of one length.")
        count = sizes.pop() if sizes else 0
        time, available = self._times(columns, count)
        keep = (available < request_time) & self._of_type(columns, count)
        rows = self._newest(np.flatnonzero(keep), time, available)
        values = {a.name: self._attribute(a, columns, rows) for a in self._stream.attributes}
        position = np.where(time == MISSING_TIME, np.arange(count), 0)
        same = np.zeros(len(rows), np.int64)
        ties = partial(tie_keys, values, self._tied(columns, rows, values))
        order = event_order(BucketEvents(same, available[rows], time[rows], position[rows], values, ties))
        order = order[max(0, len(order) - self._history) :]
        chosen = {name: encoded[order] for name, encoded in values.items()}
        return self._history_of(chosen, time[rows][order]), count - int(keep.sum())

    def _tied(
        self, columns: Mapping[str, Sequence[Any]], rows: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> dict[str, TiedIds]:
        """Return the ids of the events `rows`, those that the item brings along last, as ingest orders them."""
        found = {}
        of_ads = lambda a: self._ads.attribute(self.name, a.name) is not None  # noqa: E731
        for attribute in sorted(self._stream.attributes, key=of_ads):
            if attribute.kind == "id":
                name = self._sent_as(attribute, columns)
                text = partial(self._text, attribute, columns, name, rows) if name in columns else None
                window = self._encoder.window[attribute.table]
                found[attribute.name] = TiedIds(values[attribute.name], window, text)
        return found

    def _text(
        self,
        attribute: Attribute,
        columns: Mapping[str, Sequence[Any]],
        name: str,
        rows: np.ndarray,
        places: np.ndarray,
    ) -> pa.Array:
        ids = canonical_ids(self._attribute_ids(attribute, columns, name))
        return ids.take(pa.array(rows[places]))

    def _newest(self, rows: np.ndarray, time: np.ndarray, available: np.ndarray) -> np.ndarray:
        """Return the rows that can be among the newest: so many as are read, and those as old as the oldest."""
        order = rows[np.lexsort((rows, time[rows], available[rows]))]
        first = max(0, len(order) - self._history)
        if not 0 < first < len(order):
            return order[first:]
        oldest = order[first]
        tied = (time[order] == time[oldest]) & (available[order] == available[oldest])
        return order[np.flatnonzero(tied)[0] :]

    def _times(self, columns: Mapping[str, Sequence[Any]], count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return event times, and the times at which events could be known, Unix ms."""
        time = self._time(columns, self._table.time, count)
        if self._stream.ready is None and (time == MISSING_TIME).any():
            raise RequestError(self._time_field(), "must hold a time for each event.")
        if self._table.arrival is None or self._table.arrival.column not in columns:
            return time, time
        return time, np.maximum(time, self._time(columns, self._table.arrival, count))

    def _time(
        self, columns: Mapping[str, Sequence[Any]], column: TimeColumn | None, count: int
    ) -> np.ndarray:
        if column is None or column.column not in columns:
            return np.full(count, MISSING_TIME)
        field = f"history.{self.name}.{column.column}"
        text = column.unit in ("timestamp", "iso8601")
        array = time_array(columns[column.column], text, field)
        if column.unit == "timestamp":  # JSON has none: text in ISO 8601 stands for it
            column = TimeColumn(column=column.column, unit="iso8601", zone=column.zone)
        try:
            times = self._encoder.read_time(array, column)
        except DataError:  # some text without a zone, where the schema gives none
            raise RequestError(field, f"must hold times in {column.unit} with an offset from UTC.") from None
        for i in np.flatnonzero(np.asarray(array.is_valid()) & (times == MISSING_TIME)):
            raise RequestError(each(field)(int(i)), f"must hold a time in {column.unit} that can be read.")
        return times

    def _time_field(self) -> str:
        column = self._table.time.column if self._table.time else ""
        return f"history.{self.name}.{column}"

    def _of_type(self, columns: Mapping[str, Sequence[Any]], count: int) -> np.ndarray:
        """Return which events are of the stream's types; all where no types are sent."""
        if self._type is None or self._type not in columns:
            return np.ones(count, bool)
        types = self._ids(columns, self._type).to_pylist()
        return np.array([kind in self._stream.types for kind in types], bool)

    def _history_of(self, values: Mapping[str, np.ndarray], time: np.ndarray) -> History:
        ids, numbers = {}, {}
        for attribute in self._stream.attributes:
            encoded = values[attribute.name]
            if attribute.kind == "id":
                ids[attribute.name] = torch.from_numpy(encoded.astype(np.int64))
            else:
                filled = np.where(np.isnan(encoded), 0, encoded).astype(np.float32)
                numbers[attribute.name] = torch.from_numpy(filled)
        offsets = torch.tensor([0, len(time)])
        return History(ids=ids, numbers=numbers, times=torch.from_numpy(time), offsets=offsets)

    def _attribute(
        self, attribute: Attribute, columns: Mapping[str, Sequence[Any]], rows: np.ndarray
    ) -> np.ndarray:
        """Return an encoded attribute of the events `rows`: as sent, else from the item, else missing."""
        name = self._sent_as(attribute, columns)
        if name in columns:
            return self._encoded(attribute, columns, name)[rows]
        from_ads = self._ads.attribute(self.name, attribute.name)
        item = next((item for item in self._items if item in columns), None)
        if from_ads is not None and item is not None:
            return from_ads.gather(self._ads.rows(self._ids(columns, item).to_pylist()))[rows]
        return self._encoded(attribute, {name: [None] * len(rows)}, name)

    def _sent_as(self, attribute: Attribute, columns: Mapping[str, Sequence[Any]]) -> str:
        """Return the column that an attribute is sent in: its own, or another name of the item."""
        name = attribute.column
        if name not in columns and name in self._items:
            name = next((item for item in self._items if item in columns), name)
        return name

    def _encoded(self, attribute: Attribute, columns: Mapping[str, Sequence[Any]], name: str) -> np.ndarray:
        """Return a column that was sent, encoded as `attribute`; all of it, so that no wrong value is passed over."""
        if attribute.kind == "number":
            where = each(f"history.{self.name}.{name}")
            array = number_array(columns[name], self._kinds.get(name, ()), where)
            with np.errstate(over="ignore"):
                encoded = self._encoder.encode_number(f"{self.name}.{attribute.name}", array)
            return finite_float32(encoded, where)
        return self._encoder.encode_ids(attribute.table, self._attribute_ids(attribute, columns, name))

    def _attribute_ids(
        self, attribute: Attribute, columns: Mapping[str, Sequence[Any]], name: str
    ) -> pa.Array:
        array = self._ids(columns, name)
        return _first_ids(array, attribute.separator) if attribute.separator else array

    def _ids(self, columns: Mapping[str, Sequence[Any]], name: str) -> pa.Array:
        return id_array(columns[name], self._kinds.get(name, ()), each(f"history.{self.name}.{name}"))


def _first_ids(text: pa.Array, separator: str) -> pa.Array:
    """Return the first of several ids of a text; null where there is none."""
    offsets, values, _ = list_parts(canonical_lists(text, separator=separator)[0], "", "")
    return values.take(pa.array(offsets[:-1], mask=np.diff(offsets) == 0))
