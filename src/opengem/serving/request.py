"""From a raw request to a batch, by the same encoder as ingest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from opengem.data.encoder import Encoder, derived_ids
from opengem.jagged import Batch, JaggedTensor
from opengem.schema.inputs import InputSpec
from opengem.schema.words import Feature, Schema
from opengem.serving.ads import AdsTable
from opengem.serving.events import EventReader
from opengem.serving.fields import (
    RequestError,
    id_array,
    mapping,
    number_array,
    only,
    sequence,
    whole_number,
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large a request may be.

    Attributes:
        ads: Ads to rank, 1 or more.
        events: Events of each stream that are sent, 0 or more; of these the newest are read.
        values: Values of one list feature, 1 or more.
        body_bytes: Size of a request over HTTP.
        concurrent: Requests over HTTP that are worked on at once; more are refused.
    """

    ads: int = 1_000
    events: int = 10_000
    values: int = 1_000
    body_bytes: int = 4_000_000
    concurrent: int = 8


@dataclass(frozen=True)
class RankRequest:
    """A request after reading.

    Attributes:
        batch: One request with an example for each ad.
        ads: The ads' keys, as they were sent.
        known: Whether the package knows each ad, `(B,)` bool.
        surface: Name of the surface, `other` where the training window did not hold it.
        sort_by: Task to sort by.
        ignored_events: Stream -> events that were not read: at or after the request's time, or of another type.
    """

    batch: Batch
    ads: list[Any]
    known: np.ndarray
    surface: str
    sort_by: str
    ignored_events: dict[str, int]


class RequestReader:
    """Reads raw requests: user, context, events and ads in the words of the schema's columns.

    Args:
        schema: The schema; its columns are the names of the fields.
        inputs: What the model reads.
        encoder: The data set's encoder.
        ads: Ads that can be named by key.
        history: Most events of each stream that the model reads.
        limits: How large a request may be.
    """

    def __init__(
        self,
        schema: Schema,
        inputs: InputSpec,
        encoder: Encoder,
        ads: AdsTable,
        history: Mapping[str, int],
        limits: Limits,
    ):
        self._inputs, self._encoder, self._ads, self._limits = inputs, encoder, ads, limits
        self._events = [
            EventReader(s, schema, encoder, ads, history[s.name], limits.events) for s in schema.streams
        ]
        of_owner = {o: [f for f in schema.features if f.owner == o] for o in ("user", "ad", "context")}
        self._user_features, self._ad_features = of_owner["user"], of_owner["ad"]
        self._context_features = of_owner["context"]
        self._user_keys = _keys(schema.impressions.user, schema, "users")
        self._ad_keys = _keys(schema.impressions.ad, schema, "ads")
        self._user_columns = {*self._user_keys, *(f.column for f in self._user_features)}
        self._context_columns = {f.column for f in self._context_features if not f.derive}
        self._ad_columns = {*self._ad_keys, *(f.column for f in self._ad_features), *self._context_columns}
        self._has_surface = schema.impressions.surface is not None

    def read(self, raw: Any) -> RankRequest:
        """Read a request.

        Args:
            raw: Object with `time_ms` and `ads`, and where wanted `surface`, `user`, `context`, `history`,
                `sort_by`.

        Returns:
            The batch and what belongs to the answer.

        Raises:
            RequestError: A field is missing, unknown, of a wrong kind or too long.
        """
        raw = mapping(raw, "request")
        fields = {"time_ms", "ads", "user", "context", "history", "sort_by"}
        only(raw, fields | {"surface"} if self._has_surface else fields, "request")
        for name in ("time_ms", "ads"):
            if name not in raw:
                raise RequestError(name, "must be given.")
        time = whole_number(raw["time_ms"], "time_ms")
        entries = [
            self._ad_entry(ad, i) for i, ad in enumerate(sequence(raw["ads"], self._limits.ads, "ads"))
        ]
        keys = id_array([self._key(entry) for entry in entries], "ads").to_pylist()
        rows = self._ads.rows(keys)
        history, ignored = self._read_history(raw.get("history", {}), time)
        surface = int(self._encoder.encode_surfaces(id_array([raw.get("surface")], "surface"))[0])
        count = len(entries)
        batch = Batch(
            **self._read_features(raw, entries, rows, time),
            history=history,
            request_of_example=torch.zeros(count, dtype=torch.int64),
            request_time=torch.tensor([time]),
            surface=torch.full((count,), surface),
            time=torch.full((count,), time),
            example_id=torch.arange(count),
            labels={},
            label_mask={},
            weight=torch.ones(count),
            extras={},
        )
        name = self._inputs.surfaces[surface - 1] if surface else "other"
        sent = [self._key(entry) for entry in entries]
        return RankRequest(batch, sent, rows > 0, name, self._sort_by(raw), ignored)

    def _sort_by(self, raw: Mapping[str, Any]) -> str:
        tasks = [t.name for t in self._inputs.tasks]
        task = raw.get("sort_by", tasks[0])
        if task not in tasks:
            raise RequestError("sort_by", f"must be a task. Tasks: {', '.join(tasks)}.")
        return task

    def _ad_entry(self, ad: Any, place: int) -> Mapping[str, Any]:
        """Return an ad as an object; a bare key stands for an object with the key alone."""
        if isinstance(ad, str | int) and not isinstance(ad, bool):
            return {self._ad_keys[0]: ad}
        entry = mapping(ad, f"ads[{place}]")
        only(entry, self._ad_columns, f"ads[{place}]")
        return entry

    def _key(self, entry: Mapping[str, Any]) -> Any:
        return next((entry[k] for k in self._ad_keys if entry.get(k) is not None), None)

    def _read_history(self, raw: Any, time: int):
        raw = mapping(raw, "history")
        only(raw, [reader.name for reader in self._events], "history")
        histories, ignored = {}, {}
        for reader in self._events:
            histories[reader.name], ignored[reader.name] = reader.read(raw.get(reader.name, {}), time)
        return histories, ignored

    def _read_features(
        self, raw: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], rows: np.ndarray, time: int
    ) -> dict[str, dict]:
        user = mapping(raw.get("user", {}), "user")
        only(user, self._user_columns, "user")
        context = mapping(raw.get("context", {}), "context")
        only(context, self._context_columns, "context")
        parts: dict[str, dict] = {"ids": {}, "bags": {}, "numbers": {}, "missing": {}, "vectors": {}}
        for f in self._user_features:
            names = self._user_keys if f.column in self._user_keys else (f.column,)
            value = next((user[n] for n in names if user.get(n) is not None), None)
            _put(parts, f, self._encode(f, [value], f"user.{f.column}"))
        for f in self._context_features:
            if f.derive:
                rows_of_time = self._encoder.encode_ids(
                    f.table, derived_ids(f.derive, np.full(len(entries), time))
                )
                _put(parts, f, list(rows_of_time))
            else:
                values = [entry.get(f.column, context.get(f.column)) for entry in entries]
                _put(parts, f, self._encode(f, values, f"context.{f.column}"))
        for f in self._ad_features:
            _put(parts, f, self._ad_feature(f, entries, rows))
        return parts

    def _ad_feature(self, f: Feature, entries: Sequence[Mapping[str, Any]], rows: np.ndarray) -> list[Any]:
        """Return a feature of each ad: as sent, else as the package knows the ad, else missing."""
        if f.column in self._ad_keys:
            return self._encode(f, [self._key(entry) for entry in entries], f"ads.{f.column}")
        column = self._ads.feature(f.name)
        sent = [i for i, entry in enumerate(entries) if f.column in entry]
        values = self._encode(f, [entries[i][f.column] for i in sent], f"ads.{f.column}")
        if column is None:
            result = self._encode(f, [None] * len(entries), f.column)
        elif f.kind == "ids":
            flat, lengths = column.gather_lists(rows)
            result = np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []
        else:
            result = list(column.gather(rows))
        for i, value in zip(sent, values, strict=True):
            result[i] = value
        return result

    def _encode(self, f: Feature, values: list[Any], field: str) -> list[Any]:
        """Encode raw values of a feature, one entry a value."""
        if f.kind == "id":
            return list(self._encoder.encode_ids(f.table, id_array(values, field)))
        if f.kind == "number":
            return list(self._encoder.encode_number(f.name, number_array(values, field, f.cast)))
        if f.kind == "ids":
            return [self._encode_list(f, value, field) for value in values]
        return [self._encode_vector(f, value, field) for value in values]

    def _encode_list(self, f: Feature, value: Any, field: str) -> np.ndarray:
        if value is None:
            return np.empty(0, np.int64)
        if f.separator:
            column = id_array([value], field)
        else:
            column = pa.array(
                [id_array(sequence(value, self._limits.values, field), field)], pa.list_(pa.string())
            )
        rows = self._encoder.encode_lists(f.table, column, f.separator)[0]
        if len(rows) > self._limits.values:
            raise RequestError(
                field, f"must hold at most {self._limits.values} entries. Received: {len(rows)}."
            )
        return rows

    def _encode_vector(self, f: Feature, value: Any, field: str) -> np.ndarray:
        size = self._encoder.sizes[f.name]
        if value is None:
            return np.zeros(size, np.float32)
        numbers = number_array(sequence(value, size, field), field)
        if len(numbers) != size or numbers.null_count:
            raise RequestError(field, f"must hold {size} numbers.")
        return self._encoder.encode_vectors(f.name, pa.array([numbers.to_pylist()], pa.list_(pa.float64())))[
            0
        ]


def _keys(column: str | None, schema: Schema, table: str) -> tuple[str, ...]:
    """Return the names that a key goes by: in the impressions and in its own table."""
    own = schema.tables[table].key if table in schema.tables else None
    return tuple(dict.fromkeys(name for name in (column, own) if name))


def _put(parts: dict[str, dict], feature: Feature, values: list[Any]) -> None:
    """Put encoded values of a feature into the parts of a batch."""
    name = feature.name
    if feature.kind == "id":
        parts["ids"][name] = torch.tensor(np.array(values, dtype=np.int64))
    elif feature.kind == "ids":
        lengths = torch.tensor([len(v) for v in values], dtype=torch.int64)
        flat = np.concatenate([np.empty(0, np.int64), *values]).astype(np.int64)
        parts["bags"][name] = JaggedTensor.from_lengths(torch.from_numpy(flat), lengths)
    elif feature.kind == "number":
        numbers = np.array(values, dtype=np.float32)
        missing = np.isnan(numbers)
        parts["numbers"][name] = torch.from_numpy(np.where(missing, 0, numbers).astype(np.float32))
        parts["missing"][name] = torch.from_numpy(missing.astype(np.float32))
    else:
        parts["vectors"][name] = torch.from_numpy(np.array(values, dtype=np.float32))
