"""Vocabularies and statistics know the training window and nothing else."""

import numpy as np
import pytest

from opengem.data import Encoder
from opengem.errors import DataError
from tests.data.logs import DAY, T0, Log, rows


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path)
    log.schema["splits"] = {"train": ["2026-01-01", "2026-01-02"], "test": ["2026-01-03", "2026-01-09"]}
    return log


def test_nothing_of_the_future_is_seen(log):
    train = [{"ad": k, "price": float(k), "ts": T0 + k, "surface": "feed"} for k in (1, 2, 3)]
    later = [
        {"ad": 99, "price": 1000.0, "ts": T0 + 3 * DAY + k, "surface": "new", "click": 1} for k in range(3)
    ]
    log.impressions(*train, *later)
    log.write("ads", rows("ads", *({"ad": a, "category": f"c{a}"} for a in (1, 2, 3, 50, 99))))
    log.events(
        {"item": 5, "ts": T0 - DAY},
        {"item": 6, "ts": T0 + 2 * DAY - 1},
        {"item": 7, "ts": T0 + 2 * DAY},
        {"item": 8, "ts": T0 + 5 * DAY},
    )
    stored = log.ingest()
    assert Encoder.load(stored.folder).numbers["price"] == (2.0, round(np.sqrt(2 / 3), 10))
    assert stored.vocabulary("item") == {"1": 1, "2": 1, "3": 1, "5": 1, "6": 1}
    assert stored.vocabulary("category") == {"c1": 1, "c2": 1, "c3": 1}
    assert stored.rows(stored.column("f_ad")[3:], "item") == [1, 1, 1]
    categories = stored.file("ads.arrow")["f_category"].to_pylist()
    assert stored.rows(categories, "category") == [0, 2, 3, 4, 1, 1]
    assert categories == [0, 2, 3, 4, 5, 6]  # each has a code of its own all the same
    assert stored.column("surface") == [1, 1, 1, 0, 0, 0]
    assert stored.manifest["splits"] == {"train": [0, 3], "validation": [3, 3], "test": [3, 6]}


def test_an_event_that_arrives_late_is_not_seen(log):
    log.schema["tables"]["events"]["arrival"] = "arrived"
    log.impressions({"ts": T0}, {"ts": T0 + 3 * DAY})
    log.events({"item": 5, "arrived": T0}, {"item": 6, "arrived": T0 + 2 * DAY})
    assert log.ingest().vocabulary("item") == {"1": 1, "5": 1}


def test_limits_rare_and_missing_are_counted_apart(log):
    ids = [1, None, 3, 4, 3] * 5 + [1] * 5
    log.impressions(*({"ad": a} for a in ids), {"ts": T0 + 3 * DAY})
    log.schema["vocabularies"] = {"item": {"limit": 2}}
    stored = log.ingest()
    assert stored.vocabulary("item") == {"1": 10, "3": 10}
    expected = {"ids": 2, "seen": 20, "rare_ids": 1, "rare": 5, "missing": 5}
    assert stored.manifest["vocabularies"]["item"] == expected
    assert sorted(stored.rows(stored.column("f_ad")[:-1], "item")) == [0] * 5 + [1] * 5 + [2] * 10 + [3] * 10
    log.schema["vocabularies"] = {"item": {"min_count": 6}}
    assert log.ingest().vocabulary("item") == {"1": 10, "3": 10}


def test_numbers_are_weighted_by_the_examples_that_read_them(log):
    log.schema["features"]["bid"] = {"owner": "ad", "kind": "number"}
    log.write("ads", rows("ads", {"ad": 1, "bid": 1.0}, {"ad": 2, "bid": 4.0}, {"ad": 3, "bid": 100.0}))
    log.impressions({"ad": 1}, {"ad": 1}, {"ad": 2}, {"ad": 9}, {"ad": 3, "ts": T0 + 3 * DAY})
    stored = log.ingest()
    assert Encoder.load(stored.folder).numbers["bid"] == (2.0, round(float(np.std([1, 1, 4])), 9))
    bids = stored.file("ads.arrow")["f_bid"].to_pylist()
    assert np.isnan(bids[0])
    np.testing.assert_allclose(bids[1:], (np.array([1, 4, 100]) - 2) / np.std([1, 1, 4]), rtol=1e-6)


def test_a_constant_and_an_empty_number(log):
    log.schema["features"]["none"] = {"owner": "context", "kind": "number", "optional": True}
    log.impressions({"price": 7.5}, {"price": 7.5}, {"ts": T0 + 3 * DAY})
    assert Encoder.load(log.ingest().folder).numbers == {"price": (7.5, 1.0), "none": (0.0, 1.0)}


def test_attributes_come_from_the_events_or_the_ads(log):
    log.schema["streams"]["acts"]["attributes"] = [
        "item",
        "category",
        {"name": "ad_id", "column": "ad", "table": "item"},
        {"name": "gap", "kind": "number"},
        {"name": "tags", "separator": ",", "table": "tag"},
    ]
    log.write("ads", rows("ads", {"ad": 1, "category": "x"}, {"ad": 2, "category": "y"}))
    events = [(2, 1.0, "b,a"), (9, 3.0, ""), (1, None, "a")]
    log.events(*({"item": i, "gap": g, "tags": t, "ts": T0 - 9 + k} for k, (i, g, t) in enumerate(events)))
    log.impressions({}, {"ts": T0 + 3 * DAY})
    stored = log.ingest()
    found = stored.histories(
        "acts", ("item", "item"), ("category", "category"), ("ad_id", "item"), ("tags", "tag")
    )
    assert [e[1:] for e in found[0]] == [("2", "y", "2", "b"), ("9", None, "9", None), ("1", "x", "1", "a")]
    gaps = stored.file("sequences/acts/bucket-00000.arrow")["a_gap"].to_pylist()
    assert gaps[:2] == [-1.0, 1.0]
    assert np.isnan(gaps[2])


def test_vectors_and_lists_of_ads(log):
    log.schema["features"] |= {
        "look": {"owner": "ad", "kind": "vector"},
        "tags": {"owner": "ad", "kind": "ids", "separator": ","},
    }
    log.write(
        "ads",
        rows(
            "ads",
            {"ad": 1, "look": [1.0, 2.0], "tags": "b,a"},
            {"ad": 2, "look": None, "tags": None},
            {"ad": 3, "look": [1.0], "tags": ""},
        ),
    )
    log.impressions({"ad": 1}, {"ad": 2}, {"ad": 3}, {"ts": T0 + 3 * DAY})
    stored = log.ingest()
    ads = stored.file("ads.arrow")
    assert ads["f_look"].to_pylist() == [[0, 0], [1, 2], [0, 0]]
    assert [stored.words("tags")[k] for k in ads["f_tags"][1].as_py()] == ["b", "a"]
    assert ads["f_tags"].to_pylist()[::2] == [None, None]
    assert stored.column("ad_row")[:3] == [1, 2, 0]
    assert stored.manifest["rows"]["quarantined"] == {"ads: vector look is not 2 numbers": 1}


def test_splits_by_column_keep_requests_whole_and_the_future_out(log):
    log.schema["splits"] = {"column": "day", "train": [1], "validation": [2], "test": [3]}
    log.schema["tables"]["impressions"]["id"] = "id"
    given = [(0, 1, 5), (1, 1, 9), (2, 2, 7), (3, 2, 11), (4, 3, 10), (5, 8, 1), (6, 3, 30)]
    log.impressions(*({"id": i, "day": d, "ad": i, "ts": T0 + t} for i, d, t in given))
    log.events(*({"item": 20 + t, "ts": T0 + t} for t in (9, 10)))
    stored = log.ingest()
    assert stored.manifest["splits"] == {"train": [1, 3], "validation": [3, 5], "test": [5, 7]}
    assert stored.column("example_id") == [5, 0, 1, 2, 3, 4, 6]
    assert stored.manifest["train_end"] == T0 + 10
    assert stored.vocabulary("item") == {"0": 1, "1": 1, "29": 1}
    log.impressions(*({"id": i, "day": d, "ts": T0 + t} for i, d, t in [*given, (7, 1, 40)]))
    with pytest.raises(DataError, match=r"splits\.train must end before splits\.test"):
        log.ingest()
