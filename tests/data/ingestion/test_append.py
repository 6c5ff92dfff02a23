"""Appended days against one ingest of all of them, example by example."""

import os
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from opengem.data import Dataset, compaction, ingest
from opengem.data.compaction import compact
from opengem.data.ingestion import run
from opengem.data.ingestion.folder import only_writer
from opengem.errors import ConfigError
from opengem.jagged import Batch, History, JaggedTensor
from opengem.schema import parse_schema
from tests.data.logs import DAY, T0, Log

DAYS = 14
BASE = 4


def growing_schema(log: Log) -> None:
    tables = log.schema["tables"]
    tables["impressions"] |= {"key": "request", "id": "id"}
    tables["events"] |= {"request": "request", "arrival": "arrived"}
    tables["users"] |= {"time": "since"}
    log.schema["streams"] = {
        "acts": {
            "from": "events",
            "attributes": ["item", "type", "category", {"name": "cost", "kind": "number"}],
        },
        "bought": {"from": "events", "types": ["buy"], "attributes": ["item"]},
        "shown": {
            "from": "impressions",
            "attributes": ["ad", {"name": "clicked", "column": "click"}, "category"],
        },
    }
    log.schema["features"]["cost"] = {"owner": "ad", "kind": "number"}
    log.schema["features"]["tags"] = {"owner": "ad", "kind": "ids"}
    log.schema["features"]["hour"] = {"owner": "context", "kind": "id", "derive": "hour"}
    for attribution in ("last", "any"):
        event = {"table": "events", "type": "buy", "within": "60h", "attribution": attribution}
        log.schema["tasks"][f"buy_{attribution}"] = {"event": event, "surfaces": ["feed", "reels"]}
    log.schema["splits"] = {
        "train": ["2026-01-01", "2026-01-02"],
        "validation": ["2026-01-03", "2026-01-03"],
        "test": ["2026-01-04", "2026-02-28"],
    }
    log.schema["vocabularies"] = {"item": {"min_count": 4}, "category": {"limit": 4}}


def write_day(log: Log, day: int, random: np.random.Generator, part: str = "") -> None:
    """Write a day of every table: users and ads come and go, events arrive hours late, buys follow days later."""
    part, start = part or f"day-{day:02d}", T0 + day * DAY
    n, users = int(random.integers(20, 40)), 6 + 2 * day
    asked = np.sort(random.integers(0, 40, n))
    user = asked % users + 1
    log.write(
        "impressions",
        pa.table(
            {
                "id": pa.array(random.permutation(n) + 1000 * day),
                "request": [f"r{day}-{k}" for k in asked],
                "user": user,
                "ad": random.integers(1, 8 + 2 * day, n),
                "surface": random.choice(["feed", "reels", "stories"], n, p=[0.5, 0.3, 0.2]),
                "ts": start + asked * 60_000 + random.integers(0, 3, n),
                "price": random.random(n),
                "click": random.integers(0, 2, n),
            }
        ),
        part,
    )
    m = 0 if day == 9 else 60
    ts = start + random.integers(0, 6, m) * 7_200_000  # many at one moment
    ts -= np.where(random.random(m) < 0.2, DAY * (day > 0), 0)  # known a day late
    log.write(
        "events",
        pa.table(
            {
                "request": random.choice(
                    [None, "r0-1", f"r{day}-3", f"r{max(day - 1, 0)}-5"], m, p=[0.7, 0.1, 0.1, 0.1]
                ),
                "user": random.integers(1, users + 3, m),
                "item": random.integers(1, 10 + 2 * day, m),
                "type": random.choice(["view", "buy"], m, p=[0.5, 0.5]),
                "ts": ts,
                "arrived": np.maximum(ts, start) + random.integers(0, DAY // 2, m),
            }
        ),
        part,
    )
    new = [1, 2, 3, 4, 5] if day == 0 else [500 + 10 * day]  # of these no event or impression ever speaks
    new += [] if day == 0 else [8 + 2 * day + 20]
    log.write(
        "ads",
        pa.table(
            {
                "ad": new,
                "category": [f"c{a % 3}" for a in new],
                "cost": [a / 7 for a in new],
                "tags": pa.array([[f"t{a}", None, f"t{a % 4}"] if a % 5 else None for a in new]),
            }
        ),
        part,
    )
    profiles = {
        "user": [1 + day, 2 + day, 40 + day],
        "country": ["DE", "FR", "JP"],
        "since": [start + 5 * k for k in range(3)],
    }
    log.write("users", pa.table(profiles), part)


def _all(folder: Path, *splits: str) -> Batch:
    """Return all examples, ids by the vocabularies that were known at the end of some splits."""
    data = Dataset.open(folder).grown(splits)
    return data.read(np.arange(data.num_requests), 30)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in (key, *_flat(value[key]))]
    if isinstance(value, History | JaggedTensor):
        return [
            x
            for f in (fields(value) if isinstance(value, History) else ())
            for x in _flat(getattr(value, f.name))
        ] or [
            value.values,
            value.offsets,  # type: ignore[union-attr]
        ]
    return [value]


def assert_same(a: Batch, b: Batch) -> None:
    for f in fields(Batch):
        left, right = _flat(getattr(a, f.name)), _flat(getattr(b, f.name))
        assert len(left) == len(right), f.name
        for x, y in zip(left, right, strict=True):
            if isinstance(x, torch.Tensor):
                assert x.dtype == y.dtype, f.name
                assert torch.equal(x, y), f.name
            else:
                assert x == y, f.name


@pytest.mark.parametrize("seed", [0, 1])
def test_ten_appended_days_equal_one_ingest_of_all(tmp_path, seed, monkeypatch):
    log, random = Log(tmp_path), np.random.default_rng(seed)
    for name in ("users", "ads", "events"):
        shutil.rmtree(tmp_path / name)
    growing_schema(log)
    for day in range(BASE):
        write_day(log, day, random)
    log.ingest("grown")
    for day in range(BASE, DAYS):
        write_day(log, day, random)
        if day == 6:
            monkeypatch.setattr(run, "BYTES_PER_EVENT", 40 << 20)  # later segments have several buckets
        before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (tmp_path / "grown").rglob("*.arrow")}
        grown = log.ingest("grown")
        assert all((p.stat().st_ino, p.stat().st_mtime_ns) == v for p, v in before.items())
        assert len(grown.manifest["segments"]) == day - BASE + 2
    whole = log.ingest("whole")
    a, b = _all(grown.folder), _all(whole.folder)
    assert_same(a, b)
    for splits in (("train", "validation"), ("test",)):
        assert_same(_all(grown.folder, *splits), _all(whole.folder, *splits))
    shutil.copytree(grown.folder, tmp_path / "joined")
    monkeypatch.setattr(compaction, "EVENTS_A_BUCKET", 150)
    assert compact(tmp_path / "joined") == DAYS - BASE + 1
    assert_same(_all(tmp_path / "joined"), b)
    assert_same(_all(tmp_path / "joined", "test"), _all(whole.folder, "test"))
    assert compact(tmp_path / "joined") == 1
    assert not log.ingest("joined").fresh
    write_day(log, DAYS, random)
    log.ingest("joined")
    for splits in ((), ("test",)):
        assert_same(_all(tmp_path / "joined", *splits), _all(log.ingest("longer").folder, *splits))
    assert a.labels["buy_last"].sum() > 20
    assert {n: h.offsets[-1] > 100 for n, h in a.history.items()} == dict.fromkeys(
        ("acts", "bought", "shown"), True
    )
    one, two = Dataset.open(grown.folder), Dataset.open(whole.folder)
    assert one.inputs == two.inputs
    assert {s: one.split(s) for s in ("train", "validation", "test")} == {
        s: two.split(s) for s in ("train", "validation", "test")
    }
    for task in ("click", "buy_last", "buy_any"):
        np.testing.assert_array_equal(one.column(f"y_{task}"), two.column(f"y_{task}"))
    for name in (
        "counts",
        "rows",
        "labels",
        "history_lengths",
        "events_before_own_request",
        "splits",
        "latest",
        "log_ends",
    ):
        ours, theirs = grown.manifest[name], whole.manifest[name]
        if name == "labels":  # an event is an orphan of its own day only
            for found in (ours, theirs):
                for counts in found.values():
                    counts.pop("orphans", None)
        assert ours == theirs, name


def _days(log: Log, *days: int) -> np.random.Generator:
    for name in ("users", "ads", "events"):
        shutil.rmtree(log.folder / name, ignore_errors=True)
    random = np.random.default_rng(3)
    growing_schema(log)
    for day in days:
        write_day(log, day, random)
    return random


def test_without_request_keys_ids_and_times_of_profiles(tmp_path):
    log = Log(tmp_path)
    random = _days(log, 0, 1, 2, 3)
    log.schema["tables"]["impressions"].pop("key")
    log.schema["tables"]["impressions"].pop("id")
    log.schema["tables"]["events"].pop("request")
    log.schema["tables"]["users"] = {"path": "countries", "key": "user"}
    log.write("countries", pa.table({"user": [1, 2, 3], "country": ["DE", "FR", "JP"]}))
    log.ingest("grown")
    for day in (4, 5):
        write_day(log, day, random)
        log.write("countries", pa.table({"user": [900 + day], "country": ["DE"]}), f"day-{day}")
        assert log.ingest("grown").manifest["segments"][day - 3]["folder"] == f"segments/{day - 3:05d}"
    assert_same(_all(tmp_path / "grown"), _all(log.ingest("whole").folder))


def test_splits_by_column(tmp_path):
    log = Log(tmp_path)
    random = _days(log, 0, 1, 2, 3)
    log.schema["splits"] = {"column": "part", "train": ["a"], "validation": ["b"], "test": ["c"]}

    def name_the_part() -> None:
        for path in (tmp_path / "impressions").glob("*.parquet"):
            table = pq.read_table(path)
            if "part" not in table.column_names:
                day = int(path.stem.split("-")[1])
                part = "a" if day < 2 else "b" if day < 3 else "c"
                pq.write_table(table.append_column("part", pa.array([part] * table.num_rows)), path)

    name_the_part()
    log.ingest("grown")
    write_day(log, 4, random)
    name_the_part()
    assert len(log.ingest("grown").manifest["segments"]) == 2
    assert_same(_all(tmp_path / "grown"), _all(log.ingest("whole").folder))


def _rewrite(log: Log, table: str, part: str, change: Any) -> None:
    path = log.folder / table / f"{part}.parquet"
    pq.write_table(change(pq.read_table(path)), path)


CHANGES: dict[str, tuple[Any, str]] = {
    "a late impression": (
        lambda log: _rewrite(log, "impressions", "day-04", lambda t: _set(t, "ts", 0, T0 + DAY)),
        "tables.impressions was known at",
    ),
    "an event that was known before": (
        lambda log: _rewrite(
            log, "events", "day-04", lambda t: _set(_set(t, "ts", 0, T0), "arrived", 0, T0 + 3 * DAY)
        ),
        "tables.events was known at",
    ),
    "an impression with an old id": (
        lambda log: _rewrite(log, "impressions", "day-04", lambda t: _set(t, "id", 0, 1003)),
        "id 1003",
    ),
    "an impression of an old request": (
        lambda log: _of_an_old_request(log),
        "earlier request r3-",
    ),
    "a profile from before": (
        lambda log: _rewrite(log, "users", "day-04", lambda t: _set(t, "since", 0, T0)),
        "tables.users holds from",
    ),
    "an ad that is known already": (
        lambda log: _rewrite(log, "ads", "day-04", lambda t: _set(t, "ad", 0, 3)),
        "describes ad 3",
    ),
    "an ad that was shown before it was described": (
        lambda log: _rewrite(log, "ads", "day-04", lambda t: _set(t, "ad", 0, 6)),
        "describes ad 6",
    ),
    "a file that changed": (
        lambda log: _rewrite(log, "events", "day-02", lambda t: _set(t, "item", 0, 9)),
        "events/day-02.parquet has changed",
    ),
    "a file that is gone": (
        lambda log: (log.folder / "users" / "day-01.parquet").unlink(),
        "users/day-01.parquet is gone",
    ),
    "another schema": (lambda log: log.schema["features"].pop("price"), "the schema has changed"),
}


def _set(table: pa.Table, column: str, row: int, value: Any) -> pa.Table:
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(table.column_names.index(column), column, pa.array(values, table[column].type))


def _of_an_old_request(log: Log) -> None:
    old = pq.read_table(log.folder / "impressions" / "day-03.parquet").slice(0, 1).to_pylist()[0]
    _rewrite(
        log,
        "impressions",
        "day-04",
        lambda t: _set(_set(t, "request", 0, old["request"]), "user", 0, old["user"]),
    )


@pytest.mark.parametrize("name", CHANGES)
def test_what_would_change_what_was_written_makes_all_anew_and_says_why(tmp_path, name):
    change, why = CHANGES[name]
    log = Log(tmp_path)
    random = _days(log, 0, 1, 2, 3)
    log.ingest("grown")
    write_day(log, 4, random)
    change(log)
    again = ingest(parse_schema(log.schema, tmp_path), tmp_path / "grown", workers=1)
    assert why in again.why
    assert (len(again.manifest["segments"]), again.appended) == (1, ())
    whole = log.ingest("whole")
    assert again.manifest["data_fingerprint"] == whole.manifest["data_fingerprint"]
    assert not list(tmp_path.glob("grown/.segment*"))
    assert not ingest(parse_schema(log.schema, tmp_path), tmp_path / "grown", workers=1).fresh


def test_a_killed_append_leaves_the_old_data_set_and_the_next_one_makes_it(tmp_path, monkeypatch):
    log = Log(tmp_path)
    random = _days(log, 0, 1, 2, 3)
    first = log.ingest("grown")
    before = _all(first.folder)
    write_day(log, 4, random)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for place in ("append_to_manifest", "write_requests", "make_labels"):
        with monkeypatch.context() as patch:
            patch.setattr(run, place, killed)
            with pytest.raises(KeyboardInterrupt):
                log.ingest("grown")
        assert_same(_all(first.folder), before)
    assert len(log.ingest("grown").manifest["segments"]) == 2
    assert_same(_all(first.folder), _all(log.ingest("whole").folder))


def test_two_at_once_are_refused_and_a_dead_one_is_not(tmp_path):
    log = Log(tmp_path)
    _days(log, 0, 1, 2, 3)
    with (
        only_writer(tmp_path / "grown"),
        pytest.raises(ConfigError, match=f"held by process {os.getpid()} since 20"),
    ):
        log.ingest("grown")
    (tmp_path / ".grown.lock").write_text("process 1 since 2020")  # nobody holds it
    assert log.ingest("grown").fresh
    assert not (tmp_path / ".grown.lock").exists()
