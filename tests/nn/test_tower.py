import torch

from opengem.nn.pyramid import StreamTowerConfig
from opengem.nn.tower import Tower
from tests.ops.rows import offsets_of

CONFIG = StreamTowerConfig(width=8, heads=2, depth=1, block=4, recent=2, group=2, tokens=4)


def test_streams_are_merged_in_time_order():
    tower = Tower({"a.b": CONFIG, "keys": CONFIG}, 8, history=4, pyramid=False)
    events = {"a.b": torch.randn(3, 8), "keys": torch.randn(2, 8)}
    offsets = {"a.b": offsets_of([3, 0]), "keys": offsets_of([1, 1])}
    times = {"a.b": torch.tensor([10, 20, 40]), "keys": torch.tensor([30, 5])}
    tokens, mask = tower(events, offsets, times)
    assert tokens.shape == (2, tower.tokens, 8) == (2, 8, 8)
    assert mask.tolist() == [[False] * 4 + [True] * 4, [False] * 7 + [True]]
    norms = [t.norm for t in tower.streams.values()]
    expected = [
        norms[0](events["a.b"][0]),
        norms[0](events["a.b"][1]),
        norms[1](events["keys"][0]),
        norms[0](events["a.b"][2]),
    ]
    torch.testing.assert_close(tokens[0, 4:], torch.stack(expected))
    torch.testing.assert_close(tokens[1, 7], norms[1](events["keys"][1]))
    assert not tokens[~mask].any()


def test_streams_without_any_event():
    tower = Tower({"a": CONFIG, "b": CONFIG}, 8, history=20, pyramid=True)
    none = {n: torch.zeros(0, 8, requires_grad=True) for n in "ab"}
    tokens, mask = tower(
        none, {n: offsets_of([0, 0]) for n in "ab"}, {n: torch.zeros(0, dtype=torch.int64) for n in "ab"}
    )
    assert not mask.any()
    assert torch.equal(tokens, torch.zeros_like(tokens))
    tokens.sum().backward()
