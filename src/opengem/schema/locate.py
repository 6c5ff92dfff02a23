"""Where a dotted key stands in a TOML file, so that an error can name the line."""

import re

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
    return best


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
