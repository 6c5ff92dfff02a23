"""Files as they come: types that drift, lists of many spellings, dictionaries, folders, encodings."""

import decimal
import uuid

import pyarrow as pa
import pytest

from opengem.data import Encoder
from opengem.errors import DataError
from tests.data.logs import Log, rows

BIG = [18165473391510152529, 2**64 - 1, 2**63, 2**63 - 1, 1, 1]


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def test_ids_above_2_to_the_53_beside_nulls(log):
    users = [9007199254740992, 9007199254740993, None, 9007199254740994]
    log.impressions(*({"user": u, "ts": 1_767_225_700_000} for u in users), user=pa.int64())
    log.events(
        *({"user": u, "item": i} for u, i in zip(users[:3], [11, 22, 33], strict=True)), user=pa.int64()
    )
    stored = log.ingest()
    assert stored.column("user_key") == ["9007199254740992", "9007199254740993", "9007199254740994"]
    assert stored.items() == [["11"], ["22"], []]
    assert stored.manifest["rows"]["quarantined"] == {
        "events: null key user": 1,
        "impressions: null key user": 1,
    }


def test_unsigned_and_decimal_ids_keep_every_digit(log):
    log.impressions(*({"ad": a} for a in BIG), ad=pa.uint64())
    assert log.ingest().vocabulary("item") == {str(b): BIG.count(b) for b in BIG}
    digits = "1234567890123456789012345678901234567"
    ids = [decimal.Decimal(digits + d) for d in "8989"]
    log.impressions(*({"ad": a} for a in ids), ad=pa.decimal128(38, 0))
    assert log.ingest().vocabulary("item") == {digits + "8": 2, digits + "9": 2}


def test_example_ids_as_decimals_keep_every_digit(log):
    log.schema["tables"]["impressions"]["id"] = "id"
    ids = [decimal.Decimal(i) for i in (2**53 + 1, -(2**63), 2**63, 7)]
    log.impressions(*({"id": i} for i in ids), id=pa.decimal128(38, 0))
    stored = log.ingest()
    assert sorted(stored.column("example_id")) == [-(2**63), 7, 2**53 + 1]
    assert stored.manifest["rows"]["quarantined"] == {
        "impressions: key id is not a whole number of 64 bits": 1
    }


def test_uuids_are_text_whether_as_their_type_or_as_text(log):
    users = [uuid.UUID(int=k) for k in (1, 2, 3)]
    as_uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([u.bytes for u in users], pa.binary(16)))
    table = rows("impressions", {}, {}, {})
    log.write("impressions", table.set_column(0, "user", as_uuids))
    log.events(*({"user": str(u), "item": k, "ts": 1_767_225_500_000} for k, u in enumerate(users)))
    stored = log.ingest()
    assert sorted(stored.column("user_key")) == [str(u) for u in users]
    assert sorted(stored.items()) == [["0"], ["1"], ["2"]]


def test_a_float_column_of_ids_that_lost_their_digits_is_refused(log):
    log.impressions({"user": 2.0**53}, {"user": None}, user=pa.float64())
    with pytest.raises(DataError, match=r'part-0\.parquet .*"user" must hold ids below 2\^53'):
        log.ingest()


def test_a_glob_of_folders(log):
    log.schema["tables"]["impressions"]["path"] = "impressions/day=*/log.parquet"
    log.impressions({}, part="day=1/log.parquet/part-0")
    log.impressions({}, {}, part="day=2/log")
    log.impressions({}, {}, {}, part="day=1/log.parquet/_temporary/part-0")
    assert len(log.ingest().column("time")) == 3


def test_a_vector_with_a_missing_element_is_quarantined(log):
    log.schema["features"]["look"] = {"owner": "context", "kind": "vector"}
    log.impressions(
        {"look": [1.0, 2.0]}, {"look": [3.0, None]}, {"look": None}, {"look": [float("nan"), 1.0]}
    )
    stored = log.ingest()
    assert stored.column("f_look") == [[1.0, 2.0], [0.0, 0.0]]
    assert stored.manifest["rows"]["quarantined"] == {"impressions: vector look is not 2 numbers": 2}


def test_types_that_drift_from_file_to_file(log):
    log.schema["tables"]["impressions"]["id"] = "id"
    log.schema["features"]["price"]["optional"] = True
    log.impressions(*({"id": k, "price": k} for k in (1, 2, 3)), part="a")
    log.impressions(*({"id": 10 + k, "price": p} for k, p in enumerate((4.5, 5.5, None))), part="b")
    log.write("impressions", rows("impressions", {"id": 20}).drop_columns(["price"]), "c")
    stored = log.ingest()
    mean, std = Encoder.load(stored.folder).numbers["price"]
    prices = [None if x != x else round(x * std + mean, 5) for x in stored.column("f_price")]
    assert prices == [1, 2, 3, 4.5, 5.5, None, None]
    del log.schema["features"]["price"]["optional"]
    with pytest.raises(DataError, match=r'c\.parquet must hold column "price"'):
        log.ingest()


def test_text_for_a_number(log):
    log.impressions({"price": 1.0}, part="a")
    log.impressions({"price": "4.5"}, {"price": "n/a"}, part="b")
    with pytest.raises(DataError, match=r'b\.parquet.*"price" must hold numbers\. Received: string'):
        log.ingest()
    log.schema["features"]["price"]["cast"] = True
    stored = log.ingest()
    assert stored.manifest["rows"]["quarantined"] == {
        "impressions: number price is infinite or unreadable": 1
    }
    assert '"price": "n/a"' in stored.quarantine()[0]["content"]


def test_a_column_that_is_null_in_one_file_in_either_order(log):
    log.schema["tables"]["impressions"]["id"] = "id"
    log.schema["features"]["tags"] = {"owner": "context", "kind": "ids"}
    found = []
    for names in ("ab", "ba"):
        log.folder = log.folder / names
        log.write("users", rows("users", {}))
        log.write("ads", rows("ads", {}))
        log.events({})
        log.impressions({"id": 1, "tags": None}, {"id": 2, "tags": None}, part=names[0])
        log.impressions({"id": 3, "tags": ["x", "y"]}, {"id": 4, "tags": []}, part=names[1])
        found.append(log.ingest())
    for stored in found:
        assert stored.column("f_tags") == [None, None, [2, 3], []]
        assert stored.manifest["vocabularies"]["tags"]["missing"] == 2
    assert found[0].manifest["data_fingerprint"] == found[1].manifest["data_fingerprint"]


def test_one_table_stored_in_many_ways_is_one_data_set(log):
    log.schema["features"]["tags"] = {"owner": "context", "kind": "ids"}
    table = rows(
        "impressions",
        *(
            {"ad": 2**63 - 1 - k % 5, "ts": 1_767_225_600_000 + k, "tags": [f"t{k % 3}", None]}
            for k in range(60)
        ),
    )
    spellings = {
        "plain": table,
        "large": table.set_column(6, "tags", table["tags"].cast(pa.large_list(pa.large_string()))),
        "fixed": table.set_column(6, "tags", table["tags"].cast(pa.list_(pa.string(), 2))),
        "surface": table.set_column(2, "surface", table["surface"].dictionary_encode()),
    }
    options = {
        "plain": {},
        "large": {"use_dictionary": False, "data_page_version": "2.0"},
        "fixed": {"row_group_size": 7, "write_statistics": False},
        "surface": {"compression": "zstd"},
    }
    assert table.column_names[2] == "surface"
    assert table.column_names[6] == "tags"
    found = set()
    for name, spelling in spellings.items():
        log.write("impressions", spelling, **options[name])
        stored = log.ingest()
        found.add(stored.manifest["data_fingerprint"])
        assert stored.manifest["null_elements"] == {"impressions: tags": 60}
    assert len(found) == 1


def test_dictionaries_that_number_the_same_words_differently(log):
    for part, words in (("a", ["reels", "feed"]), ("b", ["feed", "reels"])):
        codes = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1]), pa.array(words))
        table = rows("impressions", {}, {}, {})
        log.write("impressions", table.set_column(2, "surface", codes), part)
    stored = log.ingest()
    assert sorted(stored.column("surface")) == [1, 1, 1, 2, 2, 2]


def test_folders_are_text(log):
    log.schema["features"]["campaign"] = {"owner": "context", "kind": "id"}
    for folder in ("007", "7", "a%20b"):
        log.impressions({}, {}, part=f"campaign={folder}/part-0")
    assert log.ingest().vocabulary("campaign") == {"007": 2, "7": 2, "a b": 2}
    log.schema["features"]["campaign"]["kind"] = "number"
    with pytest.raises(DataError, match=r'"campaign" must hold numbers'):
        log.ingest()


def test_a_missing_column_names_the_nearest(log):
    log.impressions({})
    log.schema["features"]["prise"] = {"owner": "context", "kind": "number"}
    with pytest.raises(DataError, match=r'features\.prise reads column "prise".*did you mean "price"'):
        log.ingest()


def test_a_broken_file_is_named_with_its_row_group_and_column(log):
    log.impressions({})
    table = rows("events", *({"item": k} for k in range(4000)))
    path = log.write("events", table, use_dictionary=False, row_group_size=2000, compression="none")
    whole = path.read_bytes()
    import pyarrow.parquet as pq

    start = pq.ParquetFile(path).metadata.row_group(1).column(1).data_page_offset
    path.write_bytes(whole[:start] + b"\xff" * 64 + whole[start + 64 :])
    with pytest.raises(DataError, match=r'part-0\.parquet.*column "item" of row group 1'):
        log.ingest()
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"part-0\.parquet must be a whole Parquet file"):
        log.ingest()
    path.unlink()
    with pytest.raises(DataError, match=r"tables\.events\.path"):
        log.ingest()


def test_a_unit_that_cannot_be_right_is_refused(log):
    log.impressions({"ts": 1_767_225_600})
    with pytest.raises(DataError, match=r'tables\.impressions\.time.*unit "ms"'):
        log.ingest()
    log.schema["tables"]["impressions"]["time"] = {"column": "ts", "unit": "s"}
    assert log.ingest().column("time") == [1_767_225_600_000]
