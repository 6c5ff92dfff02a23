"""PT01 to PT11: what a request may know, and of which time."""

import os
import subprocess
import sys

import numpy as np
import pytest

from opengem.errors import DataError
from tests.cases.inputs import DAY, DAYS, T0


def test_pt01_a_backfill_that_was_not_known_yet(case):
    given = case("pt01_arrival.py")
    assert given.ingest().histories() == {1: ["10", "20"], 2: ["10", "20"]}
    assert "tables.events: no arrival is declared, so late data cannot be seen" in given.check().stdout
    given["events"]["arrival"] = "arrived"
    assert given.ingest().histories() == {1: ["10"], 2: ["10", "20"]}
    assert "tables.events: no arrival is declared" not in given.check().stdout


def test_pt02_at_the_same_millisecond(case):
    assert case("pt02_ties.py").ingest().histories() == {1: ["1"]}


def test_pt03_several_rows_at_one_time(case):
    found = set()
    for part in "abc":
        given = case("pt03_revisions.py", part)
        given["users"].update(time="effective", arrival="written")
        stored = given.ingest()
        assert stored.ids("country") == {1: "JP", 2: "FR"}
        sent = stored.sent_again(given.folder)
        assert {k: raw["user"]["country"] for k, raw in sent.items()} == {1: "JP", 2: "FR"}
        # tied events stand in the order of their rows in the vocabularies: the more frequent first, then by text
        assert stored.histories() == {1: [], 2: ["3", "5", "9"]}
        found.add(stored.fingerprint)
    assert len(found) == 1


def test_pt03_rows_that_nothing_tells_apart_are_not_chosen_from(case):
    given = case("pt03_revisions.py", "a")
    given["users"]["time"] = "effective"
    stored = given.ingest()
    assert stored.rows["quarantined"] == {"users: user_id repeated with different content": 3}
    assert stored.ids("country") == {1: None, 2: None}


def test_pt04_times_one_second_apart(case):
    stored = case("pt04_close_times.py").ingest()
    histories, times = stored.histories(), stored.histories("times")
    for k in range(10):
        assert histories[k + 1] == [str(100 + i) for i in range(k + 1)]
        assert np.diff(times[k + 1]).tolist() == [1000] * k
    batch = stored.batch()
    newest = batch.history["acts"].times[batch.history["acts"].offsets[1:] - 1]
    assert (batch.request_time - newest).tolist() == [500] * 10
    assert len(set(np.array(times[10], np.float32).tolist())) == 1  # what would be left of them in float32


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_pt05_two_tables_two_zones(case, zone):
    given = case("pt05_zone_mix.py")
    given["impressions"]["time"] = {"column": "ts", "unit": "timestamp", "zone": "UTC"}
    given["events"]["time"] = {"column": "ts", "unit": "timestamp"}
    stored = given.ingest()
    name = zone.replace("/", "-")
    files = ("ingest", given.write_schema(), "--root", given.folder, "--out", given.out / name)
    command = [sys.executable, "-m", "opengem", *map(str, files)]
    done = subprocess.run(command, env=os.environ | {"TZ": zone}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made_there = given.ingest(name)
    assert made_there.fresh is False  # it is there already, and only read
    assert made_there.histories() == stored.histories() == {1: ["1"]}
    assert made_there.fingerprint == stored.fingerprint


def test_pt05_a_naive_column_without_a_zone_is_refused(case):
    given = case("pt05_zone_mix.py")
    given["impressions"]["time"] = {"column": "ts", "unit": "timestamp"}
    given["events"]["time"] = {"column": "ts", "unit": "timestamp"}
    done = given.command()
    assert done.exit_code == 3
    assert 'column "ts" must carry a zone' in done.stderr


def test_pt08_the_click_that_precedes_its_own_impression(case):
    given = case("pt08_same_request.py")
    given["events"]["request"] = "request_id"
    stored = given.ingest()
    assert stored.histories() == {1: ["6"], 2: ["6"], 3: ["6", "7"]}
    sent = stored.sent_again(given.folder)
    assert {k: sorted(raw["history"]["acts"]["item_id"]) for k, raw in sent.items()} == {
        1: [6],
        2: [6],
        3: [6, 7],
    }
    assert stored.manifest["events_before_own_request"] == {"acts": 1}
    assert "tables.events: 1 event is stamped before its own impression" in given.check().stdout


def test_pt09_statistics_and_vocabularies_are_of_the_training_window(case):
    given = case("pt09_train_window.py")
    given.schema["splits"] = {name: DAYS[name] for name in ("train", "test")}
    stored = given.ingest()
    mean, std = stored.encoder.numbers["price"]
    assert mean == 2
    assert std == pytest.approx(np.std([1, 2, 3]), abs=1e-9)  # of the population
    assert round(std, 4) == 0.8165
    assert set(stored.vocabulary("ad_id")) == {"1", "2", "3"}
    train, test = stored.data.split("train"), stored.data.split("test")
    assert (len(train), len(test)) == (3, 3)
    times = stored.data.column("time")
    assert max(times[train.start : train.stop]) < T0 + 2 * DAY <= min(times[test.start : test.stop])
    assert list(stored.ids("ad_id").values())[3:] == ["?"] * 3


def test_pt10_two_columns_of_one_name(case):
    given = case("pt10_two_times.py")
    given["users"]["time"] = "ts"
    given.schema["splits"] = DAYS
    stored = given.ingest()
    assert [len(stored.data.split(name)) for name in ("train", "validation", "test")] == [480, 240, 240]
    assert None not in stored.ids("country").values()
    given.schema["splits"] = {"train": ["2026-01-01", "2026-01-04"], "test": ["2026-01-05", "2026-01-05"]}
    done = given.command()
    assert done.exit_code == 3
    assert "splits.test must hold at least one example" in done.stderr
    given.schema["splits"] = {"train": ["2025-01-01", "2025-01-04"]}
    with pytest.raises(DataError, match=r"splits\.train"):
        given.ingest()


def test_pt11_profile_rows_without_time_or_key(case):
    given = case("pt11_null_profile_time.py")
    given["users"]["time"] = "effective"
    stored = given.ingest()
    assert stored.ids("country") == {1: "DE", 2: "FR", 3: None}
    sent = stored.sent_again(given.folder)
    assert {k: raw["user"].get("country") for k, raw in sent.items()} == {1: "DE", 2: "FR", 3: None}
    assert stored.rows["quarantined"] == {"users: null key user_id": 1, "users: null time effective": 1}
    stored.check_balance()
