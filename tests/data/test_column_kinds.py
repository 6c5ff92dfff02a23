import pyarrow as pa
import pytest

from opengem.data import Encoder, ingest
from opengem.data.column_kinds import column_kind
from tests.serving import raw_logs


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int8(), "integer"),
        (pa.uint64(), "unsigned"),
        (pa.decimal128(38, 0), "decimal"),
        (pa.float32(), "number"),
        (pa.bool_(), "boolean"),
        (pa.large_string(), "text"),
        (pa.binary(), "text"),
        (pa.date32(), "text"),
        (pa.null(), None),
        (pa.dictionary(pa.int8(), pa.int64()), "integer"),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), "text"),
        (pa.list_(pa.int64(), 3), "integer"),
        (pa.large_list_view(pa.uint8()), "unsigned"),
        (pa.list_(pa.null()), None),
    ],
    ids=str,
)
def test_kind_of_a_type(kind, expected):
    assert column_kind(kind) == expected


def test_ingest_records_the_kinds_of_ids_and_numbers(tmp_path):
    schema = raw_logs.write(tmp_path / "logs")
    kinds = Encoder.load(ingest(schema, tmp_path / "data").folder).column_kinds
    assert kinds["impressions.user_id"] == ("integer",)
    assert kinds["ads.ad_id"] == ("unsigned",)
    assert kinds["ads.topics"] == ("text",)
    assert kinds["impressions.click"] == ("boolean",)
    assert kinds["plays.item"] == ("integer",)  # its own column and the ready-made list
    assert kinds["plays.good"] == ("integer",)  # a column of int8, and a list of members
    assert kinds["ads.price"] == ("number",)
    assert kinds["users.age"] == ("text",)  # read with cast
    assert "impressions.at" not in kinds
