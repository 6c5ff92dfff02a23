"""From TOML and overrides to frozen dataclasses, with one strict validation."""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from opengem.config.family import Family
from opengem.errors import ConfigError, nearest, nearest_word

T = TypeVar("T")
_STRICT = ConfigDict(strict=True)


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML run file, with at most one `extends = "other.toml"` (relative to the file) below it."""
    data = _read(path)
    base = data.pop("extends", None)
    if base is None:
        return data
    base_path = path.parent / str(base)
    lower = _read(base_path)
    if "extends" in lower:
        raise ConfigError(
            f"{base_path}: a file that is extended must not itself extend another. Received: extends"
        )
    return merge(lower, data)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} must be a TOML file. Received: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise ConfigError(f"{path} must be a TOML file. Received: {error}") from None


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return `lower` with every setting of `upper` laid over it, table by table.

    Where `upper` names another `type` than `lower`, the table is replaced: its settings belong to the type.
    """
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        replaced = isinstance(below, Mapping) and isinstance(value, Mapping) and _other_type(below, value)
        if isinstance(below, Mapping) and isinstance(value, Mapping) and not replaced:
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def _other_type(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> bool:
    return "type" in upper and "type" in lower and upper["type"] != lower["type"]


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Turn `section.key=value` strings into nested tables; values are TOML, and bare words are strings."""
    result: dict[str, Any] = {}
    for text in overrides:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f'an override must look like section.key=value. Received: "{text}"')
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        nested: Any = parsed
        for part in reversed(name.strip().split(".")):
            nested = {part: nested}
        result = merge(result, nested)
    return result


def build(cls: type[T], data: Mapping[str, Any], path: str = "") -> T:
    """Build the dataclass `cls` from plain tables; unknown keys and wrong values are errors with the dotted key."""
    if issubclass(cls, Family):
        cls = _member(cls, data, path)
    hints = typing.get_type_hints(cls)
    settings = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in data:
        if key not in settings and not (key == "type" and issubclass(cls, Family)):
            kind = f' of type "{cls.type}"' if issubclass(cls, Family) else ""
            _refuse_what_is_inside(hints, key, data[key], path)
            raise ConfigError(
                f"{path}{key} is not a setting{kind}{nearest(key, settings)}\n  settings: {', '.join(settings)}"
            )
    values = {key: _value(hints[key], data[key], f"{path}{key}") for key in settings if key in data}
    missing = [
        name
        for name, f in settings.items()
        if name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{path}{missing[0]} must be set. Received: nothing")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{path.rstrip('.')}: {error}" if path else str(error)) from None


def _refuse_what_is_inside(hints: Mapping[str, Any], key: str, table: Any, path: str) -> None:
    """Refuse an unknown setting in a table that is unknown itself, by the table whose name is nearest."""
    near = nearest_word(key, hints)
    if not (near and isinstance(table, Mapping) and dataclasses.is_dataclass(hints[near])):
        return
    inside = [f.name for f in dataclasses.fields(hints[near]) if f.init]
    for name in table:
        if name not in inside and (match := nearest_word(name, inside)):
            raise ConfigError(
                f'{path}{key}.{name} is not a setting (did you mean "{path}{near}.{match}"?)\n'
                f"  settings of {path}{near}: {', '.join(inside)}"
            )


def _member(family: Any, data: Mapping[str, Any], path: str) -> Any:
    if "type" in data:
        return family.member(str(data["type"]), f"{path}type")
    if not dataclasses.is_dataclass(family):
        raise ConfigError(f"{path}type must be set: one of {', '.join(sorted(family.members))}")
    return family


def _value(hint: Any, value: Any, key: str) -> Any:
    hint = _without_none(hint, value)
    if (isinstance(hint, type) and dataclasses.is_dataclass(hint)) or _is_family(hint):
        if dataclasses.is_dataclass(value) and isinstance(value, hint):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key} must be a table of settings. Received: {value!r}")
        return build(hint, value, f"{key}.")
    inner = typing.get_args(hint)[1] if typing.get_origin(hint) is dict else None
    if isinstance(inner, type) and (dataclasses.is_dataclass(inner) or _is_family(inner)):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key} must be a table of tables. Received: {value!r}")
        return {name: _value(inner, entry, f"{key}.{name}") for name, entry in value.items()}
    if isinstance(value, list) and typing.get_origin(hint) is tuple:
        value = tuple(tuple(v) if isinstance(v, list) else v for v in value)
    try:
        return TypeAdapter(hint, config=_STRICT).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(f"{key} must be {_name(hint)}: {reason}. Received: {value!r}") from None


def _without_none(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and value is not None:
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(rest) == 1:
            return rest[0]
    return hint


def _is_family(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Family)


def _name(hint: Any) -> str:
    return (
        getattr(hint, "__name__", str(hint))
        if typing.get_origin(hint) is None
        else str(hint).replace("typing.", "")
    )


def to_plain(config: Any) -> Any:
    """Return a config as plain tables that TOML and JSON can hold; `None` settings are left out."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        plain = {"type": config.type} if isinstance(config, Family) and config.type else {}
        for f in dataclasses.fields(config):
            value = getattr(config, f.name)
            if value is not None and f.init:
                plain[f.name] = to_plain(value)
        return plain
    if isinstance(config, Mapping):
        return {str(k): to_plain(v) for k, v in config.items()}
    if isinstance(config, tuple | list):
        return [to_plain(v) for v in config]
    if isinstance(config, Path):
        return str(config)
    return config
