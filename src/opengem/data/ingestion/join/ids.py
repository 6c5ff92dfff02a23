"""Every id that is written, how often it was read on which day, and the code that it gets."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from opengem.data.arrow_file import ArrowFile
from opengem.data.arrow_sink import write_table
from opengem.data.dictionary import DAY_MS, WINDOW, ids_file, readings_file
from opengem.data.encoder import FIRST_ROW, Encoder, Vocabulary
from opengem.data.ingestion.join.before import Before
from opengem.data.ingestion.join.examples import training
from opengem.data.ingestion.read.plan import Plan
from opengem.schema.words import Feature, Schema

_UNREAD = -1  # day of what is written, but read by no example or event that counts


def count_ids(con: Any, schema: Schema, plan: Plan, train_end: int) -> tuple[str, ...]:
    """Make `seen_TABLE` (id, day, n) for each embedding table: how often each id that is written was read on which day.

    An id is read once by each example that holds it, on the day of the request, and once by each event, on the day from
    which it is known. All of the training window counts as one day, `WINDOW`: its examples, and the events known before
    its end. Examples from before a window of time count for nothing, nor do rows of users and ads that nothing reads.

    Args:
        con: Connection of the work database, with `examples`, `requests`, `users`, `ads` and `s_STREAM`.
        schema: The schema.
        plan: Where features are found.
        train_end: End of the training window in Unix ms.

    Returns:
        The embedding tables, in the order in which the schema names them.
    """
    late = "TRUE" if schema.splits.column else f"request_time >= {train_end}"
    con.execute(
        "CREATE VIEW read AS SELECT e.*, r.user_row, "
        f"CASE WHEN {training(schema).replace('rank', 'e.rank')} THEN {WINDOW} "
        f"WHEN {late} THEN {_day('request_time')} ELSE {_UNREAD} END AS day "
        "FROM examples e JOIN requests r ON r.request = e.request"
    )
    tables = _readings(schema, plan, train_end)
    for table, queries in tables.items():
        union = " UNION ALL ".join(f"({q})" for q in queries)
        con.execute(
            f'CREATE TABLE "seen_{table}" AS SELECT id, day, sum(n)::BIGINT AS n FROM ({union}) GROUP BY id, day'
        )
    return tuple(tables)


def source_of(feature: Feature, plan: Plan) -> str:
    """Return SQL of (value, day, n): how many examples of a day read which value of a feature."""
    if feature.derive:
        return f"SELECT {derived_sql(feature, 'time')} AS value, day, count(*) AS n FROM read GROUP BY 1, 2"
    column = f'"f_{feature.name}"'
    place = plan.place[feature.name]
    if place == "impressions":
        return f"SELECT {column} AS value, day, 1 AS n FROM read"
    row = {"users": "user_row", "ads": "ad_row"}[place]
    return (
        f"SELECT x.{column} AS value, t.day, t.n "
        f"FROM (SELECT {row} AS row, day, count(*) AS n FROM read GROUP BY 1, 2) t LEFT JOIN {place} x ON x.row = t.row"
    )


def derived_sql(feature: Feature, time: str) -> str:
    """Return the SQL of an id that is derived from a time, as `encoder.derived_ids` does."""
    if feature.derive == "hour":
        return f"CAST(({time} // 3600000) % 24 AS VARCHAR)"
    return f"CAST(({time} // 86400000 + 3) % 7 AS VARCHAR)"


def write_ids(
    con: Any, plan: Plan, schema: Schema, encoder: Encoder, before: Before, train_end: int, folder: Path
) -> dict[str, Vocabulary]:
    """Give codes to the ids that have none yet, and write `ids/TABLE.arrow` and `readings/TABLE.arrow` of a segment.

    Ids of the training window's vocabulary have their row in it as their code; the others follow in the order in which
    segments bring them, those of one segment by their text. Readings of ids in that vocabulary are not kept: nothing
    depends on them any more.

    Args:
        con: Connection of the work database, with `seen_TABLE`, which are dropped.
        plan: Where features are found.
        schema: The schema.
        encoder: The encoder of the training window.
        before: What was ingested already.
        train_end: End of the training window in Unix ms.
        folder: The segment.

    Returns:
        Embedding table -> all ids that have a code.
    """
    found: dict[str, Vocabulary] = {}
    (folder / "ids").mkdir()
    (folder / "readings").mkdir()
    for table, vocabulary in encoder.vocabularies.items():
        known = vocabulary.ids
        if before.segments is not None:
            earlier = before.segments.file(ids_file(table)).table(["id"]).column(0)
            known = pa.concat_arrays([known, *earlier.chunks])
        con.register("known", pa.table({"id": known}))
        new = con.sql(
            f'SELECT DISTINCT s.id FROM "seen_{table}" s ANTI JOIN known k ON k.id = s.id WHERE s.id IS NOT NULL '
            "ORDER BY 1"
        ).to_arrow_table()
        con.unregister("known")
        new = new.cast(pa.schema([("id", pa.string())]))
        write_table(folder / ids_file(table), new)
        found[table] = Vocabulary(pa.concat_arrays([known, *new.column(0).chunks]))
        first = FIRST_ROW + len(vocabulary)
        rows = pa.array(np.arange(first, FIRST_ROW + len(found[table])), pa.int32())
        con.register("coded", pa.table({"id": found[table].ids.slice(len(vocabulary)), "code": rows}))
        con.register("earlier", _of_earlier_rows(con, plan, schema, before, table, train_end, first))
        readings = con.sql(
            "SELECT day::INTEGER AS day, code, sum(n)::BIGINT AS n FROM ("
            f'SELECT s.day, c.code, s.n FROM "seen_{table}" s JOIN coded c ON c.id = s.id UNION ALL FROM earlier) '
            f"WHERE n > 0 AND day >= {WINDOW} GROUP BY ALL ORDER BY ALL"
        ).to_arrow_table()
        con.unregister("coded")
        con.unregister("earlier")
        con.execute(f'DROP TABLE "seen_{table}"')
        write_table(folder / readings_file(table), readings)
    con.execute("DROP VIEW read")
    return found


def _readings(schema: Schema, plan: Plan, train_end: int) -> dict[str, list[str]]:
    """Return for each embedding table SQL of (id, day, n), in the order in which the schema names the tables."""
    readings: dict[str, list[str]] = {}
    for feature in schema.features:
        if feature.kind not in ("id", "ids"):
            continue
        sources = [source_of(feature, plan)]
        place = "" if feature.derive else plan.place[feature.name]
        if place in ("users", "ads"):
            sources.append(f'SELECT "f_{feature.name}" AS value, {_UNREAD} AS day, 0 AS n FROM {place}')
        for source in sources:
            query = f"SELECT value AS id, day, n FROM ({source})"
            if feature.kind == "ids":
                query = (
                    f"SELECT unnest(value) AS id, day, n FROM ({source}) WHERE value IS NOT NULL "
                    f"UNION ALL SELECT NULL, day, n FROM ({source}) WHERE value IS NULL"
                )
            readings.setdefault(feature.table, []).append(query)
    for stream in schema.streams:
        for attribute in stream.attributes:
            if attribute.kind != "id":
                continue
            column = f'"a_{stream.name}.{attribute.name}"'
            queries = readings.setdefault(attribute.table, [])
            queries.append(
                f'SELECT {column} AS id, {_event_day(train_end)} AS day, 1 AS n FROM "s_{stream.name}"'
            )
            if plan.attribute_place[stream.name, attribute.name] == "ads":
                queries.append(f"SELECT {column} AS id, {_UNREAD} AS day, 0 AS n FROM ads")
    return readings


def _of_earlier_rows(
    con: Any, plan: Plan, schema: Schema, before: Before, table: str, train_end: int, first: int
) -> pa.Table:
    """Return (day, code, n) of what is read through users and ads of earlier segments, codes from `first` on."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    segments = before.segments
    if segments is None:
        return pa.table({name: pa.array([], pa.int64()) for name in ("day", "code", "n")})
    for feature in schema.features:
        place = "" if feature.derive else plan.place[feature.name]
        if feature.table != table or feature.kind not in ("id", "ids") or place not in ("users", "ads"):
            continue
        row, below = {"users": ("user_row", before.user_rows), "ads": ("ad_row", before.ad_rows)}[place]
        counted = con.sql(
            f"SELECT day, {row} AS row, count(*) AS n FROM read WHERE {row} > 0 AND {row} < {below} GROUP BY ALL"
        ).fetchnumpy()
        parts.append(_coded(segments.file(f"{place}.arrow"), f"f_{feature.name}", counted))
    for stream in schema.streams if before.ad_rows > 1 else ():
        for a in stream.attributes:
            if a.table == table and a.kind == "id" and plan.attribute_place[stream.name, a.name] == "ads":
                counted = con.sql(
                    f'SELECT {_event_day(train_end)} AS day, "row_{a.name}" AS row, count(*) AS n '
                    f'FROM "s_{stream.name}" WHERE "row_{a.name}" > 0 GROUP BY ALL'
                ).fetchnumpy()
                parts.append(_coded(segments.file("ads.arrow"), f"a_{stream.name}.{a.name}", counted))
    empty = np.empty(0, np.int64)
    day, code, n = (np.concatenate([empty, *(part[i] for part in parts)]) for i in range(3))
    late = code >= first
    return pa.table({"day": day[late], "code": code[late], "n": n[late]})


def _coded(
    file: ArrowFile, name: str, counted: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return day, code and n of rows that were counted."""
    column, day, n = file.column(name), counted["day"], counted["n"]
    if not column.is_list:
        return day, column.gather(counted["row"]).astype(np.int64), n
    codes, lengths = column.gather_lists(counted["row"])
    return np.repeat(day, lengths), codes.astype(np.int64), np.repeat(n, lengths)


def _event_day(train_end: int) -> str:
    return f"CASE WHEN available < {train_end} THEN {WINDOW} ELSE {_day('available')} END"


def _day(time: str) -> str:
    return f"greatest({time} // {DAY_MS}, {WINDOW + 1})"
