import dataclasses

import pytest
import torch

from made_batch import INPUTS, made_batch
from opengem.errors import ConfigError
from opengem.jagged import Batch, History
from opengem.models.gem import GEM
from opengem.models.gem_config import GEMConfig
from opengem.nn.interformer import InterFormerConfig
from opengem.nn.pyramid import StreamTowerConfig
from opengem.nn.wukong import WukongConfig

SMALL_TOWER = StreamTowerConfig(width=16, heads=2, depth=2, block=8, recent=4, group=4, tokens=8)
VARIANTS = {
    "default": {},
    "interaction only": {"interformer": InterFormerConfig(form="none")},
    "separate": {"interformer": InterFormerConfig(form="separate")},
    "one way": {"interformer": InterFormerConfig(form="one_way")},
    "no tower": {"pyramid": False},
    "pooling tower": {"tower": SMALL_TOWER},
    "windowed tower": {"tower": dataclasses.replace(SMALL_TOWER, window=5)},
    "own tower": {"streams": {"organic": SMALL_TOWER}},
    "no wukong": {"wukong": False},
    "attentive wukong": {"interaction": WukongConfig(attentive=True)},
    "deep": {"layers": 4},
    "deep, no cross-layer attention": {"layers": 4, "interaction": WukongConfig(cross_layer_attention=False)},
    "one layer": {"layers": 1},
    "every layer whole": {"interformer": InterFormerConfig(compskip=False)},
    "windowed": {"interformer": InterFormerConfig(window=3)},
    "hsp": {"interformer": InterFormerConfig(pooling="hsp")},
    "printed gate": {"interformer": InterFormerConfig(gate="printed")},
    "no gate": {"interformer": InterFormerConfig(gate="none")},
    "relu squared": {"interformer": InterFormerConfig(activation="relu_squared")},
    "no target attention": {"interformer": InterFormerConfig(target_attention=False)},
    "no time": {"time_encodings": False},
    "one event": {"history": 1},
}


def build(**settings) -> GEM:
    torch.manual_seed(0)
    return GEMConfig(**({"history": 40, "dropout": 0.0} | settings)).build(INPUTS)


def loss_of(model: GEM, batch: Batch) -> torch.Tensor:
    labels = torch.stack(list(batch.labels.values()), dim=1)
    return torch.nn.functional.binary_cross_entropy_with_logits(model(batch).logits_BT, labels)


def make_dense(model: GEM) -> None:
    for p in model.parameters():
        if p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.to_dense()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_starts_at_the_base_rates_and_learns(name):
    model, batch = build(**VARIANTS[name]), made_batch(requests=16)
    p = torch.sigmoid(model(batch).logits_BT.detach()).mean(0)
    for i, task in enumerate(INPUTS.tasks):
        assert float(p[i]) == pytest.approx(task.base_rate, rel=0.35)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        loss = loss_of(model, batch)
        loss.backward()
        make_dense(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_parameter_is_used(name):
    model = build(**VARIANTS[name])
    loss_of(model, made_batch(requests=16)).backward()
    unused = {n for n, p in model.named_parameters() if p.grad is None}
    # the input arch embeds the events for every model; one that reads no history leaves them
    allowed = ("arch.",) if name == "interaction only" else ()
    assert {n for n in unused if not n.startswith(allowed)} == set()


def one_request_each(batch: Batch) -> Batch:
    """The same examples, each as its own request with a copy of the request's features and history."""
    from opengem.jagged import JaggedTensor
    from opengem.ops.jagged_layout import gather

    owner = batch.request_of_example
    user = {f.name for f in INPUTS.features if f.owner == "user"}

    def history(h: History) -> History:
        take = lambda v: gather(v, h.offsets, owner)[0]  # noqa: E731
        offsets = gather(h.times, h.offsets, owner)[1]
        return History(
            ids={k: take(v) for k, v in h.ids.items()},
            numbers={k: take(v) for k, v in h.numbers.items()},
            times=take(h.times),
            offsets=offsets,
        )

    def pick(values):
        return {k: v[owner] if k in user else v for k, v in values.items()}

    return dataclasses.replace(
        batch,
        ids=pick(batch.ids),
        bags={
            k: JaggedTensor(*gather(v.values, v.offsets, owner)) if k in user else v
            for k, v in batch.bags.items()
        },
        numbers=pick(batch.numbers),
        missing=pick(batch.missing),
        vectors=pick(batch.vectors),
        history={k: history(h) for k, h in batch.history.items()},
        request_of_example=torch.arange(batch.num_examples),
        request_time=batch.request_time[owner],
    )


@pytest.mark.parametrize("name", ["default", "one way", "separate", "pooling tower", "no tower"])
def test_sharing_a_request_changes_no_score(name):
    model, batch = build(**VARIANTS[name]).eval(), made_batch(requests=7, seed=2)
    torch.testing.assert_close(
        model(batch).logits_BT, model(one_request_each(batch)).logits_BT, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["default", "pooling tower"])
def test_scores_do_not_depend_on_the_other_ads_or_requests(name):
    model, batch = build(**VARIANTS[name]).eval(), made_batch(requests=7, seed=2)
    before = model(batch).logits_BT
    batch.ids["ad_id"][3] = (batch.ids["ad_id"][3] + 1) % 50
    changed = (model(batch).logits_BT != before).any(1)
    assert changed.nonzero().flatten().tolist() == [3]


def test_history_matters_and_only_the_newest_events_of_it():
    model, batch = build(history=8, pyramid=False).eval(), made_batch(requests=7, most_events=60, seed=2)
    before = model(batch).logits_BT
    h = batch.history["watched"]
    long = int((h.offsets[1:] - h.offsets[:-1]).argmax())
    rows = batch.request_of_example == long
    h.ids["ad_id"][h.offsets[long]] = (h.ids["ad_id"][h.offsets[long]] + 1) % 50
    torch.testing.assert_close(model(batch).logits_BT, before, rtol=0, atol=0)
    h.ids["ad_id"][h.offsets[long + 1] - 1] = (h.ids["ad_id"][h.offsets[long + 1] - 1] + 1) % 50
    assert (model(batch).logits_BT != before)[rows].any()
    assert torch.equal(model(batch).logits_BT[~rows], before[~rows])


@pytest.mark.parametrize("name", ["default", "one way", "pooling tower", "windowed tower", "no tower"])
def test_batch_without_any_event_is_finite_forward_and_backward(name):
    model, batch = build(**VARIANTS[name]), made_batch(requests=3, most_events=0)
    loss_of(model, batch).backward()
    for parameter_name, p in model.named_parameters():
        if p.grad is not None:
            values = p.grad.coalesce().values() if p.grad.is_sparse else p.grad
            assert values.isfinite().all(), parameter_name


def test_data_without_streams_or_user_features():
    inputs = dataclasses.replace(
        INPUTS, streams=(), features=tuple(f for f in INPUTS.features if f.owner != "user")
    )
    batch = made_batch()
    batch.history = {}
    assert GEMConfig().build(inputs)(batch).logits_BT.isfinite().all()


def test_autocast_to_bfloat16_is_near_float32():
    model, batch = build(layers=3).eval(), made_batch(requests=12)
    exact = model(batch).logits_BT
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(batch)
        loss_of(model, batch).backward()
    assert out.logits_BT.dtype == torch.float32
    torch.testing.assert_close(out.logits_BT, exact, atol=0.05, rtol=0.05)
    assert all(p.grad is None or p.grad.is_sparse or p.grad.isfinite().all() for p in model.parameters())


def test_unknown_stream_is_named():
    with pytest.raises(ConfigError, match="streams of the data"):
        build(streams={"watch": SMALL_TOWER})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "pooling tower", "windowed tower"])
def test_exports_for_any_number_of_examples_requests_and_events(name):
    model = build(**VARIANTS[name]).eval()
    batch = made_batch(requests=8, most_events=40)
    shapes = torch.export.ShapesCollection()
    for tensor in torch.utils._pytree.tree_leaves(batch):
        shapes[tensor] = {0: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        program = torch.export.export(model, (batch,), dynamic_shapes=shapes).module()
        for settings in (
            {"requests": 5, "seed": 4},
            {"requests": 3, "most_ads": 9},
            {"requests": 20, "most_events": 3},
        ):
            other = made_batch(**settings)
            torch.testing.assert_close(program(other).logits_BT, model(other).logits_BT, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "size",
    ["small", pytest.param("medium", marks=pytest.mark.slow), pytest.param("large", marks=pytest.mark.slow)],
)
def test_every_size_builds_and_answers(size):
    batch = made_batch()
    assert GEMConfig(size=size).build(INPUTS)(batch).logits_BT.isfinite().all()
