"""Ids of the work database as embedding rows, by a join: many at once, unlike `Encoder.encode_ids`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from opengem.data.encoder import FIRST_ROW, Encoder
from opengem.schema.inputs import PADDING_ROW, UNSEEN_ROW


@contextmanager
def vocabularies(con: Any, encoder: Encoder, tables: Iterable[str]) -> Iterator[None]:
    """Make `v_TABLE` (id, row) of each embedding table for a while."""
    names = sorted(set(tables))
    for table in names:
        ids = encoder.vocabularies[table].ids
        rows = pa.array(np.arange(FIRST_ROW, FIRST_ROW + len(ids)), pa.int32())
        con.register(f"v_{table}", pa.table({"id": ids, "row": rows}))
    try:
        yield
    finally:
        for table in names:
            con.unregister(f"v_{table}")


def row_of(table: str, value: str, alias: str) -> tuple[str, str]:
    """Return SQL that joins `v_TABLE` to an id as `alias`, and SQL of its row: 0 where null, 1 where unseen."""
    missing = f"CASE WHEN {value} IS NULL THEN {PADDING_ROW} ELSE {UNSEEN_ROW} END"
    return (
        f' LEFT JOIN "v_{table}" {alias} ON {alias}.id = {value}',
        f"coalesce({alias}.row, {missing})::INTEGER",
    )
