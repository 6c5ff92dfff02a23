"""The events of each stream: when each became available, and what the model sees of it."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from opengem.data.arrow_sink import ArrowSink
from opengem.data.encoder import Encoder
from opengem.data.ingestion.join.before import Before
from opengem.data.ingestion.join.rows_of_ids import row_of, vocabularies
from opengem.data.ingestion.read.plan import Plan
from opengem.data.ingestion.work_database import one_row
from opengem.schema.words import Attribute, Schema, Stream

_ROWS = 262_144
_WAITING_ROWS = 1 << 20  # of all buckets together, in memory before they are written


def make_events(con: Any, schema: Schema, plan: Plan, stream: Stream, before: Before) -> tuple[int, int]:
    """Make `s_STREAM`: user, available, time, position and attributes of each event. A view where that costs no join.

    An event is available from the latest of its time, its arrival and, where it carries a request, that request's
    time: so the history of a request is a prefix of the user's events in order of availability, and never holds an
    event of its own request.

    Args:
        con: Connection of the work database.
        schema: The schema.
        plan: Where the attributes are found.
        stream: The stream.
        before: What was ingested already. Attributes of an ad that was written before are not among the columns; the
            ad's row stands as `row_NAME` beside them.

    Returns:
        Number of events, and how many of them claim to be earlier than their own request.
    """
    table = schema.tables[stream.from_table]
    impressions = stream.from_table == "impressions"
    source = "examples" if impressions else f'"t_{stream.from_table}"'
    item = ("ad" if table.ad else "") if impressions else ("item" if table.item else "")
    known = 'greatest(o."time", o."arrival")' if table.arrival else 'o."time"'
    by_request = bool(not impressions and table.request and schema.impressions.key)
    available = f'greatest({known}, coalesce(r."time", {known}))' if by_request else known
    joins = ""
    if by_request:
        joins += ' LEFT JOIN requests r ON r."user" = o."user" AND r.key = o.request'
    of_ads = [a.name for a in stream.attributes if plan.attribute_place[stream.name, a.name] == "ads"]
    if of_ads:
        joins += f" LEFT JOIN ads a ON a.key = o.{item}"
    rows = ""
    if of_ads and before.ad_rows > 1:
        joins += f" LEFT JOIN ads_before b ON b.key = o.{item}"
        rows = "".join(f', coalesce(b.row, 0) AS "row_{name}"' for name in of_ads)
    where = ""
    if stream.types:
        listed = ", ".join("'" + t.replace("'", "''") + "'" for t in stream.types)
        where = f" WHERE o.type IN ({listed})"
    early = f'r."time" IS NOT NULL AND {known} < r."time"' if by_request else "FALSE"
    own = (
        f'SELECT o."user", {available} AS available, o."time", 0::INTEGER AS pos, {early} AS early, '
        f"{', '.join(_own(a, stream, plan, item) for a in stream.attributes)}{rows} FROM {source} o{joins}{where}"
    )
    ready = f" UNION ALL {_ready(stream, plan)}" if stream.ready and not before.examples else ""
    kind = "TABLE" if joins or ready else "VIEW"
    con.execute(f'CREATE {kind} "s_{stream.name}" AS {own}{ready}')
    events, too_early = one_row(con, f'SELECT count(*), count(*) FILTER (early) FROM "s_{stream.name}"')
    return events, too_early


def encode_events(con: Any, stream: Stream, encoder: Encoder, buckets: int, folder: Path) -> None:
    """Write `s_STREAM` to a file a bucket, `bucket_file`, in no order: users as numbers, ids as rows of their tables.

    Rows are what `Encoder.encode_ids` gives: 0 where null, 1 where unseen. They are a fraction of the ids' size. A
    bucket holds all events of its users, so each is sorted by itself, and no sort is larger than memory.

    Args:
        con: Connection of the work database.
        stream: The stream, whose `s_STREAM` is dropped.
        encoder: The vocabularies.
        buckets: Number of buckets.
        folder: Where the files go.
    """
    columns, joins = "", ""
    for number, a in enumerate(stream.attributes):
        name = f'"a_{stream.name}.{a.name}"'
        if a.kind == "id":
            join, row = row_of(a.table, f"s.{name}", f"v{number}")
            joins += join
            columns += f", {row} AS {name}"
        else:
            columns += f", s.{name}"
    listed = [
        name for name, *_ in con.execute(f'DESCRIBE "s_{stream.name}"').fetchall() if name.startswith("row_")
    ]
    columns += "".join(f', s."{name}"' for name in listed)
    (last,) = one_row(con, "SELECT coalesce(max(number), 0) FROM people")
    number = "p.number" if last >= 2**31 else "p.number::INTEGER"
    query = (
        f'SELECT {number} AS number, s.available, s."time", s.pos{columns} '
        f'FROM "s_{stream.name}" s JOIN people p ON p."user" = s."user"{joins}'
    )
    tables = (a.table for a in stream.attributes if a.kind == "id")
    with ExitStack() as stack:
        stack.enter_context(vocabularies(con, encoder, tables))
        rows = con.sql(query).to_arrow_reader(_ROWS)
        paths = (bucket_file(folder, stream, bucket) for bucket in range(buckets))
        sinks = [
            stack.enter_context(ArrowSink(path, rows.schema, _WAITING_ROWS // buckets)) for path in paths
        ]
        for batch in rows:
            bucket = batch.column("number").to_numpy() % buckets
            bounds = np.cumsum(np.bincount(bucket, minlength=buckets))
            by_bucket = pa.Table.from_batches([batch]).take(
                np.argsort(bucket.astype(np.uint16), kind="stable")
            )
            for sink, begin, end in zip(sinks, [0, *bounds], bounds, strict=False):
                sink.add(by_bucket.slice(begin, end - begin))
    drop_events(con, stream)


def bucket_file(folder: Path, stream: Stream, bucket: int) -> Path:
    """Return the file of a bucket's events: number, available, time, pos, attributes, rows of earlier ads."""
    return folder / f"events-{stream.name}-{bucket:05d}.arrow"


def drop_events(con: Any, stream: Stream) -> None:
    """Drop `s_STREAM`."""
    name = f"s_{stream.name}"
    (view,) = one_row(con, "SELECT count(*) FROM duckdb_views() WHERE view_name = ?", [name])
    con.execute(f'DROP {"VIEW" if view else "TABLE"} "{name}"')


def _own(attribute: Attribute, stream: Stream, plan: Plan, item: str) -> str:
    column = f'"a_{stream.name}.{attribute.name}"'
    place = plan.attribute_place[stream.name, attribute.name]
    value = {"own": f"o.{column}", "ads": f"a.{column}", "item": f"o.{item}"}[place]
    return f"{value} AS {column}"


def _ready(stream: Stream, plan: Plan) -> str:
    """Return SQL for the ready-made events: before all else where they have no time, in the order of their lists."""
    assert stream.ready is not None
    item = plan.item[stream.name]
    listed = stream.ready.lists
    columns, from_ads = [], False
    for attribute in stream.attributes:
        column = f'"a_{stream.name}.{attribute.name}"'
        if attribute.name in listed or attribute.name in stream.ready.members:
            columns.append(f"o.{column}")
        elif plan.attribute_place[stream.name, attribute.name] == "ads" and item in listed:
            columns.append(f"a.{column}")
            from_ads = True
        else:
            columns.append(f"NULL::{'VARCHAR' if attribute.kind == 'id' else 'DOUBLE'}")
    join = f' LEFT JOIN ads a ON a.key = o."a_{stream.name}.{item}"' if from_ads else ""
    keys = 'o."user", o."time", o."time", o.pos::INTEGER, FALSE'
    return f'SELECT {keys}, {", ".join(columns)} FROM "r_{stream.name}" o{join}'
