"""Encoding and writing: users, ads, examples, requests and the buckets of each stream."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from opengem.data.arrow_file import ArrowFile
from opengem.data.arrow_sink import ArrowSink
from opengem.data.encoder import FIRST_ROW, Encoder, derived_ids
from opengem.data.ingestion.join.before import Before
from opengem.data.ingestion.join.events import bucket_file
from opengem.data.ingestion.join.rows_of_ids import row_of, vocabularies
from opengem.data.ingestion.read.plan import Plan
from opengem.data.sequence_store import BucketEvents, write_bucket
from opengem.data.ties import Text, TiedIds, tie_keys
from opengem.schema.words import Attribute, Feature, Schema, Stream

_ROWS = 262_144
BUCKETS_AT_ONCE = 2
"""Buckets of events that are sorted and written side by side."""
Advance = Callable[[int], None]


def feature_type(feature: Feature, encoder: Encoder) -> pa.DataType:
    """Return the Arrow type that a feature is stored in."""
    if feature.kind == "id":
        return pa.int32()
    if feature.kind == "ids":
        return pa.list_(pa.int32())
    if feature.kind == "number":
        return pa.float32()
    return pa.list_(pa.float32(), encoder.sizes[feature.name])


def encode_feature(feature: Feature, encoder: Encoder, column: pa.Array) -> pa.Array:
    """Return a feature as it is stored: rows of its table, standardised numbers, or vectors."""
    if feature.kind == "id":
        return pa.array(encoder.encode_ids(feature.table, column), pa.int32())
    if feature.kind == "ids":
        rows, offsets, missing = encoder.encode_lists(feature.table, column)
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.array(rows, pa.int32()), mask=pa.array(missing)
        )
    if feature.kind == "number":
        return pa.array(encoder.encode_number(feature.name, column))
    matrix = encoder.encode_vectors(feature.name, column)
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), encoder.sizes[feature.name])


def _joined(features: Iterable[Feature]) -> list[str]:
    """Return the embedding tables of the features that `_given` encodes."""
    return [f.table for f in features if f.kind == "id" and not f.derive]


def _given(features: Iterable[Feature], source: str) -> tuple[list[str], str]:
    """Return SQL of the features that a table holds, ids as rows, and of the joins that this takes."""
    names, joins = [], ""
    for number, f in enumerate(f for f in features if not f.derive):
        name = f'{source}."f_{f.name}"'
        if f.kind == "id":
            join, row = row_of(f.table, name, f"v{number}")
            joins += join
            name = f'{row} AS "f_{f.name}"'
        names.append(name)
    return names, joins


def _stored(feature: Feature, encoder: Encoder, rows: pa.Table) -> pa.Array:
    """Return a feature as it is stored, from what `_given` says."""
    column = rows.column(f"f_{feature.name}")
    return column if feature.kind == "id" else encode_feature(feature, encoder, column)


def features_at(schema: Schema, plan: Plan, place: str, owners: tuple[str, ...]) -> list[Feature]:
    """Return the features that are read from `place` and belong to one of `owners`."""
    return [f for f in schema.features if plan.place[f.name] == place and f.owner in owners]


def _stream_of(con: Any, query: str) -> Iterator[pa.Table]:
    for batch in con.sql(query).to_arrow_reader(_ROWS):
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


def write_people(con: Any, before: Before, folder: Path) -> None:
    """Write `people.arrow`: the keys of the users who had not acted before, in the order of their numbers."""
    query = f'SELECT "user" AS user_key FROM people WHERE number >= {before.users} ORDER BY number'
    with ArrowSink(folder / "people.arrow", pa.schema([("user_key", pa.string())])) as sink:
        for rows in _stream_of(con, query):
            sink.add(rows)


def write_entities(
    con: Any, schema: Schema, plan: Plan, encoder: Encoder, before: Before, folder: Path, name: str
) -> None:
    """Write `users.arrow` or `ads.arrow`: the first row of all is all missing, the others in the order of their keys.

    The ads also hold what an event takes over from its item, as `a_STREAM.NAME`, for serving.
    """
    features = features_at(schema, plan, name, ({"users": "user", "ads": "ad"}[name],))
    taken = [(s, a) for s in schema.streams for a in s.attributes if name == "ads" and _from_ads(plan, s, a)]
    key = {"users": "user_key", "ads": "ad_key"}[name]
    fields = [(key, pa.string()), ("known_from", pa.int64())]
    fields += [(f"f_{f.name}", feature_type(f, encoder)) for f in features]
    fields += [(f"a_{s.name}.{a.name}", pa.int32() if a.kind == "id" else pa.float32()) for s, a in taken]
    with ArrowSink(folder / f"{name}.arrow", pa.schema(fields)) as sink:
        first = {"users": before.user_rows, "ads": before.ad_rows}[name]
        nothing = [encode_feature(f, encoder, pa.nulls(1)) for f in features]
        nothing += [pa.array(encode_attribute(s, a, encoder, pa.nulls(1))) for s, a in taken]
        none = [pa.nulls(1, pa.string()), pa.array([0], pa.int64()), *nothing]
        if first == 1:  # there is nothing before
            sink.add(pa.table(none, names=[n for n, _ in fields]))
        for rows in _stream_of(con, f"SELECT * FROM {name} ORDER BY row"):
            arrays = [rows.column("key"), rows.column("known")]
            arrays += [encode_feature(f, encoder, rows.column(f"f_{f.name}")) for f in features]
            for s, a in taken:
                arrays.append(pa.array(encode_attribute(s, a, encoder, rows.column(f"a_{s.name}.{a.name}"))))
            sink.add(pa.table(arrays, names=[n for n, _ in fields]))


def encode_attribute(
    stream: Stream, attribute: Attribute, encoder: Encoder, column: pa.ChunkedArray
) -> np.ndarray:
    """Return an event attribute as it is stored: int32 rows of its table, or float32 standardised numbers."""
    if attribute.kind == "id":
        return encoder.encode_ids(attribute.table, column).astype(np.int32)
    return encoder.encode_number(f"{stream.name}.{attribute.name}", column)


def _from_ads(plan: Plan, stream: Stream, attribute: Attribute) -> bool:
    return plan.attribute_place[stream.name, attribute.name] == "ads"


def write_examples(
    con: Any, schema: Schema, plan: Plan, encoder: Encoder, folder: Path, advance: Advance
) -> None:
    """Write `examples.arrow` in the order of the rows."""
    features = features_at(schema, plan, "impressions", ("ad", "context"))
    fields = [
        ("example_id", pa.int64()),
        ("request", pa.int64()),
        ("user", pa.int64()),
        ("user_key", pa.string()),
        ("ad_key", pa.string()),
        ("ad_row", pa.int32()),
        ("surface", pa.int32()),
        ("time", pa.int64()),
        *((f"f_{f.name}", feature_type(f, encoder)) for f in features),
        *((f"y_{t.name}", pa.float32()) for t in schema.tasks),
    ]
    ids = "labelled.id" if schema.impressions.id else "labelled.row"
    given, joins = _given(features, "labelled")
    names = [*given, *(f'"y_{t.name}"' for t in schema.tasks)]
    surface = ["surface"] if schema.impressions.surface else []
    listed = ", ".join(
        [f'{ids} AS example_id, request, number, "user", ad, ad_row, "time"', *surface, *names]
    )
    query = f"SELECT {listed} FROM labelled{joins} ORDER BY labelled.row"
    with (
        vocabularies(con, encoder, _joined(features)),
        ArrowSink(folder / "examples.arrow", pa.schema(fields)) as sink,
    ):
        for rows in _stream_of(con, query):
            time = rows.column("time").to_numpy()
            if surface:
                surfaces = encoder.encode_surfaces(rows.column("surface"))
            else:
                surfaces = np.zeros(rows.num_rows, np.int32)
            arrays = [rows.column(n) for n in ("example_id", "request", "number", "user", "ad", "ad_row")]
            arrays += [pa.array(surfaces), pa.array(time)]
            for f in features:
                if f.derive:
                    arrays.append(encode_feature(f, encoder, derived_ids(f.derive, time)))
                else:
                    arrays.append(_stored(f, encoder, rows))
            for t in schema.tasks:
                labels = rows.column(f"y_{t.name}").combine_chunks().to_numpy(zero_copy_only=False)
                arrays.append(pa.array(labels.astype(np.float32)))
            sink.add(pa.table(arrays, names=[n for n, _ in fields]))
            advance(rows.num_rows)


def write_requests(
    con: Any,
    schema: Schema,
    plan: Plan,
    encoder: Encoder,
    folder: Path,
    slices: dict[str, tuple[np.ndarray, np.ndarray]],
) -> None:
    """Write `requests.arrow`: where each request's examples, user and histories are; its key if the log has one."""
    features = features_at(schema, plan, "impressions", ("user",))
    fields = [
        ("first_example", pa.int64()),
        ("time", pa.int64()),
        ("user", pa.int64()),
        ("user_row", pa.int32()),
        *((f"{side}_{name}", pa.int64()) for name in slices for side in ("start", "end")),
        *((f"f_{f.name}", feature_type(f, encoder)) for f in features),
    ]
    keyed = bool(schema.impressions.key)
    if keyed:
        fields.append(("request_key", pa.string()))
    key = ", r.key" if keyed else ""
    given, joins = _given(features, "e")
    names = "".join(f", {g}" for g in given)
    query = (
        f'SELECT e.row AS first_example, r."time", r.number, r.user_row{key}'
        f"{names} FROM requests r JOIN (SELECT request, min(row) AS row FROM examples GROUP BY request) f "
        f"ON f.request = r.request JOIN examples e ON e.row = f.row{joins} ORDER BY r.request"
    )
    done = 0
    with (
        vocabularies(con, encoder, _joined(features)),
        ArrowSink(folder / "requests.arrow", pa.schema(fields)) as sink,
    ):
        for rows in _stream_of(con, query):
            part = slice(done, done + rows.num_rows)
            arrays = [rows.column(n) for n in ("first_example", "time", "number", "user_row")]
            arrays += [pa.array(array[part]) for pair in slices.values() for array in pair]
            arrays += [_stored(f, encoder, rows) for f in features]
            arrays += [rows.column("key")] if keyed else []
            sink.add(pa.table(arrays, names=[n for n, _ in fields]))
            done = part.stop


def write_stream(
    con: Any,
    stream: Stream,
    plan: Plan,
    encoder: Encoder,
    folder: Path,
    buckets: int,
    requests: int,
    before: Before,
    work: Path,
    advance: Advance,
) -> tuple[np.ndarray, np.ndarray]:
    """Write the buckets of a stream from `bucket_file`, two at a time.

    Returns:
        Start and end of each request's history, `(requests,)` int64.
    """
    target = folder / "sequences" / stream.name
    target.mkdir(parents=True)
    start, end = (
        np.lib.format.open_memmap(work / f"{side}_{stream.name}.npy", "w+", np.int64, (max(requests, 1),))[
            :requests
        ]
        for side in ("start", "end")
    )

    def write(bucket: int) -> int:
        events = _bucket_events(stream, plan, encoder, bucket_file(work, stream, bucket), before)
        # by user, so that looking them up among the sorted events goes through memory once
        query = f'SELECT request, number, "time" FROM requests WHERE number % {buckets} = {bucket} ORDER BY number'
        with con.cursor() as own:
            asked = own.sql(query).fetchnumpy()
        where = asked["request"] - before.requests
        start[where], end[where] = write_bucket(target, bucket, events, asked["number"], asked["time"])
        bucket_file(work, stream, bucket).unlink()
        return len(events.user)

    with ThreadPoolExecutor(BUCKETS_AT_ONCE) as threads:
        for events in threads.map(write, range(buckets)):
            advance(events)
    return start, end


def _bucket_events(stream: Stream, plan: Plan, encoder: Encoder, path: Path, before: Before) -> BucketEvents:
    file = ArrowFile(path)
    rows = file.table(file.names)
    attributes: dict[str, np.ndarray] = {}
    for a in stream.attributes:
        column = rows.column(f"a_{stream.name}.{a.name}")
        values = column.to_numpy() if a.kind == "id" else encode_attribute(stream, a, encoder, column)
        if f"row_{a.name}" in rows.column_names:  # what its ad says was encoded when the ad was written
            values = before.of_ads(stream, a, rows.column(f"row_{a.name}").to_numpy(), values)
        attributes[a.name] = values
    user, available, time, pos = (
        rows.column(name).to_numpy().astype(np.int64, copy=False)
        for name in ("number", "available", "time", "pos")
    )
    ids = {
        a.name: TiedIds(
            attributes[a.name], encoder.window[a.table], _text(encoder, a.table, attributes[a.name])
        )
        for a in sorted(stream.attributes, key=lambda a: _from_ads(plan, stream, a))
        if a.kind == "id"
    }
    ties = partial(tie_keys, attributes, ids)
    return BucketEvents(user, available, time, pos, attributes, ties)


def _text(encoder: Encoder, table: str, codes: np.ndarray) -> Text:
    ids = encoder.vocabularies[table].ids
    return lambda places: ids.take(pa.array(codes[places] - FIRST_ROW))
