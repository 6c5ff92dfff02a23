"""Which rows count: copies, repeated keys, faults, ranges of time; nothing is dropped in silence."""

import json

import pyarrow as pa
import pytest

from opengem.errors import DataError
from tests.data.logs import DAY, T0, Log, rows


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def _balance(stored, table):
    counts = stored.manifest["rows"]
    bad = sum(n for reason, n in counts["quarantined"].items() if reason.startswith(f"{table}:"))
    return counts["read"][table] == counts["kept"][table] + bad + counts["copies"][table]


def test_an_id_twice_alike_and_twice_differently(log):
    log.schema["tables"]["impressions"]["id"] = "id"
    log.impressions(
        {"id": 1, "click": 1}, {"id": 1, "click": 1}, {"id": 2, "click": 0}, {"id": 2, "click": 1}, {"id": 3}
    )
    stored = log.ingest()
    assert stored.column("example_id") == [1, 3]
    assert stored.manifest["rows"]["quarantined"] == {"impressions: id repeated with different content": 2}
    assert stored.manifest["rows"]["copies"]["impressions"] == 1
    assert [q["row"] for q in stored.quarantine()] == [2, 3]
    assert _balance(stored, "impressions")


def test_copies_are_dropped_only_where_the_schema_says_so(log):
    log.impressions({"note": "a"}, {"note": "a"}, {"note": "b"}, {"note": None}, {"note": None})
    assert len(log.ingest().column("time")) == 5
    log.schema["tables"]["impressions"]["deduplicate"] = True
    stored = log.ingest()  # `note` is read by nothing, and yet it tells rows apart
    assert len(stored.column("time")) == 3
    assert stored.manifest["rows"]["deduplicated"] == 2
    assert _balance(stored, "impressions")


def test_faulty_rows_are_quarantined_with_what_they_held(log):
    log.impressions(
        {"click": 0},
        {"click": -1},
        {"click": 2},
        {"click": 0.5},
        {"click": float("inf")},
        {"click": float("nan")},
        {"click": None},
        {"click": 1, "surface": None},
        {"click": 1, "ts": None},
        {"click": 1, "user": None, "price": float("inf")},
        {"click": 1},
        click=pa.float64(),
    )
    stored = log.ingest()
    assert stored.manifest["rows"]["quarantined"] == {
        "impressions: label click is not 0, 1 or null": 4,
        "impressions: null key user": 1,
        "impressions: null surface surface": 1,
        "impressions: null time ts": 1,
    }
    assert stored.manifest["labels"]["click"] == {
        "labelled": 2,
        "positives": 1,
        "other_surfaces": 0,
        "missing": 2,
        "train_labelled": 2,
        "train_positives": 1,
    }
    found = {q["row"]: json.loads(q["content"]) for q in stored.quarantine()}
    assert [found[k]["click"] for k in (1, 2, 3, 4)] == [-1.0, 2.0, 0.5, "inf"]
    assert all(q["file"] == "impressions/part-0.parquet" for q in stored.quarantine())
    assert _balance(stored, "impressions")


def test_rows_of_users_and_ads_are_known_by_key(log):
    log.impressions({"user": 1, "ad": 1}, {"user": 2, "ad": 2}, {"user": 3, "ad": 3})
    log.write(
        "ads", rows("ads", {"ad": 1}, {"ad": 1}, {"ad": 2, "category": "x"}, {"ad": 2, "category": "y"})
    )
    users = rows(
        "users", {"user": 1, "at": T0 - 5}, {"user": 1, "country": "XX", "at": None}, {"user": 2, "at": T0}
    )
    log.write("users", pa.concat_tables([users, rows("users", {"user": None, "at": T0}, user=pa.int64())]))
    log.schema["tables"]["users"]["time"] = "at"
    stored = log.ingest()
    assert stored.manifest["rows"]["quarantined"] == {
        "ads: ad repeated with different content": 2,
        "users: null key user": 1,
        "users: null time at": 1,
    }
    assert stored.manifest["rows"]["copies"]["ads"] == 1
    assert stored.column("ad_row") == [1, 0, 0]
    assert stored.file("requests.arrow")["user_row"].to_pylist() == [1, 2, 0]


def test_where_and_span(log):
    log.schema["tables"]["impressions"]["where"] = {"surface": ["feed"], "user": [1, 2]}
    log.schema["tables"]["impressions"]["span"] = ["2026-01-01", "2026-01-02"]
    log.impressions(
        {"ts": T0},
        {"surface": "reels"},
        {"user": 3},
        {"ts": T0 + 2 * DAY},
        {"ts": T0 - 1},
        {"ts": T0 + 2 * DAY - 1},
    )
    stored = log.ingest()
    assert stored.column("time") == [T0, T0 + 2 * DAY - 1]
    assert stored.manifest["rows"]["passed_over"]["impressions"] == 2
    assert stored.manifest["rows"]["read"]["impressions"] == 4
    assert stored.manifest["rows"]["quarantined"] == {"impressions: time outside the span of the table": 2}


def test_a_null_ad_is_missing_not_dropped(log):
    log.impressions({"ad": 1}, {"ad": None})
    stored = log.ingest()
    assert stored.column("ad_key") == ["1", None]
    assert stored.column("f_ad") == [2, 0]
    assert stored.column("ad_row") == [1, 0]


def test_ready_histories_with_faults(log):
    ready = pa.table(
        {"user": [1, 2, None, 3, 3], "items": [[1], [2, 3], [4], [5], [6]], "more": [[1], [2], [1], [1], [1]]}
    )
    log.write("ready", ready)
    log.schema["streams"]["acts"]["ready"] = {
        "path": "ready",
        "user": "user",
        "lists": {"item": "items", "type": "more"},
    }
    log.impressions(*({"user": u} for u in (1, 2, 3)))
    stored = log.ingest()
    assert stored.items() == [["1"], [], []]
    assert stored.manifest["rows"]["quarantined"] == {
        "acts.ready: lists of one row differ in length": 1,
        "acts.ready: null key user": 1,
        "acts.ready: user repeated in ready-made histories": 2,
    }
    assert _balance(stored, "acts.ready")


def test_feedback_of_ready_histories_from_lists_of_items(log):
    ready = {
        "user": [1, 2, 3, 4],
        "items": [[5, 6, 5], [7], [5, None], [8, 9]],
        "more": [["a"] * 3, [], ["a"] * 2, ["a"] * 2],
    }
    liked = pa.array(
        [[6.0, 9.0], [7.0], None, [5.0, None]]
    )  # 9 is another user's; floats and ints are one id
    log.write("ready", pa.table(ready | {"liked": liked}))
    log.schema["streams"]["acts"] = {
        "from": "events",
        "attributes": [
            "item",
            "type",
            {"name": "liked", "optional": True},
            {"name": "n", "kind": "number", "optional": True},
        ],
        "ready": {
            "path": "ready",
            "user": "user",
            "lists": {"item": "items", "type": "more"},
            "members": {"liked": "liked", "n": "liked"},
        },
    }
    log.impressions(*({"user": u} for u in (1, 2, 3, 4)))
    stored = log.ingest()
    assert [[e[1:] for e in h] for h in stored.histories("acts", ("item", "item"), ("liked", "liked"))] == [
        [("5", "0"), ("6", "1"), ("5", "0")],
        [],
        [("5", None), (None, None)],
        [("8", "0"), ("9", "0")],
    ]
    assert stored.manifest["rows"]["quarantined"] == {"acts.ready: lists of one row differ in length": 1}


def test_a_split_without_examples_is_refused(log):
    log.impressions({})
    log.schema["splits"] = {"train": ["2026-01-01", "2026-01-01"], "test": ["2026-01-02", "2026-01-02"]}
    with pytest.raises(DataError, match=r"splits\.test must hold at least one example"):
        log.ingest()
    log.schema["splits"] = {"train": ["2026-01-05", "2026-01-06"]}
    with pytest.raises(DataError, match=r"splits\.train"):
        log.ingest()


def test_the_order_of_files_and_rows_does_not_matter(log):
    given = [{"ad": k % 3, "user": k % 2, "ts": T0 + k // 4, "click": k % 2} for k in range(12)]
    events = [{"item": k, "ts": T0 - 5} for k in (5, 3, 9)]
    found = set()
    for turn in (0, 5):
        log.impressions(*given[turn:], part="a")
        log.impressions(*given[:turn], {"user": 9}, part="b")
        log.events(*events[turn % 3 :], *events[: turn % 3])
        found.add(log.ingest().manifest["data_fingerprint"])
    assert len(found) == 1
