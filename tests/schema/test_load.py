import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opengem.errors import ConfigError
from opengem.schema import TimeColumn, load_schema, parse_schema

SMALL = """
name = "small"
root = "logs"

[tables.impressions]
path = "impressions"
user = "user"
ad = "ad"
surface = "surface"
time = { column = "ts", unit = "s" }

[tables.events]
path = "events/*.parquet"
user = "user"
item = "item"
type = "type"
time = "ts"

[[streams]]
name = "acts"
from = "events"
attributes = ["item", { name = "price", kind = "number" }]

[[features]]
name = "ad"
owner = "ad"
kind = "id"
table = "item"

[features_placeholder]

[[tasks]]
name = "buy"
given = "click"
event = { table = "events", type = "buy", within = "7d" }

[[tasks]]
name = "click"
label = "click"

[splits]
train = ["2026-01-01", "2026-01-02"]
validation = ["2026-01-04T00:00:00+08:00", "2026-01-04T12:00:00+08:00"]
""".replace("[features_placeholder]\n\n", "")

PLAIN: dict[str, Any] = {
    "tables": {
        "impressions": {"path": "i", "user": "u", "ad": "a", "time": "t"},
        "events": {"path": "e", "user": "u", "item": "i", "time": "t"},
    },
    "features": {"ad": {"owner": "ad", "kind": "id"}},
    "streams": {"acts": {"from": "events", "attributes": ["i", "liked"]}},
    "tasks": {"click": {"label": "click"}},
    "splits": {"train": ["2026-01-01", "2026-01-02"]},
}

READY = {"path": "r", "user": "u", "lists": {"i": "items"}, "members": {"liked": "likes"}}


def _write(folder: Path, text: str) -> Path:
    path = folder / "schema.toml"
    path.write_text(text)
    return path


def _plain(edit: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(PLAIN)
    *parts, last = edit.split(".")
    place = data
    for part in parts:
        place = place.setdefault(part, {})
    place[last] = value
    return data


def test_shorthands_and_order(tmp_path):
    schema = load_schema(_write(tmp_path, SMALL))
    assert schema.root == str((tmp_path / "logs").resolve())
    assert schema.impressions.time == TimeColumn(column="ts", unit="s")
    assert schema.tables["events"].time == TimeColumn(column="ts", unit="ms")
    assert [a.kind for a in schema.streams[0].attributes] == ["id", "number"]
    assert [a.table for a in schema.streams[0].attributes] == ["item", ""]
    assert schema.features[0].column == "ad"
    assert [t.name for t in schema.tasks] == ["click", "buy"]  # what is given stands first
    assert schema.tasks[1].event is not None
    assert schema.tasks[1].event.within_ms == 7 * 86_400_000
    assert schema.text == SMALL


def test_days_are_inclusive_and_times_are_half_open(tmp_path):
    splits = load_schema(_write(tmp_path, SMALL)).splits
    start = 1_767_225_600_000  # 2026-01-01T00:00:00Z
    assert splits.train == (start, start + 2 * 86_400_000)
    assert splits.validation == (start + 64 * 3_600_000, start + 76 * 3_600_000)
    assert splits.test == (splits.validation[1], splits.validation[1])


def test_an_unknown_key_names_its_place_line_and_neighbour(tmp_path):
    text = SMALL.replace('owner = "ad"\nkind', 'owner = "ad"\nknid')
    line = text.splitlines().index('knid = "id"') + 1
    with pytest.raises(ConfigError) as error:
        load_schema(_write(tmp_path, text))
    for part in ("features.ad.knid", '"kind"', "schema.toml", f"line {line}"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("edit", "value", "named"),
    [
        ("tabels", {}, ["tabels", '"tables"']),
        ("tables.impressions.user", "", ["tables.impressions.user"]),
        ("tables.events.item", 3, ["tables.events.item", "3"]),
        ("features.x", {"owner": "ads", "kind": "id"}, ["features.x.owner", "ads"]),
        ("features.x", {"owner": "ad", "kind": "number", "table": "t"}, ["features.x.table", "number"]),
        ("features.click", {"owner": "context", "kind": "id"}, ["features.click", "tasks.click", "label"]),
        ("features.y", {"owner": "ad", "kind": "id", "column": "click"}, ["features.y", "tasks.click"]),
        ("features.h", {"owner": "ad", "kind": "id", "derive": "hour"}, ["features.h.derive"]),
        ("streams.acts.from", "event", ["streams.acts.from", '"events"']),
        ("streams.acts.types", ["buy"], ["tables.events.type"]),
        ("streams.acts.attributes", [], ["streams.acts.attributes"]),
        ("streams.acts.ready", READY | {"lists": {}}, ["streams.acts.ready.lists"]),
        ("streams.acts.ready", READY | {"members": {"lkied": "l"}}, ["members.lkied", '"liked"']),
        ("streams.acts.ready", READY | {"members": {"i": "l"}}, ["members.i", "lists"]),
        (
            "streams.acts.ready",
            READY | {"lists": {"liked": "l"}, "members": {"i": "x"}},
            ["streams.acts.ready.members", "item"],
        ),
        ("tasks.click.surfaces", ["feed"], ["tables.impressions.surface"]),
        ("tasks.click.given", "clik", ["tasks.click.given", "clik"]),
        ("tasks.buy", {"label": "b", "given": "clic"}, ["tasks.buy.given", '"click"']),
        ("tasks.buy", {}, ["tasks.buy", "label", "event"]),
        ("tasks.buy", {"event": {"table": "events", "within": "7 days"}}, ["tasks.buy.event.within", "7d"]),
        ("tasks.buy", {"event": {"table": "evens", "within": "7d"}}, ["tasks.buy.event.table", '"events"']),
        ("vocabularies.da", {"limit": 3}, ["vocabularies.da", '"ad"']),
        ("splits.train", ["2026-01-02", "2026-01-01"], ["splits.train"]),
        ("splits.train", ["2026-01-02"], ["splits.train"]),
        ("splits.test", ["2026-01-02", "2026-01-03"], ["splits.test"]),
        ("splits.tets", ["2026-01-05", "2026-01-06"], ["splits.tets", '"test"']),
    ],
)
def test_what_contradicts_is_refused_by_name(edit, value, named, tmp_path):
    with pytest.raises(ConfigError) as error:
        parse_schema(_plain(edit, value), tmp_path)
    for part in named:
        assert part in str(error.value)


def test_the_fingerprint_is_of_meaning_not_of_place(tmp_path):
    mine = parse_schema(PLAIN, tmp_path).fingerprint
    assert parse_schema(PLAIN, tmp_path / "elsewhere").fingerprint == mine
    assert parse_schema(_plain("tables.events.path", "other"), tmp_path).fingerprint == mine
    assert parse_schema(_plain("splits.train", ["2026-01-01", "2026-01-05"]), tmp_path).fingerprint == mine
    assert parse_schema(_plain("tables.events.deduplicate", False), tmp_path).fingerprint == mine
    assert parse_schema(_plain("features.ad.kind", "ids"), tmp_path).fingerprint != mine
    assert parse_schema(_plain("vocabularies.ad", {"limit": 9}), tmp_path).fingerprint != mine


def test_splits_by_column(tmp_path):
    splits = {"column": "day", "train": ["1", "2"], "test": [3]}
    schema = parse_schema(_plain("splits", splits), tmp_path)
    assert schema.splits.values == {"train": ("1", "2"), "validation": (), "test": ("3",)}
    with pytest.raises(ConfigError, match=r'splits.test holds "2"'):
        parse_schema(_plain("splits", splits | {"test": ["2"]}), tmp_path)


def test_not_a_file(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_schema(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="TOML"):
        load_schema(_write(tmp_path, "name = "))


def test_reading_a_schema_does_not_import_torch():
    code = "import sys, opengem.schema; assert 'torch' not in sys.modules and 'duckdb' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
