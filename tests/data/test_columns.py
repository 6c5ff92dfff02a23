import decimal
import uuid

import numpy as np
import pyarrow as pa
import pytest

from opengem.data.columns import canonical_ids, canonical_lists, labels, numbers, vectors
from opengem.errors import DataError

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID.bytes, None, UUID.bytes], pa.binary(16)))
TEXT = pa.array(["a", "b", "a", None])


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([5, None], pa.int8()), ["5", None]),
        (pa.array([2**64 - 1, 2**63], pa.uint64()), ["18446744073709551615", "9223372036854775808"]),
        (pa.array([9007199254740993, None]), ["9007199254740993", None]),
        (pa.array([5.0, -0.0, float("nan"), 5.5, 2.0**53 - 1]), ["5", "0", None, "5.5", "9007199254740991"]),
        (pa.array([5.0, 16777215.0, None], pa.float32()), ["5", "16777215", None]),
        (UUIDS, [str(UUID), None, str(UUID)]),
        (UUIDS[1:], [None, str(UUID)]),
        (pa.array([decimal.Decimal("5.00"), decimal.Decimal("10.50")]), ["5", "10.5"]),
        (
            pa.array([decimal.Decimal("12345678901234567890123456789012345679")], pa.decimal128(38, 0)),
            ["12345678901234567890123456789012345679"],
        ),
        (pa.array(["05", "5", " 5"], pa.large_string()), ["05", "5", " 5"]),
        (pa.array([True, False]), ["1", "0"]),
        (pa.array([b"x", None]), ["x", None]),
        (pa.nulls(2), [None, None]),
        (TEXT.dictionary_encode(), ["a", "b", "a", None]),
        (
            pa.chunked_array([TEXT.dictionary_encode(), pa.array(["b", "c"]).dictionary_encode()]),
            ["a", "b", "a", None, "b", "c"],
        ),
        (
            pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["x", "y", "x"])),
            ["x", "y", "x"],
        ),
    ],
)
def test_one_id_has_one_spelling(column, expected):
    assert canonical_ids(column).to_pylist() == expected


def test_types_that_cannot_be_ids_are_named():
    with pytest.raises(DataError, match=r'"tags".*Received: list'):
        canonical_ids(pa.array([[1]]), "tags")
    with pytest.raises(DataError, match="UTF-8"):
        canonical_ids(pa.array([b"\xff"]))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2.0**53, pa.float64()),
        (-(2.0**60), pa.float64()),
        (float("inf"), pa.float64()),
        (2.0**24, pa.float32()),
    ],
)
def test_floats_too_large_to_be_ids_are_refused(value, kind):
    with pytest.raises(
        DataError, match=r'"user" must hold ids below 2\^.*\n  fix: write the ids as integers'
    ):
        canonical_ids(pa.array([1.0, None, value], kind), "user")


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.list_(pa.field("array", pa.string(), nullable=True)),
        pa.large_list(pa.large_string()),
        pa.list_(pa.string(), 2),
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
        pa.list_view(pa.string()),
    ],
)
def test_lists_of_every_spelling(kind):
    column = pa.array([["x", "y"], None, [None, "z"], ["a", "a"]], kind)
    for start in (0, 1):  # also when the array is a slice of another
        lists, dropped = canonical_lists(column[start:])
        assert lists.to_pylist() == [["x", "y"], None, ["z"], ["a", "a"]][start:]
        assert dropped == 1


def test_null_empty_and_null_inside():
    lists, dropped = canonical_lists(pa.array([[11, 12], None, [], [None], [15, None, 16], [17]]))
    assert lists.to_pylist() == [["11", "12"], None, [], [], ["15", "16"], ["17"]]
    assert dropped == 2


def test_text_with_a_separator():
    lists, _ = canonical_lists(pa.array(["1,2", "", None, " 3 ,,4"]), separator=",")
    assert lists.to_pylist() == [["1", "2"], [], None, ["3", "4"]]


def test_numbers():
    values, bad = numbers(pa.array([1.5, None, float("nan"), float("inf")]))
    assert values.to_pylist() == [1.5, None, None, None]
    assert bad.tolist() == [False, False, False, True]
    assert numbers(pa.array([decimal.Decimal("19.99")]))[0].to_pylist() == [19.99]
    with pytest.raises(DataError, match=r'"price".*Received: string'):
        numbers(pa.array(["4.5"]), "price")
    values, bad = numbers(pa.array(["4.5", "n/a", None, " 6 "]), cast=True)
    assert values.to_pylist() == [4.5, None, None, 6.0]
    assert bad.tolist() == [False, True, False, False]


def test_labels_are_0_1_or_missing():
    values, bad = labels(pa.array([0, 1, -1, 2, 0.5, float("nan"), None, float("inf")]))
    assert values.to_pylist() == [0.0, 1.0, None, None, None, None, None, None]
    assert bad.tolist() == [False, False, True, True, True, False, False, True]
    assert labels(pa.array([True, False]))[0].to_pylist() == [1.0, 0.0]


def test_vectors():
    matrix, bad = vectors(pa.array([[1, 2], None, [3], [4, float("inf")], [5.5, None], []]))
    np.testing.assert_array_equal(
        matrix, np.array([[1, 2], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0]], np.float32)
    )
    assert bad.tolist() == [False, False, True, True, True, True]
    assert vectors(pa.array([[1.0, 2.0, 3.0]]), size=2)[1].tolist() == [True]
