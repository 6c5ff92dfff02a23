import importlib.util

import pytest

from opengem.training import doctor


def test_what_is_installed_here_fits_together():
    checks = {c.name: c for c in doctor.diagnose()}
    assert checks["torch"].state == "good"
    assert {c.name for c in checks.values() if c.state == "bad"} == set()
    assert {"python", "embedding tables", "fastapi", "matplotlib", "C++ compiler", "GPU"} <= checks.keys()


def test_an_extra_that_is_not_there_is_named_with_its_install(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fastapi" else found(name))
    check = next(c for c in doctor.diagnose() if c.name == "fastapi")
    assert check.state == "absent"
    assert "opengem serve" in check.finding
    assert "pip install 'opengem[serve]'" in check.finding


@pytest.mark.parametrize(
    ("problem", "state"), [("fbgemm_gpu is not installed", "absent"), ("built for torch 2.1", "bad")]
)
def test_fbgemm_that_is_missing_is_optional_and_one_that_does_not_fit_is_not(monkeypatch, problem, state):
    monkeypatch.setattr(doctor, "fbgemm_problem", lambda: problem)
    check = next(c for c in doctor.diagnose() if c.name == "embedding tables")
    assert (check.state, problem in check.finding) == (state, True)


def test_another_torch_is_told_with_the_pin(monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.4.0+cpu")
    check = next(c for c in doctor.diagnose() if c.name == "torch")
    assert check.state == "bad"
    assert "torch==2.13.0" in check.finding
