import dataclasses

import pytest

from opengem.config import build, to_plain
from opengem.errors import ConfigError
from opengem.models.gem_config import SIZES, GEMConfig
from opengem.nn.interformer import InterFormerConfig
from opengem.nn.pyramid import StreamTowerConfig


@pytest.mark.parametrize("size", SIZES)
def test_size_fills_every_number(size):
    config = GEMConfig(size=size).resolved()
    parts = (config, config.interaction, config.interformer, config.tower)
    empty = [
        f.name
        for part in parts
        for f in dataclasses.fields(part)
        if f.type in ("int", int, tuple[int, ...]) and not getattr(part, f.name)
    ]
    # a window of 0 means none
    assert empty == ["window", "window"]
    assert config.resolved() == config


def test_set_numbers_win_over_size_and_size_can_still_change():
    config = GEMConfig(
        width=48, interformer=InterFormerConfig(heads=3), tower=StreamTowerConfig(tokens=20, recent=9)
    )
    assert config.resolved().width == 48
    assert config.resolved().interformer.heads == 3
    assert config.resolved().tower.tokens == 20
    assert dataclasses.replace(GEMConfig(), size="large").resolved().layers == 6


def test_sizes_grow():
    totals = []
    for size in SIZES:
        c = GEMConfig(size=size).resolved()
        totals.append(c.width**2 * c.layers * c.interaction.tokens)
    assert totals == sorted(totals)


def test_is_built_from_plain_tables():
    plain = {
        "size": "small",
        "interaction": {"cross_layer_attention": False},
        "streams": {"watched": {"width": 32, "heads": 2, "tokens": 16, "recent": 8}},
    }
    config = build(GEMConfig, plain)
    assert config.streams["watched"].tokens == 16
    assert build(GEMConfig, to_plain(config)) == config
    assert build(GEMConfig, to_plain(config.resolved())) == config.resolved()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"history": 0}, "history must be at least 1"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"width": 30}, "multiple of 2"),
        ({"layers": -1}, "layers must not be negative"),
        ({"tower": StreamTowerConfig(group=-1)}, "tower.group must not be negative"),
        ({"size": "huge"}, "size must be one of"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        GEMConfig(**settings).resolved()
