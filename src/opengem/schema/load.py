"""From a schema file to a `Schema`: strict, with the place of a mistake and the nearest right word."""

import dataclasses
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

from opengem.config import build, key_of, line_of
from opengem.errors import ConfigError, nearest
from opengem.schema.check import check_schema
from opengem.schema.spans import length_ms, range_ms
from opengem.schema.words import (
    Attribute,
    EventLabel,
    Feature,
    ReadyHistory,
    Schema,
    Splits,
    Stream,
    Table,
    Task,
    TimeColumn,
    Vocabulary,
)

_SECTIONS = ("name", "root", "tables", "features", "streams", "tasks", "splits", "vocabularies")
_SPLITS = ("train", "validation", "test")


def load_schema(path: str | Path, root: str | Path | None = None) -> Schema:
    """Read a schema file.

    Args:
        path: TOML file.
        root: Folder that the tables' paths are relative to. By default the file's `root`, relative to the file's
            own folder, else that folder.

    Returns:
        The schema. Its fingerprint stands for the meaning of the columns, features, streams and tasks.

    Raises:
        ConfigError: The file is missing or not TOML, a key is unknown (the nearest is suggested), a value is
            wrong, or two parts contradict each other.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"{path} must be a schema file in TOML. Received: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} must be a schema file in TOML. Received: {error}") from None
    try:
        return dataclasses.replace(_read(data, path, root), text=text)
    except ConfigError as error:
        line = line_of(text, key_of(error))
        where = f"{path} line {line}" if line else str(path)
        raise ConfigError(f"{error}\n  file: {where}") from None


def parse_schema(data: dict[str, Any], root: str | Path) -> Schema:
    """Build a schema from plain tables, such as a TOML file holds, with paths relative to `root`."""
    import tomli_w

    return dataclasses.replace(_read(data, Path("schema"), root), text=tomli_w.dumps(data))


def _read(data: dict[str, Any], path: Path, root: str | Path | None) -> Schema:
    for key in data:
        if key not in _SECTIONS:
            known = ", ".join(_SECTIONS)
            raise ConfigError(f"{key} is not a part of a schema{nearest(key, _SECTIONS)}\n  parts: {known}")
    for key in ("tables", "tasks", "splits"):
        if key not in data:
            raise ConfigError(f"{key} must be given in a schema. Received: nothing")
    folder = Path(root) if root is not None else path.parent / str(data.get("root", "."))
    schema = Schema(
        name=str(data.get("name", path.parent.resolve().name)),
        root=str(folder.resolve()),
        tables={name: _table(value, f"tables.{name}") for name, value in _named(data["tables"], "tables")},
        features=tuple(_feature(value, key) for value, key in _listed(data.get("features", []), "features")),
        streams=tuple(_stream(value, key) for value, key in _listed(data.get("streams", []), "streams")),
        tasks=_ordered([_task(value, key) for value, key in _listed(data["tasks"], "tasks")]),
        splits=_splits(data["splits"]),
        fingerprint="",
        vocabularies={
            name: build(Vocabulary, value, f"vocabularies.{name}.")
            for name, value in _named(data.get("vocabularies", {}), "vocabularies")
        },
    )
    check_schema(schema)
    return dataclasses.replace(schema, fingerprint=_fingerprint(schema))


def _named(value: Any, key: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(value, dict):
        raise ConfigError(f"{key} must be tables by name, such as [{key}.NAME]. Received: {value!r}")
    for name, entry in value.items():
        if not isinstance(entry, dict):
            raise ConfigError(f"{key}.{name} must be a table of settings. Received: {entry!r}")
    return list(value.items())


def _listed(value: Any, key: str) -> list[tuple[dict[str, Any], str]]:
    """Return the entries of `[[key]]`, or of `[key.NAME]`, with the dotted key of each."""
    if isinstance(value, dict):
        return [({"name": name, **entry}, f"{key}.{name}") for name, entry in _named(value, key)]
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ConfigError(f"{key} must be a list of tables, such as [[{key}]]. Received: {value!r}")
    return [(dict(entry), f"{key}.{entry.get('name', index)}") for index, entry in enumerate(value)]


def _time(value: Any, key: str) -> TimeColumn:
    if isinstance(value, str):
        return TimeColumn(column=value)
    if not isinstance(value, dict):
        raise ConfigError(f"{key} must be a column's name, or {{column, unit, zone}}. Received: {value!r}")
    return build(TimeColumn, value, f"{key}.")


def _table(value: dict[str, Any], key: str) -> Table:
    value = dict(value)
    for name in ("time", "arrival"):
        if name in value:
            value[name] = _time(value[name], f"{key}.{name}")
    if "span" in value:
        value["span"] = range_ms(value["span"], f"{key}.span")
    for column, kept in value.get("where", {}).items() if isinstance(value.get("where", {}), dict) else ():
        if not isinstance(kept, list):
            raise ConfigError(f"{key}.where.{column} must be a list of values. Received: {kept!r}")
    return build(Table, value, f"{key}.")


def _feature(value: dict[str, Any], key: str) -> Feature:
    feature = build(Feature, value, f"{key}.")
    is_id = feature.kind in ("id", "ids")
    return dataclasses.replace(
        feature,
        column=feature.column or ("" if feature.derive else feature.name),
        table=feature.table or (feature.name if is_id else ""),
    )


def _attribute(value: Any, key: str) -> Attribute:
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict):
        raise ConfigError(f"{key} must be a column's name or a table of settings. Received: {value!r}")
    attribute = build(Attribute, value, f"{key}.")
    return dataclasses.replace(
        attribute,
        column=attribute.column or attribute.name,
        table=attribute.table or (attribute.name if attribute.kind == "id" else ""),
    )


def _stream(value: dict[str, Any], key: str) -> Stream:
    if "from" in value:
        value["from_table"] = value.pop("from")
    elif "from_table" not in value:
        raise ConfigError(f"{key}.from must name a table. Received: nothing")
    entries = value.get("attributes", [])
    if not isinstance(entries, list | tuple):
        raise ConfigError(f"{key}.attributes must be a list. Received: {entries!r}")
    value["attributes"] = tuple(_attribute(a, f"{key}.attributes.{i}") for i, a in enumerate(entries))
    attributes = value.pop("attributes")
    ready = value.pop("ready", None)
    stream = build(Stream, value, f"{key}.")
    if ready is not None:
        ready = _ready(ready, f"{key}.ready")
    return dataclasses.replace(stream, attributes=attributes, ready=ready)


def _ready(value: Any, key: str) -> ReadyHistory:
    if not isinstance(value, dict):
        raise ConfigError(f"{key} must be a table of settings. Received: {value!r}")
    value = dict(value)
    if "times" in value:
        value["times"] = _time(value["times"], f"{key}.times")
    return build(ReadyHistory, value, f"{key}.")


def _task(value: dict[str, Any], key: str) -> Task:
    event = value.pop("event", None)
    task = build(Task, value, f"{key}.")
    if event is not None:
        if not isinstance(event, dict):
            raise ConfigError(f"{key}.event must be a table of settings. Received: {event!r}")
        event = dict(event)
        event["within_ms"] = length_ms(event.pop("within", None), f"{key}.event.within")
        event = build(EventLabel, event, f"{key}.event.")
    return dataclasses.replace(task, event=event)


def _ordered(tasks: list[Task]) -> tuple[Task, ...]:
    """Order tasks so that each stands behind the one it is given; otherwise as in the file."""
    names = [task.name for task in tasks]
    done: list[Task] = []
    rest = list(tasks)
    while rest:
        ready = next((t for t in rest if not t.given or t.given in {d.name for d in done}), None)
        if ready is None:
            task = next((t for t in rest if t.given not in names), rest[0])
            hint = nearest(task.given, [n for n in names if n != task.name])
            raise ConfigError(
                f"tasks.{task.name}.given must name another task, not in a circle{hint}. "
                f'Received: "{task.given}"'
            )
        done.append(ready)
        rest.remove(ready)
    return tuple(done)


def _splits(value: Any) -> Splits:
    if not isinstance(value, dict):
        raise ConfigError(f"splits must be a table of settings. Received: {value!r}")
    for key in value:
        if key not in (*_SPLITS, "column"):
            known = ", ".join((*_SPLITS, "column"))
            raise ConfigError(f"splits.{key} is not a setting{nearest(key, _SPLITS)}\n  settings: {known}")
    if "train" not in value:
        raise ConfigError("splits.train must be given. Received: nothing")
    if "column" in value:
        return _splits_by_column(value)
    ranges = {name: range_ms(value[name], f"splits.{name}") for name in _SPLITS if name in value}
    end = ranges["train"][1]
    for name in _SPLITS[1:]:
        start, stop = ranges.get(name, (end, end))
        if start < end:
            raise ConfigError(
                f"splits.{name} must start at or after the end of the split before it. Received: {value[name]!r}"
            )
        ranges[name] = (start, stop)
        end = stop
    return Splits(train=ranges["train"], validation=ranges["validation"], test=ranges["test"])


def _splits_by_column(value: dict[str, Any]) -> Splits:
    listed: dict[str, tuple[str, ...]] = {}
    seen: dict[str, str] = {}
    for name in _SPLITS:
        entries = value.get(name, [])
        if not isinstance(entries, list):
            raise ConfigError(f"splits.{name} must be a list of values. Received: {entries!r}")
        listed[name] = tuple(str(entry) for entry in entries)
        for entry in listed[name]:
            if entry in seen:
                raise ConfigError(f'splits.{name} holds "{entry}", which splits.{seen[entry]} holds too')
            seen[entry] = name
    none = (0, 0)
    return Splits(train=none, validation=none, test=none, column=str(value["column"]), values=listed)


def _fingerprint(schema: Schema) -> str:
    """Hash what the columns mean; settings at their default do not count, nor do places and splits."""
    meaning = {
        "tables": {name: _meaning(table) for name, table in schema.tables.items()},
        "features": [_meaning(f) for f in schema.features],
        "streams": [_meaning(s) for s in schema.streams],
        "tasks": [_meaning(t) for t in schema.tasks],
        "vocabularies": {name: _meaning(v) for name, v in schema.vocabularies.items()},
    }
    text = json.dumps(meaning, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _meaning(word: Any) -> Any:
    if dataclasses.is_dataclass(word):
        plain = {}
        for field in dataclasses.fields(word):
            value = getattr(word, field.name)
            if field.name not in ("path", "span") and value not in (field.default, (), {}, None):
                plain[field.name] = _meaning(value)
        return plain
    if isinstance(word, tuple | list):
        return [_meaning(v) for v in word]
    if isinstance(word, dict):
        return {str(k): _meaning(v) for k, v in word.items()}
    return word
