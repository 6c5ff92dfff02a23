"""From a raw request to a batch, by the same encoder as ingest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opengem.data.encoder import Encoder
from opengem.jagged import Batch
from opengem.schema.inputs import InputSpec
from opengem.schema.words import Schema
from opengem.serving.ads import AdsTable
from opengem.serving.events import EventReader
from opengem.serving.features import FeatureReader
from opengem.serving.fields import (
    OtherSchemaError,
    RequestError,
    id_array,
    is_plain,
    kind_of,
    mapping,
    one,
    only,
    sequence,
    whole_number,
)

_EARLIEST, _LATEST = 315_532_800_000, 4_102_444_800_000  # 1980 and 2100, Unix ms: other units fall outside


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large a request may be.

    Attributes:
        ads: Ads to rank, 1 or more.
        events: Events of each stream that are sent, 0 or more; of these the newest are read.
        values: Values of one list feature, 1 or more.
    """

    ads: int = 1_000
    events: int = 10_000
    values: int = 1_000


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
        self._features = FeatureReader(schema, encoder, ads, limits.values)
        self._fingerprint = schema.fingerprint
        surface = schema.impressions.surface
        self._surface_kinds = encoder.kinds_of(("impressions",), (surface,) if surface else ())
        self._fields = {"time_ms", "ads", "user", "context", "history", "sort_by", "schema_fingerprint"}
        if surface:
            self._fields.add("surface")

    def read(self, raw: Any) -> RankRequest:
        """Read a request.

        Args:
            raw: Object with `time_ms` and `ads`, and where wanted `surface`, `user`, `context`, `history`,
                `sort_by`, and `schema_fingerprint`, for which schema the request was made.

        Returns:
            The batch and what belongs to the answer.

        Raises:
            RequestError: A field is missing, unknown, of a wrong kind or too long.
            OtherSchemaError: The request was made for another schema.
        """
        raw = mapping(raw, "request")
        only(raw, self._fields, "request")
        self._check_fingerprint(raw.get("schema_fingerprint"))
        for name in ("time_ms", "ads"):
            if name not in raw:
                raise RequestError(name, "must be given.")
        time = whole_number(raw["time_ms"], _EARLIEST, _LATEST, "time_ms")
        entries = self._features.ad_entries(sequence(raw["ads"], self._limits.ads, "ads"))
        rows = self._ads.rows(self._features.canonical_keys(entries))
        history, ignored = self._read_history(raw.get("history", {}), time)
        sent = id_array([raw.get("surface")], self._surface_kinds, one("surface"))
        surface = int(self._encoder.encode_surfaces(sent)[0])
        count = len(entries)
        batch = Batch(
            **self._features.read(raw.get("user", {}), raw.get("context", {}), entries, rows, time),
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
        keys = [self._features.key(entry) for entry in entries]
        return RankRequest(batch, keys, rows > 0, name, self._sort_by(raw), ignored)

    def _check_fingerprint(self, sent: Any) -> None:
        if sent is None or sent == self._fingerprint:
            return
        received = sent if is_plain(sent) else kind_of(sent)
        raise OtherSchemaError(
            "schema_fingerprint", f"must be {self._fingerprint}, that of the package. Received: {received}."
        )

    def _sort_by(self, raw: Mapping[str, Any]) -> str:
        tasks = [t.name for t in self._inputs.tasks]
        task = raw.get("sort_by", tasks[0])
        if task not in tasks:
            raise RequestError("sort_by", f"must be a task. Tasks: {', '.join(tasks)}.")
        return task

    def _read_history(self, raw: Any, time: int):
        raw = mapping(raw, "history")
        only(raw, [reader.name for reader in self._events], "history")
        histories, ignored = {}, {}
        for reader in self._events:
            histories[reader.name], ignored[reader.name] = reader.read(raw.get(reader.name, {}), time)
        return histories, ignored
