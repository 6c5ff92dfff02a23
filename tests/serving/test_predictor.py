import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from opengem.errors import CheckFailed, DataError
from opengem.evaluation import PlattCalibration, TaskCalibration
from opengem.schema.inputs import MISSING_TIME
from opengem.serving.fields import RequestError
from opengem.serving.package import Package, checksum
from opengem.serving.predictor import Predictor
from opengem.serving.request import Limits
from tests.serving.raw_logs import HOUR, START

NOW = START + 100 * HOUR
AT = "2025-01-10T00:00:00Z"


def batch_of(made, **fields):
    """Read a request with one known ad and the fields given."""
    return made.predictor._reader.read({"time_ms": NOW, "ads": [1]} | fields)


def played(made, **columns):
    """Read events of the stream `played`."""
    read = batch_of(made, history={"played": columns})
    return read.batch.history["played"], read.ignored_events["played"]


def test_ads_are_sorted_by_the_named_task(made):
    request = {"time_ms": NOW, "ads": list(range(1, 26)), "surface": "p1"}
    for task in ("click", "buy"):
        answer = made.predictor.rank(request | {"sort_by": task})
        scores = [ad["scores"][task] for ad in answer["ads"]]
        assert scores == sorted(scores, reverse=True)
        assert sorted(ad["index"] for ad in answer["ads"]) == list(range(25))
        assert all(ad["ad"] == request["ads"][ad["index"]] for ad in answer["ads"])
        assert answer["sort_by"] == task
    assert made.predictor.rank(request)["sort_by"] == "click"
    for ad in answer["ads"]:
        assert 0 < ad["scores"]["buy"] < ad["scores"]["click"] < 1  # buy is given click
    json.dumps(answer, allow_nan=False)


def test_known_and_unknown_ads_and_surfaces(made):
    ads = [1, {"shown_ad": 1}, 999, {"ad_id": 5}]
    answer = made.predictor.rank({"time_ms": NOW, "ads": ads, "surface": "nowhere"})
    by_index = sorted(answer["ads"], key=lambda ad: ad["index"])
    assert [ad["known"] for ad in by_index] == [True, True, False, True]
    assert [ad["ad"] for ad in by_index] == [1, 1, 999, 5]
    assert by_index[0]["scores"] == by_index[1]["scores"]  # one ad, under both names of its key
    assert answer["package"] == made.package.fingerprint
    assert answer["surface"] == "other"
    assert made.predictor.rank({"time_ms": NOW, "ads": []})["ads"] == []


def test_a_new_ad_described_inline_is_scored_as_the_known_ad_like_it(made):
    ads = made.schema.tables["ads"]
    rows = pq.read_table(f"{made.schema.root}/{ads.path}").to_pylist()
    for row in rows[:8]:
        known = made.predictor.rank({"time_ms": NOW, "ads": [row["ad_id"]]})["ads"][0]
        inline = made.predictor.rank({"time_ms": NOW, "ads": [row]})["ads"][0]
        assert inline["scores"] == pytest.approx(known["scores"], abs=1e-9)
    changed = made.predictor.rank({"time_ms": NOW, "ads": [{"ad_id": 1, "price": 10_000}]})["ads"][0]
    assert changed["scores"] != made.predictor.rank({"time_ms": NOW, "ads": [1]})["ads"][0]["scores"]


def test_what_is_left_out_is_missing(made):
    read = batch_of(made)
    batch = read.batch
    assert batch.ids["city"].tolist() == [0]
    assert batch.missing["age"].tolist() == [1.0]
    assert batch.bags["likes"].to_list() == [[]]
    assert batch.bags["words"].to_list() == [[]]
    assert batch.num_events() == 0
    assert read.ignored_events == {"played": 0, "shown": 0}


def test_context_may_differ_by_ad(made):
    ads = [{"shown_ad": 1, "slot": 2, "device": "d1"}, {"shown_ad": 2, "words": ["w0"]}, 3]
    batch = batch_of(made, ads=ads, context={"slot": 1, "device": "d0"}).batch
    slots = batch.numbers["slot"].tolist()
    assert slots[0] > slots[1] == slots[2]
    devices = batch.ids["device"].tolist()
    assert devices[0] != devices[1] == devices[2]
    assert list(map(len, batch.bags["words"].to_list())) == [0, 1, 0]


def test_events_not_known_before_the_request_are_left_out_and_counted(made):
    second = NOW // 1000
    at = ["2025-01-10T00:00:00Z", "2025-01-10 00:00:00+00:00", "2025-01-13T00:00:00Z", "2025-01-10T02:00:00Z"]
    seen = [second - 1, second, second - 1, second - 5]  # the second arrives too late, the third is after NOW
    history, ignored = played(made, item=[1, 2, 3, 4], at=at, seen=seen)
    rows = made.predictor._reader._encoder.encode_ids("ad", pa.array([4, 1]))
    assert history.ids["item"].tolist() == rows.tolist()  # by arrival: 4 was seen before 1
    assert ignored == 2


def test_types_that_the_stream_does_not_hold_are_left_out(made):
    at = ["2025-01-10T00:00:00Z"] * 3
    history, ignored = played(made, item=[1, 2, 3], at=at, kind=["play", "noise", None])
    assert (history.times.shape[0], ignored) == (1, 2)


def test_events_without_a_time_come_first_as_sent_where_the_stream_has_ready_made_ones(made):
    at = ["2025-01-10T00:00:00Z", None, None]
    history, _ = played(made, item=[3, 1, 2], at=at)
    encode = made.predictor._reader._encoder.encode_ids
    assert history.ids["item"].tolist() == encode("ad", pa.array([1, 2, 3])).tolist()
    assert history.times.tolist()[:2] == [MISSING_TIME] * 2
    with pytest.raises(RequestError, match=r"history\.shown\.at must hold a time for each event"):
        batch_of(made, history={"shown": {"shown_ad": [1]}})


def test_an_event_takes_over_what_its_item_brings_along(made):
    history, _ = played(made, item=[1, 2, 999], at=["2025-01-10T00:00:00Z"] * 3)
    ads = made.predictor._reader._ads
    of_item = dict(zip(history.ids["item"].tolist(), history.ids["author"].tolist(), strict=True))
    encode = made.predictor._reader._encoder.encode_ids
    authors = ads.feature("author").gather(ads.rows(["1", "2"])).tolist()
    items = encode("ad", pa.array([1, 2])).tolist()
    assert [of_item[i] for i in items] == authors
    assert of_item[1] == 0  # an unknown item has no author


WRONG = [
    ({"ads": None}, "ads", "must be a list. Received: null"),
    ({"time_ms": "now"}, "time_ms", "must be a whole number"),
    ({"time_ms": True}, "time_ms", "must be a whole number"),
    ({"time_ms": 12.0}, "time_ms", "must be a whole number. Received: a number with a point"),
    ({"time_ms": NOW // 1000}, "time_ms", "must lie in [315532800000, 4102444800000)"),
    ({"surprise": 1}, "surprise", "unknown field"),
    ({"not a plain <word>": 1}, "request", "unknown field"),
    ({"user": {"citty": "c1"}}, "user.citty", 'unknown field (did you mean "city"?)'),
    (
        {"user": {"user_id": 3, "uid": 4}},
        "user",
        "must have one key. Received: user_id and uid, which differ",
    ),
    ({"ads": [{"shown_ad": 3, "ad_id": 4}]}, "ads[0]", "must have one key"),
    ({"user": ["c1"]}, "user", "must be an object. Received: a list"),
    ({"user": {"age": {}}}, "user.age", "must be a finite number. Received: an object"),
    ({"user": {"age": True}}, "user.age", "must be a finite number. Received: true or false"),
    ({"user": {"age": "old"}}, "user.age", "text that is one"),
    ({"user": {"age": "nan"}}, "user.age", "text that is one"),
    ({"user": {"city": ["a"]}}, "user.city", "must be an id as the log writes it: text. Received: a list"),
    ({"user": {"city": 12}}, "user.city", "as the log writes it: text. Received: a whole number"),
    ({"user": {"city": "\ud800"}}, "user.city", "half of a surrogate pair"),
    ({"user": {"user_id": "3"}}, "user.user_id", "a whole number from -2^63 to 2^63 - 1. Received: text"),
    ({"user": {"user_id": 2**63}}, "user.user_id", "a whole number from -2^63 to 2^63 - 1"),
    ({"user": {"likes": ["a1", 2]}}, "user.likes[1]", "as the log writes it: text"),
    ({"user": {"city": float("nan")}}, "user.city", "not finite"),
    ({"user": {"city": "x" * 1001}}, "user.city", "at most 1000 characters"),
    ({"user": {"likes": "a1"}}, "user.likes", "must be a list. Received: text"),
    ({"context": {"slot": float("inf")}}, "context.slot", "finite number"),
    ({"context": {"slot": 10**400}}, "context.slot", "finite number"),
    ({"context": {"slot": 1e300}}, "context.slot", "of the size of those in the log"),
    ({"context": {"slot": "1"}}, "context.slot", "must be a finite number. Received: text"),
    ({"ads": [1, {"slot": float("nan")}]}, "ads[1].slot", "finite number"),
    ({"ads": [[]]}, "ads[0]", "must be an object"),
    ({"ads": [True]}, "ads[0]", "must be an id as the log writes it"),
    ({"ads": [1, 2.0]}, "ads[1]", "Received: a number with a point"),
    ({"ads": [1, {"ad": 2}]}, "ads[1].ad", "unknown field"),
    ({"ads": [{"ad_id": 1, "look": [1, 2]}]}, "ads[0].look", "must hold 3 numbers"),
    ({"ads": [{"ad_id": 1, "look": [1, None, 2]}]}, "ads[0].look", "must hold 3 numbers"),
    ({"ads": [{"ad_id": 1, "look": [1, 1e300, 2]}]}, "ads[0].look", "of the size of those in the log"),
    ({"ads": [{"ad_id": {}}]}, "ads[0].ad_id", "must be an id"),
    ({"history": {"plaid": {}}}, "history.plaid", 'did you mean "played"'),
    ({"history": {"played": []}}, "history.played", "must be an object"),
    ({"history": {"played": {"seconds": 1}}}, "history.played.seconds", "must be a list"),
    ({"history": {"played": {"itme": []}}}, "history.played.itme", 'did you mean "item"'),
    ({"history": {"played": {"item": [1], "ad_id": [1]}}}, "history.played", "they name the same item"),
    ({"history": {"shown": {"kind": ["play"]}}}, "history.shown.kind", "unknown field"),
    ({"history": {"played": {"item": [1], "at": []}}}, "history.played", "columns of one length"),
    ({"history": {"played": {"item": [1], "at": ["soon"]}}}, "history.played.at[0]", "that can be read"),
    ({"history": {"played": {"item": [1], "at": ["2025-01-09"]}}}, "history.played.at", "an offset from UTC"),
    (
        {"history": {"played": {"item": [1], "at": [5]}}},
        "history.played.at[0]",
        "ISO 8601 text. Received: a whole",
    ),
    (
        {"history": {"played": {"item": [1, 1], "at": [AT, True]}}},
        "history.played.at[1]",
        "times as ISO 8601",
    ),
    (
        {"history": {"shown": {"shown_ad": [1], "at": ["x"]}}},
        "history.shown.at[0]",
        "must hold times as numbers",
    ),
    (
        {"history": {"shown": {"shown_ad": [1], "at": [True]}}},
        "history.shown.at[0]",
        "must hold times as numbers",
    ),
    ({"history": {"shown": {"shown_ad": [1, 1], "at": [2**60, 0.5]}}}, "history.shown.at[0]", "with a point"),
    ({"history": {"played": {"item": [1, "2"], "at": [AT] * 2}}}, "history.played.item[1]", "Received: text"),
    ({"history": {"played": {"seconds": ["2"], "at": [AT]}}}, "history.played.seconds[0]", "Received: text"),
    ({"history": {"played": {"seconds": [1e300], "at": [AT]}}}, "history.played.seconds[0]", "of the size"),
    ({"schema_fingerprint": 7}, "schema_fingerprint", "that of the package. Received: a whole number"),
    ({"schema_fingerprint": "beef"}, "schema_fingerprint", "that of the package. Received: beef"),
    ({"sort_by": "sales"}, "sort_by", "Tasks: click, buy"),
    ({"sort_by": []}, "sort_by", "Tasks: click, buy"),
]


@pytest.mark.parametrize(("change", "field", "rule"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_a_wrong_request_names_the_field_and_repeats_nothing(made, change, field, rule):
    with pytest.raises(RequestError) as caught:
        made.predictor.rank({"time_ms": NOW, "ads": [1]} | change)
    assert caught.value.field == field
    assert rule in caught.value.rule


def test_a_request_must_be_an_object_with_time_and_ads(made):
    for raw in (None, [], "x", 1, {1: 2}):
        with pytest.raises(RequestError, match="request must be an object"):
            made.predictor.rank(raw)
    with pytest.raises(RequestError, match="time_ms must be given"):
        made.predictor.rank({"ads": []})
    with pytest.raises(RequestError, match="ads must be given"):
        made.predictor.rank({"time_ms": 1})


def test_limits_hold(made):
    small = Predictor.load(made.package, Limits(ads=2, events=3, values=2))
    with pytest.raises(RequestError, match=r"ads must hold at most 2 entries\. Received: 3"):
        small.rank({"time_ms": NOW, "ads": [1, 2, 3]})
    with pytest.raises(RequestError, match=r"history\.played\.item must hold at most 3"):
        small.rank({"time_ms": NOW, "ads": [1], "history": {"played": {"item": [1] * 4}}})
    with pytest.raises(RequestError, match=r"user\.likes must hold at most 2"):
        small.rank({"time_ms": NOW, "ads": [1], "user": {"likes": ["a", "b", "c"]}})
    with pytest.raises(RequestError, match=r"ads\[0\]\.topics must hold at most 2"):
        small.rank({"time_ms": NOW, "ads": [{"ad_id": 1, "topics": "a,b,c"}]})


def test_batches_are_scored_as_the_model_scores_them(made):
    batch = made.data.read(np.arange(40), made.package.history)
    with torch.no_grad():
        want = torch.sigmoid(made.model(batch).logits_BT.double()).numpy()
    np.testing.assert_allclose(made.predictor.score(batch), want, rtol=0, atol=1e-6)
    empty = made.data.read(np.array([], dtype=int), made.package.history)
    assert made.predictor.score(empty).shape == (0, 2)


def copy_of(package: Package, folder):
    """Copy a package, so that a test can change it."""
    shutil.copytree(package.folder, folder)
    return folder


def sign(folder):
    """Write the checksums anew, as someone does who changes a package knowingly."""
    facts = json.loads((folder / "package.json").read_text())
    facts["files"] = {
        p.relative_to(folder).as_posix(): checksum(p)
        for p in folder.rglob("*")
        if p.is_file() and p.name != "package.json"
    }
    (folder / "package.json").write_text(json.dumps(facts))


def test_calibration_is_applied(made, tmp_path):
    folder = copy_of(made.package, tmp_path / "package")
    plain = made.predictor.rank({"time_ms": NOW, "ads": [1], "surface": "p1"})["ads"][0]["scores"]
    fit = {"click": TaskCalibration(total=(1.0, 0.0), surfaces={"p1": (0.5, -1.0)}), "buy": TaskCalibration()}
    PlattCalibration(tasks=fit).save(folder / "calibration.json")
    sign(folder)
    calibrated = Predictor.load(folder).rank({"time_ms": NOW, "ads": [1], "surface": "p1"})["ads"][0][
        "scores"
    ]
    p = plain["click"]
    z = 0.5 * np.log(p / (1 - p)) - 1.0
    assert calibrated["click"] == pytest.approx(1 / (1 + np.exp(-z)), abs=1e-9)
    assert calibrated["buy"] == pytest.approx(plain["buy"], abs=1e-12)


def test_a_package_that_answers_its_sample_otherwise_is_not_served(made, tmp_path):
    folder = copy_of(made.package, tmp_path / "package")
    sample = load_file(folder / "sample.safetensors")
    name = "requests=1 ads=7 events=50"
    sample[f"{name}/expected"] = sample[f"{name}/expected"] + 0.01
    save_file(sample, folder / "sample.safetensors")
    sign(folder)
    with pytest.raises(CheckFailed, match='its sample "requests=1 ads=7 events=50" as it was exported'):
        Predictor.load(folder)


def test_a_package_with_another_schema_is_not_served(made, tmp_path):
    folder = copy_of(made.package, tmp_path / "package")
    text = (folder / "schema.toml").read_text()
    (folder / "schema.toml").write_text(text.replace('table = "author"', 'table = "writer"'))
    sign(folder)
    with pytest.raises(DataError, match="must be of fingerprint"):
        Predictor.load(folder)
