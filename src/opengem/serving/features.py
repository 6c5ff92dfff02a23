"""The features of a request that stand beside its histories, encoded as ingest encodes them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from opengem.data.encoder import Encoder, derived_ids
from opengem.jagged import JaggedTensor
from opengem.schema.words import Feature, Schema
from opengem.serving.ads import AdsTable
from opengem.serving.fields import (
    Kinds,
    RequestError,
    Where,
    each,
    finite_float32,
    id_array,
    mapping,
    number_array,
    one,
    only,
    sequence,
)

Entry = Mapping[str, Any]
BARE = ""
"""Name under which an entry holds a key that was sent without an object."""


class FeatureReader:
    """Reads what a request says of its user, its context and its ads, in the words of the schema's columns.

    Args:
        schema: The schema.
        encoder: The data set's encoder.
        ads: Ads that can be named by key.
        values: Most values of one list feature.
    """

    def __init__(self, schema: Schema, encoder: Encoder, ads: AdsTable, values: int):
        self._encoder, self._ads, self._values = encoder, ads, values
        of_owner = {o: [f for f in schema.features if f.owner == o] for o in ("user", "ad", "context")}
        self._user_features, self._ad_features = of_owner["user"], of_owner["ad"]
        self._context_features = of_owner["context"]
        self._user_keys = _keys(schema.impressions.user, schema, "users")
        self._ad_keys = _keys(schema.impressions.ad, schema, "ads")
        self._user_columns = {*self._user_keys, *(f.column for f in self._user_features)}
        self._context_columns = {f.column for f in self._context_features if not f.derive}
        self._ad_columns = {*self._ad_keys, *(f.column for f in self._ad_features), *self._context_columns}
        self._kinds = {f.name: self._kinds_of(f) for f in schema.features}
        self._ad_kinds = encoder.kinds_of(("impressions", "ads"), self._ad_keys)

    def _kinds_of(self, f: Feature) -> Kinds:
        """Return the kinds in which the log writes a feature, wherever it stands."""
        own = {"user": "users", "ad": "ads"}.get(f.owner, "impressions")
        keys = {"user": self._user_keys, "ad": self._ad_keys}.get(f.owner, ())
        return self._encoder.kinds_of((own, "impressions"), keys if f.column in keys else (f.column,))

    def ad_entries(self, ads: Sequence[Any]) -> list[Entry]:
        """Return each ad as an object; a bare key stands for an object with the key alone.

        Raises:
            RequestError: An ad is neither, or holds an unknown field or two keys that differ.
        """
        entries: list[Entry] = []
        for place, ad in enumerate(ads):
            field = f"ads[{place}]"
            if not isinstance(ad, Mapping | list | None):
                entries.append({BARE: ad})
                continue
            entry = mapping(ad, field)
            only(entry, self._ad_columns, field)
            _one_key(entry, self._ad_keys, field)
            entries.append(entry)
        return entries

    def key(self, entry: Entry) -> Any:
        """Return the key of an ad as it was sent; None where there is none."""
        return next((entry[k] for k in (BARE, *self._ad_keys) if entry.get(k) is not None), None)

    def canonical_keys(self, entries: Sequence[Entry]) -> list[str | None]:
        """Return the canonical keys of ads.

        Raises:
            RequestError: A key is not written as the log writes it.
        """
        return id_array([self.key(e) for e in entries], self._ad_kinds, self._key_path(entries)).to_pylist()

    def read(
        self, user: Any, context: Any, entries: Sequence[Entry], rows: np.ndarray, time: int
    ) -> dict[str, dict]:
        """Return the features as parts of a batch: `ids`, `bags`, `numbers`, `missing` and `vectors`.

        Args:
            user: Object of user columns.
            context: Object of context columns, for all ads.
            entries: The ads.
            rows: Rows of the ads in the table of ads, `(B,)`.
            time: Unix ms.

        Raises:
            RequestError: A field is unknown or of a wrong kind.
        """
        only(mapping(user, "user"), self._user_columns, "user")
        only(mapping(context, "context"), self._context_columns, "context")
        _one_key(user, self._user_keys, "user")
        parts: dict[str, dict] = {"ids": {}, "bags": {}, "numbers": {}, "missing": {}, "vectors": {}}
        for f in self._user_features:
            names = self._user_keys if f.column in self._user_keys else (f.column,)
            name = next((n for n in names if user.get(n) is not None), f.column)
            _put(parts, f, self._encode(f, [user.get(name)], one(f"user.{name}")))
        for f in self._context_features:
            if f.derive:
                ids = derived_ids(f.derive, np.full(len(entries), time))
                _put(parts, f, list(self._encoder.encode_ids(f.table, ids)))
            else:
                _put(parts, f, self._context_feature(f, entries, context))
        for f in self._ad_features:
            _put(parts, f, self._ad_feature(f, entries, rows))
        return parts

    def _key_path(self, entries: Sequence[Entry]) -> Where:
        def where(i: int) -> str:
            name = next((k for k in self._ad_keys if k in entries[i]), "")
            return f"ads[{i}].{name}" if name else f"ads[{i}]"

        return where

    def _context_feature(self, f: Feature, entries: Sequence[Entry], context: Entry) -> list[Any]:
        """Return a feature of each example: as its ad brings it, else as the context has it, else missing."""
        [shared] = self._encode(f, [context.get(f.column)], one(f"context.{f.column}"))
        result = [shared] * len(entries)
        for i, value in self._sent(f, entries):
            result[i] = value
        return result

    def _ad_feature(self, f: Feature, entries: Sequence[Entry], rows: np.ndarray) -> list[Any]:
        """Return a feature of each ad: as sent, else as the package knows the ad, else missing."""
        if f.column in self._ad_keys:
            return self._encode(f, [self.key(entry) for entry in entries], self._key_path(entries))
        column = self._ads.feature(f.name)
        if column is None:
            result = self._encode(f, [None] * len(entries), one(f.column))
        elif f.kind == "ids":
            flat, lengths = column.gather_lists(rows)
            result = np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []
        else:
            result = list(column.gather(rows))
        for i, value in self._sent(f, entries):
            result[i] = value
        return result

    def _sent(self, f: Feature, entries: Sequence[Entry]) -> Iterable[tuple[int, Any]]:
        """Return the encoded values that ads bring along, with the places of the ads."""
        places = [i for i, entry in enumerate(entries) if f.column in entry]
        values = [entries[i][f.column] for i in places]
        return zip(places, self._encode(f, values, lambda i: f"ads[{places[i]}].{f.column}"), strict=True)

    def _encode(self, f: Feature, values: list[Any], where: Where) -> list[Any]:
        """Encode raw values of a feature, one entry a value."""
        kinds = self._kinds[f.name]
        if f.kind == "id":
            return list(self._encoder.encode_ids(f.table, id_array(values, kinds, where)))
        if f.kind == "number":
            array = number_array(values, kinds, where)
            with np.errstate(over="ignore"):
                return list(finite_float32(self._encoder.encode_number(f.name, array), where))
        encode = self._encode_list if f.kind == "ids" else self._encode_vector
        return [encode(f, value, where(i)) for i, value in enumerate(values)]

    def _encode_list(self, f: Feature, value: Any, field: str) -> np.ndarray:
        if value is None:
            return np.empty(0, np.int64)
        if f.separator:
            column = id_array([value], ("text",), one(field))
        else:
            ids = id_array(sequence(value, self._values, field), self._kinds[f.name], each(field))
            column = pa.array([ids], pa.list_(pa.string()))
        rows = self._encoder.encode_lists(f.table, column, f.separator)[0]
        if len(rows) > self._values:
            raise RequestError(field, f"must hold at most {self._values} entries. Received: {len(rows)}.")
        return rows

    def _encode_vector(self, f: Feature, value: Any, field: str) -> np.ndarray:
        size = self._encoder.sizes[f.name]
        if value is None:
            return np.zeros(size, np.float32)
        numbers = number_array(sequence(value, size, field), (), each(field))
        if len(numbers) != size or numbers.null_count:
            raise RequestError(field, f"must hold {size} numbers.")
        vector = pa.array([numbers.to_pylist()], pa.list_(pa.float64()))
        with np.errstate(over="ignore"):
            return finite_float32(self._encoder.encode_vectors(f.name, vector), one(field))[0]


def _keys(column: str | None, schema: Schema, table: str) -> tuple[str, ...]:
    """Return the names that a key goes by: in the impressions and in its own table."""
    own = schema.tables[table].key if table in schema.tables else None
    return tuple(dict.fromkeys(name for name in (column, own) if name))


def _one_key(entry: Entry, keys: Sequence[str], field: str) -> None:
    """Refuse an object that names what it is by two keys that differ."""
    given = [key for key in keys if entry.get(key) is not None]
    if len({repr(entry[key]) for key in given}) > 1:
        raise RequestError(field, f"must have one key. Received: {' and '.join(given)}, which differ.")


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
