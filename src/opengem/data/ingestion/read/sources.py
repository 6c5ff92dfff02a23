"""The Parquet files of a table: which they are, what columns they hold, and whether they have changed."""

import glob
import os
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opengem.data.checksum import sha256_of
from opengem.errors import DataError

BROKEN = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What reading a damaged Parquet file may raise."""

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class SourceFile:
    """One Parquet file: its path, columns and rows, and the values that its folders give (`campaign=007`)."""

    path: Path
    name: str
    columns: dict[str, pa.DataType]
    rows: int
    folders: dict[str, str | None] = field(default_factory=dict)

    def has(self, column: str) -> bool:
        """Return whether the file or its folders hold the column."""
        return column in self.columns or column in self.folders


@dataclass(frozen=True)
class Source:
    """All files of one table, in the order of their names."""

    table: str
    files: tuple[SourceFile, ...]

    @property
    def columns(self) -> list[str]:
        """Names of all columns that any file holds."""
        return list(dict.fromkeys(c for f in self.files for c in (*f.columns, *f.folders)))

    @property
    def rows(self) -> int:
        """Number of rows of all files."""
        return sum(f.rows for f in self.files)


def find_files(root: Path, pattern: str, table: str) -> list[Path]:
    """Return the Parquet files of a path, folder or glob, in the order of their names.

    A glob may match folders too, such as the `part.parquet/` that some engines write. In folders, names that begin with
    `.` or `_` are passed over, as other tools do.

    Raises:
        DataError: There is none.
    """
    path = Path(pattern) if Path(pattern).is_absolute() else root / pattern
    if any(mark in pattern for mark in "*?["):
        found = [Path(p) for p in glob.glob(str(path), recursive=True)]
        files = [f for place in found for f in ([place] if place.is_file() else _files_below(place))]
        files = list(dict.fromkeys(files))  # a glob may match a folder and what is in it
    elif path.is_dir():
        files = _files_below(path)
    else:
        files = [path] if path.is_file() else []
    if not files:
        raise DataError(
            f"tables.{table}.path must name a Parquet file, a folder of them or a glob. "
            f"Received: {path}, where there is none"
        )
    return sorted(files)


def _files_below(folder: Path) -> list[Path]:
    return [
        f
        for f in folder.rglob("*.parquet")
        if f.is_file() and not any(part.startswith((".", "_")) for part in f.relative_to(folder).parts)
    ]


def open_source(root: Path, pattern: str, table: str) -> Source:
    """Read the schema of every file of a table.

    Raises:
        DataError: A file is no Parquet file, or holds a column twice.
    """
    files = find_files(root, pattern, table)
    return Source(table, tuple(_open_file(f, root) for f in files))


def _open_file(path: Path, root: Path) -> SourceFile:
    name = relative_name(path, root)
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            rows = file.metadata.num_rows
    except BROKEN as error:
        raise DataError(f"{name} must be a whole Parquet file. Received: {error}") from None
    doubled = sorted({n for n in schema.names if schema.names.count(n) > 1})
    if doubled:
        raise DataError(f'{name} must hold each column once. Received: "{doubled[0]}" twice')
    columns = {field.name: field.type for field in schema}
    folders = {k: v for k, v in _folder_values(path, root).items() if k not in columns}
    return SourceFile(path, name, columns, rows, folders)


def relative_name(path: Path, root: Path) -> str:
    """Return the path as messages and the manifest write it: relative to the root where it lies below it."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _folder_values(path: Path, root: Path) -> dict[str, str | None]:
    """Return the values of `name=value` folders as text, so that 007 and 7 stay two."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else path.parts
    values: dict[str, str | None] = {}
    for part in parts[:-1]:
        key, sign, value = part.partition("=")
        if sign and key:
            values[key] = None if value == _NULL_FOLDER else urllib.parse.unquote(value)
    return values


def describe_files(
    paths: list[Path], root: Path, known: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return name, size, time and SHA-256 of files; a file whose size and time are `known` is not read again."""
    before = {(f["path"], f["bytes"], f["mtime_ns"]): f["sha256"] for f in known or []}
    described = []
    for path in paths:
        stat = os.stat(path)
        name = relative_name(path, root)
        sha256 = before.get((name, stat.st_size, stat.st_mtime_ns)) or sha256_of(path)
        described.append(
            {"path": name, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256}
        )
    return described
