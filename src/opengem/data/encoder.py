"""From raw columns to embedding rows and standardised numbers: the same functions for ingest, predict and serve."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from opengem.config import changes
from opengem.data.column_kinds import ColumnKind
from opengem.data.columns import Column, canonical_ids, canonical_lists, list_parts, numbers, vectors
from opengem.data.times import read_times
from opengem.errors import ConfigError, DataError, nearest
from opengem.schema.inputs import MISSING_TIME, PADDING_ROW, UNSEEN_ROW
from opengem.schema.words import TimeColumn

pc: Any = pyarrow.compute  # its functions are made at run time, out of a type checker's sight

FIRST_ROW = 2
"""Embedding row of the first id of a vocabulary; the rows below are `PADDING_ROW` and `UNSEEN_ROW`."""

_SMALL = 4096  # below this many distinct ids a dictionary is looked up, above it Arrow hashes the vocabulary


class Vocabulary:
    """The ids of one embedding table that have a row of their own.

    Args:
        ids: `pa.StringArray` of canonical ids; id k has row k + 2.
    """

    def __init__(self, ids: pa.Array) -> None:
        self.ids = ids
        self._row_of: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: pa.Array) -> np.ndarray:
        """Return the int64 rows of canonical ids: 0 where null, 1 where unseen."""
        words = ids.dictionary_encode()
        rows = np.append(self._rows_of_words(words.dictionary), PADDING_ROW)
        codes = pc.fill_null(words.indices, len(rows) - 1).to_numpy(zero_copy_only=False)
        return rows[codes]

    def _rows_of_words(self, words: pa.Array) -> np.ndarray:
        if len(words) <= _SMALL:
            if self._row_of is None:
                self._row_of = {word: row for row, word in enumerate(self.ids.to_pylist(), FIRST_ROW)}
            found = (self._row_of.get(word, UNSEEN_ROW) for word in words.to_pylist())
            return np.fromiter(found, np.int64, len(words))
        places = pc.index_in(words, value_set=self.ids)
        return np.asarray(pc.fill_null(places, UNSEEN_ROW - FIRST_ROW), dtype=np.int64) + FIRST_ROW


class Encoder:
    """What turns raw values into what a model reads. Made by ingest from the training window; vocabularies may grow.

    Args:
        vocabularies: Embedding table -> its ids.
        numbers: Name -> (mean, standard deviation) of the training window. Features go by their name, event
            attributes by `STREAM.NAME`.
        surfaces: Names of the surfaces; surface i has index i + 1.
        sizes: Vector feature -> its length.
        counts: Embedding table -> times that each id was seen in the training window; 0 for ids admitted later. Only
            for the record.
        column_kinds: `TABLE.COLUMN` -> the kinds in which the log writes ids and numbers.
        window: Embedding table -> rows of the training window's vocabulary, with which each vocabulary begins; all of
            its rows if not given.
    """

    def __init__(
        self,
        vocabularies: dict[str, Vocabulary],
        numbers: dict[str, tuple[float, float]],
        surfaces: tuple[str, ...] = (),
        sizes: dict[str, int] | None = None,
        counts: dict[str, np.ndarray] | None = None,
        column_kinds: dict[str, tuple[ColumnKind, ...]] | None = None,
        window: dict[str, int] | None = None,
    ) -> None:
        self.vocabularies = vocabularies
        self.numbers = numbers
        self.surfaces = surfaces
        self.sizes = sizes or {}
        self.column_kinds = column_kinds or {}
        self.window = window or {name: len(ids) + FIRST_ROW for name, ids in vocabularies.items()}
        self._counts = counts or {}
        self._surfaces = Vocabulary(pa.array(surfaces, pa.string()))

    @classmethod
    def load(cls, folder: str | Path) -> "Encoder":
        """Read the encoder of a data set or package.

        Args:
            folder: The data set's folder, or the `encoder` folder itself.

        Raises:
            DataError: There is none, or a file of it is broken.
        """
        folder = Path(folder)
        if not (folder / "encoder.json").exists():
            folder = folder / "encoder"
        try:
            record: dict[str, Any] = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
            vocabularies, counts = {}, {}
            for name in record["tables"]:
                vocabularies[name], counts[name] = _read(folder / "vocabulary" / f"{name}.parquet")
            kinds = {column: tuple(kinds) for column, kinds in record["columns"].items()}
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise DataError(f"{folder} must hold an encoder made by ingest. Received: {error}") from None
        statistics = {name: (n["mean"], n["std"]) for name, n in record["numbers"].items()}
        return cls(
            vocabularies,
            statistics,
            tuple(record["surfaces"]),
            record["sizes"],
            counts,
            kinds,
            record["window"],
        )

    def save(self, folder: str | Path) -> None:
        """Write `encoder.json` and `vocabulary/TABLE.parquet` into `folder`, which is made if need be."""
        folder = Path(folder)
        (folder / "vocabulary").mkdir(parents=True, exist_ok=True)
        for name, vocabulary in self.vocabularies.items():
            counts = np.zeros(len(vocabulary), np.int64)
            window = self._counts.get(name, counts)
            counts[: len(window)] = window
            table = pa.table({"id": vocabulary.ids, "count": pa.array(counts, pa.int64())})
            pq.write_table(table, folder / "vocabulary" / f"{name}.parquet", compression="zstd")
        record = {
            "format": 2,
            "surfaces": list(self.surfaces),
            "tables": {name: self.table_rows(name) for name in self.vocabularies},
            "window": self.window,
            "numbers": {name: {"mean": mean, "std": std} for name, (mean, std) in self.numbers.items()},
            "sizes": self.sizes,
            "columns": {column: list(kinds) for column, kinds in self.column_kinds.items()},
        }
        (folder / "encoder.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def with_vocabularies(self, vocabularies: dict[str, Vocabulary]) -> "Encoder":
        """Return an encoder that differs in its vocabularies alone."""
        return Encoder(
            vocabularies,
            self.numbers,
            self.surfaces,
            self.sizes,
            self._counts,
            self.column_kinds,
            self.window,
        )

    def differences(self, other: "Encoder") -> list[str]:
        """Return what another encoder reads otherwise beside ids, one line each: scales of numbers, surfaces."""
        return changes(
            {"numbers": self.numbers, "surfaces": self.surfaces},
            {"numbers": other.numbers, "surfaces": other.surfaces},
        )

    def table_rows(self, table: str) -> int:
        """Return the number of rows of an embedding table, the two reserved rows included."""
        return len(self._vocabulary(table)) + FIRST_ROW

    def kinds_of(self, tables: Iterable[str], columns: Iterable[str]) -> tuple[ColumnKind, ...]:
        """Return the kinds in which the log writes any of these columns in any of these of its tables."""
        found: set[ColumnKind] = set()
        for table in tables:
            for column in columns:
                found.update(self.column_kinds.get(f"{table}.{column}", ()))
        return tuple(sorted(found))

    def encode_ids(self, table: str, column: Column) -> np.ndarray:
        """Return the embedding rows of ids.

        Args:
            table: Embedding table.
            column: Ids of any type that can hold ids.

        Returns:
            int64 of the same length; 0 where null, 1 where the training window did not hold the id.

        Raises:
            DataError: The column cannot hold ids.
            ConfigError: There is no such table.
        """
        return self._vocabulary(table).rows(canonical_ids(column, table))

    def encode_lists(
        self, table: str, column: Column, separator: str = ""
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the embedding rows of lists of ids.

        Args:
            table: Embedding table.
            column: Lists, or text with `separator` between the ids.
            separator: What stands between the ids of a text.

        Returns:
            int64 rows of all lists together, int64 offsets `(n + 1,)`, and a bool mask `(n,)` of null lists. Null
            elements are left out.

        Raises:
            DataError: The column cannot hold lists of ids.
            ConfigError: There is no such table.
        """
        lists, _ = canonical_lists(column, table, separator)
        offsets, values, missing = list_parts(lists, table, "a list of ids")
        return self._vocabulary(table).rows(values), offsets, missing

    def encode_number(self, name: str, column: Column, cast: bool = False) -> np.ndarray:
        """Return numbers standardised by the training window: `(x - mean) / std`.

        Args:
            name: Name of the feature, or `STREAM.NAME` of an event attribute.
            column: Numbers.
            cast: Read text as numbers.

        Returns:
            float32 of the same length; NaN where missing or unreadable.

        Raises:
            DataError: The column does not hold numbers.
            ConfigError: There is no such number.
        """
        if name not in self.numbers:
            raise ConfigError(f'"{name}" must be a number of the data set{nearest(name, self.numbers)}')
        mean, std = self.numbers[name]
        values, _ = numbers(column, name, cast)
        floats = values.to_numpy(zero_copy_only=False)
        return ((floats - mean) / std).astype(np.float32)

    def encode_vectors(self, name: str, column: Column) -> np.ndarray:
        """Return the vectors of a feature as float32 `(n, size)`; zeros where null or of another size."""
        return vectors(column, name, self.sizes[name])[0]

    def encode_surfaces(self, column: Column) -> np.ndarray:
        """Return int32 surface indices: 0 where null or not seen in the training window."""
        rows = self._surfaces.rows(canonical_ids(column, "surface"))
        return np.maximum(rows - 1, 0).astype(np.int32)

    def read_time(self, column: Column, time: TimeColumn) -> np.ndarray:
        """Return int64 Unix milliseconds UTC; `MISSING_TIME` where null or unreadable."""
        values, _ = read_times(column, time)
        return np.asarray(pc.fill_null(values, MISSING_TIME), dtype=np.int64)

    def _vocabulary(self, table: str) -> Vocabulary:
        if table not in self.vocabularies:
            hint = nearest(table, self.vocabularies)
            raise ConfigError(f'"{table}" must be an embedding table of the data set{hint}')
        return self.vocabularies[table]


def derived_ids(derive: str, time_ms: np.ndarray) -> pa.Array:
    """Return the ids "0" to "23" of the hour, or "0" (Monday) to "6" of the weekday, in UTC.

    Args:
        derive: `hour` or `weekday`.
        time_ms: int64 Unix milliseconds.
    """
    if derive == "hour":
        values = time_ms // 3_600_000 % 24
    elif derive == "weekday":
        values = (time_ms // 86_400_000 + 3) % 7  # 1 January 1970 was a Thursday
    else:
        raise ConfigError(f'derive must be "hour" or "weekday". Received: "{derive}"')
    return pa.array(values, pa.int64()).cast(pa.string())


def _read(path: Path) -> tuple[Vocabulary, np.ndarray]:
    table = pq.read_table(path, columns=["id", "count"]).combine_chunks()
    ids = table.column("id").cast(pa.string())
    return Vocabulary(pa.concat_arrays(ids.chunks or [pa.array([], pa.string())])), table.column(
        "count"
    ).to_numpy()
