"""What must hold between the parts of a schema, before any data is read."""

import re

from opengem.errors import ConfigError, nearest
from opengem.schema.words import Feature, ReadyHistory, Schema, Stream, Table, Task

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*")


def check_schema(schema: Schema) -> None:
    """Check a schema as a whole.

    Args:
        schema: The schema; its fingerprint does not matter.

    Raises:
        ConfigError: A table lacks a role, a name is used twice or unknown, a label is read as a feature, or a
            setting does not fit its kind.
    """
    _check_tables(schema)
    _check_unique([f.name for f in schema.features], "features")
    _check_unique([s.name for s in schema.streams], "streams")
    _check_unique([t.name for t in schema.tasks], "tasks")
    if not schema.tasks:
        raise ConfigError("tasks must hold at least one task. Received: none")
    if not schema.features and not schema.streams:
        raise ConfigError("features must hold at least one feature, or streams a stream. Received: none")
    for feature in schema.features:
        _check_feature(feature, schema)
    for stream in schema.streams:
        _check_stream(stream, schema)
    for task in schema.tasks:
        _check_task(task, schema)
    _check_vocabularies(schema)
    _check_labels_are_not_features(schema)


def event_tables(schema: Schema) -> list[str]:
    """Return the names of the event tables: all but impressions, users and ads."""
    return [name for name in schema.tables if name not in ("impressions", "users", "ads")]


def item_columns(stream: Stream, schema: Schema) -> set[str]:
    """Return the names under which a stream's events may hold their item."""
    table = schema.tables[stream.from_table]
    item = table.ad if stream.from_table == "impressions" else table.item
    ads = schema.tables.get("ads")
    return {c for c in (item, ads.key if ads and item else None) if c}


def item_attribute(stream: Stream, schema: Schema) -> str:
    """Return the attribute of a stream that holds the item, or "" if none does."""
    columns = item_columns(stream, schema)
    return next((a.name for a in stream.attributes if a.kind == "id" and a.column in columns), "")


def _check_tables(schema: Schema) -> None:
    if "impressions" not in schema.tables:
        found = ", ".join(schema.tables) or "none"
        raise ConfigError(f"tables.impressions must be given. Received: {found}")
    for name, table in schema.tables.items():
        _check_name(name, f"tables.{name}")
        if name == "impressions":
            _need(table, f"tables.{name}", ("user", "ad", "time"))
            _refuse(table, f"tables.{name}", ("item", "type", "request"))
        elif name in ("users", "ads"):
            _need(table, f"tables.{name}", ("key",))
            _refuse(table, f"tables.{name}", ("id", "user", "ad", "item", "type", "request", "surface"))
        else:
            _need(table, f"tables.{name}", ("user", "time"))
            _refuse(table, f"tables.{name}", ("key", "id", "ad", "surface"))
        if name == "ads" and (table.time or table.arrival):
            raise ConfigError("tables.ads.time is not supported: ads have one row a key. Received: a time")
        if (table.arrival or table.span) and table.time is None:
            raise ConfigError(f"tables.{name}.time must be given with arrival or span. Received: nothing")
        if not table.path:
            raise ConfigError(f"tables.{name}.path must name a file, folder or glob. Received: nothing")


def _need(table: Table, key: str, roles: tuple[str, ...]) -> None:
    for role in roles:
        if getattr(table, role) in (None, ""):
            raise ConfigError(f"{key}.{role} must be given. Received: nothing")


def _refuse(table: Table, key: str, roles: tuple[str, ...]) -> None:
    for role in roles:
        if getattr(table, role) is not None:
            raise ConfigError(
                f"{key}.{role} has no meaning in this table. Received: {getattr(table, role)!r}"
            )


def _check_name(name: str, key: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{key} must be named by letters, digits, _ and - only. Received: {name!r}")


def _check_unique(names: list[str], key: str) -> None:
    seen: set[str] = set()
    for name in names:
        _check_name(name, f"{key}.{name}")
        if name in seen:
            raise ConfigError(f"{key}.{name} is there twice; names must be unique")
        seen.add(name)


def _check_feature(feature: Feature, schema: Schema) -> None:
    key = f"features.{feature.name}"
    if feature.table:
        _check_name(feature.table, f"{key}.table")
    if feature.table and feature.kind not in ("id", "ids"):
        raise ConfigError(f"{key}.table is for kind id or ids only. Received: kind {feature.kind}")
    if feature.derive and (feature.kind != "id" or feature.owner != "context"):
        raise ConfigError(f"{key}.derive is for context ids only. Received: {feature.owner} {feature.kind}")
    if feature.derive and feature.column:
        raise ConfigError(f"{key}.derive stands instead of a column. Received: column {feature.column!r}")
    if feature.separator and feature.kind != "ids":
        raise ConfigError(f"{key}.separator is for kind ids only. Received: kind {feature.kind}")
    if feature.cast and feature.kind != "number":
        raise ConfigError(f"{key}.cast is for numbers only. Received: kind {feature.kind}")
    if feature.optional and feature.column in _role_columns(schema.impressions):
        raise ConfigError(f"{key}.optional must be false: the column {feature.column!r} is required")


def _role_columns(table: Table) -> set[str]:
    roles = (table.key, table.id, table.user, table.ad, table.item, table.surface)
    return {column for column in roles if column}


def _check_stream(stream: Stream, schema: Schema) -> None:
    key = f"streams.{stream.name}"
    sources = ["impressions", *event_tables(schema)]
    if stream.from_table not in sources:
        hint = nearest(stream.from_table, sources)
        raise ConfigError(
            f'{key}.from must be one of {", ".join(sources)}{hint}. Received: "{stream.from_table}"'
        )
    table = schema.tables[stream.from_table]
    if stream.types and table.type is None:
        raise ConfigError(f"{key}.types needs tables.{stream.from_table}.type. Received: nothing")
    names = [a.name for a in stream.attributes]
    if not names:
        raise ConfigError(f"{key}.attributes must hold at least one column. Received: none")
    _check_unique(names, f"{key}.attributes")
    for attribute in stream.attributes:
        where = f"{key}.attributes.{attribute.name}"
        if attribute.table:
            _check_name(attribute.table, f"{where}.table")
        if attribute.kind == "number" and (attribute.table or attribute.separator):
            raise ConfigError(f"{where}.kind must be id for a table or separator. Received: number")
    if stream.ready is not None:
        _check_ready(stream.ready, names, item_attribute(stream, schema), f"{key}.ready")


def _check_ready(ready: ReadyHistory, attributes: list[str], item: str, key: str) -> None:
    if not ready.lists:
        raise ConfigError(f"{key}.lists must name at least one list column. Received: none")
    for word, named in (("lists", ready.lists), ("members", ready.members)):
        for name in named:
            if name not in attributes:
                hint = nearest(name, attributes)
                raise ConfigError(f"{key}.{word}.{name} must be an attribute of the stream{hint}")
    for name in ready.members:
        if name in ready.lists:
            raise ConfigError(f"{key}.members.{name} must not be in lists too. Received: both")
    if ready.members and (not item or item not in ready.lists):
        raise ConfigError(
            f"{key}.members needs the events' item in lists. Received: lists of {', '.join(ready.lists)}"
        )


def _check_task(task: Task, schema: Schema) -> None:
    key = f"tasks.{task.name}"
    if bool(task.label) == (task.event is not None):
        raise ConfigError(
            f"{key} must have one of label and event. Received: {'both' if task.label else 'none'}"
        )
    if task.surfaces and schema.impressions.surface is None:
        raise ConfigError(f"{key}.surfaces needs tables.impressions.surface. Received: nothing")
    if task.event is None:
        return
    events = event_tables(schema)
    if task.event.table not in events:
        hint = nearest(task.event.table, events)
        raise ConfigError(
            f"{key}.event.table must be one of {', '.join(events) or 'no'} event tables{hint}. "
            f'Received: "{task.event.table}"'
        )
    table = schema.tables[task.event.table]
    if task.event.type and table.type is None:
        raise ConfigError(f"{key}.event.type needs tables.{task.event.table}.type. Received: nothing")
    if table.item is None:
        raise ConfigError(
            f"{key}.event needs tables.{task.event.table}.item, to match the ad. Received: nothing"
        )


def _check_vocabularies(schema: Schema) -> None:
    tables = {f.table for f in schema.features if f.table}
    tables |= {a.table for s in schema.streams for a in s.attributes if a.table}
    for name, vocabulary in schema.vocabularies.items():
        if name not in tables:
            raise ConfigError(
                f"vocabularies.{name} must name a table that a feature or attribute reads{nearest(name, tables)}"
            )
        if vocabulary.min_count < 1 or vocabulary.limit < 0:
            raise ConfigError(f"vocabularies.{name} must have min_count >= 1 and limit >= 0")


def _check_labels_are_not_features(schema: Schema) -> None:
    labels = {task.label: task.name for task in schema.tasks if task.label}
    for feature in schema.features:
        if feature.column in labels:
            task = labels[feature.column]
            raise ConfigError(
                f"features.{feature.name}.column reads {feature.column!r}, which is the label of "
                f"tasks.{task}: it is known only after the example. Remove the feature, or read the column as an "
                "attribute of a stream"
            )
