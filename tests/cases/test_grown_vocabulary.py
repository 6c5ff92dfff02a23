"""CK06 by appended days: ids that a day brings are admitted, and every model reads the ids that it was trained with."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from opengem import evaluate, train
from opengem.data import Dataset, Encoder
from opengem.data.compaction import compact
from opengem.errors import ConfigError
from opengem.schema import load_schema
from opengem.serving.export_run import export_run
from opengem.serving.predict import predict
from opengem.serving.predictor import Predictor
from opengem.serving.rank_stored import rank_stored
from opengem.training import trainer as trainer_module
from opengem.training.inference import TrainedModel, predict_split
from opengem.training.run_folder import RunFolder
from opengem.training.trainer import Trainer
from tests.cases.inputs import DAY, DAYS, T0, Case
from tests.cases.made import base, equal, lines, saved, tiny
from tests.cases.test_warm_start import by_id

OLD_ADS, ADS = 30, 45
ALL = ("train", "validation", "test")


@pytest.fixture(autouse=True)
def _no_roof(monkeypatch):
    """Leave out what is measured for the MFU: it takes longer than these runs."""
    monkeypatch.setattr(trainer_module, "matmul_roof", lambda: 1e9)
    monkeypatch.setattr(trainer_module, "FlopsPerExample", lambda model, every: lambda batch: 0.0)


class Growing:
    """A world whose fifth day brings fifteen ads of which nothing was known before."""

    def __init__(self, folder: Path) -> None:
        self.world: dict[str, pa.Table] = base().world(days=5, ads=ADS)
        ads = self.world["ads"]
        categories = [f"new {k}" if k > OLD_ADS else f"c{k % 6}" for k in ads["ad_id"].to_pylist()]
        self.world["ads"] = ads.set_column(1, "category", pa.array(categories))
        self.folder = folder
        for name in self.world:
            (folder / "input" / name).mkdir(parents=True)
        for day in range(4):
            self._write(day)
        self.case = Case(folder / "input", folder / "out")
        self.case.schema["splits"] = DAYS | {"test": ["2026-01-04", "2026-01-31"]}
        # users are admitted on the validation day or later, events' items of the fifth day on that day
        self.case.schema["vocabularies"] = {"item_id": {"min_count": 8}, "user_id": {"min_count": 10}}
        self.data = self.case.ingest().folder

    def append(self) -> None:
        self._write(4)
        done = self.case.ingest()
        assert len(done.manifest["segments"]) == 2

    def _write(self, day: int) -> None:
        for name in ("impressions", "events"):
            table = self.world[name]
            start = T0 + day * DAY
            inside = pc.and_(pc.greater_equal(table["ts"], start), pc.less(table["ts"], start + DAY))
            ad = table["ad_id" if name == "impressions" else "item_id"]
            known = pc.less_equal(ad, OLD_ADS if day < 4 else ADS)
            self._part(name, day, table.filter(pc.and_(inside, known)))
        ads = self.world["ads"]
        if day in (0, 4):
            span = (1, OLD_ADS) if day == 0 else (OLD_ADS + 1, ADS)
            self._part(
                "ads",
                day,
                ads.filter(
                    pc.and_(pc.greater_equal(ads["ad_id"], span[0]), pc.less_equal(ads["ad_id"], span[1]))
                ),
            )
        if day == 0:
            self._part("users", day, self.world["users"])

    def _part(self, name: str, day: int, table: pa.Table) -> None:
        pq.write_table(table, self.folder / "input" / name / f"day-{day}.parquet")


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> Any:
    """Return the world with its fifth day, a run from before that day, and what it said of each example then."""
    folder = tmp_path_factory.mktemp("grown")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "matmul_roof", lambda: 1e9)
        patch.setattr(trainer_module, "FlopsPerExample", lambda model, every: lambda batch: 0.0)
        world = Growing(folder)
        world.run = train(tiny(world.data, max_steps=0, epochs=2, splits=ALL), folder / "old").folder
        world.said = scores(world.run)
        world.package = export_run(world.run, folder / "package").folder
        world.append()
    return world


def scores(run: Path) -> np.ndarray:
    trained = TrainedModel.load(run)
    data = trained.open_data()
    return np.concatenate([predict_split(trained, data, s).predictions["click"] for s in ALL])


def test_ck06_ids_of_an_appended_day_are_admitted_and_old_ones_keep_their_rows(grown):
    data = Dataset.open(grown.data)
    before, after = TrainedModel.load(grown.run).inputs, data.grown(ALL).inputs
    assert data.inputs.table_rows("ad_id") == before.table_rows("ad_id") == OLD_ADS + 2
    assert after.table_rows("ad_id") == ADS + 2
    old = Encoder.load(grown.run / "encoder").vocabularies["ad_id"].ids
    now = data.grown(ALL).encoder.vocabularies["ad_id"].ids
    assert now[:OLD_ADS].equals(old)
    assert set(now[OLD_ADS:].to_pylist()) == {str(k) for k in range(OLD_ADS + 1, ADS + 1)}


def test_ck06_an_old_model_says_of_old_examples_what_it_said(grown):
    now = scores(grown.run)
    assert len(now) > len(grown.said)
    np.testing.assert_array_equal(now[: len(grown.said)], grown.said)
    trained = TrainedModel.load(grown.run)
    data = trained.open_data()
    batch = data.read(np.arange(data.num_requests), 20)
    new = np.array([int(k) > OLD_ADS for k in data.column("ad_key")])
    assert new.any()
    assert (batch.ids["ad_id"].numpy() == 1).tolist() == new.tolist()


def test_ck06_the_package_of_an_old_model_predicts_on_the_grown_data_set(grown, tmp_path):
    rows = predict(grown.package, grown.data, "test", tmp_path / "p.parquet")
    p = pq.read_table(tmp_path / "p.parquet")["p_click"].to_numpy()
    trained = TrainedModel.load(grown.run)
    own = predict_split(trained, trained.open_data(), "test").predictions["click"]
    assert rows == len(own)
    np.testing.assert_allclose(p, own, atol=1e-6)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_ck06_a_warm_start_on_the_grown_data_set_keeps_old_rows_to_the_bit(grown, tmp_path, backend):
    run = tiny(grown.data, table_backend=backend, start_from=str(grown.run), splits=ALL)
    trainer = Trainer(
        run, Dataset.open(grown.data).grown(ALL), RunFolder(tmp_path), None, None, lambda row: None
    )
    trainer.begin()
    before = by_id(saved(grown.run).model, saved(grown.run).other, grown.run / "encoder")
    after = by_id(trainer.model.state_dict(), trainer.optimizers.state(), tmp_path / "encoder")
    for table in before:
        for word, (vector, total) in before[table].items():
            assert torch.equal(after[table][word][0], vector), (table, word)
            assert after[table][word][1] == total, (table, word)
        for word in after[table].keys() - before[table].keys():
            assert torch.equal(after[table][word][0], before[table]["unseen"][0]), (table, word)
            assert after[table][word][1] == 0.0
    assert after["ad_id"].keys() - before["ad_id"].keys() == {str(k) for k in range(OLD_ADS + 1, ADS + 1)}
    assert after["item_id"].keys() - before["item_id"].keys() > {str(OLD_ADS + 1)}
    assert any(total > 0 for _, total in before["ad_id"].values())


def test_ck06_a_run_goes_on_with_the_new_ids_and_is_served_with_them(grown, tmp_path):
    run = tiny(grown.data, start_from=str(grown.run), splits=ALL, max_steps=30)
    new = train(run, tmp_path / "new").folder
    sums = by_id(saved(new).model, saved(new).other, new / "encoder")["ad_id"]
    assert sum(sums[str(k)][1] > 0 for k in range(OLD_ADS + 1, ADS + 1)) > 10  # their rows learn
    result = evaluate(new, split="test", replicates=0)
    assert np.isfinite(result.tasks["click"].total.metrics["ne"].value)
    package = export_run(new, tmp_path / "package").folder
    schema = load_schema(grown.case.write_schema(), grown.case.folder)
    predictor, data = Predictor.load(package), Dataset.open(grown.data)
    newest = np.flatnonzero(data.column("ad_key") == str(ADS))
    for request in {int(data.column("request")[row]) for row in newest[:5]}:
        assert rank_stored(predictor, data, schema, request)["largest_difference"] < 1e-6
    before = scores(new)
    compact(Path(grown.data))
    np.testing.assert_array_equal(scores(new), before)


def test_ck06_a_killed_run_goes_on_as_it_was_though_the_data_set_has_grown(tmp_path):
    splits = ("train", "validation")
    world = Growing(tmp_path)
    run = tiny(world.data, splits=splits, max_steps=6, checkpoint_every=3)
    whole = train(run, tmp_path / "whole").folder
    shutil.copytree(whole, tmp_path / "killed")
    shutil.rmtree(max((tmp_path / "killed" / "checkpoints").iterdir()))
    tested = tiny(world.data, splits=ALL, max_steps=2, checkpoint_every=1)
    train(tested, tmp_path / "tested")
    read = TrainedModel.load(whole)
    assert read.inputs.table_rows("user_id") > Dataset.open(world.data).inputs.table_rows("user_id")
    world.append()
    notes: list[str] = []
    done = train(
        run, tmp_path / "killed", resume=True, observer=lambda row: notes.extend(row.get("notes", []))
    )
    assert done.resumed_from == 3
    assert lines(done.folder) == lines(whole)
    assert equal(saved(done.folder).model, saved(whole).model)
    assert any("written again" in note for note in notes)
    with pytest.raises(ConfigError, match=r"appended to since.*training\.start_from"):
        train(tested, tmp_path / "tested", resume=True)
