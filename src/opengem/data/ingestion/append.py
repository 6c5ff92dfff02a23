"""Whether new files continue a data set, so that the work is that of the new files alone."""

from typing import Any

import pyarrow as pa

from opengem.data.ingestion.join.before import Before
from opengem.data.ingestion.join.examples import rank_sql
from opengem.data.ingestion.read.plan import Plan
from opengem.data.ingestion.work_database import one_row
from opengem.schema.words import Schema


class DoesNotContinue(Exception):  # noqa: N818
    """Why a data set must be made anew: what was written before would change."""


def new_files(old: list[dict[str, Any]], now: list[dict[str, Any]]) -> set[str]:
    """Return the names of files that were not there before.

    Raises:
        DoesNotContinue: A file is gone or has changed, so rows that were read are others now; or none is new.
    """
    before = {f["path"]: f["sha256"] for f in old}
    here = {f["path"]: f["sha256"] for f in now}
    for name, content in before.items():
        if name not in here:
            raise DoesNotContinue(f"{name} is gone")
        if here[name] != content:
            raise DoesNotContinue(f"{name} has changed")
    found = here.keys() - before.keys()
    if not found:
        raise DoesNotContinue("the schema has changed")
    return found


def check_continues(con: Any, schema: Schema, before: Before) -> None:
    """Check that the rows that were read only add to what was written.

    Training rows make vocabularies and statistics, so new rows must be later than the training window. All of them must
    be later than anything that was known before: then old histories stay as they are, and new events follow old ones.

    Args:
        con: Connection of the work database, with the tables that were read.
        schema: The schema.
        before: What was ingested already, registered.

    Raises:
        DoesNotContinue: Something that was written would change.
    """
    _check_times(con, schema, before)
    _check_keys(con, schema, before)
    _check_entities(con, schema, before)
    for task in schema.tasks:
        surfaces = set(task.surfaces) if task.event else set()
        if surfaces - set(before.surfaces):
            raise DoesNotContinue(
                f"tasks.{task.name} is limited to surfaces that the training window does not hold"
            )


def _check_times(con: Any, schema: Schema, before: Before) -> None:
    border = max(before.latest + 1, before.train_end if not schema.splits.column else 0)
    border = max(border, schema.splits.train[1] if not schema.splits.column else 0)
    tables = {"impressions", *(s.from_table for s in schema.streams)}
    for name in sorted(tables):
        table = schema.tables[name]
        known = 'greatest("time", "arrival")' if table.arrival and name != "impressions" else '"time"'
        (first,) = one_row(con, f'SELECT min({known}) FROM "t_{name}"')
        if first is not None and first < border:
            raise DoesNotContinue(
                f"a new row of tables.{name} was known at {first} (Unix ms), before {border}, when the last of "
                "the earlier rows, or the training window, ended"
            )
    if schema.splits.column:
        (least,) = one_row(con, f"SELECT min({rank_sql(schema)}) FROM t_impressions")
        if least is not None and least < max(2, before.last_rank):
            raise DoesNotContinue(
                f"a new row of tables.impressions is of an earlier split by {schema.splits.column}"
            )


def _check_keys(con: Any, schema: Schema, before: Before) -> None:
    assert before.segments is not None
    words = schema.impressions
    if words.id:
        con.register("ids_before", before.segments.file("examples.arrow").table(["example_id"]))
        found = con.execute(
            "SELECT id FROM t_impressions SEMI JOIN ids_before b ON b.example_id = t_impressions.id LIMIT 1"
        ).fetchall()
        con.unregister("ids_before")
        if found:
            raise DoesNotContinue(f"{words.id} {found[0][0]} of a new impression was there before")
    if words.key:
        keys = before.segments.requests.table(["request_key", "user"])
        con.register("keys_before", keys)
        found = con.execute(
            'SELECT i.request FROM t_impressions i JOIN people_before p ON p."user" = i."user" JOIN keys_before k '
            'ON k.request_key = i.request AND k."user" = p.number LIMIT 1'
        ).fetchall()
        con.unregister("keys_before")
        if found:
            raise DoesNotContinue(f"new impressions belong to the earlier request {found[0][0]}")


def _check_entities(con: Any, schema: Schema, before: Before) -> None:
    for name in ("users", "ads"):
        table = schema.tables.get(name)
        if table is None:
            continue
        if table.time is not None:
            times = [c for c in ("time", "arrival") if getattr(table, c)]
            known = f"greatest({', '.join(times)})" if len(times) > 1 else f'"{times[0]}"'
            (first,) = one_row(con, f'SELECT min({known}) FROM "t_{name}"')
            if first is not None and first <= before.latest:
                raise DoesNotContinue(
                    f"a new row of tables.{name} holds from {first} (Unix ms), before the end of the data"
                )
            continue
        seen = (
            f"{name}_before"
            if name == "ads"
            else '(SELECT "user" AS key FROM people_before UNION ALL SELECT key FROM users_before)'
        )
        found = con.execute(
            f'SELECT t.key FROM "t_{name}" t SEMI JOIN {seen} b ON b.key = t.key LIMIT 1'
        ).fetchall()
        if not found and name == "ads":
            con.register("unknown_before", before.unknown_ads())
            found = con.execute(
                'SELECT t.key FROM "t_ads" t SEMI JOIN unknown_before b ON b.ad_key = t.key LIMIT 1'
            ).fetchall()
            con.unregister("unknown_before")
        if found:
            raise DoesNotContinue(
                f"a new row of tables.{name} describes {table.key} {found[0][0]}, which earlier rows name"
            )


def unknown_ads(con: Any, schema: Schema, plan: Plan, continues: bool) -> pa.Table:
    """Return the keys of ads that examples or events name but that no row describes, `ad_key`, each once."""
    if "ads" not in schema.tables:
        return pa.table({"ad_key": pa.array([], pa.string())})
    named = ["SELECT ad AS key FROM examples"]
    for stream in schema.streams:
        if any(plan.attribute_place[stream.name, a.name] == "ads" for a in stream.attributes):
            item = "item" if schema.tables[stream.from_table].item else ""
            if stream.from_table != "impressions" and item:
                named.append(f'SELECT {item} FROM "t_{stream.from_table}"')
            attribute = plan.item[stream.name]
            if stream.ready and not continues and attribute in stream.ready.lists:
                named.append(f'SELECT "a_{stream.name}.{attribute}" FROM "r_{stream.name}"')
    union = " UNION ALL ".join(named)
    return con.sql(
        f"SELECT DISTINCT n.key AS ad_key FROM ({union}) n ANTI JOIN ad_rows a ON a.key = n.key "
        "WHERE n.key IS NOT NULL ORDER BY 1"
    ).to_arrow_table()
