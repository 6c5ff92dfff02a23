"""`opengem data check`: what it prints, and how it leaves."""

import json
import random
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from opengem.cli.app import app
from opengem.schema import parse_schema
from tests.data.logs import T0, Log


@pytest.fixture
def log(tmp_path):
    """A log whose column `seen` is the label's copy."""
    made = Log(tmp_path)
    clicks = random.Random(0).choices((0, 1), k=400)
    rows = ({"user": i % 40, "ad": i % 9, "ts": T0 + i, "click": y, "seen": y} for i, y in enumerate(clicks))
    made.impressions(*rows)
    made.schema["features"] = {"price": {"owner": "context", "kind": "number"}}
    return made


def written(log):
    path = log.folder / "schema.toml"
    path.write_text(parse_schema(log.schema, log.folder).text)
    return str(path)


def run(*arguments):
    return CliRunner().invoke(app, ["data", "check", *arguments])


def test_it_leaves_with_0_and_says_what_no_feature_reads(log):
    done = run(written(log))
    assert done.exit_code == 0, done.output
    assert "impressions: 400 rows in 1 files, 2026-01-01 00:00:00" in done.output
    assert (
        "note (leak): impressions.seen: known only after the exposure, never use as a feature" in done.output
    )
    assert "good: no errors" in done.output


def test_a_leak_in_use_leaves_with_1_unless_it_is_known(log):
    log.schema["features"]["seen"] = {"owner": "context", "kind": "number"}
    path = written(log)
    done = run(path)
    assert done.exit_code == 1
    assert "error (leak): impressions.seen: is known only after the example" in done.output
    assert "not good: 1 error" in done.output
    assert "CheckFailed" in done.stderr
    assert "impressions.seen" in done.stderr
    assert run(path, "--known", "seen").exit_code == 0
    assert run(path, "--known", "impressions.seen").exit_code == 0
    wrong = run(path, "--known", "sein")
    assert wrong.exit_code == 2
    assert 'did you mean "seen"' in wrong.stderr


def test_broken_data_leaves_with_3_and_a_wrong_schema_with_2(log):
    path = written(log)
    (log.folder / "events" / "part-0.parquet").write_bytes(b"PAR1 and no more")
    done = run(path)
    assert done.exit_code == 3
    assert "part-0.parquet" in done.stderr
    assert run(str(log.folder / "none.toml")).exit_code == 2


def test_json_is_one_object_also_where_the_check_fails(log):
    log.schema["features"]["seen"] = {"owner": "context", "kind": "number"}
    command = [sys.executable, "-m", "opengem", "data", "check", written(log), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["ok"], found["errors"]) == (False, 1)
    assert found["findings"][0]["where"] == "impressions.seen"
    assert found.keys() >= {"tables", "keys", "early", "labels", "histories", "features", "drift", "leaks"}
    column = next(c for c in found["leaks"]["columns"] if c["column"] == "seen")
    assert column["auc"]["click"]["own_row"] == 1.0
    assert "CheckFailed" in done.stderr
