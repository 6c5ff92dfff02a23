"""The kinds of all columns that are read as ids or numbers, over all files of a table."""

from opengem.data.column_kinds import ColumnKind, column_kind
from opengem.data.ingestion.read.plan import Plan
from opengem.data.ingestion.read.sources import Source
from opengem.schema.words import Schema


def column_kinds(schema: Schema, plan: Plan, sources: dict[str, Source]) -> dict[str, tuple[ColumnKind, ...]]:
    """Return `TABLE.COLUMN` -> the kinds in which the log writes it, sorted; none where all are null.

    A ready-made list counts for the column of its stream that it stands for.

    Args:
        schema: The schema.
        plan: What is read of each table.
        sources: Table, or `STREAM.ready`, -> its files.
    """
    found: dict[str, set[ColumnKind]] = {}
    for table, uses in plan.uses.items():
        for use in uses:
            if use.role in ("id", "ids", "number"):
                kinds = found.setdefault(f"{table}.{use.column}", set())
                kinds |= _kinds(sources[table], use.column)
    for stream in schema.streams:
        if stream.ready is None:
            continue
        columns = {a.name: a.column for a in stream.attributes}
        for attribute, column in stream.ready.lists.items():
            kinds = found.setdefault(f"{stream.from_table}.{columns[attribute]}", set())
            kinds |= _kinds(sources[f"{stream.name}.ready"], column)
        for attribute in stream.ready.members:
            found.setdefault(f"{stream.from_table}.{columns[attribute]}", set()).add("integer")
    return {column: tuple(sorted(kinds)) for column, kinds in sorted(found.items())}


def _kinds(source: Source, column: str) -> set[ColumnKind]:
    kinds: set[ColumnKind | None] = set()
    for file in source.files:
        if column in file.columns:
            kinds.add(column_kind(file.columns[column]))
        elif column in file.folders:
            kinds.add("text")
    return {kind for kind in kinds if kind}
