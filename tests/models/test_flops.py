import dataclasses

import pytest
import torch

from made_batch import INPUTS, made_batch
from opengem.jagged import Batch, History
from opengem.models import ModelConfig
from opengem.models.flops import FlopsPerExample, counted_flops, model_flops
from opengem.models.gem_config import GEMConfig
from opengem.nn.interformer import InterFormerConfig
from opengem.nn.pyramid import StreamTowerConfig
from opengem.nn.wukong import WukongConfig

TOWER = StreamTowerConfig(depth=1, block=16, recent=16, group=4, tokens=32)
VARIANTS = {
    "default": {"tower": StreamTowerConfig(block=16)},
    "two levels": {"tower": TOWER},
    "other width": {"tower": dataclasses.replace(TOWER, width=16)},
    "one way": {"interformer": InterFormerConfig(form="one_way")},
    "separate": {"interformer": InterFormerConfig(form="separate", compskip=False)},
    "interaction only": {"interformer": InterFormerConfig(form="none")},
    "hsp, whole": {"interformer": InterFormerConfig(pooling="hsp", compskip=False), "layers": 4},
    "attentive": {"interaction": WukongConfig(attentive=True)},
    "no wukong": {"wukong": False, "pyramid": False},
    "no gate, no target": {"interformer": InterFormerConfig(gate="none", target_attention=False)},
}


def of_equal_lengths(batch: Batch, length: int) -> Batch:
    """The batch with histories of `length` events each."""

    def history(h: History) -> History:
        R = h.offsets.shape[0] - 1
        many = lambda v: v[:1].expand(R * length).contiguous()  # noqa: E731
        return History(
            ids={k: many(v) for k, v in h.ids.items()},
            numbers={k: many(v) for k, v in h.numbers.items()},
            times=many(h.times),
            offsets=torch.arange(R + 1) * length,
        )

    return dataclasses.replace(batch, history={k: history(h) for k, h in batch.history.items()})


@pytest.mark.parametrize("name", VARIANTS)
def test_formula_equals_what_happens_on_equal_lengths(name):
    settings = {"history": 64, "size": "tiny"} | VARIANTS[name]
    model = GEMConfig(**settings).build(INPUTS)
    batch = of_equal_lengths(made_batch(requests=5), 64)
    assert model_flops(model, batch) == pytest.approx(counted_flops(model, batch), rel=0.01)


def test_padding_does_not_count():
    model = GEMConfig(history=64, tower=StreamTowerConfig(block=16, depth=2)).build(INPUTS)
    batch = made_batch(requests=8)
    longest = max(int(h.offsets.diff().max()) for h in batch.history.values())
    real = model_flops(model, batch)
    assert 0 < real < model_flops(model, of_equal_lengths(batch, longest))
    # what runs may pad, or not, by the backends of this machine
    assert real < 1.01 * counted_flops(model, batch)


def test_tower_is_linear_in_events():
    model = GEMConfig(history=4096).build(INPUTS)
    batch = made_batch(requests=4)
    costs = [model_flops(model, of_equal_lengths(batch, n)) for n in (1024, 2048, 4096)]
    assert costs[2] - costs[1] == pytest.approx(2 * (costs[1] - costs[0]), rel=0.05)


def test_other_models_are_counted_as_they_run():
    model = ModelConfig.member("dcnv2", "type")().build(INPUTS).train()
    batch = made_batch()
    linear = sum(m.weight.numel() for m in [*model.down, *model.up]) * 2 * batch.num_examples
    assert model_flops(model, batch) > linear
    assert model.training


def test_the_log_counts_one_batch_in_every_few():
    model = ModelConfig.member("din", "type")().build(INPUTS)
    small, large = made_batch(requests=3), made_batch(requests=9)
    per_example = FlopsPerExample(model, every=2)
    assert per_example(small) == pytest.approx(counted_flops(model, small) / small.num_examples)
    assert (
        per_example(large)
        == per_example.last
        == pytest.approx(counted_flops(model, small) / small.num_examples)
    )
    assert per_example(large) == pytest.approx(counted_flops(model, large) / large.num_examples)
    formula = GEMConfig(history=64, size="tiny").build(INPUTS)
    per_example = FlopsPerExample(formula, every=100)
    for batch in (small, large):
        assert per_example(batch) == pytest.approx(model_flops(formula, batch) / batch.num_examples)
