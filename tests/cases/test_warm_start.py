"""CK05, CK06, CK08: entries that do not fit, tables that grew, metrics of another life."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch

from opengem import TrainRun, evaluate, train
from opengem.data import Dataset, Encoder
from opengem.errors import ConfigError
from opengem.models.baselines import DINConfig, LogisticRegressionConfig
from opengem.models.gem import GEMConfig
from opengem.training import trainer as trainer_module
from opengem.training.inference import TrainedModel
from opengem.training.run_folder import RunFolder
from opengem.training.trainer import Trainer
from tests.cases.inputs import DAYS, Case, opengem
from tests.cases.made import SMALL, equal, lines, own_copy, saved, tiny, world_data


@pytest.fixture(autouse=True)
def _no_roof(monkeypatch):
    """Leave out what is measured for the MFU: it takes longer than these runs."""
    monkeypatch.setattr(trainer_module, "matmul_roof", lambda: 1e9)
    monkeypatch.setattr(trainer_module, "FlopsPerExample", lambda model, every: lambda batch: 0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return world_data(tmp_path_factory)


def notes_of(run: TrainRun, folder: Path, **kwargs: Any) -> list[str]:
    """Train, and return the notes of the start row."""
    found: list[str] = []
    train(run, folder, observer=lambda row: found.extend(row.get("notes", [])), **kwargs)
    return found


def wukong(layers: int, width: int = 16) -> GEMConfig:
    return GEMConfig(width=width, embedding_width=8, layers=layers, over=(8,), history=10, dropout=0.0)


@pytest.fixture(scope="module")
def two_layers(data, tmp_path_factory) -> tuple[TrainRun, Path]:
    run = tiny(data, model=wukong(2), max_steps=2)
    return run, train(run, tmp_path_factory.mktemp("two") / "run").folder


@pytest.mark.parametrize(
    ("model", "key", "kinds"),
    [
        (wukong(3), "model.layers was 2 and is 3", ["missing"]),
        (wukong(1), "model.layers was 2 and is 1", ["unexpected"]),
        (wukong(2, width=32), "model.width was 16 and is 32", ["differing"]),
        (DINConfig(width=8), "model.type was 'gem' and is 'din'", ["missing", "unexpected"]),
    ],
)
@pytest.mark.parametrize("how", ["resume", "warm start"])
def test_ck05_entries_that_do_not_fit_are_named_with_their_key(two_layers, tmp_path, how, model, key, kinds):
    run, whole = two_layers
    if how == "resume":
        folder = Path(shutil.copytree(whole, tmp_path / "run"))
        changed = dataclasses.replace(run, model=model)
    else:
        folder = tmp_path / "run"
        training = dataclasses.replace(run.training, start_from=str(whole))
        changed = dataclasses.replace(run, model=model, training=training)
    with pytest.raises(ConfigError) as error:
        train(changed, folder, resume=how == "resume")
    text = str(error.value)
    assert key in text
    found = [kind for kind in ("missing", "unexpected", "differing") if f"{kind} entries: " in text]
    assert set(kinds) <= set(found)
    wanted = model.build(Dataset.open(run.data).inputs).state_dict()
    entries = saved(whole).model
    first = {
        "missing": [n for n in wanted if n not in entries],
        "unexpected": [n for n in entries if n not in wanted],
        "differing": [n for n in wanted if n in entries and entries[n].shape != wanted[n].shape],
    }
    for kind, names in first.items():
        assert (kind in found) == bool(names)
        assert not names or f"{kind} entries: {names[0]} (" in text
    if how == "resume":
        assert "training.start_from" in text
        assert lines(folder) == lines(whole)
    else:
        assert not (folder / "run.toml").exists()


def rewritten(data: Path, change) -> Path:
    """Change the inputs that a data set names."""
    manifest = json.loads((data / "manifest.json").read_text())
    change(manifest["inputs"])
    (data / "manifest.json").write_text(json.dumps(manifest))
    return data


def share_a_table(inputs: dict[str, Any]) -> None:
    """Let the feature `category` read the table of `country`."""
    next(f for f in inputs["features"] if f["name"] == "category")["table"] = "country"
    inputs["tables"] = [t for t in inputs["tables"] if t["name"] != "category"]


def other_order(inputs: dict[str, Any]) -> None:
    inputs["features"] = inputs["features"][::-1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            share_a_table,
            ["features.category.table was 'category' and is 'country'", "unexpected entries: ", "@category"],
        ),
        (other_order, ["features had the order"]),
    ],
)
@pytest.mark.parametrize("how", ["resume", "warm start"])
def test_ck05_another_schema_is_named(data, tmp_path, how, change, words):
    own = own_copy(data, tmp_path / "data")
    run = tiny(own, max_steps=2)
    train(run, tmp_path / "run")
    rewritten(own, change)
    if how == "warm start":
        run = dataclasses.replace(
            run, training=dataclasses.replace(run.training, start_from=str(tmp_path / "run"))
        )
    with pytest.raises(ConfigError) as error:
        train(run, tmp_path / ("run" if how == "resume" else "new"), resume=how == "resume")
    for word in words:
        assert word in str(error.value)


def test_ck05_a_resume_on_other_examples_is_refused(data, tmp_path, tmp_path_factory):
    own = own_copy(data, tmp_path / "data")
    run = tiny(own, max_steps=4, checkpoint_every=2)
    train(run, tmp_path / "run")
    manifest = json.loads((own / "manifest.json").read_text())
    manifest["splits"]["train"] = manifest["splits"]["validation"]
    (own / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"training\.splits must hold the examples.*start_from"):
        train(run, tmp_path / "run", resume=True)
    other = rewritten(own_copy(data, tmp_path / "again"), lambda inputs: None)
    shutil.rmtree(own)
    other.rename(own)
    manifest = json.loads((own / "manifest.json").read_text())
    (own / "manifest.json").write_text(json.dumps(manifest | {"data_fingerprint": "other"}))
    notes = notes_of(run, tmp_path / "run", resume=True)
    assert notes == ["not deterministic: the data set was written again since (the examples are the same)"]


def digest(value: torch.Tensor) -> str:
    return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("model", ["gem", "small", "logistic"])
def test_ck05_a_warm_start_takes_every_parameter_and_says_so(data, tmp_path, model):
    chosen = {"gem": wukong(1), "small": SMALL, "logistic": LogisticRegressionConfig()}[model]
    old = train(tiny(data, model=chosen, max_steps=3), tmp_path / "old").folder
    still = {"learning_rate": 0.0, "table_learning_rate": 0.0, "weight_decay": 0.0}
    run = tiny(data, model=chosen, max_steps=1, start_from=str(old), seed=99, **still)
    notes = notes_of(run, tmp_path / "new")
    before, after = saved(old).model, saved(tmp_path / "new").model
    assert equal(before, after)
    facts = json.loads((tmp_path / "new" / "warm_start.json").read_text())
    assert facts["taken"] == {name: digest(value) for name, value in before.items()}
    assert facts["from"] == str(old)
    assert facts["step"] == 3
    assert notes[0].startswith(f"starts from {old} at step 3: {len(before)} parameters taken, none new")
    assert "running metrics are new" in notes[0]
    fresh = chosen.build(Dataset.open(data).inputs).state_dict()
    assert any(not torch.equal(fresh[n], after[n]) for n in after)


def test_ck05_a_warm_start_from_nothing_is_refused(data, tmp_path):
    with pytest.raises(ConfigError, match="must be the folder of a run"):
        train(tiny(data, start_from=str(tmp_path / "none")), tmp_path / "new")
    run = train(tiny(data, max_steps=1), tmp_path / "old").folder
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(
        ConfigError, match=r"training\.start_from must be a trained run.*without a checkpoint"
    ):
        train(tiny(data, start_from=str(run)), tmp_path / "new")


def by_id(
    model: dict[str, torch.Tensor], other: dict[str, torch.Tensor], data: Path
) -> dict[str, dict[str, tuple[torch.Tensor, float]]]:
    """Return table -> id -> its vector and its AdaGrad sum; the reserved rows go by "missing" and "unseen"."""
    found = {}
    for table, vocabulary in Encoder.load(data).vocabularies.items():
        key = next(n for n in model if n.endswith(f".weights.@{table}"))
        weight, sums = model[key], other[f"adagrad/{key.replace('.weights', '')}"]
        words = ["missing", "unseen", *vocabulary.ids.to_pylist()]
        assert len(words) == len(weight) == len(sums)
        found[table] = {w: (weight[i], float(sums[i])) for i, w in enumerate(words)}
    return found


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_ck06_old_ids_keep_their_vectors_and_sums_whatever_their_rows(tmp_path_factory, tmp_path, backend):
    first_day = DAYS | {"train": ["2026-01-01", "2026-01-01"]}
    small = world_data(tmp_path_factory, first_day, ads=30)
    grown = world_data(tmp_path_factory, DAYS, ads=45, seed=8)
    old = train(tiny(small, table_backend=backend, epochs=3, max_steps=0), tmp_path / "old").folder
    run = tiny(grown, table_backend=backend, start_from=str(old))
    (tmp_path / "new").mkdir()
    trainer = Trainer(run, Dataset.open(grown), RunFolder(tmp_path / "new"), None, None, lambda row: None)
    trainer.begin()
    before = by_id(saved(old).model, saved(old).other, small)
    after = by_id(trainer.model.state_dict(), trainer.optimizers.state(), grown)
    ads = [str(k) for k in range(1, 31)]
    assert set(ads) <= before["ad_id"].keys()
    for table in before:
        shared = before[table].keys() & after[table].keys()
        for word in shared:
            assert torch.equal(before[table][word][0], after[table][word][0]), (table, word)
            assert before[table][word][1] == after[table][word][1], (table, word)
        for word in after[table].keys() - shared:
            assert torch.equal(after[table][word][0], before[table]["unseen"][0]), (table, word)
            assert after[table][word][1] == 0.0
    new = after["ad_id"].keys() - before["ad_id"].keys()
    assert new == {str(k) for k in range(31, 46)}
    rows = [Encoder.load(d).vocabularies["ad_id"].ids.to_pylist() for d in (small, grown)]
    assert any(rows[0].index(ad) != rows[1].index(ad) for ad in ads)  # or the test would show nothing
    facts = json.loads((tmp_path / "new" / "warm_start.json").read_text())
    assert facts["rows"]["arch.tables.weights.@ad_id"] == {"taken": 30, "new": 15, "gone": 0}
    assert "arch.tables.weights.@ad_id: 30 ids taken, 15 new, 0 gone" in trainer.notes


def relabelled(data: Path, to: Path) -> Path:
    """Ingest the world of a data set again, ad k renamed 31 - k: equal counts, other ids in the rows."""
    given = data.parent.parent / "input"
    (to / "input").mkdir(parents=True)
    for path in given.glob("*.parquet"):
        table = pq.read_table(path)
        for name in {"ad_id", "item_id"} & set(table.column_names):
            ids = pa.array([31 - k for k in table[name].to_pylist()], table[name].type)
            table = table.set_column(table.column_names.index(name), name, ids)
        pq.write_table(table, to / "input" / path.name)
    case = Case(to / "input", to / "out")
    case.schema["splits"] = DAYS
    return case.ingest().folder


def test_ck06_a_model_reads_its_own_ids_whatever_their_rows_in_the_data_set(data, tmp_path):
    run = train(tiny(data, max_steps=2), tmp_path / "run").folder
    kept = Encoder.load(run / "encoder").vocabularies["ad_id"].ids.to_pylist()
    other = relabelled(data, tmp_path / "other")
    assert kept != Encoder.load(other).vocabularies["ad_id"].ids.to_pylist()
    # same shapes, other ids in the rows: by rows each ad would get the vector of another one
    read = TrainedModel.load(run).open_data(other)
    batch, words = read.read(np.arange(read.num_requests), 9), [None, "?", *kept]
    assert [words[k] for k in batch.ids["ad_id"].tolist()] == read.column("ad_key").tolist()
    assert not torch.equal(
        batch.ids["ad_id"], Dataset.open(other).read(np.arange(read.num_requests), 9).ids["ad_id"]
    )


def test_ck06_a_data_set_with_other_scales_is_refused(data, tmp_path, tmp_path_factory):
    run = train(tiny(data, max_steps=1), tmp_path / "run").folder
    with pytest.raises(ConfigError, match=r"must have the inputs.*numbers\.price was"):
        TrainedModel.load(run).open_data(world_data(tmp_path_factory, seed=11))


def test_ck06_rows_of_surfaces_go_by_their_names(data, tmp_path):
    old = train(tiny(data, max_steps=4), tmp_path / "old").folder
    own = rewritten(
        own_copy(data, tmp_path / "data"),
        lambda inputs: inputs.update(surfaces=["stories", *inputs["surfaces"][::-1]]),
    )
    run = tiny(own, start_from=str(old))
    trainer = Trainer(run, Dataset.open(own), RunFolder(tmp_path / "new"), None, None, lambda row: None)
    (tmp_path / "new").mkdir()
    trainer.begin()
    before, after = saved(old).model, trainer.model.state_dict()
    a, b = Dataset.open(data).inputs.surfaces, Dataset.open(own).inputs.surfaces
    for name in ("arch.surface.weight", "heads.gain.weight", "heads.surface_bias.weight"):
        assert torch.equal(after[name][0], before[name][0])
        assert torch.equal(after[name][b.index("stories") + 1], before[name][0])
        for surface in a:
            assert torch.equal(after[name][b.index(surface) + 1], before[name][a.index(surface) + 1])
    facts = json.loads((tmp_path / "new" / "warm_start.json").read_text())
    assert facts["surfaces"] == {"new": ["stories"], "gone": []}


def test_ck08_a_warm_start_begins_its_metrics_anew(data, tmp_path):
    old = train(tiny(data, max_steps=0, log_every=7), tmp_path / "old").folder
    assert saved(old).state["totals"]
    found = evaluate(old, split="validation", replicates=0).tasks["click"].total
    run = tiny(data, splits=("validation",), batch_size=240, max_steps=1, start_from=str(old))
    rows: list[dict[str, Any]] = []
    train(run, tmp_path / "new", observer=rows.append)
    line = next(r for r in rows if r["kind"] == "train")
    assert (line["step"], line["rows"], line["examples"]) == (1, 240, 240)
    assert found.rows == 240
    assert line["ne"] == pytest.approx(found.metrics["ne"].value, rel=1e-6)
    assert line["loss"] == pytest.approx(found.metrics["log_loss"].value, rel=1e-6)
    assert line["calibration"] == pytest.approx(found.metrics["calibration"].value, rel=1e-6)
    assert rows[0]["resumed_from"] == 0


def test_ck08_a_warm_start_from_the_command_line(data, tmp_path):
    settings = {"data": str(data), "model": {"type": "vertical", "width": 8, "heads": 1, "layers": [8]}}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(settings))
    plain = [
        "training.max_steps=2",
        "training.batch_size=240",
        "training.workers=0",
        "training.calibrate=false",
    ]
    assert opengem("train", "run.toml", *plain, "--run-dir", "old", cwd=tmp_path).exit_code == 0
    again = [*plain, "training.start_from=old", "training.learning_rate=0.01"]
    done = opengem("train", "run.toml", *again, "--run-dir", "new", cwd=tmp_path)
    assert done.exit_code == 0
    assert "starts from old at step 2" in done.output
    assert "@ad_id: 30 ids taken, 0 new, 0 gone" in done.output
    done = opengem("train", "run.toml", *again, "model.layers=[4]", "--run-dir", "other", cwd=tmp_path)
    assert done.exit_code == 2
    assert "model.layers was [8] and is [4]" in done.output
    assert "differing entries: over.0.weight" in done.output
