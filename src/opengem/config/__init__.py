"""Typed configuration: frozen dataclasses, TOML files, overrides, one strict validation."""

from opengem.config.changes import changes
from opengem.config.family import Family
from opengem.config.load import build, load_toml, merge, parse_overrides, to_plain
from opengem.config.locate import key_of, line_of, located

__all__ = [
    "Family",
    "build",
    "changes",
    "key_of",
    "line_of",
    "load_toml",
    "located",
    "merge",
    "parse_overrides",
    "to_plain",
]
