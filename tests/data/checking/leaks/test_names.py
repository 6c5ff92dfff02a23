"""Columns that are feedback by use or by name."""

import pytest

from opengem.data.checking.leaks.columns import Column
from opengem.data.checking.leaks.names import feedback_words, named
from opengem.schema import parse_schema
from tests.data.logs import SCHEMA


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    shown = {
        "from": "impressions",
        "attributes": ["ad", "surface", "price", "watched_ms", {"name": "n", "column": "saved"}],
    }
    tasks = {
        "click": {"label": "was_clicked"},
        "signup": {"event": {"table": "events", "type": "user_signup", "within": "1d"}},
    }
    made = SCHEMA | {"streams": SCHEMA["streams"] | {"shown": shown}, "tasks": tasks}
    return parse_schema(made, tmp_path_factory.mktemp("none"))


def why(schema, name, table="impressions"):
    found = named(Column(table, name, "number", None), schema, feedback_words(schema))  # pyright: ignore
    return found and (found.sure, found.why)


def test_a_label_and_what_is_read_only_of_the_past_are_sure(schema):
    assert why(schema, "was_clicked") == (True, "it is the label of tasks.click")
    assert why(schema, "watched_ms") == (True, "the schema reads it only of the past, in streams.shown")
    assert why(schema, "saved") == (True, "the schema reads it only of the past, in streams.shown")


def test_keys_and_features_in_a_history_are_not(schema):
    assert why(schema, "ad") is why(schema, "surface") is why(schema, "price") is None


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("dwell_time", "dwell"), ("is_like", "like"), ("clickToken", "click"), ("N_CLICKS", "clicks"),
        ("signup_page", "signup"), ("clicked", "clicked"), ("view-seconds", "view"),
    ],
)  # fmt: skip
def test_words_of_feedback_are_found_in_names(schema, name, word):
    assert why(schema, name) == (False, f'its name speaks of feedback ("{word}")')


@pytest.mark.parametrize(
    "name", ["liking", "preview", "device", "user", "ts", "position", "hour", "user_age", "unlike_this"]
)
def test_other_names_say_nothing(schema, name):
    assert why(schema, name) is None


def test_the_same_name_in_another_table_is_no_label(schema):
    assert why(schema, "watched_ms", "ads") == (False, 'its name speaks of feedback ("watched")')
    assert why(schema, "saved", "users") is None
