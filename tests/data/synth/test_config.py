import datetime
from math import exp
from statistics import NormalDist

import pytest

from opengem.data.synth import SynthConfig
from opengem.errors import ConfigError


def test_unknown_effect_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="lasting"):
        SynthConfig(effects={"lastin": 1.0})


@pytest.mark.parametrize(
    ("setting", "value"),
    [("users", 0), ("days", 4), ("click_rate", 0.9), ("workers", 0), ("history_events", 0), ("ads", 3)],
)
def test_values_out_of_range_are_refused_by_name(setting, value):
    with pytest.raises(ConfigError, match=setting):
        SynthConfig(**{setting: value})


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weight_must_be_a_number_of_at_least_zero(weight):
    with pytest.raises(ConfigError, match=r"effects\.taste"):
        SynthConfig(effects={"taste": weight})


def test_effects_left_out_keep_weight_one():
    config = SynthConfig(effects={"taste": 0.5})
    assert (config.weight("taste"), config.weight("order")) == (0.5, 1.0)


@pytest.mark.parametrize("days", [5, 6, 10, 30, 60, 365])
def test_splits_follow_one_another_and_end_with_the_ads(days):
    config = SynthConfig(days=days, start=datetime.date(2024, 2, 27))
    splits = config.splits()
    one = datetime.timedelta(days=1)
    assert splits["train"][0] >= config.start
    assert all(first <= last for first, last in splits.values())
    assert splits["train"][1] + one == splits["validation"][0]
    assert splits["validation"][1] + one == splits["test"][0]
    assert splits["test"][1] == config.start + (days - 1) * one


def test_default_splits_are_those_of_the_guide():
    splits = SynthConfig(start=datetime.date(2025, 1, 1)).splits()
    assert {k: (a.isoformat(), b.isoformat()) for k, (a, b) in splits.items()} == {
        "train": ("2025-01-08", "2025-02-15"),
        "validation": ("2025-02-16", "2025-02-17"),
        "test": ("2025-02-18", "2025-03-01"),
    }
    assert SynthConfig().jump_day == 45


def test_shards_and_blocks_do_not_depend_on_workers():
    one, many = SynthConfig(users=10**7, workers=1), SynthConfig(users=10**7, workers=64)
    assert one.users_of_shard == many.users_of_shard
    assert one.users_of_block == many.users_of_block


def test_mean_history_of_a_log_normal_cut_from_below():
    """Against a fine sum over its quantiles."""
    config = SynthConfig(history_events=30, history_minimum=50, activity_spread=1.2)
    normal = NormalDist()
    points = 20_000
    mean = sum(max(50, 30 * exp(1.2 * normal.inv_cdf((i + 0.5) / points))) for i in range(points)) / points
    assert config.mean_history == pytest.approx(mean, rel=2e-3)
