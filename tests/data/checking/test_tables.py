"""Rows, times, zones, doubles, late arrivals, order, and keys that do not join."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opengem import check_data
from opengem.data.checking.report import percent
from opengem.errors import DataError
from opengem.schema import load_schema, parse_schema
from tests.cases.inputs import Case, run_script
from tests.data.logs import DAY, T0, Log


@pytest.fixture
def log(tmp_path):
    made = Log(tmp_path)
    made.impressions({"click": 1}, {"user": 2, "ts": T0 + 5})
    made.write("users", pa.table({"user": [1, 2], "country": ["DE", "FR"]}))
    made.events({"ts": T0 - 1}, {"user": 2, "ts": T0 - 1})
    return made


def check(log, **options):
    return check_data(parse_schema(log.schema, log.folder), workers=1, **options)


def said(found, topic, level=None):
    """Return where -> text of the findings of a topic; a place that is named twice has its texts joined."""
    texts = {}
    for f in found.findings:
        if f.topic == topic and level in (None, f.level):
            texts[f.where] = f"{texts[f.where]} | {f.text}" if f.where in texts else f.text
    return texts


def test_counts_range_and_zone_of_each_table(log):
    log.impressions({"user": None, "ts": T0 + 7}, part="part-1", user=pa.int64())
    found = check(log)
    table = found.facts["tables"]["impressions"]
    assert (table["files"], table["rows"], table["kept"]) == (2, 3, 2)
    assert (table["first"], table["last"]) == ("2026-01-01 00:00:00", "2026-01-01 00:00:00")
    assert table["zone"] == "UTC; ts is ms since 1970"
    assert table["quarantined"] == {"null key user": 1}
    assert (
        "33.3% (1 rows) will be quarantined: null key user"
        in said(found, "rows", "warning")["tables.impressions"]
    )
    assert "first" not in found.facts["tables"]["users"]


@pytest.mark.parametrize(
    ("times", "unit", "zone", "words"),
    [
        (
            pa.array([T0, T0 + 5], pa.timestamp("ms", "Asia/Tokyo")),
            "timestamp",
            "",
            "UTC; ts is written in Asia/Tokyo",
        ),
        (
            pa.array([T0, T0 + DAY], pa.timestamp("ms")),
            "timestamp",
            "Asia/Tokyo",
            "written in Asia/Tokyo by the schema",
        ),
        (pa.array(["2026-01-02T05:00", "2026-01-02T06:00"]), "iso8601", "Asia/Tokyo", "else in Asia/Tokyo"),
    ],
)
def test_the_zone_of_a_time_column_is_said(log, times, unit, zone, words):
    table = pa.table({"user": [1, 2], "ad": [1, 1], "surface": ["feed"] * 2, "ts": times, "price": [1.0] * 2})
    log.write("impressions", table.append_column("click", pa.array([0, 1])))
    log.schema["tables"]["impressions"]["time"] = {"column": "ts", "unit": unit} | (
        {"zone": zone} if zone else {}
    )
    log.schema["splits"]["train"] = ["2025-12-31", "2026-01-31"]
    assert words in check(log).facts["tables"]["impressions"]["zone"]


def test_a_wrong_unit_is_broken_data(log):
    log.schema["tables"]["events"]["time"] = {"column": "ts", "unit": "s"}
    with pytest.raises(DataError, match="between 1980 and 2100"):
        check(log)


def test_late_arrivals_are_counted_where_declared_and_said_to_be_invisible_where_not(log):
    assert "late data cannot be seen" in said(check(log), "time", "note")["tables.events"]
    log.events(
        {"ts": T0 - 9, "arrived": T0 - 9}, {"ts": T0 - 9, "arrived": T0 + 1}, {"ts": T0 - 9, "arrived": T0 - 19},
        {"ts": T0 - 9, "arrived": T0 + 21},
    )  # fmt: skip
    log.schema["tables"]["events"]["arrival"] = "arrived"
    found = check(log)
    late = found.facts["tables"]["events"]["late"]
    assert late == {"rows": 2, "before_their_time": 1, "median_ms": 10, "p99_ms": 30}
    assert "50% of rows (2) arrived after their own time" in said(found, "time", "note")["tables.events"]
    assert "1 rows arrived before their own time" in said(found, "time", "warning")["tables.events"]
    assert found.facts["tables"]["impressions"]["late"] is None


def test_pt01_without_an_arrival_late_data_cannot_be_seen(tmp_path):
    case = Case(run_script("pt01_arrival.py", tmp_path / "in"), tmp_path / "out")
    assert (
        "late data cannot be seen"
        in said(check_data(load_schema(case.write_schema(), case.folder)), "time")["tables.events"]
    )
    case["events"]["arrival"] = "arrived"
    found = check_data(load_schema(case.write_schema(), case.folder))
    assert found.facts["tables"]["events"]["late"]["rows"] == 2
    assert "cannot be seen" not in said(found, "time")["tables.events"]


def test_pt08_an_event_before_its_own_impression_is_reported(tmp_path):
    case = Case(run_script("pt08_same_request.py", tmp_path / "in"), tmp_path / "out")
    case["events"]["request"] = "request_id"
    found = check_data(load_schema(case.write_schema(), case.folder))
    assert found.facts["early"] == {"events": 1}
    assert "1 event is stamped before its own impression" in said(found, "time", "warning")["tables.events"]
    assert found.ok


def test_an_event_is_early_by_its_own_ad_not_by_the_first_of_the_page(log):
    """The page begins at T0 with ad 1; ad 2 is shown at T0 + 50, so a click on it at T0 + 20 is before it."""
    log.impressions({"page": 7, "click": 1}, {"page": 7, "ad": 2, "ts": T0 + 50})
    log.events({"item": 2, "ts": T0 + 20, "page": 7}, {"item": 1, "ts": T0 + 20, "page": 7},
               {"item": 5, "ts": T0 - 1, "page": 7}, {"item": 1, "ts": T0 - 1, "page": 8})  # fmt: skip
    log.schema["tables"]["impressions"]["key"] = "page"
    log.schema["tables"]["events"]["request"] = "page"
    assert check(log).facts["early"] == {"events": 2}  # ad 2, and what is no ad of the page but before it


def test_keys_that_do_not_join_are_counted(log):
    log.impressions(*({"user": u, "click": u % 2, "ad": a} for u in (1, 2) for a in (1, 1, 1, 9, 8)))
    log.events({"user": 1}, {"user": 3, "item": 9}, {"user": 4, "item": None})
    found = check(log)
    by = {(k["table"], k["column"], k["in"]): k for k in found.facts["keys"]}
    assert (by["impressions", "ad", "ads"]["unjoined"], by["impressions", "ad", "ads"]["unjoined_keys"]) == (
        4,
        2,
    )
    assert by["impressions", "user", "users"]["unjoined"] == 0
    assert by["events", "item", "ads"] == {
        "table": "events", "column": "item", "in": "ads", "rows": 2, "unjoined": 1, "unjoined_keys": 1,
    }  # fmt: skip
    assert by["events", "user", "impressions"]["unjoined"] == 2
    assert (
        "40% of rows (4 of 10) have their ad not in ads: 2 keys, such as 8"
        in said(found, "keys", "warning")["impressions.ad"]
    )
    assert found.ok


@pytest.mark.parametrize(
    ("table", "rows", "ok"),
    [
        ("users", pa.table({"user": [11, 12], "country": ["DE", "FR"]}), False),
        ("ads", pa.table({"ad": [11], "category": ["c"]}), False),
    ],
)
def test_keys_that_never_join_are_an_error(log, table, rows, ok):
    log.write(table, rows)
    found = check(log)
    assert found.ok is ok
    assert any(
        f"in {table}, such as 1: these are not the same keys" in f.text for f in found.of("error", "keys")
    )


def test_items_that_never_join_are_an_error_only_where_something_is_read_through_them(log):
    log.events({"item": 77}, {"item": 78, "user": 2})
    assert not check(log).of("error", "keys")
    log.schema["streams"]["acts"]["attributes"].append("category")
    assert [f.where for f in check(log).of("error", "keys")] == ["events.item"]


def test_copies_are_told_whether_they_are_dropped_or_not(log):
    log.events({}, {}, {}, {"type": "buy"})
    found = check(log)
    assert found.facts["tables"]["events"]["exact_copies"] == 2
    assert (
        "2 rows are exact copies of another and will be kept"
        in said(found, "rows", "warning")["tables.events"]
    )
    log.schema["tables"]["events"]["deduplicate"] = True
    found = check(log)
    assert found.facts["tables"]["events"]["copies_dropped"] == 2
    assert (
        "2 rows are exact copies of another and will be dropped"
        in said(found, "rows", "note")["tables.events"]
    )


def test_in11_rows_logged_twice(tmp_path):
    case = Case(run_script("in11_double_rows.py", tmp_path / "in"), tmp_path / "out")
    del case["impressions"]["key"]  # the script numbers requests by row, which would tell the copies apart
    table = check_data(load_schema(case.write_schema(), case.folder)).facts["tables"]["impressions"]
    assert (table["exact_copies"], table["copies_dropped"]) == (1, 1)
    assert table["rows"] == 5 == table["kept"] + table["copies_dropped"] + sum(table["quarantined"].values())
    assert table["quarantined"] == {"example_id repeated with different content": 2}


def test_broken_data_is_an_error_of_data(log):
    (log.folder / "events" / "part-0.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"part-0\.parquet"):
        check(log)


def test_nothing_is_left_behind(log, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    stages = []
    check(log, temporary_folder=work, progress=lambda stage, done, total: stages.append(stage))
    assert list(work.iterdir()) == []
    assert list(dict.fromkeys(stages)) == ["read", "examples", "features", "leaks"]


def test_the_schema_may_be_a_file_and_a_table_may_be_empty(log):
    path = log.folder / "events" / "part-0.parquet"
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    path = log.folder / "schema.toml"
    path.write_text(parse_schema(log.schema, log.folder).text)
    found = check_data(path)
    assert found.facts["tables"]["events"]["first"] is None
    assert said(found, "rows", "warning")["tables.events"] == "the table holds no row"


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [
        (0, 0, "0%"),
        (0, 9, "0%"),
        (9, 9, "100%"),
        (1, 3, "33.3%"),
        (1, 10**6, "below 0.1%"),
        (10**6 - 1, 10**6, "over 99.9%"),
    ],
)
def test_a_share_is_all_or_nothing_only_where_it_is(part, whole, words):
    assert percent(part, whole) == words


def test_days_of_the_log_do_not_hang_on_the_process_zone(log, monkeypatch):
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        log.impressions({"ts": T0 + DAY - 1, "click": 1}, {"ts": T0, "user": 2})
        assert check(log).facts["tables"]["impressions"]["last"] == "2026-01-01 23:59:59"
    finally:
        monkeypatch.undo()
        time.tzset()
