import json
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from opengem.data import Dataset, Encoder
from opengem.errors import BackendUnavailable, CheckFailed, ConfigError, DataError
from opengem.jagged import Batch
from opengem.models.baselines import DCNv2Config, DINConfig, DLRMConfig, LogisticRegressionConfig
from opengem.models.output import Output
from opengem.models.vertical import VerticalConfig
from opengem.serving.export import export
from opengem.serving.package import Package
from opengem.serving.signature import from_named, to_named
from tests.data import hand_made


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = hand_made.write(tmp_path_factory.mktemp("hand"))
    (folder / "schema.toml").write_text("# stands for the user's schema\n")
    Encoder({}, {}).save(folder / "encoder")
    return Dataset.open(folder)


def noisy(model: nn.Module) -> nn.Module:
    """Give every parameter a value that matters, so that no path of the model is silent."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def vertical(data) -> nn.Module:
    return noisy(VerticalConfig(width=8, layers=(16,), history=4).build(data.inputs))


def package(data, out, model=None, **changes) -> Package:
    settings = {"sample": [data.read(np.arange(6), 4)], "card": {"name": "test"}} | changes
    return export(model or vertical(data), data, data.inputs, out, **settings)


@dataclass
class MeanConfig:
    history: int = 5


class Mean(nn.Module):
    """Scores by means over histories and list features; `scale` is set apart in tests of the parity check."""

    def __init__(self):
        super().__init__()
        self.config = MeanConfig()
        self.weight = nn.Parameter(torch.tensor([0.7, -0.4]))

    def forward(self, batch: Batch) -> Output:
        history = batch.history["watched"]
        total = torch.cat([torch.zeros(1), history.numbers["play"].cumsum(0)])[history.offsets]
        sums_R = (total[1:] - total[:-1]) / (history.offsets[1:] - history.offsets[:-1]).clamp_min(1)
        x_B = sums_R[batch.request_of_example] + batch.numbers["price"] + batch.surface
        return Output(x_B[:, None] * self.weight, x_B[:, None])


def test_named_tensors_and_back(data):
    batch = data.read(np.array([2, 0, 5]), 3)
    again = from_named(to_named(batch, data.inputs), data.inputs)
    for part in ("ids", "numbers", "missing", "vectors"):
        want, have = getattr(batch, part), getattr(again, part)
        assert want.keys() == have.keys()
        assert all(torch.equal(want[k], have[k]) for k in want)
    for stream, history in batch.history.items():
        assert torch.equal(again.history[stream].offsets, history.offsets)
        assert torch.equal(again.history[stream].times, history.times)
        assert all(torch.equal(again.history[stream].ids[k], v) for k, v in history.ids.items())
    assert again.bags["tags"].to_list() == batch.bags["tags"].to_list()
    assert again.labels == {}


@pytest.mark.parametrize(
    "config",
    [
        VerticalConfig(width=8, layers=(16,), history=4),
        LogisticRegressionConfig(),
        pytest.param(DLRMConfig(), marks=pytest.mark.slow),
        pytest.param(DCNv2Config(), marks=pytest.mark.slow),
        pytest.param(DINConfig(), marks=pytest.mark.slow),
    ],
    ids=lambda c: type(c).__name__,
)
def test_package_answers_as_the_model_at_every_size(data, tmp_path, config):
    model = noisy(config.build(data.inputs)).eval()
    made = package(data, tmp_path / "out", model)
    program = made.program()
    for requests in ([0], [1], [3], [4, 5], [8, 2, 6], list(range(12))):
        for history in (0, 1, 4):
            batch = data.read(np.array(requests), history)
            with torch.no_grad():
                want = model(batch).logits_BT
                have = program(to_named(batch, data.inputs))
            assert have.shape == (batch.num_examples, 2)
            torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)
    assert made.facts["parity"]["largest_difference"] < 5e-5
    named = to_named(batch, data.inputs)
    assert torch.equal(program(dict(reversed(named.items()))), program(named))
    cases = set(made.facts["parity"]["cases"])
    assert len(cases) == 1 + 20 + 4
    assert {"sample-0", "requests=1 ads=100 events=most", "unseen ids", "one ad, empty lists"} < cases


def test_what_a_package_says_of_itself(data, tmp_path):
    model = Mean().train()
    made = package(data, tmp_path / "out", model)
    assert model.training  # left as it was
    facts = json.loads((tmp_path / "out" / "package.json").read_text())
    assert facts["schema"] == {"fingerprint": "f00d"}
    assert facts["tasks"] == ["click", "buy"]
    assert made.tasks == ("click", "buy")
    assert facts["history"] == {"watched": 5, "bought": 5}
    assert facts["torch"] == torch.__version__
    assert (facts["role"], facts["kind"], facts["device"]) == ("student", "pt2", "cpu")
    assert facts["sizes"]["parameters"] == sum(p.numel() for p in model.parameters())
    assert facts["card"] == {"name": "test"}
    assert made.inputs == data.inputs
    assert [p.name for p in tmp_path.iterdir()] == ["out"]  # no temporary folder is left
    assert set(facts["files"]) == {
        "model.pt2",
        "inputs.json",
        "schema.toml",
        "encoder/encoder.json",
        "ads.arrow",
        "sample.safetensors",
    }


class Drifting(Mean):
    """Answers differently when traced: what a broken export would do."""

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        if torch.compiler.is_exporting():
            return Output(output.logits_BT + 0.01, output.embedding_BD)
        return output


class Infinite(Mean):
    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        return Output(output.logits_BT / 0.0, output.embedding_BD)


def test_a_package_that_answers_otherwise_is_not_written(data, tmp_path):
    with pytest.raises(
        CheckFailed, match=r"at most 0\.0001 in log-odds\. Received: a largest difference of 0\.01"
    ):
        package(data, tmp_path / "out", Drifting())
    assert list(tmp_path.iterdir()) == []
    made = package(data, tmp_path / "out", Drifting(), tolerance=0.02)
    assert made.facts["parity"]["largest_difference"] == pytest.approx(0.01, rel=1e-3)
    with pytest.raises(CheckFailed, match="finite log-odds"):
        package(data, tmp_path / "infinite", Infinite())


def test_a_teacher_is_refused_unless_forced(data, tmp_path):
    with pytest.raises(ConfigError, match="GEM, the teacher, is not served"):
        package(data, tmp_path / "out", Mean(), role="teacher")
    assert package(data, tmp_path / "out", Mean(), role="teacher", force=True).facts["role"] == "teacher"


def test_wrong_arguments_are_refused(data, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="never overwritten"):
        package(data, tmp_path / "there", Mean())
    with pytest.raises(ConfigError, match="at least one example"):
        package(data, tmp_path / "out", Mean(), sample=[data.read(np.array([], dtype=int), 1)])
    with pytest.raises(ConfigError, match='format must be "pt2" or "aoti"'):
        package(data, tmp_path / "out", Mean(), format="onnx")
    with pytest.raises(ConfigError, match="role must be"):
        package(data, tmp_path / "out", Mean(), role="pupil")
    other = Mean()
    del other.config
    with pytest.raises(ConfigError, match="history must be given"):
        package(data, tmp_path / "out", other)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BackendUnavailable, match=r"needs a C\+\+ compiler"):
        package(data, tmp_path / "out", Mean(), format="aoti")
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_changed_and_missing_files_are_refused(data, tmp_path):
    out = package(data, tmp_path / "out", Mean()).folder
    weights = (out / "model.pt2").read_bytes()
    (out / "model.pt2").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(DataError, match=r"model\.pt2 is not the file that was exported"):
        Package.open(out)
    (out / "model.pt2").unlink()
    with pytest.raises(DataError, match=r"no model\.pt2 in it"):
        Package.open(out)
    with pytest.raises(DataError, match=r"no package\.json in it"):
        Package.open(tmp_path)
    facts = json.loads((out / "package.json").read_text())
    (out / "package.json").write_text(json.dumps(facts | {"format": 99}))
    with pytest.raises(DataError, match=r"of format 2\. Received: 99"):
        Package.open(out)
    (out / "package.json").write_text("[]")
    with pytest.raises(DataError, match="damaged"):
        Package.open(out)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_ahead_of_time_package(data, tmp_path):
    model = vertical(data).eval()
    made = package(data, tmp_path / "out", model, format="aoti")
    program = made.program()
    for requests in ([0], [1], list(range(12))):
        for history in (0, 4):
            batch = data.read(np.array(requests), history)
            with torch.no_grad():
                torch.testing.assert_close(
                    program(to_named(batch, data.inputs)), model(batch).logits_BT, rtol=0, atol=1e-5
                )
    named = to_named(batch, data.inputs)
    backwards = dict(reversed(named.items()))  # compiled code goes by place: names must still decide
    assert torch.equal(program(backwards), program(named))
    made.facts["torch"] = "1.0.0"
    with pytest.raises(BackendUnavailable, match=r"made with torch 1\.0\.0"):
        made.program()
