"""Labels of later events at the edges; random logs are in test_point_in_time."""

import pytest

from tests.data.logs import DAY, T0, Log

NAN = "masked"


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path)
    log.schema["tables"]["impressions"]["id"] = "id"
    log.schema["tasks"]["buy"] = {
        "given": "click",
        "event": {"table": "events", "type": "buy", "within": "7d"},
    }
    return log


def _labels(stored, task="buy"):
    return [NAN if y != y else y for y in stored.column(f"y_{task}")]


def test_the_window_holds_its_end_but_not_its_start(log):
    log.impressions(*({"id": u, "user": u, "ad": u, "click": 0} for u in range(6)))
    late = {0: 0, 1: 1, 2: 7 * DAY, 3: 7 * DAY + 1}
    log.events(*({"user": u, "item": u, "type": "buy", "ts": T0 + d} for u, d in late.items()))
    stored = log.ingest()
    assert _labels(stored) == [0, 1, 1, 0, 0, 0]  # unclicked ones too: the label is that of all impressions
    assert stored.manifest["labels"]["buy"] == {
        "events": 4,
        "orphans": 2,
        "labelled": 6,
        "positives": 2,
        "other_surfaces": 0,
        "immature": 0,
        "train_labelled": 6,
        "train_positives": 2,
    }


def test_an_open_window_is_masked_unless_it_is_positive(log):
    log.impressions({"id": 0}, {"id": 1, "ts": T0 + 2}, {"id": 2, "ad": 2, "ts": T0 + 1})
    log.events({"type": "buy", "ts": T0 + 9}, {"type": "view", "user": 8, "ts": T0 + 7 * DAY})
    stored = log.ingest()
    assert stored.column("example_id") == [0, 2, 1]
    assert _labels(stored) == [0, NAN, 1]
    assert stored.manifest["immature"] == {"buy": 1}
    log.schema["tasks"]["buy"]["event"]["attribution"] = "any"
    assert _labels(log.ingest()) == [1, NAN, 1]


def test_no_events_at_all_means_that_nothing_is_known(log):
    log.impressions({"id": 0}, {"id": 1})
    assert _labels(log.ingest()) == [NAN, NAN]


def test_one_conversion_twice_and_one_from_nowhere(log):
    log.impressions({"id": 1, "ad": 5}, {"id": 2, "ad": 5, "ts": T0 + 1000}, {"id": 3, "user": 2, "ad": 6})
    log.schema["tables"]["events"]["deduplicate"] = True
    log.schema["tasks"]["buy"]["event"]["within"] = "2s"
    buys = [{"item": 5}, {"item": 5}, {"user": 9, "item": 5}, {"user": 2, "item": 6, "ts": T0 + 10}]
    log.events(*({"type": "buy", "ts": T0 + 2000} | b for b in buys))
    stored = log.ingest()
    assert dict(zip(stored.column("example_id"), _labels(stored), strict=True)) == {1: 0, 2: 1, 3: 1}
    assert stored.manifest["rows"]["copies"]["events"] == 1
    assert stored.manifest["labels"]["buy"]["orphans"] == 1


def test_a_task_is_masked_where_it_does_not_exist(log):
    log.schema["tasks"]["click"]["surfaces"] = ["feed", "it's"]
    log.impressions(
        {"id": 0, "click": 1}, {"id": 1, "surface": "reels", "click": 1}, {"id": 2, "surface": "it's"}
    )
    stored = log.ingest()
    assert _labels(stored, "click") == [1, NAN, 0]
    assert stored.manifest["labels"]["click"]["other_surfaces"] == 1


def test_a_click_stamped_before_its_own_impression(log):
    log.schema["tables"]["impressions"]["key"] = "request"
    log.schema["tables"]["events"]["request"] = "request"
    del log.schema["tasks"]["buy"]
    log.impressions(
        {"id": 1, "request": 50, "ad": 7, "ts": T0 + 1000},
        {"id": 2, "request": 50, "ad": 8, "ts": T0 + 1000},
        {"id": 3, "request": 51, "ad": 8, "ts": T0 + 5000},
    )
    log.events({"item": 7, "ts": T0 + 999, "request": 50}, {"item": 6, "ts": T0 + 500, "request": 49})
    stored = log.ingest()
    assert stored.items() == [["6"], ["6", "7"]]
    assert stored.manifest["events_before_own_request"] == {"acts": 1}


def test_of_two_impressions_at_one_time_one_is_credited(log):
    log.impressions({"id": 8}, {"id": 3}, {"id": 5})
    log.events({"type": "buy", "ts": T0 + 1}, {"ts": T0 + 7 * DAY})
    stored = log.ingest()
    assert dict(zip(stored.column("example_id"), _labels(stored), strict=True)) == {3: 0, 5: 0, 8: 1}


def test_an_event_that_arrives_before_it_happens_is_known_when_it_happens(log):
    del log.schema["tasks"]["buy"]
    log.schema["tables"]["events"]["arrival"] = "arrived"
    log.impressions({"id": 0, "ts": T0 + 10}, {"id": 1, "ts": T0 + 11}, {"id": 2, "ts": T0 + 21})
    log.events({"item": 7, "ts": T0 + 10, "arrived": T0 + 5}, {"item": 8, "ts": T0 + 1, "arrived": T0 + 20})
    assert log.ingest().items() == [[], ["7"], ["7", "8"]]
