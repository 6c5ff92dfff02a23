import numpy as np
import pyarrow as pa
import pytest

from opengem.data import Encoder
from opengem.data import encoder as module
from opengem.data.encoder import Vocabulary, derived_ids
from opengem.errors import ConfigError, DataError
from opengem.schema import MISSING_TIME, TimeColumn


@pytest.fixture
def made():
    return Encoder(
        {"item": Vocabulary(pa.array(["7", "x", "18446744073709551615"]))},
        {"price": (2.0, 0.5), "acts.gap": (0.0, 1.0)},
        ("feed", "reels"),
        {"look": 2},
    )


def test_rows_are_0_for_null_1_for_unseen_then_the_vocabulary(made):
    column = pa.array([7, None, 8], pa.int32())
    assert made.encode_ids("item", column).tolist() == [2, 0, 1]
    assert made.encode_ids("item", pa.array([7.0, float("nan")])).tolist() == [2, 0]
    assert made.encode_ids("item", pa.array([2**64 - 1], pa.uint64())).tolist() == [4]
    assert made.encode_ids("item", pa.array([], pa.string())).tolist() == []
    assert made.table_rows("item") == 5


def test_both_ways_of_looking_up_agree(made, monkeypatch):
    words = [str(k) for k in range(200)]
    big = Vocabulary(pa.array(words[::3]))
    column = pa.array([*words, None, "7", "7"])
    small = big.rows(column)
    monkeypatch.setattr(module, "_SMALL", 0)
    expected = [2 + int(w) // 3 if int(w) % 3 == 0 else 1 for w in words] + [0, 1, 1]
    assert small.tolist() == big.rows(column).tolist() == expected


def test_lists_numbers_vectors_surfaces_and_times(made):
    rows, offsets, missing = made.encode_lists("item", pa.array([["x", "?"], None, [], [None, "7"]]))
    assert rows.tolist() == [3, 1, 2]
    assert offsets.tolist() == [0, 2, 2, 2, 3]
    assert missing.tolist() == [False, True, False, False]
    np.testing.assert_array_equal(
        made.encode_number("price", pa.array([3, None])), np.array([2.0, np.nan], np.float32)
    )
    assert made.encode_vectors("look", pa.array([[1, 2], None])).tolist() == [[1, 2], [0, 0]]
    assert made.encode_surfaces(pa.array(["reels", "other", None, "feed"])).tolist() == [2, 0, 0, 1]
    assert made.read_time(pa.array([5, None]), TimeColumn(column="t")).tolist() == [5, MISSING_TIME]


def test_a_saved_encoder_is_the_same(made, tmp_path):
    (tmp_path / "encoder").mkdir()
    made.save(tmp_path / "encoder")
    for folder in (tmp_path, tmp_path / "encoder"):
        again = Encoder.load(folder)
        assert again.encode_ids("item", pa.array(["x", "y"])).tolist() == [3, 1]
        assert (again.numbers, again.surfaces, again.sizes) == (made.numbers, made.surfaces, made.sizes)


def test_errors_name_what_is_wrong(made, tmp_path):
    with pytest.raises(ConfigError, match=r'did you mean "item"'):
        made.encode_ids("itme", pa.array(["x"]))
    with pytest.raises(ConfigError, match="price"):
        made.encode_number("prices", pa.array([1]))
    with pytest.raises(DataError, match="must hold an encoder"):
        Encoder.load(tmp_path)


def test_hours_and_weekdays_are_utc():
    times = np.array([0, 1_767_225_600_000 + 23 * 3_600_000])  # a Thursday; 2026-01-01T23:00Z, a Thursday
    assert derived_ids("hour", times).to_pylist() == ["0", "23"]
    assert derived_ids("weekday", times).to_pylist() == ["3", "3"]
