"""Users, requests and examples: who they are, in which order they stand, and in which split."""

from dataclasses import dataclass
from typing import Any

from opengem.data.ingestion.join.before import SPLITS, Before
from opengem.data.ingestion.read.plan import Plan, same_readings
from opengem.data.ingestion.work_database import one_row
from opengem.errors import DataError
from opengem.schema.words import Schema


@dataclass(frozen=True)
class Examples:
    """What is known of the examples once they are in order.

    Attributes:
        count: Number of examples that were read.
        requests: Number of their requests.
        users: Number of users who had not been seen before.
        splits: Split -> half-open range of example rows, those before included.
        train_end: Unix ms; what became available at or after it is not seen by vocabularies and statistics.
    """

    count: int
    requests: int
    users: int
    splits: dict[str, tuple[int, int]]
    train_end: int


def make_examples(con: Any, schema: Schema, plan: Plan, before: Before) -> Examples:
    """Make the work tables `people`, `users`, `ads`, `requests` and `examples` from the tables that were read.

    A request is one user's rows with one request key, or one row without a key; its time is the earliest of its
    rows. Requests are ordered by time, then user, then key; the examples of one by time, then id, ad, surface and
    labels. So the order does not depend on how the rows lie in files. All are numbered on from those before.

    Args:
        con: Connection of the work database.
        schema: The schema.
        plan: Where the features are found.
        before: What was ingested already; nothing in the first ingest.

    Returns:
        Counts, splits and the end of the training window.

    Raises:
        DataError: There is no example, or a split that the schema names holds none.
    """
    _make_people(con, schema, before)
    _make_entities(con, schema, plan, before)
    _make_requests(con, schema, plan, before)
    _make_rows(con, schema, plan, before)
    count, requests = one_row(con, "SELECT count(*), count(DISTINCT request) FROM examples")
    (users,) = one_row(con, f"SELECT count(*) FROM people WHERE number >= {before.users}")
    if not count and not before.examples:
        raise DataError(
            "tables.impressions must hold at least one good row. Received: none; see the quarantine"
        )
    splits, train_end = _splits(con, schema, before)
    return Examples(count, requests, users, splits, train_end)


def _make_rows(con: Any, schema: Schema, plan: Plan, before: Before) -> None:
    uses = [u for u in plan.uses["impressions"] if u.name not in ("request", "split")]
    repeated = same_readings(uses)
    listed = ", ".join(f'i."{u.name}"' for u in uses if u.name not in {"user", *repeated})
    if schema.impressions.key:
        row = f"row_number() OVER (ORDER BY r.request, {_order('i', plan)}) - 1 + {before.examples}"
        same = 'r."user" = i."user" AND r.key = i.request'
    else:  # each row is a request of its own, and they are in order already
        row = f"r.request - {before.requests} + {before.examples}"
        same = "r.key = i.src"
    con.execute(
        f'CREATE TABLE example_rows AS SELECT {row} AS row, r.request, r.number, r."user", '
        f'r."time" AS request_time, r.rank, r.user_row, {listed}, coalesce(a.row, 0) AS ad_row '
        f"FROM t_impressions i JOIN requests r ON {same} LEFT JOIN ad_rows a ON a.key = i.ad"
    )
    con.execute("DROP TABLE t_impressions")
    again = "".join(f', "{first}" AS "{name}"' for name, first in repeated.items())
    con.execute(f"CREATE VIEW examples AS SELECT *{again} FROM example_rows")


def training(schema: Schema) -> str:
    """Return the SQL condition that a row of `examples` is in the training window."""
    if schema.splits.column:
        return "rank = 1"
    start, end = schema.splits.train
    return f"(request_time >= {start} AND request_time < {end})"


def _make_people(con: Any, schema: Schema, before: Before) -> None:
    """Number all users who act: those who did before keep theirs, the others follow in the order of their keys."""
    tables = ["t_impressions", *(f"t_{s.from_table}" for s in schema.streams)]
    tables += [f"t_{t.event.table}" for t in schema.tasks if t.event]
    tables += [f"r_{s.name}" for s in schema.streams if s.ready]
    union = " UNION ".join(f'SELECT DISTINCT "user" FROM "{t}"' for t in dict.fromkeys(tables))
    con.execute(f"CREATE TEMP TABLE acting AS {union}")
    con.execute(
        'CREATE TABLE people AS SELECT a."user", b.number FROM acting a JOIN people_before b ON b."user" = a."user" '
        'UNION ALL SELECT a."user", row_number() OVER (ORDER BY a."user") - 1 + '
        f'{before.users} FROM acting a ANTI JOIN people_before b ON b."user" = a."user"'
    )
    con.execute("DROP TABLE acting")


def _make_entities(con: Any, schema: Schema, plan: Plan, before: Before) -> None:
    """Number the rows of users and ads from 1, or on from those before; row 0 stands for none.

    Makes the views `user_rows` and `ad_rows`, (key, known, row) of all, those before included.
    """
    for name, first in (("users", before.user_rows), ("ads", before.ad_rows)):
        if name not in schema.tables:
            con.execute(f"CREATE TABLE {name} (row BIGINT, key VARCHAR, known BIGINT)")
        else:
            table = schema.tables[name]
            times = ", ".join(f'"{t}"' for t in ("time", "arrival") if getattr(table, t))
            order = f"key, {times}" if times else "key"
            known = f"greatest({times})" if times else "0"
            features = "".join(f', "{u.name}"' for u in plan.uses[name] if u.name.startswith(("f_", "a_")))
            con.execute(
                f"CREATE TABLE {name} AS SELECT row_number() OVER (ORDER BY {order}) - 1 + {first} AS row, key, "
                f'{known} AS known{features} FROM "t_{name}"'
            )
            con.execute(f'DROP TABLE "t_{name}"')
        con.execute(
            f"CREATE VIEW {name[:-1]}_rows AS SELECT key, known, row FROM {name}_before "
            f"UNION ALL SELECT key, known, row FROM {name}"
        )


def _make_requests(con: Any, schema: Schema, plan: Plan, before: Before) -> None:
    rank = rank_sql(schema)
    if schema.impressions.key:
        rows = (
            f'SELECT "user", request AS key, min("time") AS "time", max({rank}) AS rank '
            "FROM t_impressions GROUP BY 1, 2"
        )
        order = 'q.rank, q."time", q."user", q.key'
    else:
        rows = f"SELECT *, src AS key, {rank} AS rank FROM t_impressions"
        order = f'q.rank, q."time", q."user", {_order("q", plan)}'
    timed = "users" in schema.tables and schema.tables["users"].time is not None
    con.execute(
        f"CREATE TABLE asked AS SELECT row_number() OVER (ORDER BY {order}) - 1 + {before.requests} AS request, "
        f'q."user", p.number, q.key, q."time", q.rank FROM ({rows}) q JOIN people p ON p."user" = q."user"'
    )
    if timed:
        # A profile holds from when it was both in effect and written; of several that hold, the last in effect wins.
        con.execute(
            "CREATE TABLE profiles AS "
            "SELECT key, known, max(row) OVER (PARTITION BY key ORDER BY known) AS row FROM user_rows"
        )
        join = 'ASOF LEFT JOIN profiles u ON u.key = a."user" AND a."time" >= u.known'
    else:
        join = 'LEFT JOIN user_rows u ON u.key = a."user"'
    con.execute(f"CREATE TABLE requests AS SELECT a.*, coalesce(u.row, 0) AS user_row FROM asked a {join}")
    con.execute("DROP TABLE asked")


def _order(name: str, plan: Plan) -> str:
    """Return the order of a request's examples: what the data set holds of a row decides, and last its place."""
    uses = plan.uses["impressions"]
    repeated = same_readings(uses)
    scalar = [u.name for u in uses if u.role not in ("ids", "vector") and u.name not in repeated]
    first = ["time", "id", "ad", "surface"]
    ordered = [c for c in first if c in scalar]
    ordered += [c for c in scalar if c not in first and c.startswith(("y_", "f_"))]
    return ", ".join(f'{name}."{c}"' for c in [*ordered, "src"])


def rank_sql(schema: Schema) -> str:
    """Return SQL of the number of a row's split by column: 1 train, 2 validation, 3 test, 0 none of them."""
    if not schema.splits.column:
        return "0"
    cases = ""
    for rank, name in enumerate(SPLITS, start=1):
        values = ", ".join("'" + v.replace("'", "''") + "'" for v in schema.splits.values[name])
        if values:
            cases += f" WHEN split IN ({values}) THEN {rank}"
    return f"CASE{cases} ELSE 0 END"


def _splits(con: Any, schema: Schema, before: Before) -> tuple[dict[str, tuple[int, int]], int]:
    by_column = bool(schema.splits.column)
    splits: dict[str, tuple[int, int]] = {}
    times: dict[str, tuple[int, int]] = {}
    (first, last) = one_row(con, "SELECT min(request_time), max(request_time) FROM examples")
    for rank, name in enumerate(SPLITS, start=1):
        start, end = getattr(schema.splits, name)
        inside = f"rank = {rank}" if by_column else f"request_time >= {start} AND request_time < {end}"
        earlier = f"rank < {rank}" if by_column else f"request_time < {start}"
        rows, below, earliest, latest = one_row(
            con,
            f"SELECT count(*) FILTER ({inside}), count(*) FILTER ({earlier}), min(request_time) FILTER ({inside}), "
            f"max(request_time) FILTER ({inside}) FROM examples",
        )
        old = before.splits.get(name, (0, 0))
        rows, below = rows + old[1] - old[0], below + old[0]
        wanted = bool(schema.splits.values[name]) if by_column else end > start
        if wanted and not rows:
            where = (
                f"values {schema.splits.values[name]}" if by_column else f"times {start} to {end} (Unix ms)"
            )
            raise DataError(
                f"splits.{name} must hold at least one example. Received: none with {where}; "
                f"requests lie between {first} and {last}"
            )
        splits[name] = (below, below + rows)
        times[name] = (earliest, latest)
    if not by_column:
        return splits, schema.splits.train[1]
    if before.examples:
        return splits, before.train_end
    if times["test"][0] is not None and times["train"][1] >= times["test"][0]:
        raise DataError(
            f"splits.train must end before splits.test begins. Received: a training request at {times['train'][1]} "
            f"and a test request at {times['test'][0]} (Unix ms)"
        )
    return splits, times["train"][1] + 1
