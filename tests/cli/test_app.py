import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "torchrec", "fbgemm_gpu", "triton", "matplotlib", "duckdb", "fastapi", "jinja2", "pyarrow")
VERBS = [
    "quickstart",
    "synth",
    "ingest",
    "train",
    "evaluate",
    "compare",
    "export",
    "predict",
    "serve",
    "report",
    "doctor",
]


def _opengem(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "opengem", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=120, check=False
    )


def _loaded(code: str) -> set[str]:
    check = f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_and_help_load_nothing_heavy():
    assert _loaded("import opengem") == set()
    assert _loaded("import opengem.cli") == set()


def test_every_verb_has_help_with_two_examples():
    from typer.testing import CliRunner

    from opengem.cli.app import app

    names = [[v] for v in VERBS] + [
        ["transfer", "label"],
        ["transfer", "distill"],
        ["data", "check"],
        ["data", "compact"],
    ]
    for name in names:
        done = CliRunner().invoke(app, [*name, "--help"])
        assert done.exit_code == 0
        assert done.output.count(f"opengem {' '.join(name)}") >= 2, name


def test_every_name_of_the_package_is_there():
    import opengem

    for name in opengem.__all__:
        assert callable(getattr(opengem, name))
    with pytest.raises(AttributeError, match="nothing"):
        _ = opengem.nothing


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nosuch"], 2, "No such command"),
        (["train", "none.toml"], 2, "no such file"),
        (["train", "run.toml"], 2, 'did you mean "epochs"'),
        (["train", "run.toml", "training.epoch=1"], 2, "training.epoch"),
        (["evaluate", "nowhere"], 2, "must be the folder of a run"),
        (["ingest", "broken.toml"], 3, "half.parquet"),
        (["ingest", "none.toml"], 2, "none.toml"),
        (["serve", "nowhere"], 3, "nowhere"),
    ],
)
def test_errors_are_words_with_an_exit_code_and_no_traceback(tmp_path, arguments, code, words):
    (tmp_path / "run.toml").write_text('data = "d"\n[model]\ntype = "din"\n[training]\nepoch = 1\n')
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "broken.toml").write_text(
        'name = "x"\n[tables.impressions]\npath = "half.parquet"\nuser = "u"\nad = "a"\nsurface = "s"\ntime = "t"\n'
        '[[features]]\nname = "a"\nowner = "ad"\nkind = "id"\n[[tasks]]\nname = "y"\nlabel = "y"\n'
        '[splits]\ntrain = ["2026-01-01", "2026-01-02"]\nvalidation = ["2026-01-03", "2026-01-03"]\n'
        'test = ["2026-01-04", "2026-01-04"]\n'
    )
    done = _opengem(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_json_is_one_object_on_standard_output(tmp_path):
    done = _opengem("synth", str(tmp_path / "world"), "--users", "30", "--days", "10", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["users"] == 30
    again = _opengem("synth", str(tmp_path / "world"), "--users", "30", "--json")
    assert again.returncode == 3
    assert json.loads(again.stdout)["error"] == "DataError"
    made = _opengem("ingest", str(tmp_path / "world" / "schema.toml"), "--out", str(tmp_path / "d"), "--json")
    assert json.loads(made.stdout)["fresh"] is True
    made = _opengem("ingest", str(tmp_path / "world" / "schema.toml"), "--out", str(tmp_path / "d"))
    assert "nothing to do" in made.stdout
    storage = json.loads((tmp_path / "d" / "manifest.json").read_text())["storage"]
    store, rows, copied = (storage[f"bytes_{n}"] for n in ("store", "rows", "copied_estimate"))
    event, example = storage["bytes_per_event"], storage["bytes_per_example"]
    assert f"{event:,.1f} bytes an event, {example:,.1f} an example" in made.stdout
    assert f"{(copied + rows) / (store + rows):,.1f} times smaller than with histories copied" in made.stdout


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    assert _opengem("synth", "world", "--users", "30", "--days", "10", cwd=tmp_path).returncode == 0
    for arguments in (["synth", "file/world"], ["ingest", "world/schema.toml", "--out", "file/data"]):
        done = _opengem(*arguments, cwd=tmp_path)
        assert done.returncode in (2, 3), done.stderr
        assert "file" in done.stderr
        assert "Traceback" not in done.stderr
