"""Each table: its rows, times and zone, doubles, late arrivals, events out of order, and keys that do not join."""

import datetime as dt
from typing import Any

import pyarrow as pa

from opengem.data.checking.logs import Logs
from opengem.data.checking.report import DataCheck, percent
from opengem.data.ingestion.read.sources import Source
from opengem.schema.check import event_tables
from opengem.schema.words import TimeColumn

MOST_UNJOINED = 0.05
"""Share of rows without a partner above which a warning is given."""


def check_tables(logs: Logs, check: DataCheck) -> None:
    """Check the tables as they were read, before they are joined.

    Args:
        logs: The logs, read.
        check: Gets the facts `tables` and `keys`, and the findings.
    """
    check.facts["tables"] = {name: _table(logs, name, check) for name in logs.schema.tables}
    check.facts["keys"] = []
    for table, column, role, owner, key in _joins(logs):
        _check_join(logs, check, table, column, role, owner, key)


def check_order(logs: Logs, check: DataCheck) -> None:
    """Count events that are stamped before the impression that they belong to.

    An event belongs to the impression of its request that shows its item; one of another item belongs to its request.

    Args:
        logs: The logs, joined.
        check: Gets the fact `early` and the findings.
    """
    early: dict[str, int] = {}
    schema = logs.schema
    for name in event_tables(schema):
        table = schema.tables[name]
        if not (table.request and schema.impressions.key):
            continue
        shown = 'SELECT request, ad, min("time") AS "time" FROM examples GROUP BY 1, 2'
        join = f"LEFT JOIN ({shown}) i ON i.request = r.request AND i.ad = o.item" if table.item else ""
        own = 'coalesce(i."time", r."time")' if table.item else 'r."time"'
        (early[name],) = logs.one(
            f'SELECT count(*) FROM "t_{name}" o JOIN requests r ON r."user" = o."user" AND r.key = o.request {join} '
            f'WHERE o."time" < {own}'
        )
        if early[name]:
            events, own = ("event is", "its") if early[name] == 1 else ("events are", "their")
            text = f"{early[name]:,} {events} stamped before {own} own impression. Look at the clocks"
            check.warn(
                "time", f"tables.{name}", f"{text}; no event of a request reaches that request's history"
            )
    check.facts["early"] = early


def _table(logs: Logs, name: str, check: DataCheck) -> dict[str, Any]:
    table, counts, source = logs.schema.tables[name], logs.counts[name], logs.sources[name]
    (kept,) = logs.one(f'SELECT count(*) FROM "t_{name}"')
    reasons = logs.rows(
        f"SELECT reason, count(*) FROM quarantine WHERE tab = '{name}' GROUP BY ALL ORDER BY ALL"
    )
    facts: dict[str, Any] = {
        "files": len(source.files), "rows": counts.read, "kept": kept, "passed_over": counts.passed_over,
        "exact_copies": logs.copies[name], "copies_dropped": logs.dropped[name], "quarantined": dict(reasons),
    }  # fmt: skip
    where = f"tables.{name}"
    for reason, count in reasons:
        say = check.warn if count > MOST_UNJOINED * counts.read else check.note
        say("rows", where, f"{percent(count, counts.read)} ({count:,} rows) will be quarantined: {reason}")
    dropped, kept_copies = logs.dropped[name], logs.copies[name] - logs.dropped[name]
    if dropped:
        check.note("rows", where, f"{dropped:,} rows are exact copies of another and will be dropped")
    if kept_copies > 0:
        text = f"{kept_copies:,} rows are exact copies of another and will be kept"
        check.warn("rows", where, f"{text}; set deduplicate = true to drop them")
    if not counts.read:
        check.warn("rows", where, "the table holds no row")
    if table.time is not None:
        facts |= _times(logs, name, table.time, check)
    return facts


def _times(logs: Logs, name: str, time: TimeColumn, check: DataCheck) -> dict[str, Any]:
    table, where = logs.schema.tables[name], f"tables.{name}"
    first, last, rows = logs.one(f'SELECT min("time"), max("time"), count(*) FROM "t_{name}"')
    facts: dict[str, Any] = {
        "first": moment(first), "last": moment(last), "unit": time.unit, "zone": _zone(logs.sources[name], time),
        "late": None,
    }  # fmt: skip
    if table.arrival is None:
        if name not in ("users", "ads"):
            text = "no arrival is declared, so late data cannot be seen: each row counts from its own time"
            check.note("time", where, text)
        return facts
    late, early, middle, high = logs.one(
        'SELECT count(*) FILTER (arrival > "time"), count(*) FILTER (arrival < "time"), '
        'quantile_disc(arrival - "time", 0.5) FILTER (arrival > "time"), '
        f'quantile_disc(arrival - "time", 0.99) FILTER (arrival > "time") FROM "t_{name}"'
    )
    facts["late"] = {"rows": late, "before_their_time": early, "median_ms": middle, "p99_ms": high}
    if late:
        text = f"{percent(late, rows)} of rows ({late:,}) arrived after their own time"
        check.note(
            "time", where, f"{text}, half of these by {middle:,} ms or more, 1% by {high:,} ms or more"
        )
    if early:
        look = f'Look at the units and zones of "{time.column}" and "{table.arrival.column}"'
        check.warn(
            "time", where, f"{early:,} rows arrived before their own time; they count from their time. {look}"
        )
    return facts


def moment(ms: int | None) -> str | None:
    """Return a Unix time in ms as UTC text."""
    if ms is None:
        return None
    at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)
    return at.strftime("%Y-%m-%d %H:%M:%S")


def _zone(source: Source, time: TimeColumn) -> str:
    """Say in which zone a time column is written, file by file, and what it is read as."""
    if time.unit not in ("timestamp", "iso8601"):
        return f"UTC; {time.column} is {time.unit} since 1970"
    if time.unit == "iso8601":
        return f"UTC; {time.column} is text with an offset" + (f", else in {time.zone}" if time.zone else "")
    kinds = {file.columns.get(time.column) for file in source.files}
    zones = {
        k.tz or (time.zone and f"{time.zone} by the schema") for k in kinds if k and pa.types.is_timestamp(k)
    }
    return (
        f"UTC; {time.column} is written in {' and '.join(sorted(z or 'no zone' for z in zones)) or time.zone}"
    )


def _joins(logs: Logs) -> list[tuple[str, str, str, str, str]]:
    """Return what ought to join: table, its column and role, the table that holds the key, and the key's role."""
    schema = logs.schema
    joins: list[tuple[str, str, str, str, str]] = []
    users, ads = "users" in schema.tables, "ads" in schema.tables
    for name, table in schema.tables.items():
        if name in ("users", "ads"):
            continue
        events = name != "impressions"
        item, role = (table.item, "item") if events else (table.ad, "ad")
        if users and table.user:
            joins.append((name, table.user, "user", "users", "key"))
        if events and table.user:
            joins.append((name, table.user, "user", "impressions", "user"))
        if ads and item:
            joins.append((name, item, role, "ads", "key"))
        if events and table.request and schema.impressions.key:
            joins.append((name, table.request, "request", "impressions", "request"))
    return joins


def _check_join(
    logs: Logs, check: DataCheck, table: str, column: str, role: str, owner: str, key: str
) -> None:
    rows, lost, keys, example = logs.one(
        f'SELECT count(*), count(*) FILTER (k.key IS NULL), count(DISTINCT o."{role}") FILTER (k.key IS NULL), '
        f'min(o."{role}") FILTER (k.key IS NULL) FROM "t_{table}" o '
        f'LEFT JOIN (SELECT DISTINCT "{key}" AS key FROM "t_{owner}") k ON k.key = o."{role}" '
        f'WHERE o."{role}" IS NOT NULL'
    )
    check.facts["keys"].append(
        {"table": table, "column": column, "in": owner, "rows": rows, "unjoined": lost, "unjoined_keys": keys}
    )
    if not lost:
        return
    where, share = f"{table}.{column}", percent(lost, rows)
    if lost == rows:
        text = f"none of {rows:,} rows has its {role} in {owner}, such as {example}"
        look = f"Look at how both columns write them, or take the column out of tables.{table}"
        say = check.error if _is_needed(logs, table, role) else check.warn
        say("keys", where, f"{text}: these are not the same keys. {look}")
        return
    # that people who act are never shown an ad is common; that ads lack a description is not
    far = lost > MOST_UNJOINED * rows and owner != "impressions"
    text = f"{share} of rows ({lost:,} of {rows:,}) have their {role} not in {owner}"
    (check.warn if far else check.note)("keys", where, f"{text}: {keys:,} keys, such as {example}")


def _is_needed(logs: Logs, table: str, role: str) -> bool:
    """Return whether something is read through a key: of items and requests only what a stream reads of the ads."""
    if role == "item":
        streams = [s for s in logs.schema.streams if s.from_table == table]
        return any(logs.plan.attribute_place[s.name, a.name] == "ads" for s in streams for a in s.attributes)
    return role != "request"
