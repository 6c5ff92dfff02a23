"""TR01: the labels of a teacher meet their examples by id."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from opengem import train
from opengem.config import to_plain
from opengem.data import Dataset
from opengem.errors import ConfigError, DataError
from opengem.jagged import Batch
from opengem.transfer import distill as distill_module
from opengem.transfer.distill import DistillRun, TransferConfig, distill
from opengem.transfer.labelling import read_labels
from opengem.transfer.methods import DistillationObjective
from tests.cases.inputs import opengem, run_script
from tests.cases.made import equal, lines, saved, script_data, tiny

KINDS = ("in_order", "shuffled", "missing_ten", "doubled")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """All 960 examples, all of them for training."""
    return script_data(tmp_path_factory, "tr01_label_store.py")


@pytest.fixture(scope="module")
def stores(data, tmp_path_factory) -> dict[str, Path]:
    """The script's labels as label stores: log-odds by task, and the schema's fingerprint in the metadata."""
    folder = run_script("tr01_label_store.py", tmp_path_factory.mktemp("labels") / "input")
    fingerprint = Dataset.open(data).inputs.fingerprint
    made = {}
    for kind in KINDS:
        given = pq.read_table(folder / f"labels_{kind}.parquet")
        columns = {
            "example_id": given["example_id"],
            "p_click": given["probability"],
            "z_click": given["logit"],
        }
        store = pa.table(columns).replace_schema_metadata(
            {"opengem.schema": fingerprint, "opengem.teacher": "elsewhere"}
        )
        made[kind] = folder / f"store_{kind}.parquet"
        pq.write_table(store, made[kind], row_group_size=100)
    return made


def taught(data: Path, store: Path, **transfer: Any) -> DistillRun:
    run = tiny(data, epochs=1, max_steps=0, batch_size=160)
    return DistillRun(
        data=run.data,
        model=run.model,
        training=run.training,
        seed=run.seed,
        transfer=TransferConfig(labels=str(store), **transfer),
    )


def test_tr01_each_example_gets_its_own_label(data, stores):
    dataset = Dataset.open(data)
    for kind in ("in_order", "shuffled"):
        columns, teacher = read_labels(stores[kind], dataset)
        assert teacher == "elsewhere"
        p = 1 / (1 + np.exp(-columns["teacher_click"].astype(np.float64)))
        pairs = dict(zip(dataset.example_ids.tolist(), p.tolist(), strict=True))
        assert len(pairs) == 960
        assert pairs == {x: pytest.approx((x % 97 + 1) / 100, abs=1e-6) for x in range(1, 961)}
        assert [pairs[1], pairs[97], pairs[960]] == pytest.approx([0.02, 0.01, 0.88], abs=1e-6)


def test_tr01_the_pairs_that_training_uses(data, stores, tmp_path, monkeypatch):
    seen: dict[int, float] = {}
    forward = DistillationObjective.forward

    def noting(self: DistillationObjective, output: Any, batch: Batch) -> Any:
        soft_BT, mask_BT = self.targets(batch)
        for x, p, kept in zip(
            batch.example_id.tolist(), soft_BT[:, 0].tolist(), mask_BT[:, 0].tolist(), strict=True
        ):
            seen[x] = p if kept else float("nan")
        return forward(self, output, batch)

    monkeypatch.setattr(DistillationObjective, "forward", noting)
    distill(taught(data, stores["shuffled"]), tmp_path / "run")
    assert seen == {x: pytest.approx((x % 97 + 1) / 100, abs=1e-6) for x in range(1, 961)}


def test_tr01_the_order_of_the_store_does_not_count(data, stores, tmp_path):
    for kind in ("in_order", "shuffled"):
        distill(taught(data, stores[kind]), tmp_path / kind)
    assert lines(tmp_path / "in_order") == lines(tmp_path / "shuffled")
    assert equal(saved(tmp_path / "in_order").model, saved(tmp_path / "shuffled").model)
    distill(taught(data, stores["missing_ten"]), tmp_path / "missing")
    assert not equal(saved(tmp_path / "in_order").model, saved(tmp_path / "missing").model)


def test_tr01_missing_labels_are_counted_and_learn_from_true_labels(data, stores, tmp_path, monkeypatch):
    rows: list[dict[str, Any]] = []
    distill(taught(data, stores["missing_ten"]), tmp_path / "run", observer=rows.append)
    assert rows[0]["notes"] == [
        "taught by elsewhere: 10 of 960 training rows have no label of the teacher; they learn from their true "
        "labels alone"
    ]
    columns, _ = read_labels(stores["missing_ten"], Dataset.open(data))
    missing = np.isnan(columns["teacher_click"])
    assert sorted(Dataset.open(data).example_ids[missing].tolist()) == list(range(1, 11))
    # their soft labels, whatever they were, would change nothing: the student is that of ten labels masked by hand
    full, _ = read_labels(stores["in_order"], Dataset.open(data))
    masked = {"teacher_click": np.where(missing, np.float32(np.nan), full["teacher_click"])}
    monkeypatch.setattr(distill_module, "read_labels", lambda path, dataset: (masked, "by hand"))
    distill(taught(data, stores["in_order"]), tmp_path / "masked")
    assert equal(saved(tmp_path / "run").model, saved(tmp_path / "masked").model)


def test_tr01_too_many_missing_labels_are_an_error(data, stores, tmp_path):
    with pytest.raises(DataError, match=r"missing_limit = 0\.01\).*10 of 960 .*first: example_id \d+$"):
        distill(taught(data, stores["missing_ten"], missing_limit=0.01), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    distill(taught(data, stores["missing_ten"], missing_limit=10 / 960), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"missing_limit must be in \[0, 1\]"):
        TransferConfig(labels="x", missing_limit=1.5)


def test_tr01_a_doubled_id_and_another_schema_are_exit_3(data, stores, tmp_path):
    (tmp_path / "run.toml").write_text(tomli_w.dumps(to_plain(taught(data, stores["doubled"]))))
    done = opengem("transfer", "distill", "run.toml", "--run-dir", "run", cwd=tmp_path)
    assert done.exit_code == 3
    assert "example_id 1 more than once" in done.output
    other = pq.read_table(stores["in_order"]).replace_schema_metadata({"opengem.schema": "f00d"})
    pq.write_table(other, tmp_path / "other.parquet")
    done = opengem(
        "transfer", "distill", "run.toml", "transfer.labels=other.parquet", "--run-dir", "run", cwd=tmp_path
    )
    assert done.exit_code == 3
    assert "Received: f00d, wanted " in done.output
    few = f"transfer.labels={stores['missing_ten']}"
    done = opengem(
        "transfer", "distill", "run.toml", few, "transfer.missing_limit=0", "--run-dir", "run", cwd=tmp_path
    )
    assert done.exit_code == 3
    assert "10 of 960" in done.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_tr01_a_label_that_is_no_number_is_refused_not_taken_for_missing(data, stores, tmp_path, bad):
    given = pq.read_table(stores["in_order"])
    values = given["z_click"].to_pylist()
    values[41] = bad
    pq.write_table(given.set_column(2, "z_click", pa.array(values, pa.float64())), tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=r'"z_click".*finite.*1 that are not.*for example_id 42'):
        read_labels(tmp_path / "bad.parquet", Dataset.open(data))
    pq.write_table(given.drop_columns(["example_id"]), tmp_path / "without.parquet")
    with pytest.raises(DataError, match='column "example_id"'):
        read_labels(tmp_path / "without.parquet", Dataset.open(data))


def test_tr01_a_teacher_of_weight_zero_is_the_student_alone(data, stores, tmp_path):
    """True labels alone: the same student whatever the labels say, and that of a run without a teacher."""
    run = taught(data, stores["shuffled"])
    method = dataclasses.replace(run.transfer.method, weight=0.0)
    distill(
        dataclasses.replace(run, transfer=dataclasses.replace(run.transfer, method=method)),
        tmp_path / "silent",
    )
    train(tiny(data, epochs=1, max_steps=0, batch_size=160), tmp_path / "alone")
    assert equal(saved(tmp_path / "silent").model, saved(tmp_path / "alone").model)
