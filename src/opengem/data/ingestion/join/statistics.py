"""Vocabularies and number statistics, from the training window alone."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from opengem.data.dictionary import WINDOW
from opengem.data.encoder import Encoder, Vocabulary
from opengem.data.ingestion.join.ids import source_of
from opengem.data.ingestion.read.plan import Plan
from opengem.data.ingestion.work_database import one_row
from opengem.schema.words import Schema
from opengem.schema.words import Vocabulary as VocabularyWords

_DIGITS = 10  # sums over threads differ in their last digits; what is kept does not


def make_encoder(
    con: Any, schema: Schema, plan: Plan, train_end: int, sizes: dict[str, int], tables: Sequence[str]
) -> tuple[Encoder, dict[str, dict[str, int]]]:
    """Return the encoder, and for each embedding table what its vocabulary holds.

    An id is counted once for each training example that reads it, and once for each event that was available before
    the end of the training window. Means and standard deviations (of the population) are over the same rows.

    Args:
        con: Connection of the work database, with `read`, `users`, `ads`, `s_STREAM` and `seen_TABLE`.
        schema: The schema.
        plan: Where features are found.
        train_end: End of the training window in Unix ms.
        sizes: Vector feature -> its length.
        tables: The embedding tables.

    Returns:
        The encoder; table -> `ids` kept, `seen` readings of them, `rare_ids` and `rare` readings below the limits,
        `missing` readings that were null.
    """
    vocabularies: dict[str, Vocabulary] = {}
    counts: dict[str, np.ndarray] = {}
    report: dict[str, dict[str, int]] = {}
    for table in tables:
        words = schema.vocabularies.get(table, VocabularyWords())
        vocabularies[table], counts[table], report[table] = _vocabulary(con, table, words)
    numbers = {
        name: _mean_and_std(con, query) for name, query in _number_queries(schema, plan, train_end).items()
    }
    surfaces: tuple[str, ...] = ()
    if schema.impressions.surface:
        found = con.execute(f"SELECT DISTINCT surface FROM read WHERE day = {WINDOW} ORDER BY 1").fetchall()
        surfaces = tuple(name for (name,) in found)
    return Encoder(vocabularies, numbers, surfaces, sizes, counts), report


def _vocabulary(
    con: Any, table: str, words: VocabularyWords
) -> tuple[Vocabulary, np.ndarray, dict[str, int]]:
    window = f'(SELECT id, n FROM "seen_{table}" WHERE day = {WINDOW})'
    limit = f" LIMIT {words.limit}" if words.limit else ""
    kept = con.sql(
        f"SELECT id, n FROM {window} WHERE id IS NOT NULL AND n >= {words.min_count} ORDER BY n DESC, id{limit}"
    ).to_arrow_table()
    ids, total, missing = one_row(
        con,
        "SELECT count(id), coalesce(sum(n) FILTER (id IS NOT NULL), 0), coalesce(sum(n) FILTER (id IS NULL), 0) "
        f"FROM {window}",
    )
    counts = kept.column("n").to_numpy().astype(np.int64)
    seen = int(counts.sum())
    report = {
        "ids": len(counts),
        "seen": seen,
        "rare_ids": ids - len(counts),
        "rare": int(total) - seen,
        "missing": int(missing),
    }
    column = kept.column("id").cast(pa.string())
    return (
        Vocabulary(pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())),
        counts,
        report,
    )


def _number_queries(schema: Schema, plan: Plan, train_end: int) -> dict[str, str]:
    queries = {
        f.name: f"SELECT value, n FROM ({source_of(f, plan)}) WHERE day = {WINDOW}"
        for f in schema.features
        if f.kind == "number"
    }
    for stream in schema.streams:
        for attribute in stream.attributes:
            if attribute.kind == "number":
                name = f"{stream.name}.{attribute.name}"
                queries[name] = (
                    f'SELECT "a_{name}" AS value, 1 AS n FROM "s_{stream.name}" WHERE available < {train_end}'
                )
    return queries


def _mean_and_std(con: Any, query: str) -> tuple[float, float]:
    """Return mean and population standard deviation; (0, 1) where there is no value, std 1 where all are equal."""
    known = f"({query}) WHERE value IS NOT NULL"
    n, total = one_row(con, f"SELECT sum(n), fsum(value * n) FROM {known}")
    if not n:
        return 0.0, 1.0
    mean = total / float(n)
    (squares,) = one_row(con, f"SELECT fsum((value - ?) * (value - ?) * n) FROM {known}", [mean, mean])
    std = math.sqrt(squares / float(n))
    if std <= 1e-12 * max(1.0, abs(mean)):
        std = 1.0
    return _rounded(mean), _rounded(std)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
