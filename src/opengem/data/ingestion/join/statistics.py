"""Vocabularies and number statistics, from the training window alone."""

import math
from typing import Any

import numpy as np
import pyarrow as pa

from opengem.data.encoder import Encoder, Vocabulary
from opengem.data.ingestion.join.examples import training
from opengem.data.ingestion.read.plan import Plan
from opengem.data.ingestion.work_database import one_row
from opengem.schema.words import Feature, Schema
from opengem.schema.words import Vocabulary as VocabularyWords

_DIGITS = 10  # sums over threads differ in their last digits; what is kept does not


def make_encoder(
    con: Any, schema: Schema, plan: Plan, train_end: int, sizes: dict[str, int]
) -> tuple[Encoder, dict[str, dict[str, int]]]:
    """Return the encoder, and for each embedding table what its vocabulary holds.

    An id is counted once for each training example that reads it, and once for each event that was available before
    the end of the training window. Means and standard deviations (of the population) are over the same rows.

    Args:
        con: Connection of the work database, with `examples`, `users`, `ads` and `s_STREAM`.
        schema: The schema.
        plan: Where features are found.
        train_end: End of the training window in Unix ms.
        sizes: Vector feature -> its length.

    Returns:
        The encoder; table -> `ids` kept, `seen` readings of them, `rare_ids` and `rare` readings below the limits,
        `missing` readings that were null.
    """
    con.execute(f"CREATE VIEW train AS SELECT * FROM examples WHERE {training(schema)}")
    vocabularies: dict[str, Vocabulary] = {}
    counts: dict[str, np.ndarray] = {}
    report: dict[str, dict[str, int]] = {}
    for table, queries in _readings(schema, plan, train_end).items():
        words = schema.vocabularies.get(table, VocabularyWords())
        vocabularies[table], counts[table], report[table] = _vocabulary(con, queries, words)
    numbers = {
        name: _mean_and_std(con, query) for name, query in _number_queries(schema, plan, train_end).items()
    }
    surfaces: tuple[str, ...] = ()
    if schema.impressions.surface:
        found = con.execute("SELECT DISTINCT surface FROM train ORDER BY surface").fetchall()
        surfaces = tuple(name for (name,) in found)
    con.execute("DROP VIEW train")
    return Encoder(vocabularies, numbers, surfaces, sizes, counts), report


def derived_sql(feature: Feature, time: str) -> str:
    """Return the SQL of an id that is derived from a time, as `encoder.derived_ids` does."""
    if feature.derive == "hour":
        return f"CAST(({time} // 3600000) % 24 AS VARCHAR)"
    return f"CAST(({time} // 86400000 + 3) % 7 AS VARCHAR)"


def _source_of(feature: Feature, plan: Plan) -> str:
    """Return SQL for (value, n) of a feature over the training examples."""
    if feature.derive:
        return f"SELECT {derived_sql(feature, 'time')} AS value, count(*) AS n FROM train GROUP BY 1"
    column = f'"f_{feature.name}"'
    place = plan.place[feature.name]
    if place == "impressions":
        return f"SELECT {column} AS value, 1 AS n FROM train"
    row = {"users": "user_row", "ads": "ad_row"}[place]
    return (
        f"SELECT x.{column} AS value, t.n FROM (SELECT {row} AS row, count(*) AS n FROM train GROUP BY 1) t "
        f"LEFT JOIN {place} x ON x.row = t.row"
    )


def _readings(schema: Schema, plan: Plan, train_end: int) -> dict[str, list[str]]:
    """Return for each embedding table SQL of (id, n), in the order in which the schema names the tables."""
    readings: dict[str, list[str]] = {}
    for feature in schema.features:
        source = _source_of(feature, plan)
        if feature.kind == "id":
            query = f"SELECT value AS id, n FROM ({source})"
        elif feature.kind == "ids":
            query = (
                f"SELECT unnest(value) AS id, n FROM ({source}) WHERE value IS NOT NULL "
                f"UNION ALL SELECT NULL, n FROM ({source}) WHERE value IS NULL"
            )
        else:
            continue
        readings.setdefault(feature.table, []).append(query)
    for stream in schema.streams:
        for attribute in stream.attributes:
            if attribute.kind == "id":
                readings.setdefault(attribute.table, []).append(
                    f'SELECT "a_{stream.name}.{attribute.name}" AS id, 1 AS n FROM "s_{stream.name}" '
                    f"WHERE available < {train_end}"
                )
    return readings


def _vocabulary(
    con: Any, queries: list[str], words: VocabularyWords
) -> tuple[Vocabulary, np.ndarray, dict[str, int]]:
    union = " UNION ALL ".join(f"({q})" for q in queries)
    con.execute(f"CREATE TABLE seen AS SELECT id, sum(n)::BIGINT AS n FROM ({union}) GROUP BY id")
    limit = f" LIMIT {words.limit}" if words.limit else ""
    kept = con.sql(
        f"SELECT id, n FROM seen WHERE id IS NOT NULL AND n >= {words.min_count} ORDER BY n DESC, id{limit}"
    ).to_arrow_table()
    ids, total, missing = one_row(
        con,
        "SELECT count(id), coalesce(sum(n) FILTER (id IS NOT NULL), 0), coalesce(sum(n) FILTER (id IS NULL), 0) "
        "FROM seen",
    )
    con.execute("DROP TABLE seen")
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
    queries = {f.name: _source_of(f, plan) for f in schema.features if f.kind == "number"}
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
