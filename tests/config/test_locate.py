import pytest

from opengem.config import line_of, located
from opengem.errors import ConfigError

TEXT = """data = "d"

[model]
type = "din"

[[streams]]
name = "acts"
types = []

[[streams]]
name = "seen"
types = []
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("data", 1),
        ("model", 3),
        ("model.type", 4),
        ("model.width", 3),
        ("streams.seen.types", 12),
        ("streams.0.types", 8),
        ("nothing", 0),
    ],
)
def test_the_line_of_a_key_or_of_what_holds_it(key, line):
    assert line_of(TEXT, key) == line


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("model.type", "file: {run} line 2"),
        ("training.epochs", "file: {base} line 2"),
        ("seed", "command line: seed=2"),
        ("model.width", "command line: model.width=8"),
        ("data", "file: {run}"),
    ],
)
def test_the_place_is_the_command_line_the_file_or_the_one_below(tmp_path, key, place):
    run, base = tmp_path / "run.toml", tmp_path / "base.toml"
    run.write_text('extends = "base.toml"\nmodel.type = "din"\n')
    base.write_text("[training]\nepochs = 1\n")
    with (
        pytest.raises(ConfigError) as error,
        located(run, ["seed=1", "model.width=8", "seed=2"]),
    ):
        raise ConfigError(f"{key} must be something else")
    assert str(error.value).splitlines()[1].strip() == place.format(run=run, base=base)
