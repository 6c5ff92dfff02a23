"""SQ01 to SQ05: which events a history holds, how many fit, and what comes of very long, short and no histories."""

import json

import numpy as np
import pytest
import torch

from opengem import evaluate, export_run, write_report
from opengem.data import Loader
from opengem.data.arrow_file import ArrowFile
from opengem.evaluation import read_predictions
from opengem.jagged import JaggedTensor
from opengem.models.vertical import VerticalConfig
from opengem.training.inference import TrainedModel
from tests.cases.inputs import DAYS
from tests.cases.runs import tiny_run


def test_sq01_truncation_keeps_the_newest(case):
    stored = case("sq01_truncate.py").ingest()
    assert stored.histories(longest=4) == {1: ["7", "8", "9", "10"], 2: ["1", "2", "3", "4"], 3: []}
    assert stored.histories(longest=2) == {1: ["9", "10"], 2: ["3", "4"], 3: []}
    assert stored.histories(longest=0) == {1: [], 2: [], 3: []}


def test_sq03_offsets_past_2_to_the_31():
    lengths = torch.tensor([2147483647, 2], dtype=torch.int32)
    values = torch.zeros(1, dtype=torch.int8).expand(2147483649)  # one byte in memory
    jagged = JaggedTensor.from_lengths(values, lengths)
    assert jagged.offsets.dtype == torch.int64
    assert jagged.offsets.tolist() == [0, 2147483647, 2147483649]


@pytest.mark.parametrize(
    ("offsets", "named"),
    [
        ([0, 5, 3], ["offsets[2]", "3", "5"]),
        ([0, 4], ["offsets[1]", "4", "3 values"]),
        ([1, 3], ["offsets[0]", "1"]),
        ([0, 2], ["offsets[1]", "2", "3 values"]),
    ],
)
def test_sq03_offsets_that_do_not_fit_are_refused(offsets, named):
    with pytest.raises(ValueError) as error:
        JaggedTensor(torch.zeros(3), torch.tensor(offsets))
    for words in named:
        assert words in str(error.value)


def test_sq03_the_store_counts_in_64_bits(case):
    stored = case("sq01_truncate.py").ingest()
    columns = ArrowFile(stored.folder / "requests.arrow").table(["start_acts", "end_acts", "first_example"])
    assert [str(t) for t in columns.schema.types] == ["int64"] * 3
    assert stored.batch().history["acts"].offsets.dtype == torch.int64


def test_sq04_histories_of_0_1_63_64_65_and_5000(case, tmp_path):
    stored = case("sq04_uneven_histories.py").ingest()
    data = stored.data
    assert (data.num_examples, data.num_requests) == (18, 6)
    lengths = [len(h) for h in stored.histories().values()]
    assert sorted(lengths) == sorted([0, 1, 63, 64, 65, 5000] * 3)
    for batch_size in (1, 2, 18):
        read = sum(batch.num_events() for batch in stored.loader(batch_size))
        assert read == 5193  # once a request, not the 15,579 of once an example
    scores = {}
    for batch_size in (1, 2, 18):
        run = tiny_run(
            stored, tmp_path / f"run-{batch_size}", history=5000, batch_size=batch_size, max_steps=0, epochs=1
        )
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses = [row["loss"] for row in rows if row["kind"] == "train"]
        assert len(losses) == {1: 6, 2: 6, 18: 1}[batch_size]
        assert np.isfinite(losses).all()
    evaluate(run, split="train", replicates=20)
    table = read_predictions(run / "predictions.train.parquet")
    assert len(table) == 18
    trained = TrainedModel.load(run)
    for batch_size in (1, 18):
        parts = list(trained.scores(data, ("train",), batch_size=batch_size))
        ids = [i for batch, _, _ in parts for i in batch.example_id.tolist()]
        found = torch.cat([p for _, p, _ in parts])[:, 0].tolist()
        scores[batch_size] = dict(zip(ids, found, strict=True))
    assert scores[1].keys() == scores[18].keys() == set(data.example_ids.tolist())
    assert max(abs(scores[1][k] - scores[18][k]) for k in scores[1]) < 1e-6
    package = export_run(run, tmp_path / "package")
    assert package.facts["parity"]["largest_difference"] < 1e-4


def test_sq05_nobody_has_a_history(case, tmp_path):
    given = case("sq05_no_histories.py")
    given.schema["splits"] = DAYS
    stored = given.ingest()
    data = stored.data
    assert data.num_examples == 960
    assert all(history == [] for history in stored.histories().values())
    found = given.check().stdout
    assert "100% of examples have no history" in found
    assert "units and zones" in found
    config = VerticalConfig(width=4, heads=1, layers=(8,), dropout=0.0, history=20)
    model = config.build(data.inputs).train()
    batch = next(iter(Loader(data, "train", batch_size=64, history=20)))
    model(batch).logits_BT.square().mean().backward()
    for name in ("@item_id", "@type"):  # the tables that events alone read
        gradient = model.arch.tables.weights[name].grad
        assert gradient is None or torch.count_nonzero(gradient.to_dense()) == 0
    run = tiny_run(stored, tmp_path / "run", max_steps=5)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert np.isfinite([row["loss"] for row in rows if row["kind"] == "train"]).all()
    evaluate(run, split="test", replicates=20)
    page = write_report(run).read_text()
    assert "100% of examples have no history (acts): look at the units and zones" in page
