import json

import pytest

from opengem.errors import DataError
from opengem.report.folder import in_order, read_report_files


def test_a_complete_folder_misses_nothing(finished):
    files = read_report_files(finished)
    assert files.missing == {}
    assert not files.is_run
    assert list(files.runs) == [
        "teacher",
        "student",
        "student_alone",
        "din",
        "dcnv2",
        "dlrm",
        "logistic_regression",
    ]
    assert files.tasks == ["click", "like"]
    assert len(files.runs["teacher"].lines("train")) == 50
    assert files.comparison("teacher", "din") is not None
    assert files.comparison("din", "teacher") is None


def test_the_best_baseline_is_the_lowest_ne_of_the_baselines(finished):
    files = read_report_files(finished)
    models = files.summary["models"]
    for task in files.tasks:
        ne = {name: models[name][task]["ne"] for name in ("din", "dcnv2", "dlrm", "logistic_regression")}
        assert ne[files.best_baseline(task)] == min(ne.values())
    for name in ne:
        del models[name]
    assert files.best_baseline("click") is None


def test_order_of_models():
    assert in_order(["zebra", "best_possible", "dlrm", "teacher", "ant"]) == [
        "teacher",
        "dlrm",
        "ant",
        "zebra",
        "best_possible",
    ]


def test_broken_files_are_named_with_the_reason(folder):
    (folder / "ranked.json").write_text("{")
    (folder / "comparisons.json").write_text("{}")
    (folder / "dataset" / "manifest.json").unlink()
    (folder / "runs" / "din" / "run.toml").write_text("a = ")
    metrics = folder / "runs" / "teacher" / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-30])
    files = read_report_files(folder)
    assert set(files.missing) == {
        "ranked.json",
        "comparisons.json",
        "dataset/manifest.json",
        "runs/din/run.toml",
        "runs/teacher/metrics.jsonl",
    }
    assert files.missing["comparisons.json"] == "holds a dict, not a list"
    assert files.missing["dataset/manifest.json"] == "not there"
    assert files.missing["runs/teacher/metrics.jsonl"] == "1 of 56 lines cannot be read"
    assert len(files.runs["teacher"].lines("train")) == 50


def test_a_run_folder_becomes_a_model_of_its_own(finished):
    files = read_report_files(finished / "runs" / "teacher")
    assert files.is_run
    of_run = json.loads((finished / "runs" / "teacher" / "eval.json").read_text())
    total = of_run["tasks"]["click"]["total"]["metrics"]["ne"]
    assert files.models["teacher"]["click"]["ne"] == total["value"]
    assert files.models["teacher"]["click"]["ne_interval"] == [total["low"], total["high"]]


def test_any_other_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"quickstart folder.*or a run folder.*holds none of them"):
        read_report_files(tmp_path)
