"""IS01: a compiled package that belongs to another torch."""

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest

from opengem.distributed.fused_tables import fbgemm_problem
from tests.cases.inputs import PROJECT, run_script
from tests.cases.made import world_data

SYMBOL = "undefined symbol: _ZNK5torch8autograd4Node4nameEv"

# one process for all verbs: each would import torch anew
_VERBS = """
import json, sys, time, warnings
began = time.perf_counter()
import opengem
light = "fbgemm_gpu" not in sys.modules and "torch" not in sys.modules, time.perf_counter() - began
from typer.testing import CliRunner
from opengem.cli.app import app
def verb(*arguments):
    done = CliRunner().invoke(app, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output
train = ["train", "run.toml", "training.max_steps=2", "training.workers=0"]
found = {
    "doctor": verb("doctor"),
    "auto": verb(*train, "--run-dir", "auto"),
    "reference": verb(*train, "training.table_backend=reference", "--run-dir", "reference"),
    "fbgemm": verb(*train, "training.table_backend=fbgemm", "--run-dir", "fbgemm"),
    "evaluate": verb("evaluate", "auto"),
    "export": verb("export", "auto", "--out", "package"),
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient
from pathlib import Path
from opengem.serving.live import LivePackage
from opengem.serving.service import create_app
with TestClient(create_app(LivePackage(Path("package")))) as client:
    body = {"time_ms": 1767225600000, "surface": "feed", "user": {"user_id": 1}, "ads": [{"ad_id": 3}, {"ad_id": 4}]}
    answer = client.post("/rank", json=body)
    found["rank"] = answer.status_code, answer.text
found["light"] = light
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> dict[str, tuple[int, str]]:
    """What the verbs answer where `fbgemm_gpu` cannot be imported."""
    if fbgemm_problem():
        pytest.skip(fbgemm_problem())
    folder = tmp_path_factory.mktemp("broken")
    package = run_script("is01_broken_package.py", folder / "package_path")
    (folder / "run.toml").write_text(f'data = "{world_data(tmp_path_factory)}"\n[model]\ntype = "vertical"\n')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(PROJECT / "src")])}
    done = subprocess.run(
        [sys.executable, "-c", _VERBS],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_is01_the_product_works_on_the_other_backend_and_says_so_once(broken):
    for verb in ("auto", "reference", "evaluate", "export"):
        code, output = broken[verb]
        assert code == 0, (verb, output)
        assert "Traceback" not in output
    assert broken["rank"][0] == 200, broken["rank"][1]
    assert broken["auto"][1].count(SYMBOL) == 1
    assert "tables on reference (fbgemm_gpu" in broken["auto"][1]
    assert SYMBOL not in broken["reference"][1]  # as set: there is nothing to say
    assert SYMBOL not in broken["evaluate"][1]


def test_is01_the_doctor_names_the_package_its_error_and_the_pair_that_works(broken):
    code, output = broken["doctor"]
    assert code == 1
    line = next(text for text in output.splitlines() if "embedding tables" in text)
    version = importlib.metadata.version("fbgemm-gpu-cpu")
    assert line.startswith("BAD ")
    assert f"fbgemm_gpu {version} cannot be imported: OSError: fbgemm_gpu_py.so: {SYMBOL}" in line
    assert "fbgemm-gpu-cpu==1.8.0 with torch 2.13" in line
    assert "Not so: embedding tables" in output


def test_is01_a_backend_asked_for_by_name_is_exit_4_with_the_same_text(broken):
    code, output = broken["fbgemm"]
    assert code == 4
    doctor = next(text for text in broken["doctor"][1].splitlines() if "embedding tables" in text)
    assert doctor.partition("; ")[2] in output.replace("\n", " ")
    assert 'training.table_backend "fbgemm" cannot run' in output


def test_is01_the_import_stays_light(broken):
    light, seconds = broken["light"]
    assert light
    assert seconds < 2.0
