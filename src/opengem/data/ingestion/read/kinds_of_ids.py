"""The kinds of all columns that are read as ids, over all files of a table."""

from opengem.data.id_kinds import IdKind, id_kind
from opengem.data.ingestion.read.plan import Plan
from opengem.data.ingestion.read.sources import Source
from opengem.schema.words import Schema


def kinds_of_ids(schema: Schema, plan: Plan, sources: dict[str, Source]) -> dict[str, tuple[IdKind, ...]]:
    """Return `TABLE.COLUMN` -> the kinds in which the log writes its ids, sorted; none where all are null.

    A ready-made list counts for the column of its stream that it stands for.

    Args:
        schema: The schema.
        plan: What is read of each table.
        sources: Table, or `STREAM.ready`, -> its files.
    """
    found: dict[str, set[IdKind]] = {}
    for table, uses in plan.uses.items():
        for use in uses:
            if use.role in ("id", "ids"):
                kinds = found.setdefault(f"{table}.{use.column}", set())
                kinds |= _kinds(sources[table], use.column)
    for stream in schema.streams:
        if stream.ready is None:
            continue
        columns = {a.name: a.column for a in stream.attributes if a.kind == "id"}
        for attribute, column in stream.ready.lists.items():
            if attribute in columns:
                kinds = found.setdefault(f"{stream.from_table}.{columns[attribute]}", set())
                kinds |= _kinds(sources[f"{stream.name}.ready"], column)
        for attribute in stream.ready.members:
            if attribute in columns:
                found.setdefault(f"{stream.from_table}.{columns[attribute]}", set()).add("integer")
    return {column: tuple(sorted(kinds)) for column, kinds in sorted(found.items())}


def _kinds(source: Source, column: str) -> set[IdKind]:
    kinds: set[IdKind | None] = set()
    for file in source.files:
        if column in file.columns:
            kinds.add(id_kind(file.columns[column]))
        elif column in file.folders:
            kinds.add("text")
    return {kind for kind in kinds if kind}
