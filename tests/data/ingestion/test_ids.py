"""Vocabularies that grow: what a later day knows, against one ingest whose training window reaches to that day."""

import itertools
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opengem.data import Dataset
from opengem.data.encoder import FIRST_ROW
from tests.data.ingestion.test_append import assert_same, growing_schema, write_day
from tests.data.logs import DAY, T0, Log, rows

DAYS = 9


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Log:
    """Return a log of nine days of which five were appended one by one to `grown`."""
    log, random = Log(tmp_path_factory.mktemp("growth")), np.random.default_rng(5)
    for name in ("users", "ads", "events"):
        shutil.rmtree(log.folder / name)
    growing_schema(log)
    log.schema["vocabularies"] = {
        "item": {"min_count": 9},
        "tags": {"min_count": 6},
        "user": {"min_count": 2},
    }
    for day in range(4):
        write_day(log, day, random)
    log.ingest("grown")
    for day in range(4, DAYS):
        write_day(log, day, random)
        log.ingest("grown")
    return log


def _until(log: Log, day: int) -> Dataset:
    """Return one ingest of all days with a training window of the first ones, `day` included."""
    log.schema["splits"] = {
        "train": ["2026-01-01", f"2026-01-{day + 1:02d}"],
        "test": [f"2026-01-{day + 2:02d}", "2026-02-28"],
    }
    if day + 1 == DAYS:
        del log.schema["splits"]["test"]
    out = log.folder / f"until-{day}"
    return Dataset.open(out if out.exists() else log.ingest(out.name).folder)


def _words(data: Dataset) -> dict[str, np.ndarray]:
    return {
        name: np.array(["(missing)", "(unseen)", *ids.ids.to_pylist()], dtype=object)
        for name, ids in data.encoder.vocabularies.items()
    }


def _decoded(data: Dataset) -> list[Any]:
    """Return all that is read of ids as text; events of one moment sorted, for their order goes by frequency too."""
    batch, words = data.read(np.arange(data.num_requests), 10_000), _words(data)
    found: list[Any] = []
    for feature in data.inputs.features:
        if feature.kind == "id":
            found.append(words[feature.table][batch.ids[feature.name].numpy()].tolist())
        elif feature.kind == "ids":
            bag = batch.bags[feature.name]
            found.append((words[feature.table][bag.values.numpy()].tolist(), bag.offsets.tolist()))
    for stream in data.inputs.streams:
        history = batch.history[stream.name]
        ids = [words[a.table][history.ids[a.name].numpy()] for a in stream.attributes if a.kind == "id"]
        events = list(zip(history.times.tolist(), *ids, strict=True))
        offsets = history.offsets.tolist()
        found += [sorted(events[a:b]) for a, b in itertools.pairwise(offsets)]
    return found


def test_what_all_days_know_is_what_one_ingest_knows_that_trains_on_all_days(log):
    grown, later = Dataset.open(log.folder / "grown").grown(("test",)), _until(log, DAYS - 1)
    for name, ids in later.encoder.vocabularies.items():
        assert set(grown.encoder.vocabularies[name].ids.to_pylist()) == set(ids.ids.to_pylist()), name
    assert _decoded(grown) == _decoded(later)
    window = Dataset.open(grown.folder)
    assert grown.inputs.table_rows("item") > window.inputs.table_rows("item") + 5
    assert _decoded(grown) != _decoded(window)


def test_early_events_of_an_id_that_is_admitted_late_read_as_that_id(log):
    window, grown = Dataset.open(log.folder / "grown"), Dataset.open(log.folder / "grown").grown(("test",))
    every = np.arange(window.num_requests)
    before, after = (d.read(every, 10_000).history["acts"].ids["item"].numpy() for d in (window, grown))
    late = after >= window.inputs.table_rows("item")
    assert (before[late] == 1).all()
    np.testing.assert_array_equal(before[~late], after[~late])
    times = window.read(every, 10_000).history["acts"].times.numpy()
    assert (times[late] < T0 + 2 * DAY).any()  # seen in the training window, but not often enough then


def test_what_follows_a_split_is_not_known_to_it(log):
    grown = Dataset.open(log.folder / "grown")
    known, later = grown.grown(("train", "validation")), _until(log, 2)
    for name, ids in later.encoder.vocabularies.items():
        assert set(known.encoder.vocabularies[name].ids.to_pylist()) == set(ids.ids.to_pylist()), name
    assert _decoded(known) == _decoded(later)
    assert grown.grown(("train",)) is grown
    everything = grown.grown(("validation", "test")).encoder.vocabularies
    for name, ids in known.encoder.vocabularies.items():  # and it keeps its rows when more is known
        assert everything[name].ids[: len(ids)].equals(ids.ids)


def test_ids_that_were_written_long_before_they_are_read(tmp_path):
    """Ads and users are described on the first day; nothing reads them before the last."""
    log = Log(tmp_path)
    log.schema["features"]["tags"] = {"owner": "ad", "kind": "ids"}
    log.schema["streams"]["acts"]["attributes"] = ["item", "category"]
    log.schema["splits"] = {"train": ["2026-01-01", "2026-01-01"], "test": ["2026-01-02", "2026-01-31"]}
    log.schema["vocabularies"] = {n: {"min_count": 2} for n in ("category", "tags", "country")}
    described = [{"ad": k, "category": f"c{k}", "tags": ["all", f"t{k}", None]} for k in range(1, 6)]
    log.write("ads", rows("ads", *described))
    log.write("users", rows("users", *({"user": k, "country": f"land {k}"} for k in (1, 2, 3))))
    log.impressions({"ts": T0}, {"ts": T0, "user": 9}, {"ts": T0 + DAY})
    log.events({"item": 1, "ts": T0})
    first = log.ingest("grown")
    assert first.manifest["codes"] == {"user": 4, "country": 5, "item": 3, "category": 7, "tags": 8}
    shown = [{"user": 2, "ad": 2}, {"user": 2, "ad": 3}, {"user": 3, "ad": 4}]
    log.impressions(*({"ts": T0 + 2 * DAY + k, **s} for k, s in enumerate(shown)), part="later")
    log.events({"item": 2, "ts": T0 + 2 * DAY}, {"item": 5, "ts": T0 + 2 * DAY}, part="later")
    assert len(log.ingest("grown").manifest["segments"]) == 2
    grown = Dataset.open(first.folder).grown(("test",))
    known = {name: ids.ids.to_pylist() for name, ids in grown.encoder.vocabularies.items()}
    assert known["country"] == ["land 1", "land 2"]  # 3 was read once
    assert known["category"] == ["c1", "c2"]  # c2 by an example and an event, c3, c4 and c5 by one of them
    assert known["tags"] == ["all", "t1"]
    batch = grown.read(np.arange(grown.num_requests), 9)
    assert batch.bags["tags"].values.tolist() == [2, 3, 2, 3, 2, 3, 2, 1, 2, 1, 2, 1]
    assert _decoded(grown) == _decoded(Dataset.open(log.ingest("whole").folder).grown(("test",)))


def test_the_manifest_counts_codes_and_the_window_has_the_first(log):
    data = Dataset.open(log.folder / "grown")
    for name, codes in data.manifest["codes"].items():
        written = [Path(data.folder, s["folder"], "ids", f"{name}.arrow") for s in data.manifest["segments"]]
        assert all(path.exists() for path in written)
        assert data.inputs.table_rows(name) == len(data.encoder.vocabularies[name]) + FIRST_ROW <= codes
    assert data.manifest["admission"]["item"] == {"min_count": 9, "limit": 0}


def test_a_worker_process_reads_with_the_same_vocabularies(log):
    grown = Dataset.open(log.folder / "grown").grown(("test",))
    sent = pickle.loads(pickle.dumps(grown))
    assert sent.inputs == grown.inputs
    assert_same(*(data.read(np.arange(data.num_requests), 30) for data in (sent, grown)))


def test_splits_by_column_know_what_was_read_on_days_before_the_next_example(tmp_path):
    log = Log(tmp_path)
    log.schema["splits"] = {"column": "part", "train": ["a"], "validation": ["b"], "test": ["c"]}
    parts = [("a", 0, 1), ("a", 1, 2), ("b", 1, 3), ("b", 3, 4), ("c", 4, 5), ("c", 5, 6)]
    log.impressions(*({"part": part, "ts": T0 + day * DAY, "ad": ad} for part, day, ad in parts))
    data = Dataset.open(log.ingest().folder)

    def ads(*splits: str) -> list[str]:
        return data.grown(splits).encoder.vocabularies["item"].ids.to_pylist()

    assert ads("train") == ["1", "2"]
    assert ads("train", "validation") == ["1", "2", "3", "4"]
    assert ads("test") == ["1", "2", "3", "4", "5", "6"]
    assert [data.split(s) for s in ("train", "validation", "test")] == [range(2), range(2, 4), range(4, 6)]
