import json

import pytest

from opengem.cli.console import Console
from opengem.data.synth import SynthConfig
from opengem.errors import ConfigError
from opengem.loop.quickstart import quickstart
from opengem.loop.settings import ModelSettings, QuickstartSettings, load_settings
from opengem.models.baselines import DCNv2Config, DINConfig, DLRMConfig, LogisticRegressionConfig
from opengem.models.gem_config import GEMConfig
from opengem.models.vertical import VerticalConfig
from opengem.training.run import TrainingConfig

TRAINING = TrainingConfig(batch_size=256, log_every=5, workers=0)
NAMES = {
    "teacher",
    "student",
    "student_alone",
    "logistic_regression",
    "dlrm",
    "dcnv2",
    "din",
    "best_possible",
}


def _settings():
    def small(model):
        return ModelSettings(model=model, training=TRAINING)

    return QuickstartSettings(
        teacher=small(GEMConfig(history=20)),
        student=small(VerticalConfig(width=8)),
        logistic_regression=small(LogisticRegressionConfig()),
        dlrm=small(DLRMConfig(width=8)),
        dcnv2=small(DCNv2Config(width=8)),
        din=small(DINConfig(width=8)),
        replicates=20,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("quickstart")
    world = SynthConfig(users=150, days=20, seed=1)
    return quickstart(out, Console(quiet=True), settings=_settings(), world=world)


def test_the_summary_names_every_model_task_and_metric_with_an_interval(finished):
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert set(summary["models"]) == NAMES
    for name, tasks in summary["models"].items():
        assert set(tasks) == {"click", "conversion", "like"}, name
        for metric in ("auc", "ne", "log_loss", "calibration"):
            value, (low, high) = tasks["click"][metric], tasks["click"][f"{metric}_interval"]
            assert low <= value <= high, (name, metric)
    assert summary["rows"]["read"] == summary["rows"]["kept"] + sum(summary["rows"]["quarantined"].values())
    stages = {
        "synth",
        "ingest",
        "teacher",
        "label",
        "student",
        "student_alone",
        "evaluate",
        "export",
        "rank",
        "report",
    }
    assert stages <= set(summary["seconds"])


def test_no_model_beats_the_planted_truth(finished):
    models = finished.summary["models"]
    best = models["best_possible"]["click"]["ne"]
    assert best < 0.95
    for name in NAMES - {"best_possible"}:
        assert models[name]["click"]["ne"] > best


def test_everything_stands_where_it_should(finished):
    out = finished.folder
    assert "<svg" in (out / "report.html").read_text()
    ranked = json.loads((out / "ranked.json").read_text())
    scores = [ad["scores"]["click"] for ad in ranked["ads"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) > 1
    facts = json.loads((out / "package" / "package.json").read_text())
    assert facts["parity"]["largest_difference"] <= 1e-4


def test_a_second_call_does_nothing_again_and_other_logs_are_refused(finished, small_world):
    before = {p: p.stat().st_mtime_ns for p in (finished.folder / "runs").rglob("*.safetensors")}
    again = quickstart(
        finished.folder,
        Console(quiet=True),
        settings=_settings(),
        world=SynthConfig(users=150, days=20, seed=1),
    )
    assert {p: p.stat().st_mtime_ns for p in (finished.folder / "runs").rglob("*.safetensors")} == before
    assert again.summary["models"] == finished.summary["models"]
    with pytest.raises(ConfigError, match="same logs"):
        quickstart(
            finished.folder, Console(quiet=True), schema=small_world / "schema.toml", settings=_settings()
        )


def test_settings_beside_the_schema_file(tmp_path):
    schema = tmp_path / "schema.toml"
    assert load_settings(schema) == QuickstartSettings()
    (tmp_path / "quickstart.toml").write_text(
        '[din]\nmodel = {type = "din", width = 4}\n[din.training]\nepochs = 3\n'
    )
    assert load_settings(schema).din.training.epochs == 3
    (tmp_path / "quickstart.toml").write_text("[dinn]\n")
    with pytest.raises(ConfigError, match='did you mean "din"'):
        load_settings(schema)
