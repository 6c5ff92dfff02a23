"""The logs of a schema in a work database, read and joined by the very functions that ingest uses."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opengem.data.ingestion.join.before import Before
from opengem.data.ingestion.join.examples import make_examples
from opengem.data.ingestion.join.labels import make_labels
from opengem.data.ingestion.join.rows import settle_rows
from opengem.data.ingestion.read.plan import Plan, Use, make_plan
from opengem.data.ingestion.read.ready import read_ready
from opengem.data.ingestion.read.sources import Source, open_source
from opengem.data.ingestion.read.table import Counts, check_times, content_columns, read_table
from opengem.data.ingestion.work_database import one_row
from opengem.schema.words import Schema

SPLITS = ("train", "validation", "test")


@dataclass
class Logs:
    """The logs in a work database.

    After `read_logs` it holds `t_TABLE` for each table and `r_STREAM` for ready-made histories; after `join_logs`
    also `requests`, `users`, `ads` and `examples` as ingest makes them, and `labelled_rows`: one row an example with
    `row`, `src` (its place in the files), `request`, `number`, `user`, `ad`, `surface`, `request_time`, `split`,
    `user_row`, `ad_row` and `y_TASK`.

    Attributes:
        con: Connection of the work database.
        schema: The schema.
        sources: Table, or `STREAM.ready` -> its files.
        plan: How the columns are read.
        counts: Table -> rows read, and what was found in them.
        copies: Table -> rows that are exact copies of another.
        dropped: Table -> how many of these ingest drops.
        credited: Task made by events -> `events` of its type, and `orphans` that credit no example.
    """

    con: Any
    schema: Schema
    sources: dict[str, Source]
    plan: Plan
    counts: dict[str, Counts] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    credited: dict[str, dict[str, int]] = field(default_factory=dict)

    def one(self, query: str) -> tuple[Any, ...]:
        """Return the only row of a query."""
        return one_row(self.con, query)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query, for results that are small."""
        return self.con.execute(query).fetchall()


def read_logs(con: Any, schema: Schema, advance: Callable[[int], None]) -> Logs:
    """Read all tables; rows that break a rule go to the work table `quarantine`.

    Args:
        con: Connection of an empty work database.
        schema: The schema.
        advance: Called with the number of rows after each batch.

    Raises:
        DataError: A file or column breaks what the schema says of it.
    """
    paths = {name: table.path for name, table in schema.tables.items()}
    paths |= {f"{s.name}.ready": s.ready.path for s in schema.streams if s.ready}
    sources = {name: open_source(Path(schema.root), path, name) for name, path in paths.items()}
    plan = make_plan(schema, {n: s for n, s in sources.items() if n in schema.tables})
    logs = Logs(con, schema, sources, plan)
    con.execute("CREATE TABLE quarantine (tab VARCHAR, src BIGINT, reason VARCHAR)")
    for name, table in schema.tables.items():
        uses = plan.uses[name]
        content = content_columns(name, table, sources[name], [u.column for u in uses])
        content = content or sorted(sources[name].columns)  # copies that ingest keeps are counted too
        logs.counts[name] = read_table(con, sources[name], table, uses, content, {}, advance)
        logs.copies[name] = _copies(logs, name, [u.name for u in uses])
        logs.dropped[name] = settle_rows(con, schema, name)
        check_times(con, name, table)
    for stream in schema.streams:
        if stream.ready:
            name = f"{stream.name}.ready"
            logs.counts[name] = Counts(
                read=read_ready(con, sources[name], stream, plan.item[stream.name], advance)
            )
    return logs


def join_logs(logs: Logs) -> None:
    """Order the examples and make their labels, as ingest does; see `Logs` for the tables that this makes.

    Raises:
        DataError: There is no example, or a split that the schema names holds none.
    """
    con, schema, before = logs.con, logs.schema, Before()
    for name in ("users", "ads"):
        if name in schema.tables:
            times = [f'"{t}"' for t in ("time", "arrival") if getattr(schema.tables[name], t)]
            known = f"greatest({', '.join(times)})" if times else "0"
            con.execute(
                f'CREATE TABLE "src_{name}" AS SELECT key, {known} AS known, max(src) AS src FROM "t_{name}" '
                "GROUP BY ALL"
            )
    before.register(con)
    # the place of an example in its file is carried along: its other columns are read again by it
    logs.plan.uses["impressions"].append(Use("src", "", "example_id"))
    make_examples(con, schema, logs.plan, before)
    before.register_shown(con, schema, 0)
    logs.credited = make_labels(con, schema, before)
    surface = "l.surface" if schema.impressions.surface else "'all'"
    labels = "".join(f', l."y_{t.name}"' for t in schema.tasks)
    con.execute(
        f'CREATE TABLE labelled_rows AS SELECT l.row, l.src, l.request, l.number, l."user", l.ad, '
        f"{surface} AS surface, l.request_time, {_split(schema)} AS split, r.user_row, l.ad_row{labels} "
        "FROM labelled l JOIN requests r ON r.request = l.request"
    )


def _split(schema: Schema) -> str:
    if schema.splits.column:
        cases = [f"WHEN l.rank = {rank} THEN '{name}'" for rank, name in enumerate(SPLITS, start=1)]
    else:
        spans = {name: getattr(schema.splits, name) for name in SPLITS}
        cases = [
            f"WHEN l.request_time >= {start} AND l.request_time < {end} THEN '{name}'"
            for name, (start, end) in spans.items()
        ]
    return f"CASE {' '.join(cases)} END"


def _copies(logs: Logs, name: str, columns: list[str]) -> int:
    by = [c for c in ("id", "key", "user", "time", "arrival") if c in columns]
    listed = ", ".join(f'"{c}"' for c in [*by, "content"])
    (copies,) = logs.one(
        f'SELECT coalesce(sum(n - 1), 0)::BIGINT FROM (SELECT count(*) AS n FROM "t_{name}" GROUP BY {listed})'
    )
    return copies
