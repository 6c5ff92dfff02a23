from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opengem.config import Family, build, load_toml, merge, parse_overrides, to_plain
from opengem.errors import ConfigError


class Shape(Family):
    pass


@dataclass(frozen=True, kw_only=True)
class Circle(Shape, type="circle"):
    radius: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Box(Shape, type="box"):
    sides: tuple[int, ...] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.1
    steps: int = 3


@dataclass(frozen=True, kw_only=True)
class Run:
    data: str
    inner: Inner = field(default_factory=Inner)
    shape: Shape = field(default_factory=Circle)
    weights: dict[str, float] = field(default_factory=dict)
    named: dict[str, Inner] = field(default_factory=dict)
    note: str | None = None


def test_builds_nested_settings_and_goes_back_to_plain():
    run = build(
        Run,
        {
            "data": "d",
            "inner": {"rate": 1},
            "shape": {"type": "box", "sides": [3, 4]},
            "named": {"a": {"steps": 4}},
        },
    )
    assert run == Run(data="d", inner=Inner(rate=1.0), shape=Box(sides=(3, 4)), named={"a": Inner(steps=4)})
    assert build(Run, to_plain(run)) == run


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": "d", "inner": {"rte": 1.0}}, ["inner.rte", 'did you mean "rate"', "rate, steps"]),
        ({"data": "d", "inner": {"steps": "3"}}, ["inner.steps", "int", "'3'"]),
        ({"data": "d", "inner": {"steps": 2.5}}, ["inner.steps", "int"]),
        ({"data": "d", "inner": {"steps": True}}, ["inner.steps"]),
        ({"data": "d", "inner": 3}, ["inner must be a table"]),
        ({"data": "d", "shape": {"type": "cirle"}}, ["shape.type", 'did you mean "circle"']),
        ({"data": "d", "shape": {"type": "box", "radius": 1.0}}, ["shape.radius", 'type "box"', "sides"]),
        ({"data": "d", "shape": {"radius": 1.0}}, ["shape.type must be set"]),
        ({"inner": {}}, ["data must be set"]),
        ({"data": "d", "weights": {"click": "much"}}, ["weights"]),
        ({"data": 5}, ["data", "str"]),
        ({"data": "d", "named": {"a": {"stps": 4}}}, ["named.a.stps", 'did you mean "steps"']),
    ],
)
def test_a_wrong_setting_is_named_with_its_dotted_key(settings, words):
    with pytest.raises(ConfigError) as error:
        build(Run, settings)
    for word in words:
        assert word in str(error.value)


def test_overrides_are_toml_values_and_bare_words():
    assert parse_overrides(["inner.rate=0.5", "data=my folder", "a.b.c=[1, 2]", "x=true"]) == {
        "inner": {"rate": 0.5},
        "data": "my folder",
        "a": {"b": {"c": [1, 2]}},
        "x": True,
    }
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        parse_overrides(["inner.rate"])


def test_another_type_replaces_the_settings_of_the_old_one():
    merged = merge({"shape": {"type": "circle", "radius": 2.0}}, {"shape": {"type": "box"}})
    assert merged == {"shape": {"type": "box"}}
    merged = merge({"shape": {"type": "circle", "radius": 2.0}}, {"shape": {"radius": 3.0}})
    assert merged == {"shape": {"type": "circle", "radius": 3.0}}


def test_extends_lays_one_file_over_another(tmp_path: Path):
    (tmp_path / "base.toml").write_text('data = "a"\n[inner]\nrate = 0.5\nsteps = 9\n')
    (tmp_path / "run.toml").write_text('extends = "base.toml"\n[inner]\nsteps = 1\n')
    assert load_toml(tmp_path / "run.toml") == {"data": "a", "inner": {"rate": 0.5, "steps": 1}}
    (tmp_path / "third.toml").write_text('extends = "run.toml"\n')
    with pytest.raises(ConfigError, match="must not itself extend"):
        load_toml(tmp_path / "third.toml")


@pytest.mark.parametrize("content", [b"a = ", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.toml"):
        load_toml(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_toml(tmp_path / "none.toml")
