"""Where a dotted key was set, on the command line or in a TOML file, so that an error can name the place."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from opengem.errors import ConfigError

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_\-\".]+)\s*=")
_NAME = re.compile(r"^\s*name\s*=\s*[\"']([^\"']*)[\"']")


def line_of(text: str, key: str) -> int:
    """Return the line (from 1) of the dotted key, of the longest part of it that is found, or 0.

    Entries of `[[lists]]` answer to their number and to their `name`.

    Args:
        text: The TOML file.
        key: Dotted key, such as `features.ad_id.kind`.
    """
    return _find(text, key)[1]


@contextmanager
def located(file: Path, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Add to a `ConfigError` where its key was set: the command line, or the file and line.

    Args:
        file: TOML file of the settings; where it `extends` another, the key is looked up in both.
        overrides: Settings of the command line, `section.key=value`.

    Raises:
        ConfigError: That of the block, with the place behind it.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{error}\n  {_place(key_of(error), file, overrides)}") from None


def key_of(error: ConfigError) -> str:
    """Return the dotted key that an error begins with."""
    return str(error).split(maxsplit=1)[0].rstrip(":,")


def _place(key: str, file: Path, overrides: Sequence[str]) -> str:
    for text in reversed(overrides):  # the last one counts
        name = text.partition("=")[0].strip()
        if key == name or key.startswith(f"{name}.") or name.startswith(f"{key}."):
            return f"command line: {text}"
    found = [(*_find(text, key), path) for path, text in _files(file)]
    depth, line, path = max(found, key=lambda place: place[0], default=(0, 0, file))
    return f"file: {path} line {line}" if depth else f"file: {path}"


def _files(file: Path) -> list[tuple[Path, str]]:
    """Return a file and the one that it extends, with their texts, as far as they can be read."""
    files: list[tuple[Path, str]] = []
    for path in (file, _extended(file)):
        try:
            files += [(path, path.read_text(encoding="utf-8"))] if path else []
        except (OSError, UnicodeDecodeError):
            continue
    return files


def _extended(file: Path) -> Path | None:
    try:
        base = tomllib.loads(file.read_text(encoding="utf-8")).get("extends")
    except (OSError, ValueError):
        return None
    return file.parent / base if isinstance(base, str) else None


def _find(text: str, key: str) -> tuple[int, int]:
    """Return how many parts of the key are found, and the line of the last of them."""
    wanted = key.split(".")
    best, best_depth = 0, 0
    for path, line in _places(text):
        depth = 0
        for part, names in zip(wanted, path, strict=False):
            if part not in names:
                break
            depth += 1
        if depth == len(path) and depth > best_depth:
            best, best_depth = line, depth
    return best_depth, best


def _places(text: str) -> list[tuple[list[set[str]], int]]:
    """Return the path of each header and key, each part as the set of names it answers to, with its line."""
    places: list[tuple[list[set[str]], int]] = []
    counts: dict[str, int] = {}
    entries: dict[str, set[str]] = {}
    section: list[set[str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            name = header[2]
            if header[1] == "[[":
                entries[name] = {str(counts.get(name, 0))}
                counts[name] = counts.get(name, 0) + 1
            section = _section(name, entries)
            places.append((section, number))
        elif match := _KEY.match(line):
            if (named := _NAME.match(line)) and section and any(section[-1] is e for e in entries.values()):
                section[-1].add(named[1])
            places.append(([*section, *({p.strip('"')} for p in match[1].split("."))], number))
    return places


def _section(name: str, entries: dict[str, set[str]]) -> list[set[str]]:
    path: list[set[str]] = []
    so_far = ""
    for part in name.split("."):
        so_far = f"{so_far}.{part}" if so_far else part
        path.append({part.strip().strip('"')})
        if so_far in entries:
            path.append(entries[so_far])
    return path
