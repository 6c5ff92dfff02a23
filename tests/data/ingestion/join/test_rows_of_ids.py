"""Rows of ids by a join are those that serving looks up one by one."""

import pyarrow as pa
import pytest

from opengem.data.encoder import Encoder, Vocabulary
from opengem.data.ingestion.join.rows_of_ids import row_of, vocabularies
from opengem.data.ingestion.work_database import open_work_database

IDS = ["b", "a", "", " a", "A", "7", "07", "\u00e9", "e\u0301", "'", "x\ty"]


@pytest.fixture
def con(tmp_path):
    with open_work_database(tmp_path, 1, "100MB", None) as con:
        yield con


def test_the_join_gives_the_rows_of_the_encoder(con):
    encoder = Encoder({"item": Vocabulary(pa.array(IDS, pa.string()))}, {})
    given = pa.array([*reversed(IDS), None, "unseen", "a ", "a", "a", None])
    con.register("given", pa.table({"id": given, "place": range(len(given))}))
    join, row = row_of("item", "g.id", "v")
    with vocabularies(con, encoder, ["item", "item"]):
        found = con.sql(f"SELECT {row} AS row FROM given g{join} ORDER BY place").fetchnumpy()["row"].tolist()
    by_hand = {word: number for number, word in enumerate(IDS, 2)} | {None: 0}
    assert found == [by_hand.get(word, 1) for word in given.to_pylist()]
    assert found == encoder.encode_ids("item", pa.chunked_array([given])).tolist()
    assert not con.sql("SELECT * FROM duckdb_views() WHERE view_name = 'v_item'").fetchall()
