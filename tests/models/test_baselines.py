import dataclasses

import pytest
import torch

from made_batch import INPUTS, made_batch
from opengem.models import ModelConfig

NAMES = ["logistic_regression", "dlrm", "dcnv2", "din", "vertical"]


def _model(name):
    return ModelConfig.member(name, "model.type")().build(INPUTS)


@pytest.mark.parametrize("name", NAMES)
def test_answers_every_example_and_learns(name):
    model, batch = _model(name), made_batch(requests=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sparse = [p for n, p in model.named_parameters() if ".weights." in n]
    losses = []
    for _ in range(80):
        output = model(batch)
        assert output.logits_BT.shape == (batch.num_examples, 3)
        labels = torch.stack(list(batch.labels.values()), 1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output.logits_BT, labels)
        loss.backward()
        for p in sparse:
            if p.grad is not None:
                p.grad = p.grad.to_dense()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_starts_near_the_base_rates(name):
    model, batch = _model(name).eval(), made_batch()
    p = torch.sigmoid(model(batch).logits_BT.detach())
    for i, task in enumerate(INPUTS.tasks):
        assert float(p[:, i].mean()) == pytest.approx(task.base_rate, rel=0.35)


@pytest.mark.parametrize("name", NAMES)
def test_a_conversion_is_never_likelier_than_its_click(name):
    p = torch.sigmoid(_model(name)(made_batch(requests=20)).logits_BT)
    assert bool((p[:, 1] <= p[:, 0]).all())


@pytest.mark.parametrize("name", NAMES)
def test_each_request_is_scored_alone(name):
    """No example may depend on what else is in the batch."""
    model = _model(name).eval()
    whole = made_batch(requests=5, seed=3)
    alone = _first_request(whole, 2)
    rows = whole.request_of_example == 2
    torch.testing.assert_close(model(whole).logits_BT[rows], model(alone).logits_BT, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_scores_a_batch_without_any_event(name):
    output = _model(name)(made_batch(requests=1))
    assert bool(torch.isfinite(output.logits_BT).all())


def _first_request(batch, r):
    from opengem.jagged import History, JaggedTensor

    rows = batch.request_of_example == r
    user = {f.name for f in INPUTS.features if f.owner == "user"}
    pick = lambda name, v: v[r : r + 1] if name in user else v[rows]  # noqa: E731

    def bag(name, b):
        keep = [r] if name in user else rows.nonzero().squeeze(1).tolist()
        lists = b.to_list()
        return JaggedTensor.from_lengths(
            torch.tensor([v for i in keep for v in lists[i]], dtype=torch.int64),
            torch.tensor([len(lists[i]) for i in keep]),
        )

    def cut(h):
        a, b = int(h.offsets[r]), int(h.offsets[r + 1])
        return History(
            ids={k: v[a:b] for k, v in h.ids.items()},
            numbers={k: v[a:b] for k, v in h.numbers.items()},
            times=h.times[a:b],
            offsets=torch.tensor([0, b - a]),
        )

    return dataclasses.replace(
        batch,
        ids={k: pick(k, v) for k, v in batch.ids.items()},
        bags={k: bag(k, v) for k, v in batch.bags.items()},
        numbers={k: pick(k, v) for k, v in batch.numbers.items()},
        missing={k: pick(k, v) for k, v in batch.missing.items()},
        vectors={k: pick(k, v) for k, v in batch.vectors.items()},
        history={k: cut(h) for k, h in batch.history.items()},
        request_of_example=torch.zeros(int(rows.sum()), dtype=torch.int64),
        request_time=batch.request_time[r : r + 1],
        surface=batch.surface[rows],
        time=batch.time[rows],
        example_id=batch.example_id[rows],
        labels={k: v[rows] for k, v in batch.labels.items()},
        label_mask={k: v[rows] for k, v in batch.label_mask.items()},
        weight=batch.weight[rows],
        extras={k: v[rows] for k, v in batch.extras.items()},
    )
