"""Typed configuration: frozen dataclasses, TOML files, overrides, one strict validation."""

from opengem.config.family import Family
from opengem.config.load import build, load_toml, merge, parse_overrides, to_plain

__all__ = ["Family", "build", "load_toml", "merge", "parse_overrides", "to_plain"]
