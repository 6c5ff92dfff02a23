"""The page `docs/data.md` is true where no other test holds what it says."""

import datetime as dt
import re
from pathlib import Path

import pyarrow as pa
import pytest

from opengem.data.columns import canonical_ids
from tests.data.logs import T0, Log, rows

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
INF, NAN = float("inf"), float("nan")


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def test_the_reasons_for_quarantine_are_all_of_them(log):
    tables = log.schema["tables"]
    tables["impressions"] |= {"id": "id", "span": ["2026-01-01", "2026-01-31"]}
    tables["events"]["arrival"] = "arrived"
    tables["users"]["time"] = {"column": "since", "unit": "iso8601", "zone": "America/New_York"}
    log.schema["features"]["look"] = {"owner": "context", "kind": "vector"}
    log.schema["streams"]["acts"]["ready"] = {
        "path": "ready",
        "user": "user",
        "lists": {"item": "items"},
        "times": "times",
    }
    log.impressions(
        {"id": 1, "look": [1.0]},
        {"id": 2, "look": [1.0, 2.0]},
        {"id": 3, "price": INF},
        {"id": 4, "click": 2},
        {"id": 5, "surface": None},
        {"id": 6, "ts": T0 - 1},
        {"id": 7, "price": 1.0},
        {"id": 7, "price": 2.0},
        {"id": 2**63},
        id=pa.uint64(),
    )
    log.events({"arrived": T0}, {"arrived": None}, {"ts": None, "arrived": T0})
    log.write("users", rows("users", {"since": "2026-11-01 01:30"}, {"user": None, "since": "2026-01-01"}))
    ready = {
        "user": [1, 2, 3, 3],
        "items": [[1], [1, 2], [1], [1]],
        "times": [[None], [1], [1], [1]],
    }
    log.write("ready", pa.table(ready))
    found = {reason.split(": ", 1)[1] for reason in log.ingest().manifest["rows"]["quarantined"]}
    table = PAGE.split("## Reasons for quarantine")[1]
    documented = [
        r
        for line in table.splitlines()
        if line.startswith("| `")
        for r in re.findall("`([^`]+)`", line.split("|")[1])
    ]
    patterns = {r: re.escape(r).replace("X", r"\w+").replace("N", r"\d+") for r in documented}
    for reason in found:
        assert [r for r, p in patterns.items() if re.fullmatch(p, reason)], reason
    for written, pattern in patterns.items():
        assert [r for r in found if re.fullmatch(pattern, r)], written


def test_dates_and_empty_text_are_ids(log):
    assert canonical_ids(pa.array([dt.date(2026, 1, 2), None])).to_pylist() == ["2026-01-02", None]
    log.impressions({"ad": ""}, {"ad": None}, {"ad": "a"})
    assert log.ingest().vocabulary("item") == {"": 1, "a": 1}


def test_a_null_item_or_type_of_an_event_is_missing(log):
    log.impressions({"ts": T0 + 10})
    log.events({"item": None, "ts": T0}, {"item": 5, "type": None, "ts": T0 + 1}, item=pa.int64())
    stored = log.ingest()
    assert stored.histories("acts", ("item", "item"), ("type", "type")) == [
        [(T0, None, "view"), (T0 + 1, "5", None)]
    ]


def test_a_label_may_be_boolean_or_decimal(log):
    for kind, values in ((pa.bool_(), [True, False, None]), (pa.decimal128(3, 1), [1, 0, None])):
        log.impressions(*({"click": v, "ad": k} for k, v in enumerate(values)), click=kind)
        labels = dict(zip(log.ingest().column("ad_key"), log.ingest().column("y_click"), strict=True))
        assert (labels["0"], labels["1"]) == (1, 0)
        assert labels["2"] != labels["2"]  # NaN: masked


def test_a_user_or_ad_that_no_table_describes_is_kept(log):
    log.impressions({"user": 77, "ad": 88}, {"user": 1, "ad": 1})
    stored = log.ingest()
    assert sorted(stored.column("ad_row")) == [0, 1]
    assert sorted(stored.file("requests.arrow")["user_row"].to_pylist()) == [0, 1]
