"""FBGEMM against the reference: the same meaning."""

import pytest
import torch

from opengem.distributed import fused_tables
from opengem.distributed.fused_tables import FusedTables, fbgemm_problem
from opengem.errors import BackendUnavailable
from opengem.nn.embedding import EmbeddingTables
from opengem.training.row_wise_adagrad import RowWiseAdaGrad

needs_fbgemm = pytest.mark.skipif(bool(fbgemm_problem()), reason=fbgemm_problem() or "runs")


def _lookups(g):
    return {
        "a": ("ad", torch.randint(0, 30, (40,), generator=g)),
        "b": ("author", torch.randint(0, 9, (5, 3), generator=g)),
        "c": ("ad", torch.randint(0, 30, (7,), generator=g)),
        "none": ("author", torch.zeros(0, dtype=torch.int64)),
    }


@needs_fbgemm
def test_ten_steps_equal_the_reference():
    torch.manual_seed(1)
    reference = EmbeddingTables({"ad": 30, "author": 9}, 8, scale=0.3)
    fused = FusedTables(reference, 1e-8)
    optimizer = RowWiseAdaGrad(dict(reference.weights.items()), 1e-8)
    g = torch.Generator().manual_seed(0)
    for step in range(10):
        lookups, rate = _lookups(g), 0.1 / (step + 1)
        target = torch.randn(8, generator=g)
        for tables in (reference, fused):
            if tables is fused:
                fused.set_learning_rate(rate)
            rows = tables(lookups)
            sum(((r - target) ** 3).sum() for r in rows.values()).backward()
        optimizer.step(rate)
    for name, weight in reference.weights.items():
        torch.testing.assert_close(fused.weight(name), weight.detach(), rtol=2e-5, atol=2e-6)
        torch.testing.assert_close(fused.moment(name), optimizer.moments[name], rtol=2e-5, atol=2e-6)


@needs_fbgemm
def test_the_state_dict_is_that_of_the_reference():
    reference = EmbeddingTables({"ad": 30, "author": 9}, 8, scale=0.3)
    fused = FusedTables(reference, 1e-8)
    torch.testing.assert_close(dict(fused.state_dict()), dict(reference.state_dict()))
    other = EmbeddingTables({"ad": 30, "author": 9}, 8, scale=0.3)
    fused.load_state_dict(other.state_dict())
    torch.testing.assert_close(fused.weight("@author"), other.weights["@author"].detach())
    with pytest.raises(RuntimeError, match="author"):
        fused.load_state_dict(EmbeddingTables({"ad": 30, "author": 10}, 8).state_dict())


@needs_fbgemm
def test_a_width_that_cannot_run_is_refused():
    with pytest.raises(BackendUnavailable, match="multiple of 4"):
        FusedTables(EmbeddingTables({"ad": 3}, 6), 1e-8)


def test_a_pair_of_versions_that_does_not_fit_is_found_before_the_import(monkeypatch):
    monkeypatch.setattr(fused_tables.importlib.metadata, "version", lambda name: "1.9.0")
    monkeypatch.setattr(fused_tables.torch, "__version__", "2.13.0+cpu")
    assert "fbgemm-gpu-cpu==1.8.0" in fbgemm_problem()


def test_row_wise_adagrad_by_hand():
    weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    optimizer = RowWiseAdaGrad({"t": weight}, eps=0.0)
    used = torch.nn.functional.embedding(torch.tensor([1, 1]), weight, sparse=True)
    (used * torch.tensor([[1.0, 0.0], [2.0, 4.0]])).sum().backward()
    optimizer.step(0.5)
    # g = (3, 4); mean of squares 12.5; step 0.5 g / sqrt(12.5)
    root = 12.5**0.5
    torch.testing.assert_close(weight.detach(), torch.tensor([[1.0, 2.0], [3 - 1.5 / root, 4 - 2 / root]]))
    assert optimizer.moments["t"].tolist() == [0.0, 12.5]
