"""Labels made by later events: within a window, of the same user and ad, and of the same request where known."""

from typing import Any

from opengem.data.ingestion.join.before import Before
from opengem.data.ingestion.work_database import one_row
from opengem.schema.words import EventLabel, Schema, Task


def make_labels(con: Any, schema: Schema, before: Before) -> dict[str, dict[str, int]]:
    """Make the view `labelled`: `examples` with one column `y_TASK` for each task, null where masked.

    An event may also credit an example that was written before. The view `matured` holds, of those in `shown_before`,
    the rows with a label that is another now: `row`, and `y_TASK` for each task that is made by events.

    An event makes a label positive where it lies in `(t, t + within]` of the example's time t. With attribution
    `last`, it credits only the user's last impression of the ad before it; with `any`, each whose window holds it.
    Where event and impression both carry a request, the two must be equal. A label that is not positive is masked
    while its window is open at the end of the event table's log, and on surfaces where the task does not exist.

    Args:
        con: Connection of the work database.
        schema: The schema.
        before: What was ingested already.

    Returns:
        Task -> counts: `events` of the label's type, and `orphans` among them that credited no impression.
    """
    found: dict[str, dict[str, int]] = {}
    columns, joins, matured = [], [], []
    key = "r.key" if schema.impressions.key else "NULL"
    con.execute(
        f'CREATE VIEW shown AS SELECT e.row, e."user", e.ad, e."time", {key} AS request FROM examples e '
        "JOIN requests r ON r.request = e.request "
        'UNION ALL SELECT row, "user", ad, "time", request FROM shown_before'
    )
    for task in schema.tasks:
        if task.event is None:
            value = f'e."y_{task.name}"'
        else:
            found[task.name] = _find_positives(con, schema, task, task.event)
            table = f'"p_{task.name}"'
            end = log_end(con, task.event.table, before)
            open_at_end = "TRUE" if end is None else f'e."time" + {task.event.within_ms} > {end}'
            value = f"CASE WHEN {table}.row IS NOT NULL THEN 1.0 WHEN {open_at_end} THEN NULL ELSE 0.0 END"
            matured.append((task, f'CASE WHEN e."y_{task.name}" = 1.0 THEN 1.0 ELSE {value} END'))
            joins.append(f" LEFT JOIN {table} ON {table}.row = e.row")
        if task.surfaces:
            value = f"CASE WHEN e.surface IN ({_listed(task.surfaces)}) THEN {value} END"
        columns.append(f'{value} AS "y_{task.name}"')
    _make_matured(con, matured)
    own = [f'"y_{t.name}"' for t in schema.tasks if t.label]
    kept = f"e.* EXCLUDE ({', '.join(own)})" if own else "e.*"
    con.execute(
        f"CREATE VIEW labelled AS SELECT {kept}, {', '.join(columns)} FROM examples e{''.join(joins)}"
    )
    return found


def log_end(con: Any, table: str, before: Before) -> int | None:
    """Return the time of the last event of a table, those before included; None if there is none."""
    (end,) = one_row(con, f'SELECT max("time") FROM "t_{table}"')
    ends = [e for e in (end, before.log_ends.get(table)) if e is not None]
    return max(ends, default=None)


def _make_matured(con: Any, tasks: list[tuple[Task, str]]) -> None:
    values, joins, changed = "", "", "FALSE"
    for task, value in tasks:
        name, table = f'"y_{task.name}"', f'"p_{task.name}"'
        if task.surfaces:
            value = f"CASE WHEN e.surface IN ({_listed(task.surfaces)}) THEN {value} END"
        values += f", {value} AS {name}"
        joins += f" LEFT JOIN {table} ON {table}.row = e.row"
        changed += f" OR new.{name} IS DISTINCT FROM old.{name}"
    con.execute(
        f"CREATE VIEW matured AS SELECT new.* FROM (SELECT e.row{values} FROM shown_before e{joins}) new "
        f"JOIN shown_before old ON old.row = new.row WHERE {changed} ORDER BY new.row"
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join("'" + name.replace("'", "''") + "'" for name in names)


def _find_positives(con: Any, schema: Schema, task: Task, event: EventLabel) -> dict[str, int]:
    """Make the work table `p_TASK` of the example rows whose label is positive."""
    table = schema.tables[event.table]
    wanted = "TRUE"
    if event.type:
        wanted = "type = '" + event.type.replace("'", "''") + "'"
    by_request = bool(schema.impressions.key and table.request)
    carried = "request" if by_request else "NULL"
    con.execute(
        f'CREATE TEMP TABLE ev AS SELECT src, "user", item, "time", {carried} AS request FROM "t_{event.table}" '
        f"WHERE {wanted}"
    )
    con.execute(
        'CREATE TEMP TABLE im AS SELECT "user", ad, request, "time", max(row) AS row FROM shown GROUP BY ALL'
    )
    credits = " UNION ALL ".join(
        _credits(event, same_request) for same_request in ([False, True] if by_request else [False])
    )
    con.execute(f"CREATE TEMP TABLE credits AS {credits}")
    con.execute(f'CREATE TABLE "p_{task.name}" AS SELECT DISTINCT row FROM credits')
    (events,) = one_row(con, "SELECT count(*) FROM ev")
    (credited,) = one_row(con, "SELECT count(DISTINCT src) FROM credits")
    for name in ("ev", "im", "credits"):
        con.execute(f"DROP TABLE {name}")
    return {"events": events, "orphans": events - credited}


def _credits(event: EventLabel, same_request: bool) -> str:
    """Return SQL for (row, src): which example an event credits."""
    events = f"(SELECT * FROM ev WHERE request IS {'NOT ' if same_request else ''}NULL)"
    match = 'ev."user" = im."user" AND ev.item = im.ad' + (
        " AND ev.request = im.request" if same_request else ""
    )
    shown = "im" if same_request else '(SELECT "user", ad, "time", max(row) AS row FROM im GROUP BY ALL)'
    if event.attribution == "last":
        return (
            f'SELECT im.row, ev.src FROM {events} ev ASOF JOIN {shown} im ON {match} AND ev."time" > im."time" '
            f'WHERE ev."time" <= im."time" + {event.within_ms}'
        )
    return (
        f"SELECT im.row, ev.src FROM shown im JOIN {events} ev ON {match} "
        f'AND ev."time" > im."time" AND ev."time" <= im."time" + {event.within_ms}'
    )
