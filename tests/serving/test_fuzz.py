"""Whatever is sent: an answer in words, never a 5xx, and never a value that was bent in silence."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.serving.conftest import client_of, served
from tests.serving.raw_logs import HOUR, START
from tests.serving.test_service import ask

NOW = START + 100 * HOUR
AT = "2025-01-10T00:00:00Z"

text = st.text(max_size=12)
words = st.sampled_from(
    [
        *(
            "",
            "12",
            "012",
            " 12",
            "12.0",
            "1e5",
            "NaN",
            "nan",
            "inf",
            "true",
            "null",
            "x" * 1_001,
            "\ud800",
            "\x00",
        ),
        *(
            "a1",
            "c3",
            "d1",
            "p1",
            "w0",
            "t1",
            "m1",
            "play",
            AT,
            "2025-01-10",
            "2025-13-01T00:00:00Z",
            "\u0661\u0662",
        ),
    ]
)
whole = st.one_of(
    st.integers(-3, 30),
    st.integers(),
    st.sampled_from(
        [2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400]
    ),
)
floats = st.one_of(st.floats(), st.sampled_from([12.0, 12.5, -0.0, 1e300, 1e39, 3e38, 1e-320]))
scalar = st.one_of(st.none(), st.booleans(), whole, floats, words, text)
anything = st.recursive(
    scalar,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=6,
)

ids = st.one_of(st.none(), st.integers(1, 28), st.integers(-(2**63), 2**63 - 1))
names = st.one_of(st.none(), st.sampled_from(["c0", "c1", "a0", "a1", "d0", "d1", "w1", "012", "12", ""]))
numbers = st.one_of(st.none(), st.integers(-90, 90), st.floats(-1e6, 1e6))
lists = st.one_of(st.none(), st.lists(names, max_size=4))
person = {
    "user_id": ids,
    "city": names,
    "likes": lists,
    "mood_of_day": names,
    "age": st.sampled_from(["5", "-1.5", None]),
}
place = {"device": names, "slot": numbers, "words": lists}
advert = {"author": names, "topics": names, "price": numbers, "bid": numbers, **place}
advert["look"] = st.one_of(st.none(), st.lists(st.floats(-3, 3), min_size=3, max_size=3))


def some(fields: dict[str, st.SearchStrategy]) -> st.SearchStrategy:
    """Return objects with any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


def events(columns: dict[str, st.SearchStrategy], always: dict[str, st.SearchStrategy]) -> st.SearchStrategy:
    """Return columns of one length."""

    def of_length(n: int) -> st.SearchStrategy:
        column = lambda value: st.lists(value, min_size=n, max_size=n)  # noqa: E731
        return st.fixed_dictionaries(
            {k: column(v) for k, v in always.items()}, optional={k: column(v) for k, v in columns.items()}
        )

    return st.integers(0, 4).flatmap(of_length)


played = events(
    {
        "author": names,
        "kind": names,
        "moods": names,
        "seconds": numbers,
        "price": numbers,
        "good": st.integers(0, 1),
    },
    {"item": ids, "at": st.sampled_from([AT, None, "2025-01-13T00:00:00Z"])},
)
shown = events(
    {"author": names, "place": names, "click": st.one_of(st.none(), st.booleans())},
    {"shown_ad": ids, "at": st.integers(NOW - 9, NOW + 9)},
)
good = st.fixed_dictionaries(
    {
        "time_ms": st.just(NOW),
        "ads": st.lists(st.one_of(ids.filter(lambda i: i is not None), some(advert | {"ad_id": ids}))),
    },
    optional={
        "user": some(person),
        "context": some(place),
        "history": some({"played": played, "shown": shown}),
        "surface": names,
        "sort_by": st.sampled_from(["click", "buy"]),
        "schema_fingerprint": st.none(),
    },
)


@st.composite
def bent(draw: st.DrawFn) -> Any:
    """Return a request of which one part, somewhere, is anything else, or has a field too many."""
    raw = draw(good)
    parts: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)):
            parts.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    walk(raw)
    holder, key = draw(st.sampled_from(parts))
    if isinstance(holder, dict) and draw(st.booleans()):
        key = draw(st.one_of(text, st.sampled_from(["pirce", "user", "ad_id", "uid"])))
    holder[key] = draw(anything)
    return raw


def dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


body = st.one_of(
    good.map(dumps),
    bent().map(dumps),
    bent().map(dumps),
    bent().map(dumps),
    st.tuples(good, st.integers(0, 400)).map(lambda t: dumps(t[0])[: t[1]]),
    anything.map(dumps),
    st.binary(max_size=60),
)


class Oracle:
    """What the raw logs' own rules say of a value: the embedding row or the number that it must become."""

    INTEGERS = ("user_id", "uid", "shown_ad", "ad_id")

    def __init__(self, made):
        self.encoder = made.data_encoder
        self.numbers = self.encoder.numbers

    def row(self, table: str, value: Any) -> int:
        """Return the row of an id: 0 for none, 1 for an unseen one."""
        if value is None:
            return 0
        known = self.encoder.vocabularies[table].ids.to_pylist()
        return known.index(str(value)) + 2 if str(value) in known else 1

    def number(self, name: str, value: Any) -> float:
        """Return a standardised number, NaN where missing."""
        mean, std = self.numbers[name]
        return math.nan if value is None else (float(value) - mean) / std


def check_values(made, oracle: Oracle, raw: dict, answer: dict) -> None:
    """Check that an accepted request was read as it was written: every id, number and list, and the keys sent back."""
    batch = made.predictor._reader.read(raw).batch
    entries = [ad if isinstance(ad, dict) else {"shown_ad": ad} for ad in raw["ads"]]
    keys = [e.get("shown_ad") if e.get("shown_ad") is not None else e.get("ad_id") for e in entries]
    assert len(answer["ads"]) == len(entries)
    for ad in answer["ads"]:
        sent = keys[ad["index"]]
        assert (type(ad["ad"]), ad["ad"]) == (type(sent), sent)
        assert all(0 < p < 1 for p in ad["scores"].values())
    person, shared = raw.get("user", {}), raw.get("context", {})
    who = person.get("user_id") if person.get("user_id") is not None else person.get("uid")
    same = [
        (batch.ids["user_id"].tolist(), [oracle.row("user_id", who)]),
        (batch.ids["city"].tolist(), [oracle.row("city", person.get("city"))]),
        (batch.ids["ad"].tolist(), [oracle.row("ad", key) for key in keys]),
        (
            batch.bags["likes"].to_list()[0],
            [oracle.row("author", v) for v in person.get("likes") or [] if v is not None],
        ),
    ]
    for name in ("device", "words", "slot", "bid"):
        values = [e[name] if name in e else shared.get(name) for e in entries]
        if name == "device":
            same.append((batch.ids[name].tolist(), [oracle.row(name, v) for v in values]))
        elif name == "words":
            wanted = [[oracle.row(name, w) for w in v or [] if w is not None] for v in values]
            same.append((batch.bags[name].to_list(), wanted))
        else:
            check_numbers(batch, name, [oracle.number(name, v) for v in values])
    check_numbers(batch, "age", [oracle.number("age", person.get("age"))])
    inline = [(i, e["price"]) for i, e in enumerate(entries) if "price" in e]
    have = batch.numbers["price"].double().where(batch.missing["price"] == 0, math.nan)
    for i, value in inline:
        np.testing.assert_allclose(have[i].item(), oracle.number("price", value), rtol=1e-5, atol=1e-6)
    for have, want in same:
        assert have == want


def check_numbers(batch, name: str, wanted: list[float]) -> None:
    have = batch.numbers[name].double().where(batch.missing[name] == 0, math.nan).numpy()
    np.testing.assert_allclose(have, wanted, rtol=1e-5, atol=1e-6)


# what once failed, or well could
CORPUS = [
    {"time_ms": NOW, "ads": ["\ud800"]},
    {"time_ms": NOW, "ads": [1], "user": {"city": "\ud800"}},
    {"time_ms": NOW, "ads": [1], "context": {"slot": 1e300}},
    {"time_ms": NOW, "ads": [{"look": [1e300, 0, 0]}]},
    {"time_ms": NOW, "ads": [1], "user": {"age": "1_0"}},
    {"time_ms": NOW, "ads": [1], "user": {"age": "٣"}},
    {"time_ms": NOW, "ads": [{"shown_ad": None, "ad_id": 3}], "user": {"user_id": None, "uid": 4}},
    {"time_ms": NOW, "ads": [], "history": {"played": {}}},
    {"time_ms": NOW, "ads": [2**64 - 1, 2**64]},
    {"time_ms": NOW, "ads": [1], "history": {"shown": {"at": [2**60, 0.5], "shown_ad": [1, 1]}}},
    {"time_ms": 10**400, "ads": [1]},
    {"time_ms": NOW, "ads": [1], "sort_by": {"a": []}},
    {"time_ms": NOW, "ads": [{"topics": ",,"}, {"topics": "t1,,t2 , t1"}]},
]


@pytest.fixture(scope="module")
def fuzzed(made):
    from opengem.data.encoder import Encoder

    made.data_encoder = Encoder.load(made.data.folder)
    return made, client_of(served(made)).app, Oracle(made)


def check_body(fuzzed, sent: bytes) -> int:
    """Send a body; check the answer, and where it was accepted that nothing was bent. Returns the status."""
    made, app, oracle = fuzzed
    status, headers, content = ask(app, sent)

    def fail(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    answer = json.loads(content, parse_constant=fail)
    assert status in (200, 400, 409, 413, 422), (status, answer)
    if status == 200:
        check_values(made, oracle, json.loads(sent), answer)
    else:
        assert set(answer) == {"error"}
        assert set(answer["error"]) == {"field", "message"}
        assert answer["error"]["message"]
        assert "Traceback" not in content.decode()
    assert headers[b"content-type"] == b"application/json"
    return status


def each_of_the_corpus(test):
    for raw in CORPUS:
        test = example(sent=json.dumps(raw).encode())(test)
    return test


QUIET = [
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
]


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=QUIET, database=None)
@each_of_the_corpus
@given(sent=body)
def test_any_body_gets_an_answer_and_no_value_is_bent(fuzzed, sent):
    check_body(fuzzed, sent)


@pytest.mark.slow
@settings(max_examples=2_000, deadline=None, suppress_health_check=QUIET, database=None)
@given(sent=body)
def test_two_thousand_bodies_get_an_answer_and_no_value_is_bent(fuzzed, sent):
    check_body(fuzzed, sent)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=QUIET, database=None)
@given(
    columns=st.fixed_dictionaries(
        {
            "item": st.lists(st.one_of(st.integers(1, 40), st.none()), min_size=4, max_size=4),
            "seconds": st.lists(st.one_of(st.floats(-9, 9), st.none()), min_size=4, max_size=4),
            "author": st.lists(st.sampled_from(["a0", "a1", "zz", None, "0"]), min_size=4, max_size=4),
        }
    )
)
def test_events_are_read_as_they_were_written(fuzzed, columns):
    made, _, oracle = fuzzed
    at = [f"2025-01-10T00:00:0{i}Z" for i in range(4)]
    raw = {"time_ms": NOW, "ads": [1], "history": {"played": columns | {"at": at}}}
    have = made.predictor._reader.read(raw).batch.history["played"]
    assert have.ids["item"].tolist() == [oracle.row("ad", v) for v in columns["item"]]
    assert have.ids["author"].tolist() == [oracle.row("author", v) for v in columns["author"]]
    wanted = [0 if v is None else oracle.number("played.seconds", v) for v in columns["seconds"]]
    np.testing.assert_allclose(have.numbers["seconds"].numpy(), wanted, rtol=1e-5, atol=1e-6)
