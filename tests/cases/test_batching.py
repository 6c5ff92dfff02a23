"""BA01 to BA06: each row once, seeds, lengths that do not fit, empty bags, padding."""

import dataclasses
import itertools

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from opengem.data import Dataset, Loader
from opengem.distributed.fused_tables import FusedTables, fbgemm_problem
from opengem.jagged import Batch, JaggedTensor
from opengem.nn.embedding import EmbeddingTables
from opengem.nn.inputs import FeatureTokens, InputConfig
from opengem.ops.jagged_attention import jagged_attention
from opengem.ops.jagged_layout import pad, segment_reduce
from tests.cases.made import script_data, world_data
from tests.made_batch import INPUTS, made_batch

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"
)  # more workers than cores, on purpose
LAYOUTS = ("vectorised", "reference")


def epoch_ids(loader: Loader) -> list[list[int]]:
    return [batch.example_id.tolist() for batch in loader]


def test_ba01_each_row_once_whatever_the_workers(tmp_path_factory):
    data = Dataset.open(script_data(tmp_path_factory, "ba01_hundred_rows.py"))
    for order in ("time", "shuffled"):
        found = [
            epoch_ids(Loader(data, "train", batch_size=8, history=5, order=order, workers=workers))
            for workers in (0, 1, 4)
        ]
        assert found[0] == found[1] == found[2]
        assert [len(batch) for batch in found[0]] == [8] * 12 + [4]
        flat = list(itertools.chain(*found[0]))
        assert sum(flat) == 5050
        assert sorted(flat) == list(range(1, 101))


def test_ba01_fewer_rows_than_workers(case):
    given = case("ba01_hundred_rows.py", own=True)
    path = given.folder / "impressions.parquet"
    pq.write_table(pq.read_table(path).slice(0, 3), path)
    loader = Loader(given.ingest().data, "train", batch_size=8, history=5, workers=4)
    assert sorted(itertools.chain(*epoch_ids(loader))) == [1, 2, 3]


def test_ba02_one_seed_one_order_and_each_epoch_its_own(tmp_path_factory):
    data = Dataset.open(world_data(tmp_path_factory))

    def two_epochs(seed: int, workers: int) -> list[list[list[int]]]:
        loader = Loader(data, "train", batch_size=64, history=5, order="shuffled", seed=seed, workers=workers)
        found = []
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            found.append(epoch_ids(loader))
        return found

    first, second = two_epochs(1, 4)
    assert first != second
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second))
    assert [first, second] == two_epochs(1, 4) == two_epochs(1, 0)
    assert two_epochs(2, 0)[0] != first


def bent(batch: Batch, **parts) -> Batch:
    return dataclasses.replace(batch, **parts)


def test_ba03_lengths_that_do_not_fit_are_refused_when_the_batch_is_made():
    batch = made_batch(requests=60)
    B, R = batch.num_examples, batch.num_requests

    def bag(rows: int) -> JaggedTensor:
        return JaggedTensor.from_lengths(torch.zeros(2 * rows, dtype=torch.int64), torch.full((rows,), 2))

    twenty = {f"f{i}": bag(B) for i in range(20)}
    bent(batch, bags=twenty)  # all of one length: fine
    with pytest.raises(
        ValueError, match=rf'feature "f19" must have as many rows.*: {B} .* {R} .*Received: {B + 14}'
    ):
        bent(batch, bags=twenty | {"f19": bag(B + 14)})
    with pytest.raises(ValueError, match=rf'ids of feature "hour".*{B}.*Received: {B - 2}'):
        bent(batch, ids=batch.ids | {"hour": batch.ids["hour"][2:]})
    with pytest.raises(ValueError, match=r'labels "like".*Received: 3'):
        bent(batch, labels=batch.labels | {"like": torch.zeros(3)})
    watched = batch.history["watched"]
    short = dataclasses.replace(watched, ids=watched.ids | {"author": torch.zeros(1, dtype=torch.int64)})
    with pytest.raises(ValueError, match=r'"author" of history "watched".*Received: 1'):
        bent(batch, history=batch.history | {"watched": short})
    none = dataclasses.replace(
        watched,
        ids={k: v[:0] for k, v in watched.ids.items()},
        numbers={k: v[:0] for k, v in watched.numbers.items()},
        times=watched.times[:0],
        offsets=torch.zeros(1, dtype=torch.int64),
    )
    with pytest.raises(ValueError, match=rf'history "watched".*{R}.*Received: 0'):
        bent(batch, history=batch.history | {"watched": none})
    with pytest.raises(ValueError, match=r"end of 5 values.*offsets\[2\] = 3"):
        JaggedTensor(torch.zeros(5), torch.tensor([0, 1, 3]))


BAGS = {
    "in the middle": ([[0, 1], [], [1]], [[2.0, 3.0], [0.0, 0.0], [3.0, 4.0]], [[0.5, 0.5], [1.5, 1.5]]),
    "first": ([[], [0, 1], [1]], [[0.0, 0.0], [2.0, 3.0], [3.0, 4.0]], [[0.5, 0.5], [1.5, 1.5]]),
    "last": ([[0, 1], [1], []], [[2.0, 3.0], [3.0, 4.0], [0.0, 0.0]], [[0.5, 0.5], [1.5, 1.5]]),
    "all": ([[], [], []], [[0.0, 0.0]] * 3, [[0.0, 0.0], [0.0, 0.0]]),
}


@pytest.mark.parametrize("backend", LAYOUTS)
@pytest.mark.parametrize("empty", BAGS)
def test_ba04_an_empty_bag_is_zeros_and_has_a_finite_gradient(empty, backend):
    bags, means, gradient = BAGS[empty]
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    ids = torch.tensor([i for bag in bags for i in bag], dtype=torch.int64)
    offsets = torch.tensor([0, *np.cumsum([len(bag) for bag in bags])])
    out = segment_reduce(weights[ids], offsets, "mean", backend=backend)
    assert out.tolist() == means
    out.sum().backward()
    assert weights.grad.tolist() == gradient
    weights.grad = None
    total = segment_reduce(weights[ids], offsets, "sum", backend=backend)
    rows = weights.tolist()
    assert total.tolist() == [[sum(rows[i][k] for i in bag) for k in (0, 1)] for bag in bags]
    total.sum().backward()
    assert weights.grad.tolist() == [[float(ids.tolist().count(i))] * 2 for i in (0, 1)]


@pytest.mark.parametrize("fused", [False, True], ids=["reference tables", "fused tables"])
def test_ba04_empty_bags_in_a_model(fused):
    if fused and fbgemm_problem():
        pytest.skip(fbgemm_problem())
    batch = made_batch(requests=4)
    B, R = batch.num_examples, batch.num_requests
    empty = JaggedTensor(torch.zeros(0, dtype=torch.int64), torch.zeros(B + 1, dtype=torch.int64))
    one = JaggedTensor.from_lengths(torch.tensor([2, 3]), torch.tensor([2] + [0] * (R - 1)))
    batch = bent(batch, bags={"tags": empty, "likes": one})
    tables = EmbeddingTables({t.name: t.rows for t in INPUTS.tables}, 4)
    expected = tables.weights["@tag"].detach()[2:4].mean(0)
    module = FusedTables(tables, 1e-8) if fused else tables
    tokens = FeatureTokens(InputConfig(width=8, embedding_width=4), INPUTS, ("user",))
    rows = module({f"f:{n}": ("tag", batch.bags[n].values) for n in ("tags", "likes")})
    likes = next(f for f in INPUTS.features if f.name == "likes")
    pooled = tokens._pooled(batch, rows, likes)
    torch.testing.assert_close(pooled[0], expected)
    assert torch.equal(pooled[1:], torch.zeros(R - 1, 4))
    tags = tokens._pooled(batch, rows, next(f for f in INPUTS.features if f.name == "tags"))
    assert torch.equal(tags, torch.zeros(B, 4))
    if fused:
        module.set_learning_rate(1.0)
    (pooled.sum() + tags.sum()).backward()
    after = module.weight("@tag") if fused else tables.weights["@tag"].grad.to_dense()
    assert torch.isfinite(after).all()


@pytest.mark.parametrize("backend", LAYOUTS)
def test_ba06_true_lengths_only(backend):
    values, offsets = torch.tensor([2.0, 3.0, 3.0, 4.0]), torch.tensor([0, 1, 4])
    means = segment_reduce(values, offsets, "mean", backend=backend)
    torch.testing.assert_close(means, torch.tensor([2.0, 10 / 3]))
    assert segment_reduce(values, offsets, "max", backend=backend).tolist() == [2.0, 4.0]
    # an empty or negative row shows whether zeros of the padding take part in the maximum
    assert segment_reduce(-values, offsets, "max", backend=backend).tolist() == [-2.0, -3.0]
    longest = int((offsets[1:] - offsets[:-1]).max())
    padded = pad(values, offsets, longest, newest_last=False, backend=backend)
    assert padded.tolist() == [[2.0, 0.0, 0.0], [3.0, 3.0, 4.0]]


@pytest.mark.parametrize("backend", ["cpu", "padded", "reference"])
def test_ba06_softmax_along_the_history(backend):
    values, offsets = torch.tensor([2.0, 3.0, 3.0, 4.0]), torch.tensor([0, 1, 4])
    places = torch.tensor([0, 0, 1, 2])
    query = torch.zeros(2, 1, 4)
    query[:, 0, 0] = 1.0
    key = torch.zeros(4, 1, 4)
    key[:, 0, 0] = values
    # values that are unit vectors give the weights back
    unit = torch.nn.functional.one_hot(places, 4).float()[:, None]
    weights = jagged_attention(query, key, unit, torch.tensor([0, 1, 2]), offsets, scale=1.0, backend=backend)
    torch.testing.assert_close(weights[0, 0], torch.tensor([1.0, 0.0, 0.0, 0.0]))
    expected = torch.tensor([0.2119, 0.2119, 0.5761, 0.0])
    torch.testing.assert_close(weights[1, 0], expected, atol=5e-5, rtol=0)
