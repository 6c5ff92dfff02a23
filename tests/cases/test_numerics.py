"""NU01 to NU08: empty rows, company, row-wise AdaGrad, bf16, every backend, the same run twice, gradient norms."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opengem import TrainingConfig, train
from opengem.data import Dataset
from opengem.distributed.fused_tables import FusedTables, fbgemm_problem, fuse_tables
from opengem.errors import BackendUnavailable, ConfigError
from opengem.jagged import Batch
from opengem.models.baselines import DCNv2Config, DINConfig, DLRMConfig, LogisticRegressionConfig
from opengem.models.gem import GEMConfig
from opengem.models.loss import binary_cross_entropy, labels_and_masks
from opengem.models.vertical import CandidateAttention, VerticalConfig
from opengem.nn.embedding import EmbeddingTables
from opengem.nn.sink_attention import SinkAttention
from opengem.ops.block_attention import api as block_api
from opengem.ops.gdpa import api as gdpa_api
from opengem.ops.jagged_attention import api as jagged_api
from opengem.ops.jagged_layout import gather
from opengem.ops.native import library
from opengem.training.objective import LabelObjective
from opengem.training.optimizers import Optimizers
from opengem.training.row_wise_adagrad import RowWiseAdaGrad
from opengem.training.run_folder import RunFolder
from tests.cases.made import equal, lines, saved, script_data, tiny, world_data

needs_fbgemm = pytest.mark.skipif(bool(fbgemm_problem()), reason=fbgemm_problem() or "runs")

MODELS = {
    "gem": GEMConfig(width=16, embedding_width=8, layers=1, over=(8,), history=5000, dropout=0.0),
    "vertical": VerticalConfig(width=8, heads=2, layers=(8,), dropout=0.0, history=5000),
    "din": DINConfig(width=8, layers=(8,), dropout=0.0, history=5000),
    "dcnv2": DCNv2Config(width=8, history=5000),
    "dlrm": DLRMConfig(width=8, history=5000),
    "logistic_regression": LogisticRegressionConfig(),
}


@pytest.fixture(scope="module")
def uneven(tmp_path_factory) -> Dataset:
    """Users 1 to 6 with 0, 1, 63, 64, 65 and 5,000 events; one request of three ads each."""
    return Dataset.open(script_data(tmp_path_factory, "sq04_uneven_histories.py"))


def of_users(data: Dataset, *users: int, history: int = 5000) -> Batch:
    """Return the batch of some users of the uneven histories; user u's request shows examples 10 u + 1 to 3."""
    examples = data.example_ids.tolist()
    requests = data.column("request")
    return data.read(requests[[examples.index(10 * u + 1) for u in users]], history)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["gem", "vertical", "din"])
def test_nu01_a_row_that_may_look_at_nothing_trains(uneven, tmp_path, model, precision):
    config = dataclasses.replace(MODELS[model], history=100)
    run = tiny(uneven.folder, model=config, precision=precision, batch_size=18, epochs=20, max_steps=20)
    folder = train(run, tmp_path / "run").folder
    rows = lines(folder)
    assert len(rows) == 20
    assert all(math.isfinite(r["loss"]) and math.isfinite(r["gradient_norm"]) for r in rows)
    checkpoint = saved(folder)
    assert all(torch.isfinite(t).all() for t in (*checkpoint.model.values(), *checkpoint.other.values()))


@pytest.mark.parametrize("model", ["gem", "vertical", "din"])
def test_nu01_a_row_without_a_history_leaves_the_gradients_of_others(uneven, model):
    network = MODELS[model].build(uneven.inputs)

    def gradients(batch: Batch) -> dict[str, Tensor]:
        network.zero_grad(set_to_none=True)
        labels_BT, mask_BT = labels_and_masks(batch, uneven.inputs)
        binary_cross_entropy(network(batch).logits_BT, labels_BT, mask_BT).sum().backward()
        found = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
        return {n: g.to_dense() if g.is_sparse else g for n, g in found.items()}

    alone = gradients(of_users(uneven, 2, 3, 4, 5, history=100))
    beside = of_users(uneven, 1, 2, 3, 4, 5, history=100)
    beside.weight[:3] = 0.0  # user 1 is in the batch, and says nothing to the loss
    together = gradients(beside)
    assert alone.keys() == together.keys()
    for name, gradient in alone.items():
        assert torch.isfinite(together[name]).all(), name
        torch.testing.assert_close(together[name], gradient, atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", [b.name for b in jagged_api.BACKENDS])
def test_nu01_the_attention_of_an_empty_row_is_exactly_zero(backend, dtype):
    g = torch.Generator().manual_seed(0)
    q = torch.randn(6, 2, 16, generator=g).to(dtype).requires_grad_()
    kv = torch.randn(2, 70, 2, 16, generator=g).to(dtype).requires_grad_()
    q_offsets, k_offsets = torch.tensor([0, 2, 4, 6]), torch.tensor([0, 5, 5, 70])
    try:
        out = jagged_api.jagged_attention(q, kv[0], kv[1], q_offsets, k_offsets, backend=backend)
    except BackendUnavailable as reason:
        pytest.skip(str(reason))
    assert torch.equal(out[2:4], torch.zeros_like(out[2:4]))
    out.float().square().sum().backward()
    assert torch.isfinite(q.grad).all()
    assert torch.isfinite(kv.grad).all()
    assert torch.equal(q.grad[2:4], torch.zeros_like(q.grad[2:4]))


def test_nu01_the_summary_of_an_empty_history_is_exactly_zero():
    for width, module in ((8, CandidateAttention(8, 2)), (8, SinkAttention(8, 2))):
        for events in (0, 3):
            x, mask = torch.randn(2, events, width), torch.zeros(2, events, dtype=torch.bool)
            if isinstance(module, SinkAttention):
                out = module(torch.randn(2, 1, width), x, mask)
            else:
                out = module(torch.randn(2, width), x, mask, torch.tensor([0, 1]))
            assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("model", MODELS)
def test_nu03_company_does_not_change_the_answer(uneven, model):
    network = MODELS[model].build(uneven.inputs).eval()
    with torch.no_grad():
        for parameter in network.parameters():  # away from the start, where much is zero
            parameter.add_(0.05 * torch.randn_like(parameter))
        alone = network(of_users(uneven, 2)).logits_BT
        for company in ((2, 6), (2, 1), (2, 1, 3, 4, 5, 6), (1, 2)):
            batch = of_users(uneven, *company)
            mine = (batch.example_id // 10) == 2
            torch.testing.assert_close(network(batch).logits_BT[mine], alone, atol=1e-6, rtol=0)
    assert len(set(alone.flatten().tolist())) > 1


def adagrad(fused: bool, gradients: list[list[float]], rows: int = 3) -> tuple[Tensor, Tensor]:
    """Return what one step at rate 0.1 adds to row 1, and its sum: it is looked up once for each gradient."""
    tables = EmbeddingTables({"t": rows}, 4, scale=0.0)
    module = FusedTables(tables, 1e-8) if fused else tables
    given = torch.tensor([g * 2 for g in gradients])  # twice the same two numbers: FBGEMM needs a width of 4
    if fused:
        module.set_learning_rate(0.1)
    (module({"k": ("t", torch.ones(len(gradients), dtype=torch.int64))})["k"] * given).sum().backward()
    if fused:
        return module.weight("@t")[1, :2], module.moment("@t")
    optimizer = RowWiseAdaGrad({"t": tables.weights["@t"]}, 1e-8)
    optimizer.step(0.1)
    return tables.weights["@t"].detach()[1, :2], optimizer.moments["t"]


@pytest.mark.parametrize(
    "fused", [False, pytest.param(True, marks=needs_fbgemm)], ids=["reference", "fbgemm"]
)
def test_nu04_mean_of_squares_not_square_of_the_mean(fused):
    step, sums = adagrad(fused, [[3.0, -1.0]])
    torch.testing.assert_close(sums, torch.tensor([0.0, 5.0, 0.0]))
    torch.testing.assert_close(step, torch.tensor([-0.134164, 0.044721]), atol=1e-6, rtol=0)
    step, sums = adagrad(fused, [[1.0, 1.0], [2.0, -2.0]])  # one id twice: summed to [3, -1] first
    torch.testing.assert_close(sums, torch.tensor([0.0, 5.0, 0.0]))
    torch.testing.assert_close(step, torch.tensor([-0.134164, 0.044721]), atol=1e-6, rtol=0)


class OneLayer(nn.Module):
    """A table and a layer, all 1.0 at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingTables({"t": 3}, 4)
        self.layer = nn.Linear(4, 4, bias=False)
        for parameter in self.parameters():
            nn.init.ones_(parameter)


@pytest.mark.parametrize(
    "fused", [False, pytest.param(True, marks=needs_fbgemm)], ids=["reference", "fbgemm"]
)
def test_nu05_updates_below_the_step_of_bf16_arrive(fused):
    steps, rate = 100, 0.001
    config = TrainingConfig(
        learning_rate=rate, table_learning_rate=rate, weight_decay=0.0, warmup=0.0, clip=0.0, precision="bf16"
    )
    model = fuse_tables(OneLayer(), 1e-8) if fused else OneLayer()
    optimizers = Optimizers(model, config, total_steps=10**9)  # so long that the rate stays
    plain = torch.ones(4, dtype=torch.bfloat16)
    for step in range(steps):
        optimizers.prepare(step)
        with torch.autocast("cpu", torch.bfloat16):
            rows = model.tables({"k": ("t", torch.tensor([1]))})["k"]
            out = model.layer(rows)
        assert out.dtype == torch.bfloat16
        (out.float().sum() + rows.float().sum()).backward()
        optimizers.step(step)
        plain -= torch.tensor(rate, dtype=torch.bfloat16)
    assert plain.tolist() == [1.0] * 4  # the oracle of the fault: bf16 has no number between 0.996 and 1
    weight = model.state_dict()
    assert {t.dtype for t in weight.values()} == {torch.float32}
    torch.testing.assert_close(weight["layer.weight"], torch.full((4, 4), 0.90), atol=0.02, rtol=0)
    # row-wise AdaGrad at an almost constant gradient: the sum of rate / sqrt(t)
    expected = 1 - sum(rate / math.sqrt(t) for t in range(1, steps + 1))
    torch.testing.assert_close(weight["tables.weights.@t"][1], torch.full((4,), expected), atol=2e-3, rtol=0)
    assert torch.equal(weight["tables.weights.@t"][0], torch.ones(4))


def test_nu05_a_bf16_run_keeps_fp32_masters(tmp_path_factory, tmp_path):
    run = tiny(world_data(tmp_path_factory), precision="bf16", max_steps=3)
    checkpoint = saved(train(run, tmp_path / "run").folder)
    floats = {t.dtype for t in checkpoint.model.values() if t.is_floating_point()}
    assert floats == {torch.float32}
    moments = {k: t for k, t in checkpoint.other.items() if k.startswith(("adamw/", "adagrad/"))}
    assert {t.dtype for t in moments.values()} == {torch.float32}


LENGTHS = [0, 1, 63, 64, 65, 200]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
"""Largest difference to the reference in float64, as a share of the largest value of the tensor."""


def causal(x: Tensor, offsets: Tensor, backend: str) -> Tensor:
    return jagged_api.jagged_attention(*x.unbind(1), offsets, causal=True, backend=backend)


def window(x: Tensor, offsets: Tensor, backend: str) -> Tensor:
    return jagged_api.jagged_attention(*x.unbind(1), offsets, window=16, backend=backend)


def full(x: Tensor, offsets: Tensor, backend: str) -> Tensor:
    return jagged_api.jagged_attention(*x.unbind(1), offsets, backend=backend)


def block(x: Tensor, offsets: Tensor, backend: str) -> Tensor:
    return block_api.block_attention(x, offsets, block=64, shift=32, backend=backend)


def gdpa_self(x: Tensor, offsets: Tensor, backend: str) -> Tensor:
    q, k, v = x.unbind(1)
    return gdpa_api.gdpa(q, k, v, q_offsets=offsets, k_offsets=offsets, alpha=1 / 200, backend=backend)


FORMS: dict[str, tuple[Callable[[Tensor, Tensor, str], Tensor], Any]] = {
    "causal": (causal, jagged_api.BACKENDS),
    "window": (window, jagged_api.BACKENDS),
    "full": (full, jagged_api.BACKENDS),
    "block": (block, block_api.BACKENDS),
    "gdpa": (gdpa_self, gdpa_api.BACKENDS),
}


def forward_and_gradient(
    form: str, x: Tensor, offsets: Tensor, rows: Tensor | None, backend: str
) -> list[Tensor]:
    """Return the answer and the gradient; with `rows` each request's events are read by several examples."""
    leaf = x.clone().requires_grad_()
    flat, bounds = (leaf.flatten(1), offsets) if rows is None else gather(leaf.flatten(1), offsets, rows)
    out = FORMS[form][0](flat.view(-1, *x.shape[1:]), bounds, backend)
    weights = torch.arange(out.numel(), dtype=torch.float64).view_as(out).sin()
    (out.double() * weights).sum().backward()
    assert leaf.grad is not None
    return [out.detach().double(), leaf.grad.double()]


def test_nu06_every_backend_on_every_combination(capsys):
    offsets = torch.tensor([0, *itertools.accumulate(LENGTHS)])
    shared = {
        "requests = examples": None,
        "three ads a request": torch.arange(len(LENGTHS)).repeat_interleave(3),
    }
    native = not library.unavailable()
    table = []
    for form, width, dtype, ads in itertools.product(FORMS, (8, 32, 64), TOLERANCE, shared):
        g = torch.Generator().manual_seed(width)
        x = torch.randn(int(offsets[-1]), 3, 1, width, generator=g).to(dtype)
        exact = forward_and_gradient(form, x.double(), offsets, shared[ads], "reference")
        cells = []
        for backend in FORMS[form][1]:
            runs = {
                "triton": False,  # here are neither a device nor the interpreter
                "native": native and dtype == torch.float32 and width in library.WIDTHS,
                "cpu": form != "block" or dtype != torch.bfloat16,
            }.get(backend.name, True)
            if not runs:
                with pytest.raises(BackendUnavailable):
                    forward_and_gradient(form, x, offsets, shared[ads], backend.name)
                cells.append(f"{backend.name} unavailable")
                continue
            found = forward_and_gradient(form, x, offsets, shared[ads], backend.name)
            worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, exact, strict=True))
            assert worst < TOLERANCE[dtype], (form, width, dtype, ads, backend.name, worst)
            cells.append(f"{backend.name} {worst:.0e}")
        table.append(f"{form:7} K={width:<3} {str(dtype)[6:]:9} {ads:20} {'  '.join(cells)}")
    with capsys.disabled():
        print("\nNU06, lengths", LENGTHS, *table, sep="\n")


@pytest.mark.parametrize("threads", [1, 2])
def test_nu07_the_same_run_twice(tmp_path_factory, tmp_path, threads):
    config = dataclasses.replace(MODELS["gem"], history=20)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found, notes = [], []
    try:
        for number, workers in enumerate((0, 0, 2)):
            run = tiny(world_data(tmp_path_factory), model=config, workers=workers, batch_size=160)
            folder = tmp_path / str(number)
            train(run, folder, observer=lambda row: notes.extend(row.get("notes", [])))
            found.append((lines(folder), saved(folder)))
    finally:
        torch.set_num_threads(before)
    assert not notes
    assert len(found[0][0]) == 3
    for rows, checkpoint in found[1:]:
        assert rows == found[0][0]
        assert equal(checkpoint.model, found[0][1].model)
        assert equal(checkpoint.other, found[0][1].other)


def test_nu07_what_breaks_it_is_said_at_the_start(tmp_path_factory, tmp_path):
    data = world_data(tmp_path_factory)
    started: list[dict[str, Any]] = []
    run = tiny(data, max_steps=4)
    train(run, tmp_path / "run")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train(run, tmp_path / "run", resume=True, observer=lambda r: started.append(r))
    finally:
        torch.set_num_threads(before)
    notes = started[0]["notes"]
    assert notes == ["not deterministic: threads was 1 and is 2"]


class OneNumber(nn.Module):
    """Three numbers, each with a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingTables({"t": 3}, 4)
        self.one = nn.Parameter(torch.zeros(3))
        self.two = nn.Parameter(torch.zeros(2))


def optimizers_of(model: nn.Module, clip: float) -> Optimizers:
    config = TrainingConfig(
        learning_rate=0.5, table_learning_rate=0.5, warmup=0.0, clip=clip, weight_decay=0.0
    )
    optimizers = Optimizers(model, config, total_steps=10**9)
    optimizers.prepare(0)
    return optimizers


def test_nu08_the_norm_is_that_of_all_gradients_and_clips_by_it():
    model = OneNumber()
    optimizers = optimizers_of(model, clip=1.0)
    seen: dict[str, Tensor] = {}
    optimizers.adamw.step = lambda: seen.update({n: p.grad.clone() for n, p in optimizers.dense.items()})
    model.one.grad, model.two.grad = torch.tensor([3.0, -7.0, 2.0]), torch.tensor([0.0, 5.0])
    norm = optimizers.step(0)
    expected = math.sqrt(9 + 49 + 4 + 25)
    assert norm == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(seen["one"], torch.tensor([3.0, -7.0, 2.0]) / expected)
    torch.testing.assert_close(seen["two"], torch.tensor([0.0, 5.0]) / expected)
    model.one.grad, model.two.grad = torch.tensor([0.3, 0.0, 0.4]), torch.zeros(2)
    assert optimizers.step(0) == pytest.approx(0.5, rel=1e-6)  # below the limit nothing is scaled
    torch.testing.assert_close(seen["one"], torch.tensor([0.3, 0.0, 0.4]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", ["two", "table"])
def test_nu08_a_gradient_that_is_not_finite_is_not_applied_and_named(place, bad):
    model = OneNumber()
    optimizers = optimizers_of(model, clip=1.0)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rows = model.tables({"k": ("t", torch.tensor([1, 2]))})["k"]
    scale = torch.ones(2, 4)
    scale[1, 3] = bad if place == "table" else 1.0
    (rows * scale).sum().backward()
    model.one.grad = torch.ones(3)
    model.two.grad = torch.tensor([1.0, bad if place == "two" else 1.0])
    with pytest.raises(
        FloatingPointError, match="1 of 2 values.*two" if place == "two" else "1 of 8 values.*@t"
    ):
        optimizers.step(0)
    assert equal(dict(model.state_dict()), before)
    assert not optimizers.adamw.state
    assert torch.equal(optimizers.tables.moments["tables.@t"], torch.zeros(3))


@needs_fbgemm
def test_nu08_a_fused_table_is_not_touched_by_a_gradient_that_is_not_finite():
    tables = EmbeddingTables({"t": 3, "u": 2}, 4)
    fused = FusedTables(tables, 1e-8)
    fused.set_learning_rate(0.5)
    before = {k: v.clone() for k, v in fused.state_dict().items()}
    found = fused({"a": ("t", torch.tensor([1])), "b": ("u", torch.tensor([0]))})
    with pytest.raises(FloatingPointError, match="4 of 4 values of the gradient of table u"):
        (found["a"].sum() + found["b"].sum() * math.nan).backward()
    assert equal(dict(fused.state_dict()), before)
    assert torch.equal(fused.moment("@t"), torch.zeros(3))


class NaNAtStep(LabelObjective):
    """The labels, with a gradient that is NaN at step 3 while the loss is finite."""

    step = 0

    def prepare(self, batch: Batch) -> None:
        self.step += 1

    def forward(self, output, batch):
        loss, per_task = super().forward(output, batch)
        if self.step == 3:
            # the root has an infinite slope at zero: 0 * infinity in its gradient
            loss = loss + ((output.logits_BT * 0.0).sum()).abs().sqrt() * 0.0
        return loss, per_task


def test_nu08_a_run_ends_before_the_step_and_names_the_parameter(tmp_path_factory, tmp_path):
    data = world_data(tmp_path_factory)
    objective = NaNAtStep(Dataset.open(data).inputs, {})
    run = tiny(data, checkpoint_every=1, max_steps=5)
    with pytest.raises(ConfigError, match=r"gradients must stay finite.*of table.*at step 2.*start_from"):
        train(run, tmp_path / "run", objective=objective)
    assert [row["step"] for row in lines(tmp_path / "run")] == [1, 2]
    checkpoint = saved(tmp_path / "run")
    assert checkpoint.state["steps"] == 2
    assert all(torch.isfinite(t).all() for t in checkpoint.model.values())
    assert not RunFolder(tmp_path / "run").end_file.exists()
    # the run whose third step is sound goes on from there as if nothing had been
    train(run, tmp_path / "run", resume=True)
    train(run, tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
