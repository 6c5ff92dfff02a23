"""Which rows of a table count: exact copies are dropped, keys with two contents are quarantined."""

from typing import Any

from opengem.data.ingestion.work_database import one_row
from opengem.schema.words import Schema


def settle_rows(con: Any, schema: Schema, table: str) -> int:
    """Drop exact copies and quarantine repeated keys in the work table `t_TABLE`.

    Impressions with an id, and rows of users and ads, are known by their key: an exact copy of one is dropped, and
    all rows of a key with differing contents are quarantined. Other rows are dropped as copies only where the
    schema says `deduplicate`. Users with a time are known by key and times together.

    Args:
        con: Connection of the work database.
        schema: The schema.
        table: Name of the table.

    Returns:
        Number of exact copies dropped.
    """
    words = schema.tables[table]
    name = f'"t_{table}"'
    keys: list[str] = []
    if table == "impressions" and words.id:
        keys = ["id"]
    elif table in ("users", "ads"):
        keys = ["key", *(["time"] if words.time else []), *(["arrival"] if words.arrival else [])]
    copies = 0
    if words.deduplicate:
        by = [*keys, *(k for k in ("user", "time") if getattr(words, k) and k not in keys), "content"]
        copies += _drop_copies(con, name, by)
    elif keys:
        copies += _drop_copies(con, name, [*keys, "content"])
    if keys:
        column = words.id if table == "impressions" else words.key
        _quarantine_repeated(con, table, name, keys, f"{column} repeated with different content")
    return copies


def _drop_copies(con: Any, name: str, by: list[str]) -> int:
    listed = ", ".join(f'"{column}"' for column in by)
    con.execute(
        f"CREATE TEMP TABLE copies AS SELECT unnest(list_sort(list(src))[2:]) AS src FROM {name} "
        f"GROUP BY {listed} HAVING count(*) > 1"
    )
    con.execute(f"DELETE FROM {name} WHERE src IN (SELECT src FROM copies)")
    (count,) = one_row(con, "SELECT count(*) FROM copies")
    con.execute("DROP TABLE copies")
    return int(count)


def _quarantine_repeated(con: Any, table: str, name: str, keys: list[str], reason: str) -> None:
    listed = ", ".join(f'"{column}"' for column in keys)
    con.execute(
        f"CREATE TEMP TABLE doubled AS SELECT unnest(list(src)) AS src FROM {name} "
        f"GROUP BY {listed} HAVING count(*) > 1"
    )
    con.execute("INSERT INTO quarantine SELECT ?, src, ? FROM doubled", [table, reason])
    con.execute(f"DELETE FROM {name} WHERE src IN (SELECT src FROM doubled)")
    con.execute("DROP TABLE doubled")
