"""Which columns of which table are read, and as what: the schema held against the columns that are there."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from opengem.data.columns import numbers
from opengem.data.ingestion.read.sources import Source
from opengem.errors import DataError, nearest
from opengem.schema.check import item_attribute, item_columns
from opengem.schema.words import Attribute, Feature, Schema, Stream, Table, TimeColumn

Role = Literal["id", "ids", "number", "vector", "time", "label", "example_id"]


@dataclass(frozen=True)
class Use:
    """One reading of a column: `name` is what it is called after reading."""

    name: str
    column: str
    role: Role
    required: bool = False
    optional: bool = False
    cast: bool = False
    separator: str = ""
    first: bool = False
    time: TimeColumn | None = None

    @property
    def reading(self) -> tuple[object, ...]:
        """What is read, and as what; two uses of one reading have the same values."""
        return self.column, self.role, self.cast, self.separator, self.first, self.time


def same_readings(uses: list[Use]) -> dict[str, str]:
    """Return the names of uses that repeat the reading of an earlier one -> the name of that one."""
    first: dict[tuple[object, ...], str] = {}
    return {u.name: first[u.reading] for u in uses if first.setdefault(u.reading, u.name) != u.name}


@dataclass
class Plan:
    """What is read of each table, and where each feature and attribute is found.

    Attributes:
        uses: Table -> its readings.
        place: Feature -> `impressions`, `users` or `ads`.
        attribute_place: (stream, attribute) -> `own`, `item` (the item of the event itself) or `ads`.
        item: Stream -> the attribute that holds the item, or "".
    """

    uses: dict[str, list[Use]]
    place: dict[str, str] = field(default_factory=dict)
    attribute_place: dict[tuple[str, str], str] = field(default_factory=dict)
    item: dict[str, str] = field(default_factory=dict)


def make_plan(schema: Schema, sources: dict[str, Source]) -> Plan:
    """Find every column that the schema names.

    Raises:
        DataError: A column is nowhere to be found; names the tables that were searched and the nearest column.
    """
    plan = Plan(uses={name: _roles(name, table) for name, table in schema.tables.items()})
    impressions = plan.uses["impressions"]
    impressions += [Use(f"y_{t.name}", t.label, "label") for t in schema.tasks if t.label]
    if schema.splits.column:
        impressions.append(Use("split", schema.splits.column, "id"))
    for feature in schema.features:
        plan.place[feature.name] = place = _place_of_feature(feature, schema, sources)
        if not feature.derive:
            plan.uses[place].append(_use_of_feature(feature, place, schema))
    for stream in schema.streams:
        plan.item[stream.name] = item_attribute(stream, schema)
        for attribute in stream.attributes:
            _place_attribute(plan, stream, attribute, schema, sources)
    for name, source in sources.items():
        _check_files(source, plan.uses[name])
        _check_folders(source, plan.uses[name])
    return plan


def _roles(name: str, table: Table) -> list[Use]:
    uses = []
    if table.key:
        role = "request" if name == "impressions" else "key"
        uses.append(Use(role, table.key, "id", required=True))
    if table.id:
        uses.append(Use("id", table.id, "example_id", required=True))
    for role, required in (
        ("user", True),
        ("ad", False),
        ("item", False),
        ("type", False),
        ("request", False),
    ):
        if column := getattr(table, role):
            uses.append(Use(role, column, "id", required=required))
    if table.surface:
        uses.append(Use("surface", table.surface, "id", required=True))
    if table.time:
        uses.append(Use("time", table.time.column, "time", required=True, time=table.time))
    if table.arrival:
        uses.append(Use("arrival", table.arrival.column, "time", required=True, time=table.arrival))
    return uses


def _place_of_feature(feature: Feature, schema: Schema, sources: dict[str, Source]) -> str:
    """Return the table that a feature is read from: the owner's own, unless it is the owner's key."""
    own = {"user": "users", "ad": "ads"}.get(feature.owner, "")
    key = {"user": schema.impressions.user, "ad": schema.impressions.ad}.get(feature.owner)
    keys = {key, schema.tables[own].key if own in schema.tables else None}
    searched = [own, "impressions"] if own in schema.tables else ["impressions"]
    if feature.derive or feature.column in keys:
        return "impressions"
    for name in searched:
        if feature.column in sources[name].columns:
            return name
    if feature.optional:
        return "impressions"
    raise _missing(f"features.{feature.name}", feature.column, searched, sources)


def _use_of_feature(feature: Feature, place: str, schema: Schema) -> Use:
    column = feature.column
    if place == "impressions" and feature.owner in ("user", "ad"):
        own = schema.tables.get({"user": "users", "ad": "ads"}[feature.owner])
        if own is not None and column == own.key:
            column = str(getattr(schema.impressions, feature.owner))
    return Use(
        f"f_{feature.name}",
        column,
        feature.kind,
        optional=feature.optional,
        cast=feature.cast,
        separator=feature.separator,
    )


def _place_attribute(
    plan: Plan, stream: Stream, attribute: Attribute, schema: Schema, sources: dict[str, Source]
) -> None:
    use = Use(
        f"a_{stream.name}.{attribute.name}",
        attribute.column,
        attribute.kind,
        optional=attribute.optional,
        separator=attribute.separator,
        first=bool(attribute.separator),
    )
    key = (stream.name, attribute.name)
    items = item_columns(stream, schema)
    if attribute.column in sources[stream.from_table].columns:
        plan.attribute_place[key] = "own"
        plan.uses[stream.from_table].append(use)
    elif attribute.column in items:
        plan.attribute_place[key] = "item"
    elif "ads" in sources and items and (attribute.column in sources["ads"].columns or attribute.optional):
        plan.attribute_place[key] = "ads"
        plan.uses["ads"].append(use)
    elif attribute.optional:
        plan.attribute_place[key] = "own"
        plan.uses[stream.from_table].append(use)
    else:
        searched = [stream.from_table, *(["ads"] if "ads" in sources and items else [])]
        raise _missing(
            f"streams.{stream.name}.attributes.{attribute.name}", attribute.column, searched, sources
        )


def _missing(key: str, column: str, searched: list[str], sources: dict[str, Source]) -> DataError:
    known = [c for name in searched for c in sources[name].columns]
    return DataError(
        f'{key} reads column "{column}", which must stand in {" or ".join(searched)}{nearest(column, known)}. '
        f"Received: {', '.join(known)}"
    )


def _check_files(source: Source, uses: list[Use]) -> None:
    for use in uses:
        if use.optional:
            continue
        for file in source.files:
            if not file.has(use.column):
                hint = nearest(use.column, [*file.columns, *file.folders])
                raise DataError(
                    f'{file.name} must hold column "{use.column}" of tables.{source.table}{hint}. '
                    f"Received: {', '.join([*file.columns, *file.folders])}"
                )


def _check_folders(source: Source, uses: list[Use]) -> None:
    """Refuse names of folders (`campaign=007`) as numbers, unless the schema says `cast`: they are text."""
    for use in uses:
        files = {file.folders[use.column]: file for file in source.files if use.column in file.folders}
        if use.role != "number" or use.cast or not files:
            continue
        texts = pa.array(files, pa.string())
        values, bad = numbers(texts, use.column, cast=True)
        found = [texts[i].as_py() for i in np.flatnonzero(bad)]
        first = files[found[0]] if found else next(iter(files.values()))
        spelled: dict[float, list[str]] = {}
        for text, value in zip(texts.to_pylist(), values.to_pylist(), strict=True):
            if value is not None:
                spelled.setdefault(value, []).append(f'"{text}"')
        clashes = [", ".join(same) for same in spelled.values() if len(same) > 1]
        raise DataError(
            f'{first.name} (tables.{source.table}): column "{use.column}" must hold numbers. Received: names of '
            f"folders, which are text"
            + "".join(f'; "{text}" is no number' for text in found[:1])
            + "".join(f"; a clash: {same} would be one number" for same in clashes[:1])
            + '\n  fix: kind = "id" keeps them apart; cast = true reads them as numbers'
        )
