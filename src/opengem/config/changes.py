"""What differs between two plain trees of settings, key by key."""

from collections.abc import Mapping
from typing import Any


def changes(old: Any, new: Any, path: str = "") -> list[str]:
    """Return one line for each setting that differs: `training.batch_size was 64 and is 32`.

    Entries of lists of tables are told apart by their `name`; another order of them is a change of its own.

    Args:
        old: Tables, lists and values, as `to_plain` makes them.
        new: The same, later.
        path: Dotted key of both.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(k for k in new if k not in old)]
        below = f"{path}." if path else ""
        return [line for k in keys for line in changes(old.get(k), new.get(k), f"{below}{k}")]
    if _named(old) and _named(new) and (old or new):
        a, b = ({entry["name"]: entry for entry in entries} for entries in (old, new))
        if a.keys() != b.keys() or list(a) == list(b):
            return changes(a, b, path)
        return [f"{path} had the order {list(a)} and has {list(b)}", *changes(a, b, path)]
    if _plain(old) == _plain(new):
        return []
    if old is None:
        return [f"{path} is new: {new!r}"]
    if new is None:
        return [f"{path} is gone: {old!r}"]
    return [f"{path} was {old!r} and is {new!r}"]


def _named(entries: Any) -> bool:
    return isinstance(entries, list | tuple) and all(isinstance(e, Mapping) and "name" in e for e in entries)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
