"""The sampled examples, the ones before them, and their columns as they lie in the files."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opengem.data.checking.leaks.columns import read_columns
from opengem.data.checking.leaks.sample import draw_sample
from opengem.data.checking.logs import join_logs, read_logs
from opengem.data.ingestion.work_database import Room
from opengem.schema import parse_schema
from tests.data.logs import T0, Log


@pytest.fixture
def log(tmp_path):
    made = Log(tmp_path)
    made.write("users", pa.table({"user": [1, 2], "country": ["DE", "FR"]}))
    made.write("ads", pa.table({"ad": [1, 2, 3], "category": ["c1", "c2", "c3"], "size": [1.5, None, 4.0]}))
    return made


@pytest.fixture
def drawn(log, tmp_path):
    """Return a function that draws a sample and reads its columns."""

    def draw(rows=1_000):
        room = Room("500MB", None, None, 1)
        with room.database(tmp_path / "work") as (con, _):
            logs = read_logs(con, parse_schema(log.schema, log.folder), lambda n: None)
            join_logs(logs)
            sample, skipped = draw_sample(logs, rows), {}
            columns = {f"{c.table}.{c.name}": c for c in read_columns(logs, sample, skipped)}
        return sample, columns, skipped

    return draw


def values(column, array):
    if column.is_number:
        return [None if np.isnan(v) else v for v in array.tolist()]
    return [None if v < 0 else column.words[v] for v in array.tolist()]


def test_each_example_has_the_newest_of_its_user_and_of_its_ad_in_an_earlier_request(log, drawn):
    """Written in two files out of order; the page at T0 + 20 shows two ads of which neither is before the other."""
    log.impressions(
        {"user": 1, "ad": 1, "ts": T0 + 30, "page": 4, "mark": 5},
        {"user": 1, "ad": 1, "ts": T0, "page": 1, "mark": 1}, part="part-0",
    )  # fmt: skip
    log.impressions(
        {"user": 1, "ad": 2, "ts": T0 + 20, "page": 3, "mark": 3},
        {"user": 1, "ad": 3, "ts": T0 + 21, "page": 3, "mark": 4, "click": None},
        {"user": 2, "ad": 1, "ts": T0 + 10, "page": 2, "mark": 2}, part="part-1",
    )  # fmt: skip
    log.schema["tables"]["impressions"]["key"] = "page"
    sample, columns, _ = drawn()
    mark = columns["impressions.mark"]
    assert values(mark, mark.own) == [1, 2, 3, 5]  # without a label there is nothing to measure
    user, ad = values(mark, mark.past["user"]), values(mark, mark.past["ad"])
    assert user[:3] == [None, None, 1]
    assert user[3] in (3, 4)
    assert ad == [None, 1, None, 2]
    assert mark.has["user"].tolist() == [False, False, True, True]
    assert mark.has["ad"].tolist() == [False, True, False, True]
    assert sample.total == sample.rows == 4
    assert sample.time.tolist() == [T0, T0 + 10, T0 + 20, T0 + 30]


def test_columns_of_users_and_ads_are_those_of_the_example(log, drawn):
    log.impressions({"ad": 3}, {"ad": 2, "user": 2, "ts": T0 + 1}, {"ad": 9, "user": 9, "ts": T0 + 2})
    _, columns, _ = drawn()
    assert values(columns["ads.size"], columns["ads.size"].own) == [4.0, None, None]
    assert values(columns["ads.category"], columns["ads.category"].own) == ["c3", "c2", None]
    assert values(columns["users.country"], columns["users.country"].own) == ["DE", "FR", None]
    assert columns["ads.size"].past == {}


def test_a_profile_is_the_one_that_held_at_the_time(log, drawn):
    log.write(
        "users",
        pa.table({"user": [1, 1, 2], "at": [T0 - 5, T0 + 5, T0 + 50], "plan": ["free", "paid", "free"]}),
    )
    log.schema["tables"]["users"]["time"] = "at"
    log.schema["features"]["country"] = {"owner": "user", "kind": "id", "column": "plan"}
    log.impressions({"ts": T0}, {"ts": T0 + 9}, {"ts": T0 + 10, "user": 2})
    _, columns, _ = drawn()
    assert values(columns["users.plan"], columns["users.plan"].own) == ["free", "paid", None]


def test_kinds_of_columns_and_what_cannot_be_measured(log, drawn):
    day = dt.date(2026, 1, 2)
    log.impressions(
        {"flag": True, "money": "1.50", "tags": ["a", "b"], "day": day, "point": {"x": 1}, "blob": b"\xff"},
        {
            "flag": None,
            "money": "2.25",
            "tags": None,
            "day": None,
            "point": {"x": 2},
            "blob": b"\xfe",
            "ts": T0 + 1,
        },
    )
    path = log.folder / "impressions" / "part-0.parquet"
    pq.write_table(pq.read_table(path).append_column("gone", pa.nulls(2)), path)
    log.schema["features"]["money"] = {"owner": "context", "kind": "number", "cast": True}
    _, columns, skipped = drawn()
    found = {
        n.split(".")[1]: (c.kind, values(c, c.own)) for n, c in columns.items() if n.startswith("impressions")
    }
    assert found["flag"] == ("number", [1.0, None])
    assert found["money"] == ("number", [1.5, 2.25])  # as the schema reads it
    assert found["tags"] == ("list", [2.0, None])
    assert found["day"] == ("time", [T0 + 86_400_000.0, None])
    assert found["gone"] == ("number", [None, None])
    assert found["surface"] == ("text", ["feed", "feed"])
    assert skipped == {"impressions.point": "struct<x: int64>", "impressions.blob": "binary"}


def test_types_that_differ_between_files_are_read_as_text_or_widened(log, drawn):
    log.impressions({"a": 1, "b": 1}, part="part-0")
    log.impressions({"a": 2.5, "b": "x", "ts": T0 + 1}, part="part-1")
    log.impressions({"ts": T0 + 2}, part="part-2")
    _, columns, _ = drawn()
    assert values(columns["impressions.a"], columns["impressions.a"].own) == [1.0, 2.5, None]
    assert values(columns["impressions.b"], columns["impressions.b"].own) == ["1", "x", None]


def test_values_of_folders_are_columns(log, drawn):
    log.schema["tables"]["impressions"]["path"] = "shown"
    log.impressions()
    (log.folder / "shown").mkdir()
    for name in ("007", "7"):
        log.impressions({"ts": T0 + len(name)})
        target = log.folder / "shown" / f"group={name}"
        target.mkdir()
        (log.folder / "impressions" / "part-0.parquet").rename(target / "part-0.parquet")
    _, columns, _ = drawn()
    assert values(columns["impressions.group"], columns["impressions.group"].own) == ["7", "007"]


def test_the_sample_is_bounded_and_the_same_each_time(log, drawn):
    log.impressions(*({"user": i % 5, "ts": T0 + i, "mark": i} for i in range(100)))
    first, columns, _ = drawn(rows=20)
    again, _, _ = drawn(rows=20)
    assert (first.rows, first.total) == (20, 100)
    assert first.row.tolist() == again.row.tolist()
    mark = columns["impressions.mark"]
    assert (
        mark.past["user"][mark.has["user"]].tolist() == (mark.own[mark.has["user"]] - 5).tolist()
    )  # of the whole log
    assert set(first.half.tolist()) == {0, 1}


def test_splits_are_told(log, drawn):
    log.schema["splits"] = {"train": ["2026-01-02", "2026-01-02"], "test": ["2026-01-03", "2026-01-03"]}
    log.impressions(*({"ts": T0 + day * 86_400_000} for day in range(4)))
    sample, _, _ = drawn()
    assert sample.train.tolist() == [False, True, False, False]
    assert sample.after.tolist() == [False, False, True, False]
