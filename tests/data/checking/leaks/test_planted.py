"""The check finds every planted leak, and none where there is none."""

from pathlib import Path

import pytest

from opengem import check_data
from opengem.data.synth import SynthConfig, synth
from opengem.errors import ConfigError
from opengem.schema import load_schema
from tests.data.checking.leaks.planted import World, add_innocents, plant_leaks

KINDS = {
    "impressions.engaged": "own row",
    "impressions.noisy": "own row",
    "impressions.stay_ms": "own row",
    "impressions.actions_after": "later",
    "impressions.rounded": "own row",
    "impressions.quality": "own row",
    "impressions.later_events": "later",
    "impressions.scroll": "own row",
    "impressions.token": "own row",
    "impressions.closed_at": "later times",
    "impressions.rate_from_now": "later",
    "impressions.rare_flag": "levels",
    "impressions.page_clicked": "own row",
    "impressions.next_label": "later",
    "ads.ad_rate": "whole log",
    "ads.ad_rate_of_late_days": "whole log",
    "users.user_rate": "whole log",
    "users.user_clicks": "whole log",
}
LABELS = {"impressions.click", "impressions.like"}


def world_of(folder: Path, users: int = 120, seed: int = 0, **settings) -> Path:
    synth(SynthConfig(users=users, days=20, seed=seed, **settings), folder / "world")
    return folder / "world"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return world_of(tmp_path_factory.mktemp("plain"), users=400)


@pytest.fixture(scope="module")
def leaking(plain, tmp_path_factory):
    """The world with all leaks planted, and what the check says of it."""
    world = World(plain, tmp_path_factory.mktemp("leaking") / "world")
    assert plant_leaks(world) == KINDS | {"impressions.unused_ms": "own row"}
    return check_data(world.folder / "schema.toml", workers=1)


def leaks(found, level):
    return {f.where: f.text for f in found.of(level, "leak")}


@pytest.mark.parametrize("column", KINDS)
def test_a_planted_leak_that_a_feature_reads_is_an_error(leaking, column):
    errors = leaks(leaking, "error")
    assert column in errors
    assert "is known only after the example" in errors[column]
    assert f"Read by features.{column.split('.')[1]}" in errors[column]
    facts = next(c for c in leaking.facts["leaks"]["columns"] if f"{c['table']}.{c['column']}" == column)
    assert KINDS[column] in {e["kind"] for e in facts["evidence"] if e["strength"] == "sure"}


def test_nothing_else_of_the_leaking_world_is_an_error_or_warning(leaking):
    assert leaks(leaking, "error").keys() == KINDS.keys()
    assert leaks(leaking, "warning") == {}
    assert not leaking.ok


def test_a_leak_that_no_feature_reads_is_a_note(leaking):
    notes = leaks(leaking, "note")
    assert notes.keys() == {"impressions.unused_ms", *LABELS}
    assert notes["impressions.unused_ms"].startswith("known only after the exposure, never use as a feature")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_clean_world_raises_none(tmp_path, seed):
    found = check_data(world_of(tmp_path, seed=seed) / "schema.toml", workers=1)
    assert found.ok
    assert leaks(found, "warning") == {}
    measured = {k: v for k, v in leaks(found, "note").items() if not k.startswith("tasks.")}
    assert measured.keys() == LABELS
    assert all("it is the label of" in text for text in measured.values())


def test_what_was_known_before_raises_none_however_much_it_tells(plain, tmp_path):
    """A score of another model is the one that measuring cannot tell from a weak leak: it is declared known."""
    world = World(plain, tmp_path / "world")
    names = add_innocents(world)
    found = check_data(world.folder / "schema.toml", workers=1, known=["impressions.guess"])
    assert found.ok
    assert leaks(found, "warning") == {}
    columns = {f"{c['table']}.{c['column']}": c for c in found.facts["leaks"]["columns"]}
    assert set(names) <= columns.keys()
    told = columns["impressions.guess"]["auc"]["click"]
    assert told["own_row"] > told["past"] + 0.1
    assert leaks(found, "note")["impressions.guess"].startswith("said to be known before the example")


def test_a_known_column_must_exist(plain):
    with pytest.raises(ConfigError, match='did you mean "device"'):
        check_data(plain / "schema.toml", known=["devise"])


KUAIRAND = Path(__file__).parents[4] / "recipes" / "kuairand" / "schema.toml"


@pytest.mark.slow
def test_kuairand_names_what_was_measured_after_the_exposure():
    schema = load_schema(KUAIRAND)
    if not Path(schema.root).is_dir():
        pytest.skip(f"KuaiRand must lie in {schema.root}: there is no such folder")
    found = check_data(schema)
    assert found.ok
    columns = {c["column"]: c for c in found.facts["leaks"]["columns"] if c["table"] == "impressions"}
    by = {name: {e["kind"] for e in c["evidence"]} for name, c in columns.items() if c["evidence"]}
    sure = {name for name, c in columns.items() if c["strength"] == "sure"}
    measured = {name for name, kinds in by.items() if kinds & {"own row", "levels"}}
    assert measured == {
        "is_click", "long_view", "play_time_ms", "is_like", "is_follow", "is_comment", "is_forward", "is_profile_enter",
        "comment_stay_time",
    }  # fmt: skip
    assert sure == measured | {
        "is_hate"
    }  # of 190 hated videos 44% were clicked, as of all: only its use tells
    assert by["is_hate"] == {"use"}
    assert by["profile_stay_time"] == {"name"}  # 18 values that are not 0
    assert by.keys() == sure | {"profile_stay_time"}  # not tab, duration_ms, hourmin, date, is_rand, split
