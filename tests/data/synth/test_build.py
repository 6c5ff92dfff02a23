import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from opengem.data.synth import EFFECTS, SynthConfig, load_truth, synth
from opengem.data.synth.parameters import EFFECT_OF_TERM
from opengem.errors import DataError
from tests.data.synth.conftest import read_logs


def bytes_of(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_same_bytes_at_any_number_of_workers(small, tmp_path):
    seen = []
    config = dataclasses.replace(small.config, workers=2)
    synth(config, tmp_path / "again", progress=lambda done, total: seen.append((done, total)))
    assert bytes_of(tmp_path / "again") == bytes_of(small.path)
    assert seen[-1] == (60, 60)
    assert len(seen) == 2
    assert not (tmp_path / "again.partial").exists()


def test_other_seed_gives_another_world(small, tmp_path):
    info = synth(dataclasses.replace(small.config, seed=4), tmp_path / "other")
    assert info.impressions != small.info.impressions
    assert (info.out / "ads.parquet").read_bytes() != (small.path / "ads.parquet").read_bytes()


def test_folder_with_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="empty"):
        synth(SynthConfig(users=2, days=5), tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize("effect", [e for e in EFFECTS if e not in ("surface", "drift")])
def test_switch_silences_the_terms_of_its_effect_only(effect, tmp_path):
    config = SynthConfig(users=40, days=10, effects={effect: 0.0})
    truth = load_truth(synth(config, tmp_path / "w").out)
    for name in truth.column_names:
        term = name.split("_", 1)[1]
        if not name.startswith("p_") and term in EFFECT_OF_TERM:
            silent = not np.any(truth[name].to_numpy())
            assert silent == (EFFECT_OF_TERM[term] == effect), name


@pytest.mark.parametrize("effect", ["surface", "drift"])
def test_switch_removes_the_factor(effect, tmp_path):
    """With both off, cells of a cross table are the same on all surfaces and days; with one on, they differ."""
    other = {"surface": "drift", "drift": "surface"}[effect]
    distinct = {}
    for name, effects in (("off", {"surface": 0.0, "drift": 0.0}), ("on", {other: 0.0})):
        out = synth(SynthConfig(users=40, days=10, effects=effects), tmp_path / name).out
        joined = load_truth(out).join(read_logs(out, "impressions"), "impression_id")
        first = joined.filter(pc.greater(joined["click_lasting"], 0))
        distinct[name] = len(set(np.round(first["click_lasting"].to_numpy(), 5)))
    # ln(1 + days) for at most 18 days of log.
    assert distinct["off"] <= 18 < distinct["on"]


def test_very_small_world_is_written(tmp_path):
    info = synth(SynthConfig(users=1, days=5, impressions_per_user=0.1), tmp_path / "w")
    assert info.events >= 1
    assert json.loads((info.out / "world.json").read_text())["counts"]["impressions"] == info.impressions


def test_histories_can_be_made_long(tmp_path):
    config = SynthConfig(users=40, days=20, history_events=1_000, history_minimum=900, impressions_per_user=5)
    info = synth(config, tmp_path / "w")
    events = read_logs(info.out, "events")
    organic = events.filter(pc.is_in(events["type"], pa.array(["view", "like", "search", "message"])))
    count = np.bincount(organic["user_id"].to_numpy(), minlength=40)
    assert count.min() > 600
    assert 900 < np.median(count) < 1_500
    assert info.impressions < 40 * 5 * 3


def test_world_file_names_every_setting(small):
    told = json.loads((small.path / "world.json").read_text())
    assert told["config"]["users"] == 60
    assert told["config"]["start"] == "2024-02-20"
    assert set(told["config"]["effects"]) == set(EFFECTS)
    assert told["counts"]["clicks"] == small.info.clicks
    assert "workers" not in told["config"]
