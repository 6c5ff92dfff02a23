import pytest
import torch

from opengem.errors import ConfigError
from opengem.nn.pyramid import (
    EventLayer,
    GroupPool,
    RecentEvents,
    StreamTower,
    StreamTowerConfig,
    attended_pairs,
    level_lengths,
)
from tests.ops.rows import offsets_of

CONFIG = StreamTowerConfig(width=8, heads=2, depth=2, block=4, recent=3, group=2, tokens=6)


def test_level_lengths_fall_geometrically():
    config = StreamTowerConfig(recent=32, group=8, tokens=64)
    assert level_lengths(config, 4096) == [4096, 540, 96, 40]
    assert level_lengths(config, 64) == [64]
    with pytest.raises(ConfigError, match="recent must be below tokens"):
        level_lengths(StreamTowerConfig(recent=64, group=8, tokens=64), 100)


def test_pool_leaves_the_newest_and_starts_as_means_of_groups():
    x = torch.arange(7.0)[:, None].repeat(1, 2)
    pool = GroupPool(2, heads=2, recent=2, group=2)
    pool.norm = torch.nn.Identity()
    tokens, offsets, events = pool(x, offsets_of([5, 2, 0]), torch.arange(7))
    # row 0: events 0 1 2 are older: group [0], group [1, 2]; 3 and 4 are left alone; row 1 has only newest ones
    assert tokens[:, 0].tolist() == [0, 1.5, 3, 4, 5, 6]
    assert offsets.tolist() == [0, 4, 6, 6]
    assert events.tolist() == [0, 2, 3, 4, 5, 6]
    assert pool.lengths(torch.tensor([5, 2, 0])).tolist() == [4, 2, 0]


def test_pool_weighs_by_its_query_head_by_head():
    x = torch.randn(6, 4)
    pool = GroupPool(4, heads=2, recent=0, group=3)
    torch.nn.init.normal_(pool.query.weight)
    tokens, _, _ = pool(x, offsets_of([6]), torch.arange(6))
    for group in range(2):
        members = x[3 * group : 3 * group + 3]
        weights = (members @ pool.query.weight.T).softmax(0)
        expected = torch.einsum("jh,jhk->hk", weights, members.view(3, 2, 2)).flatten()
        torch.testing.assert_close(tokens[group], pool.norm(expected))


@pytest.mark.parametrize("history", [6, 40])
def test_tower_gives_tokens_newest_last_for_any_length(history):
    tower = StreamTower(CONFIG, 8, history)
    lengths = [0, 1, 5, 6, 7, 39, 40, 55]
    x = torch.randn(sum(lengths), 8)
    tokens, mask, newest = tower(x, offsets_of(lengths))
    assert tokens.shape == (8, tower.tokens, 8)
    assert tower.tokens <= CONFIG.tokens
    assert tokens.isfinite().all()
    expected = torch.tensor(lengths)
    for pool in tower.pools:
        expected = pool.lengths(expected)
    assert mask.sum(1).tolist() == expected.clamp(max=tower.tokens).tolist()
    ends = offsets_of(lengths)[1:] - 1
    assert torch.equal(newest[1:, -1], ends[1:])
    assert bool((newest[:, 1:] >= newest[:, :-1])[mask[:, :-1]].all())


def test_requests_do_not_touch_each_other_and_the_newest_are_not_squeezed():
    tower = StreamTower(CONFIG, 8, 40).eval()
    lengths = [30, 17]
    x = torch.randn(47, 8)
    other = x.clone()
    other[3] += torch.randn(8)
    a, b = (tower(v, offsets_of(lengths))[0] for v in (x, other))
    assert torch.equal(a[1], b[1])
    assert not torch.allclose(a[0], b[0])
    other = x.clone()
    other[29] += torch.randn(8)
    changed = (tower(other, offsets_of(lengths))[0][0] - a[0]).abs().amax(-1)
    assert changed.argmax() == tower.tokens - 1


def test_shifted_blocks_carry_information_across_borders():
    layers = [EventLayer(CONFIG, 0), EventLayer(CONFIG, 2)]
    x, offsets = torch.randn(8, 8), offsets_of([8])
    rotation = torch.tensor([1.0, 0.0]).expand(8, 2, 2)
    other = x.clone()
    other[0] += torch.randn(8)

    def run(v, used):
        for layer in used:
            v = layer(v, offsets, rotation, 8)
        return v

    assert torch.equal(run(x, layers[:1])[4:], run(other, layers[:1])[4:])
    assert not torch.equal(run(x, layers)[4:6], run(other, layers)[4:6])


def test_windowed_layer_sees_its_window_only():
    config = StreamTowerConfig(width=8, heads=2, depth=1, block=4, window=2)
    layer = EventLayer(config, 0)
    x, offsets = torch.randn(9, 8), offsets_of([9])
    rotation = torch.tensor([1.0, 0.0]).expand(9, 2, 2)
    other = x.clone()
    other[4] += torch.randn(8)
    changed = (layer(x, offsets, rotation, 9) != layer(other, offsets, rotation, 9)).any(1)
    assert changed.nonzero().flatten().tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("shift", [0, 2])
def test_attended_pairs_by_counting(window, shift):
    config = StreamTowerConfig(block=4, window=window)
    lengths = torch.tensor([0, 1, 2, 3, 4, 7, 13])
    expected = 0
    for n in lengths.tolist():
        for i in range(n):
            for j in range(n):
                expected += abs(i - j) <= window if window else (i + shift) // 4 == (j + shift) // 4
    assert attended_pairs(config, shift, lengths) == expected


def test_switched_off_gives_the_newest_events():
    module = RecentEvents(3, 8)
    x = torch.randn(6, 8)
    tokens, mask, newest = module(x, offsets_of([5, 1]))
    assert mask.tolist() == [[True] * 3, [False, False, True]]
    assert newest.tolist() == [[2, 3, 4], [0, 0, 5]]
    torch.testing.assert_close(tokens[0], module.norm(x[2:5]))


def test_width_must_fit_the_heads():
    with pytest.raises(ConfigError, match="multiple of 2"):
        StreamTower(StreamTowerConfig(width=6, heads=2, depth=1, block=4, recent=1, group=2, tokens=4), 8, 10)
