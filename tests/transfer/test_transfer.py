import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from made_batch import INPUTS, made_batch
from opengem.data.dataset import Dataset
from opengem.errors import DataError
from opengem.evaluation import PredictionTable
from opengem.models import Output
from opengem.models.baselines import DINConfig
from opengem.models.vertical import VerticalConfig
from opengem.training.inference import TrainedModel
from opengem.training.run import TrainingConfig, TrainRun
from opengem.training.trainer import train
from opengem.transfer.distill import DistillRun, TransferConfig, distill
from opengem.transfer.labelling import label, read_labels
from opengem.transfer.methods import DistillationObjective, PlainDistillation, StudentAdapter
from opengem.transfer.ratio import transfer_ratio

TRAINING = TrainingConfig(batch_size=128, log_every=5, workers=0, max_steps=12)


@pytest.fixture(scope="module")
def store(small_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    train(
        TrainRun(data=str(small_data), model=DINConfig(width=8), training=TRAINING, name="teacher"),
        folder / "run",
    )
    return label(folder / "run", folder / "labels.parquet")


def test_the_store_holds_what_the_teacher_says(small_data, store):
    table = pq.read_table(store.path)
    dataset = Dataset.open(small_data)
    assert table.num_rows == len(dataset.split("train")) + len(dataset.split("validation")) == store.rows
    trained = TrainedModel.load(store.path.parent / "run")
    batch, p_BT, embedding_BD = next(trained.scores(dataset, ("train",), batch_size=50))
    rows = {int(i): n for n, i in enumerate(table["example_id"].to_pylist())}
    at = [rows[int(i)] for i in batch.example_id]
    np.testing.assert_allclose(table["p_click"].to_numpy()[at], p_BT[:, 0].numpy(), rtol=1e-4, atol=1e-6)
    p = table["p_click"].to_numpy().astype(np.float64)
    np.testing.assert_allclose(table["z_click"].to_numpy(), np.log(p / (1 - p)), rtol=1e-3, atol=1e-3)
    stored = np.array(table["embedding"].to_pylist())[at]
    np.testing.assert_allclose(stored, embedding_BD.numpy(), rtol=2e-3, atol=2e-3)


def test_labels_meet_their_examples_whatever_their_order(small_data, store, tmp_path):
    dataset = Dataset.open(small_data)
    columns, teacher = read_labels(store.path, dataset)
    assert teacher == "teacher"
    table = pq.read_table(store.path)
    shuffled = table.take(np.random.default_rng(0).permutation(table.num_rows))
    pq.write_table(shuffled, tmp_path / "shuffled.parquet")
    again, _ = read_labels(tmp_path / "shuffled.parquet", dataset)
    for name, values in columns.items():
        np.testing.assert_array_equal(values, again[name])
    test = dataset.split("test")
    assert np.isnan(columns["teacher_click"][test.start : test.stop]).all()
    train_rows = dataset.split("train")
    assert np.isfinite(columns["teacher_click"][train_rows.start : train_rows.stop]).all()


def test_a_store_that_does_not_fit_is_refused(small_data, store, tmp_path):
    dataset = Dataset.open(small_data)
    table = pq.read_table(store.path)
    cases = {
        "twice": (table.take([0, 0]), "more than once"),
        "schema": (table.replace_schema_metadata({"opengem.schema": "other"}), "made for the schema"),
        "strangers": (table.set_column(0, "example_id", [np.arange(-table.num_rows, 0)]), "in common"),
        "task": (table.drop_columns(["z_click"]), "z_click"),
    }
    for name, (broken, words) in cases.items():
        pq.write_table(broken, tmp_path / f"{name}.parquet")
        with pytest.raises(DataError, match=words):
            read_labels(tmp_path / f"{name}.parquet", dataset)
    (tmp_path / "half.parquet").write_bytes(store.path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"half\.parquet"):
        read_labels(tmp_path / "half.parquet", dataset)


@pytest.mark.parametrize("method", [PlainDistillation(), StudentAdapter()])
def test_students_of_both_methods_train_and_resume(small_data, store, tmp_path, method):
    def run(**training):
        return DistillRun(
            data=str(small_data),
            model=VerticalConfig(width=8, layers=(16,)),
            training=dataclasses.replace(TRAINING, log_every=1, checkpoint_every=5, **training),
            transfer=TransferConfig(labels=str(store.path), method=method),
        )

    whole = distill(run(), tmp_path / "whole")
    again = distill(run(), tmp_path / "again", resume=True)
    newest = sorted((again.folder / "checkpoints").iterdir())[-1]
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    resumed = distill(run(), tmp_path / "again", resume=True)
    assert 0 < resumed.resumed_from < resumed.steps
    a, b = TrainedModel.load(whole.folder).model, TrainedModel.load(resumed.folder).model
    for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert torch.equal(x, y), name


def test_plain_distillation_by_hand():
    batch = made_batch()
    for task in INPUTS.tasks:
        batch.label_mask[task.name].fill_(1.0)
    batch.extras["teacher_like"][0] = float("nan")
    objective = DistillationObjective(INPUTS, {"like": 2.0}, 0.5)
    logits = torch.randn(batch.num_examples, 3)
    loss, _ = objective(Output(logits, logits), batch)
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    expected = 0.0
    for i, task in enumerate(INPUTS.tasks):
        z = batch.extras[f"teacher_{task.name}"]
        seen = torch.isfinite(z)
        soft = bce(logits[seen, i], torch.sigmoid(z[seen]))
        weight = 2.0 if task.name == "like" else 1.0
        expected += weight * (bce(logits[:, i], batch.labels[task.name]) + 0.5 * soft)
    torch.testing.assert_close(loss, torch.as_tensor(expected))


def test_the_adapter_mends_a_biased_teacher_and_starts_as_the_identity():
    objective = StudentAdapter(learning_rate=0.05).build(INPUTS, {})
    batch = made_batch(requests=60)
    soft, _ = objective.targets(batch)
    torch.testing.assert_close(soft[:, 0], torch.sigmoid(batch.extras["teacher_click"]))
    for task in INPUTS.tasks:
        batch.extras[f"teacher_{task.name}"] += 4.0  # a teacher that says far too much
    for _ in range(200):
        objective.prepare(batch)
    soft, _ = objective.targets(batch)
    assert float(soft[:, 0].mean()) == pytest.approx(float(batch.labels["click"].mean()), abs=0.05)
    assert not soft.requires_grad


def _table(p, y, name):
    n = len(y)
    return PredictionTable(
        example_id=np.arange(n), request=np.arange(n), user=np.arange(n) // 2, surface=np.array(["feed"] * n),
        time=np.arange(n), predictions={"click": p}, labels={"click": y.astype(np.float32)}, model=name,
    )  # fmt: skip


def test_the_transfer_ratio_by_hand():
    rng = np.random.default_rng(0)
    y = (rng.random(4000) < 0.3).astype(float)
    teacher, alone = np.clip(0.3 + 0.3 * (y - 0.3), 0.01, 0.99), np.full(4000, 0.3)
    student = (teacher + alone) / 2

    def loss(p):
        return -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()

    ratio = transfer_ratio(_table(teacher, y, "t"), _table(student, y, "s"), _table(alone, y, "a"))["click"]
    expected = (loss(alone) - loss(student)) / (loss(alone) - loss(teacher))
    assert ratio.value == pytest.approx(expected, rel=1e-9)
    assert ratio.low <= ratio.value <= ratio.high
    none = transfer_ratio(_table(alone, y, "t"), _table(student, y, "s"), _table(alone, y, "a"))["click"]
    assert np.isnan(none.value)


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_flipped_byte_of_a_store_is_found(small_data, store, tmp_path, part):
    content = bytearray(store.path.read_bytes())
    content[int(len(content) * part)] ^= 16
    path = tmp_path / "labels.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"labels\.parquet"):
        read_labels(path, Dataset.open(small_data))
