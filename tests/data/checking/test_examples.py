"""Labels by surface and split, labels still open, and histories."""

import pytest

from opengem import check_data
from opengem.schema import load_schema, parse_schema
from tests.cases.inputs import DAYS, Case, run_script
from tests.data.checking.test_tables import said
from tests.data.logs import DAY, T0, Log


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def check(log):
    return check_data(parse_schema(log.schema, log.folder), workers=1)


def case_of(name, tmp_path):
    case = Case(run_script(name, tmp_path / "in"), tmp_path / "out")
    return case, lambda: check_data(load_schema(case.write_schema(), case.folder), workers=1)


def test_sq05_nobody_has_a_history(tmp_path):
    case, run = case_of("sq05_no_histories.py", tmp_path)
    case.schema["splits"] = DAYS
    found = run()
    words = said(found, "history", "warning")["streams"]
    assert words.startswith("100% of examples have no history (960 of 960)")
    assert "units and zones" in words
    assert found.facts["histories"]["without_any"] == 960
    assert found.ok


def test_examples_without_history_are_counted_by_stream_and_over_all(log):
    log.impressions({"ts": T0 + 5, "click": 1}, {"user": 2, "ts": T0 + 5}, {"user": 3, "ts": T0 + 5})
    log.events({"user": 1, "ts": T0 + 5}, {"user": 2, "ts": T0 + 4})
    log.schema["streams"]["shown"] = {"from": "impressions", "attributes": ["ad"]}
    facts = check(log).facts["histories"]
    assert facts["acts"]["without"] == 2  # strictly before: the event of user 1 is at the same time
    assert facts["shown"]["without"] == 3
    assert (facts["examples"], facts["without_any"]) == (3, 2)
    assert said(check(log), "history", "warning").keys() == {"streams", "streams.shown"}


def test_few_without_history_are_a_note(log):
    log.impressions(*({"user": u, "ts": T0 + 5, "click": u % 2} for u in range(4)))
    log.events(*({"user": u} for u in range(3)))
    assert said(check(log), "history") == {"streams": "25% of examples have no history (1 of 4)"}
    assert not said(check(log), "history", "warning")


def test_me02_a_surface_without_positives_is_named(log):
    """The labels of the case's three surfaces: the four of reels are all negative."""
    labels = {"feed": [0, 1, 0, 1], "reels": [0, 0, 0, 0], "explore": [1, 0, 0, 1]}
    log.impressions(
        *({"surface": s, "click": y, "ts": T0 + i} for s, ys in labels.items() for i, y in enumerate(ys))
    )
    found = check(log)
    assert (
        "no positive among the labels on reels (4 of train)"
        in said(found, "surfaces", "warning")["tasks.click"]
    )
    assert "AUC and NE are not defined there" in said(found, "surfaces")["tasks.click"]
    counts = found.facts["labels"]["click"]["surfaces"]
    assert counts["reels"] == {"train_labelled": 4, "train_positives": 0}
    assert counts["feed"] == {"train_labelled": 4, "train_positives": 2}


def test_surfaces_where_a_task_does_not_exist_are_not_named(log):
    log.impressions({"click": 1}, {"click": 0}, {"click": 0, "surface": "reels"})
    log.schema["tasks"]["click"]["surfaces"] = ["feed"]
    found = check(log)
    assert not said(found, "surfaces")
    assert found.facts["labels"]["click"]["splits"]["train"] == {"rows": 2, "labelled": 2, "positives": 1}


def test_one_class_in_training_is_an_error_and_in_test_a_warning(log):
    log.schema["splits"] = {"train": ["2026-01-01", "2026-01-01"], "test": ["2026-01-02", "2026-01-02"]}
    log.impressions({"click": 0}, {"click": 1}, {"ts": T0 + DAY, "click": 0})
    found = check(log)
    assert found.ok
    assert "no positive label among 1 in test" in said(found, "labels", "warning")["tasks.click"]
    log.impressions({"click": 1}, {"click": 1}, {"ts": T0 + DAY, "click": 0})
    assert "no negative label among 2 in train" in said(check(log), "labels", "error")["tasks.click"]
    log.impressions({"click": None}, {"click": None}, {"ts": T0 + DAY, "click": 0})
    assert "no positive label among 0 in train" in said(check(log), "labels", "error")["tasks.click"]


def test_immature_labels_and_orphans_of_an_event_task_are_counted(log):
    """The log of events ends at day 3: with a window of 2 days, what was shown after day 1 is still open."""
    log.impressions(*({"user": u, "ts": T0 + u * DAY // 2} for u in range(6)))
    log.events({"user": 0, "ts": T0 + 1, "type": "buy"}, {"user": 5, "ts": T0 + 3 * DAY, "type": "buy"},
               {"user": 9, "ts": T0 + 5, "type": "buy"})  # fmt: skip
    log.schema["tasks"] = {"buy": {"event": {"table": "events", "type": "buy", "within": "2d"}}}
    found = check(log)
    facts = found.facts["labels"]["buy"]
    assert facts["splits"]["train"] == {"rows": 6, "labelled": 4, "positives": 2}
    assert (facts["events"], facts["orphans"]) == (3, 1)
    words = said(found, "labels", "warning")["tasks.buy"]
    assert "33.3% of the labels in train (2 of 6) are immature: their window of 2d is open" in words
    assert (
        "33.3% of the events that make it (1 of 3) credit no example"
        in said(found, "labels", "note")["tasks.buy"]
    )
