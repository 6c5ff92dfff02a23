"""Ingest against the oracle on random logs: ties, duplicates, late arrivals, clock jumps, empty users."""

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data import oracle
from tests.data.logs import DAY, T0, Log

_users = st.integers(1, 4)
_items = st.integers(1, 3)
_requests = st.integers(1, 5)
# Few distinct times, so that equal ones are common; now and then a clock jumps by days.
_times = st.one_of(*[st.integers(0, 9)] * 3, st.sampled_from([3 * DAY, 5 * DAY])).map(lambda t: T0 + t)
_impression = st.fixed_dictionaries(
    {"user": _users, "request": _requests, "ad": _items, "ts": _times, "click": st.integers(0, 1)}
)
_event = st.fixed_dictionaries(
    {
        "user": _users,
        "request": st.one_of(st.none(), _requests),
        "item": _items,
        "type": st.sampled_from(["view", "buy"]),
        "ts": _times,
        "late": st.sampled_from([0, 0, 1, 4, -2, -5]),
    }
)
_profile = st.fixed_dictionaries(
    {
        "user": _users,
        "country": st.sampled_from(["DE", "FR", "JP"]),
        "effective": _times,
        "written": _times,
    }
)
_ready = st.dictionaries(_users, st.lists(_items, max_size=3), max_size=3)


@st.composite
def _logs(draw: st.DrawFn) -> dict[str, Any]:
    impressions = draw(st.lists(_impression, min_size=1, max_size=12))
    events = draw(st.lists(_event, max_size=14))
    if events and draw(st.booleans()):
        events.append(dict(events[0]))  # the same event twice
    profiles = draw(
        st.lists(_profile, max_size=6, unique_by=lambda p: (p["user"], p["effective"], p["written"]))
    )
    for number, row in enumerate(impressions):
        row["id"] = number
    for event in events:
        event["arrived"] = event["ts"] + event.pop("late")
    return {"impressions": impressions, "events": events, "profiles": profiles, "ready": draw(_ready)}


def _schema(log: Log) -> None:
    tables = log.schema["tables"]
    tables["impressions"] |= {"key": "request", "id": "id"}
    tables["events"] |= {"request": "request", "arrival": "arrived"}
    tables["users"] |= {"time": "effective", "arrival": "written"}
    ready = {"path": "ready", "user": "user", "lists": {"item": "items"}}
    log.schema["streams"] = {
        "acts": {"from": "events", "attributes": ["item", "type"], "ready": ready},
        "bought": {"from": "events", "types": ["buy"], "attributes": ["item"]},
        "shown": {
            "from": "impressions",
            "attributes": [{"name": "item", "column": "ad"}, {"name": "clicked", "column": "click"}],
        },
    }
    for attribution in ("last", "any"):
        log.schema["tasks"][f"buy_{attribution}"] = {
            "event": {"table": "events", "type": "buy", "within": "5ms", "attribution": attribution}
        }


def _write(log: Log, data: dict[str, Any]) -> None:
    ints = {n: pa.int64() for n in ("user", "request", "item", "ts", "arrived", "effective", "written")}
    log.impressions(*data["impressions"])
    names = {"user": 0, "request": 0, "item": 0, "type": "", "ts": 0, "arrived": 0}
    events = {n: pa.array([e[n] for e in data["events"]], ints.get(n, pa.string())) for n in names}
    log.write("events", pa.table(events))
    columns = ("user", "country", "effective", "written")
    profiles = {n: pa.array([p[n] for p in data["profiles"]], ints.get(n, pa.string())) for n in columns}
    log.write("users", pa.table(profiles))
    lists = pa.array(list(data["ready"].values()), pa.list_(pa.int64()))
    log.write("ready", pa.table({"user": pa.array(list(data["ready"]), pa.int64()), "items": lists}))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(_logs())
def test_every_example_equals_the_oracle(data: dict[str, Any]) -> None:
    _check(data)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(_logs())
def test_every_example_equals_the_oracle_on_many_logs(data: dict[str, Any]) -> None:
    _check(data)


def _check(data: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder))
        _schema(log)
        _write(log, data)
        stored = log.ingest()
        by_id = {row["id"]: row for row in data["impressions"]}
        ordered = [by_id[i] for i in stored.column("example_id")]
        assert len(ordered) == len(by_id)
        times = oracle.request_times(ordered)
        first = stored.file("requests.arrow")["first_example"].to_pylist()
        owners = [(ordered[row]["user"], ordered[row]["request"]) for row in first]
        assert len(owners) == len(times)
        assert stored.column("request") == [owners.index((row["user"], row["request"])) for row in ordered]
        _check_histories(stored, data, ordered, owners, times)
        for attribution in ("last", "any"):
            expected = [
                oracle.label(i, ordered, data["events"], "buy", 5, attribution) for i in range(len(ordered))
            ]
            got = [None if y != y else y for y in stored.column(f"y_buy_{attribution}")]
            assert got == expected
        countries = [stored.words("country")[k] for k in stored.file("users.arrow")["f_country"].to_pylist()]
        got = [countries[row] for row in stored.file("requests.arrow")["user_row"].to_pylist()]
        assert got == [oracle.profile(user, times[user, key], data["profiles"]) for user, key in owners]


def _check_histories(
    stored: Any, data: dict[str, Any], ordered: list[Any], owners: list[Any], times: Any
) -> None:
    acts = stored.histories("acts", ("item", "item"), ("type", "type"))
    bought = stored.histories("bought", ("item", "item"))
    shown = stored.histories("shown", ("item", "item"), ("clicked", "clicked"))
    impressions = [row | {"arrived": row["ts"]} for row in ordered]
    rank = {
        name: {word: k for k, word in enumerate(stored.words(name))} for name in ("item", "type", "clicked")
    }
    for i, (user, request) in enumerate(owners):
        seen = oracle.history(user, request, data["events"], times)
        seen = sorted(
            seen,
            key=lambda e: (
                oracle.known_from(e, times),
                e["ts"],
                rank["item"][str(e["item"])],
                rank["type"][e["type"]],
            ),
        )
        before = [(None, str(item), None) for item in data["ready"].get(user, [])]
        assert acts[i] == before + [(e["ts"], str(e["item"]), e["type"]) for e in seen]
        assert bought[i] == [(e["ts"], str(e["item"])) for e in seen if e["type"] == "buy"]
        past = oracle.history(user, request, impressions, times)
        past = sorted(
            past, key=lambda e: (e["ts"], rank["item"][str(e["ad"])], rank["clicked"][str(e["click"])])
        )
        assert shown[i] == [(e["ts"], str(e["ad"]), str(e["click"])) for e in past]
