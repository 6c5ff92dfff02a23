"""Generated settings and tables: an answer or an error in words, never anything else, and no value bent in silence."""

import copy
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opengem.models  # noqa: F401 - registers the model types
from opengem.config import build, load_toml, merge, parse_overrides, to_plain
from opengem.data import Dataset, ingest
from opengem.data.ingestion.read.sources import open_source
from opengem.data.ingestion.read.table import batches
from opengem.errors import OpenGEMError
from opengem.schema import parse_schema
from opengem.training.run import TrainRun

T0 = 1_767_225_600_000
SCHEMA: dict[str, Any] = {
    "name": "f",
    "tables": {
        "impressions": {
            "path": "i.parquet",
            "user": "user",
            "ad": "ad",
            "surface": "surface",
            "time": "ts",
            "id": "id",
        },
        "events": {"path": "e.parquet", "user": "user", "item": "item", "type": "type", "time": "ts"},
    },
    "features": {
        "ad": {"owner": "ad", "kind": "id"},
        "tags": {"owner": "context", "kind": "ids"},
        "price": {"owner": "context", "kind": "number"},
    },
    "streams": {"acts": {"from": "events", "attributes": ["item", "type"]}},
    "tasks": {
        "click": {"label": "click"},
        "buy": {"event": {"table": "events", "type": "buy", "within": "1d"}},
    },
    "splits": {"train": ["2026-01-01", "2026-12-31"]},
}
RUN = {
    "data": "d",
    "model": {"type": "gem", "interformer": {"form": "one_way"}},
    "training": {"epochs": 2, "splits": ["train"], "task_weights": {"click": 1.0}},
}
_WORDS = """impressions events user ad click train test path id ids number vector a.b 7d 2026-01-01 2026-13-41
gem din owner kind table ms last ../x \u00e9\u4e2d"""
_words = st.sampled_from([*_WORDS.split(), "", "x" * 300])
_values = st.recursive(
    st.one_of(_words, st.integers(-(2**65), 2**65), st.floats(), st.booleans(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_words, inner, max_size=3)),
    max_leaves=6,
)
_edits = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["set", "add", "remove"]), _words, _values), max_size=4
)


def _edited(settings: dict[str, Any], edits: list[Any]) -> dict[str, Any]:
    """Return the settings with some keys set, added or removed anywhere."""
    made = copy.deepcopy(settings)
    for number, how, word, value in edits:
        places = list(_tables(made))
        place = places[number % len(places)]
        key = word if how == "add" or not place else sorted(place)[number % len(place)]
        if how == "remove":
            place.pop(key, None)
        else:
            place[key] = value
    return made


def _tables(value: Any):
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _tables(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _tables(inner)


def _load_schema(edits: list[Any]) -> None:
    given_settings = _edited(SCHEMA, edits)
    try:
        schema = parse_schema(given_settings, Path("/nowhere"))
    except OpenGEMError:
        return
    again = parse_schema(given_settings, Path("/elsewhere"))
    assert schema.fingerprint == again.fingerprint
    assert {f.name for f in schema.features} == set(given_settings.get("features", {}))
    assert {t.name for t in schema.tasks} == set(given_settings.get("tasks", {}))


def _load_run(edits: list[Any], overrides: list[str]) -> None:
    given_settings = _edited(RUN, edits)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.toml"
            try:
                path.write_text(tomli_w.dumps(given_settings), encoding="utf-8")
            except (TypeError, ValueError, AttributeError):  # no TOML says this
                return
            run = build(TrainRun, merge(load_toml(path), parse_overrides(overrides)))
    except OpenGEMError:
        return
    assert build(TrainRun, to_plain(run)) == run


_ids = st.one_of(st.none(), st.integers(-3, 3), st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
_times = st.one_of(*[st.integers(T0, T0 + 10)] * 6, st.none(), st.integers(-(2**63), 2**63 - 1))
_texts = st.lists(st.one_of(st.none(), st.text(max_size=3)), min_size=5, max_size=5)
_GOOD: dict[str, tuple[pa.DataType, Any]] = {
    "user": (pa.int64(), _ids),
    "ad": (pa.int64(), _ids),
    "item": (pa.int64(), _ids),
    "surface": (pa.string(), st.sampled_from(["feed", "reels", "feed", None, ""])),
    "type": (pa.string(), st.sampled_from(["buy", "view", None])),
    "ts": (pa.int64(), _times),
    "price": (pa.float64(), st.one_of(st.none(), st.floats(), st.floats(-5, 5))),
    "click": (pa.int8(), st.sampled_from([0, 1, 0, 1, None, 2, -1])),
    "tags": (pa.list_(pa.int64()), st.one_of(st.none(), st.lists(_ids, max_size=3))),
}
_odd = st.one_of(
    _texts.map(pa.array),
    st.lists(st.floats(), min_size=5, max_size=5).map(pa.array),
    st.lists(st.booleans(), min_size=5, max_size=5).map(pa.array),
    st.just(pa.nulls(5)),
    st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5).map(lambda v: pa.array(v, pa.uint64())),
    st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=5, max_size=5).map(pa.array),
)


@st.composite
def _table(draw: st.DrawFn, names: tuple[str, ...]) -> pa.Table:
    rows = draw(st.integers(0, 5))
    columns: dict[str, pa.Array] = {"other": pa.nulls(rows)}
    strange = draw(st.one_of(st.none(), st.none(), st.sampled_from(names)))
    for name in names:
        kind, values = _GOOD[name]
        column = pa.array(draw(st.lists(values, min_size=5, max_size=5)), kind)
        if name == strange:
            odd = draw(st.one_of(st.none(), _odd))
            if odd is None:  # the column is not there
                continue
            column = odd
        columns[name] = column.slice(0, rows)
    return pa.table(columns)


_logs = st.tuples(
    _table(("user", "ad", "surface", "ts", "price", "click", "tags")), _table(("user", "item", "type", "ts"))
)


def _read_parquet(tables: tuple[pa.Table, pa.Table], harm: tuple[int, int] | None) -> None:
    impressions, events = tables
    impressions = impressions.append_column("id", pa.array(np.arange(impressions.num_rows)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(impressions, folder / "i.parquet")
        pq.write_table(events, folder / "e.parquet")
        if harm is not None:
            content = bytearray((folder / "i.parquet").read_bytes())
            content[harm[0] % len(content)] ^= harm[1]
            (folder / "i.parquet").write_bytes(content)
        try:
            made = ingest(parse_schema(SCHEMA, folder), folder / "out", workers=1)
        except OpenGEMError:
            return
        rows = made.manifest["rows"]
        for table in ("impressions", "events"):
            bad = sum(n for reason, n in rows["quarantined"].items() if reason.startswith(f"{table}: "))
            assert rows["read"][table] == rows["kept"][table] + bad + rows["copies"][table]
        if harm is None:
            _check_values(Dataset.open(made.folder), impressions)


def _check_values(data: Dataset, impressions: pa.Table) -> None:
    """Hold what was kept against what was written, by example id."""
    batch = data.read(np.arange(data.num_requests), 5)
    given_rows = impressions.to_pylist()
    mean, std = _scale(data)
    for i, example_id in enumerate(batch.example_id.tolist()):
        row = given_rows[example_id]
        assert batch.time[i] == row["ts"]
        assert batch.label_mask["click"][i] == (row.get("click") is not None)
        if row.get("click") is not None:
            assert batch.labels["click"][i] == row["click"]
        price = row.get("price")
        missing = price is None or (isinstance(price, float) and math.isnan(price))
        assert batch.missing["price"][i] == missing
        if not missing:
            assert batch.numbers["price"][i] == np.float32((price - mean) / std)


def _scale(data: Dataset) -> tuple[float, float]:
    from opengem.data import Encoder

    return Encoder.load(data.folder).numbers["price"]


_few = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
_many = settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
_overrides = st.lists(
    st.one_of(st.text(max_size=12), st.sampled_from(["seed=x", "training.epochs=0", "a=[", "model=3"])),
    max_size=2,
)
_harm = st.one_of(st.none(), st.none(), st.tuples(st.integers(0, 10**6), st.integers(1, 255)))


@_few
@given(_edits)
def test_a_schema_is_read_or_refused_in_words(edits):
    _load_schema(edits)


@_few
@given(_edits, _overrides)
def test_a_run_file_is_read_or_refused_in_words(edits, overrides):
    _load_run(edits, overrides)


@_few
@given(_logs, _harm)
def test_a_table_is_read_or_refused_in_words_and_no_value_is_bent(tables, harm):
    _read_parquet(tables, harm)


@pytest.mark.slow
@_many
@given(_edits)
def test_two_thousand_schemas(edits):
    _load_schema(edits)


@pytest.mark.slow
@_many
@given(_edits, _overrides)
def test_two_thousand_run_files(edits, overrides):
    _load_run(edits, overrides)


@pytest.mark.slow
@_many
@given(_logs, _harm)
def test_two_thousand_tables(tables, harm):
    _read_parquet(tables, harm)


def test_a_footer_with_any_byte_changed_is_read_or_refused_in_words(tmp_path):
    table = pa.table({"user": [1, 2], "n\u00e4me": ["\u00e4", "b"], "tags": [[1], []], "ts": [T0, T0]})
    pq.write_table(table, tmp_path / "i.parquet")
    content = (tmp_path / "i.parquet").read_bytes()
    refused = 0
    for place in range(len(content) - 8 - int.from_bytes(content[-8:-4], "little"), len(content)):
        harmed = bytearray(content)
        harmed[place] ^= 0x80  # among others a name that is no UTF-8, which once ended in a traceback
        (tmp_path / "i.parquet").write_bytes(harmed)
        try:
            source = open_source(tmp_path, "i.parquet", "impressions")
            for _ in batches(source.files[0], list(source.files[0].columns), "impressions"):
                pass
        except OpenGEMError:
            refused += 1
    assert refused > 100
