"""Cases of the stage export and parity."""

import copy
import json
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from opengem.errors import BackendUnavailable, DataError
from opengem.evaluation import read_predictions
from opengem.jagged import JaggedTensor
from opengem.models.vertical import VerticalConfig
from opengem.serving import Package, Predictor, predict
from opengem.serving.export import export
from opengem.serving.live import LivePackage
from opengem.serving.machine import made_for
from opengem.serving.parity import parity_cases
from opengem.serving.signature import to_named
from opengem.training.inference import predict_split
from tests.cases.inputs import opengem
from tests.cases.runs import TestClient, create_app
from tests.cases.served import NOW, Student

HAS_COMPILER = shutil.which("g++") is not None
COMPILED = pytest.param(
    "aoti", marks=[pytest.mark.slow, pytest.mark.skipif(not HAS_COMPILER, reason="needs a C++ compiler")]
)
FORMATS = pytest.mark.parametrize("format", ["pt2", COMPILED])


def batches(student: Student):
    """Yield 20 sizes and a batch of each: 1, 2, 7, 100 ads of a request, or five requests, with histories."""
    read = student.predictor._reader.read
    most = student.package.history["acts"]
    for ads in (1, 2, 7, 100):
        for events in (0, 1, 50, most):
            # ads and items above 30 and segment "?" were never seen; every third price is missing
            entries = [{"ad_id": 1 + i % 40, "price": None if i % 3 == 0 else 1.0 + i} for i in range(ads)]
            acts = {
                "item_id": [1 + i % 35 for i in range(events)],
                "type": ["view", None, "sold"][: min(3, events)] + ["click"] * (events - 3),
                "ts": [NOW - 1_000 * (events - i) for i in range(events)],
            }
            user = {
                "user_id": 3 + ads,
                "segment": "?" if ads == 7 else "12",
                "country": None if ads == 2 else "FR",
            }
            raw = {"time_ms": NOW, "ads": entries, "user": user, "history": {"acts": acts}, "surface": "feed"}
            yield f"1 request, {ads} ads, {events} events", read(raw).batch
    for events in (0, 1, 50, most):
        yield f"5 requests, {events} events", student.stored.data.read(np.arange(300, 305), events)


@FORMATS
def test_ex01_a_package_made_with_few_ads_answers_for_any_number(student, format):
    package = student.named(format)
    program, model = package.program(), student.trained.model
    differences = {}
    for name, batch in batches(student):
        with torch.no_grad():
            want = model(batch).logits_BT
        have = program(to_named(batch, package.inputs))
        assert have.shape == want.shape == (batch.num_examples, 2)
        differences[name] = float((have - want).abs().max())
    print(*(f"{name}: {d:.2g}" for name, d in differences.items()), sep="\n")
    assert len(differences) == 20
    assert max(differences.values()) < 1e-4
    checked = package.facts["parity"]["cases"]  # the sample of export itself holds these sizes
    for requests, ads in ((1, 1), (1, 2), (1, 7), (1, 100), (5, 11)):
        for events in (0, 1, 50, "most"):
            assert checked[f"requests={requests} ads={ads} events={events}"] < 1e-4
    assert {"unseen ids", "missing numbers", "empty lists"} < set(checked)


def test_ex01_the_sample_of_export_has_the_sizes_that_it_names(student):
    data, inputs = student.stored.data, student.package.inputs
    most = {"acts": 20}
    cases = parity_cases([data.read(np.arange(3), most)], inputs, most)
    for name, named in cases.items():
        if not name.startswith("requests="):
            continue
        size = dict(part.split("=") for part in name.split())
        assert named["surface"].shape == (int(size["ads"]),)
        assert named["request_time"].shape == (int(size["requests"]),)
        lengths = named["offsets.acts"].diff().tolist()
        wanted = 20 if size["events"] == "most" else int(size["events"])
        assert lengths == ([wanted] if size["requests"] == "1" else [wanted, 0, wanted, wanted, 0])
    assert set(cases["unseen ids"]["ids.ad_id"].tolist()) == {1}
    assert set(cases["missing numbers"]["missing.price"].tolist()) == {1.0}


def wrong_inputs(batch):
    """Yield six batches of which each breaks one rule, with the words of its error."""
    bags, ids = batch.bags["tags"], batch.ids["ad_id"]
    parts = [
        ("ids", {"ad_id": ids.int()}, 'input "ids.ad_id" must be int64 (B,) = (3,). Received: int32 (3,)'),
        (
            "ids",
            {"ad_id": ids[:, None]},
            'input "ids.ad_id" must be int64 (B,) = (3,). Received: int64 (3, 1)',
        ),
        # the batch itself finds this one
        (
            "bags",
            {"tags": JaggedTensor(bags.values, bags.offsets[:-1])},
            '"tags" must have as many rows as the batch',
        ),
        ("ids", {"ad_id": torch.full((3,), 32)}, 'input "ids.ad_id" must lie in [0, 32). Received: 32'),
        (
            "numbers",
            {"price": batch.numbers["price"].double()},
            'input "numbers.price" must be float32 (B,) = (3,). Received: float64 (3,)',
        ),
        ("numbers", {"price": None}, 'input "numbers.price" must be given as a tensor. Received: None'),
    ]
    for part, change, words in parts:
        broken = copy.copy(batch)
        setattr(broken, part, {k: v for k, v in (getattr(batch, part) | change).items() if v is not None})
        yield broken, words


@FORMATS
def test_ex03_inputs_are_checked_before_the_package_runs(student, format):
    predictor = Predictor.load(student.named(format))
    batch = predictor._reader.read({"time_ms": NOW, "ads": [1, 2, 3]}).batch
    assert student.stored.encoder.table_rows("ad_id") == 32
    before = predictor.score(batch)
    errors = 0
    for broken, words in wrong_inputs(batch):
        with pytest.raises(ValueError, match=re.escape(words)):
            predictor.score(broken)
        errors += 1
    assert errors == 6
    np.testing.assert_array_equal(predictor.score(batch), before)  # the process is as it was


BENT = {
    "negative id": lambda n: n | {"ids.ad_id": torch.tensor([0, -1, 2])},
    "id of an event": lambda n: (
        n
        | {"history.acts.item_id": torch.tensor([99]), "history.acts.type": torch.tensor([1])}
        | {"times.acts": torch.tensor([NOW]), "offsets.acts": torch.tensor([0, 1])}
    ),
    "fewer offsets": lambda n: n | {"bags.tags.offsets": n["bags.tags.offsets"][:-1]},
    "falling offsets": lambda n: n | {"bags.tags.offsets": n["bags.tags.offsets"].flip(0)},
    "offsets beyond the values": lambda n: n | {"bags.tags.offsets": n["bags.tags.offsets"] * 2},
    "a request that is not there": lambda n: n | {"request_of_example": torch.tensor([0, 0, 1])},
    "an unknown surface": lambda n: n | {"surface": torch.tensor([0, 1, 9])},
    "not a number": lambda n: n | {"numbers.price": torch.tensor([0.0, float("nan"), 0.0])},
    "no examples": lambda n: n | {"surface": n["surface"][:0]},
    "an unknown name": lambda n: n | {"ids.add_id": n["ids.ad_id"]},
    "no tensor": lambda n: n | {"time": [1, 2, 3]},
}


def test_ex03_what_else_the_program_would_take_for_good(student):
    predictor = student.predictor
    named = to_named(predictor._reader.read({"time_ms": NOW, "ads": [1, 2, 3]}).batch, student.package.inputs)
    assert predictor._program(named).shape == (3, 2)
    for what, bend in BENT.items():
        with pytest.raises(DataError) as caught:
            predictor._program(bend(named))
        assert str(caught.value).startswith('input "'), what


def edited(package: Package, folder, **facts):
    """Copy a package and change its record."""
    shutil.copytree(package.folder, folder)
    record = json.loads((folder / "package.json").read_text())
    assert set(facts) <= set(record)
    (folder / "package.json").write_text(json.dumps(record | facts))
    return folder


EDITS = [
    ({"torch": "2.0.1"}, "was made with torch 2.0.1. Received: torch 2.13"),
    ({"device": "cuda:0"}, "device cuda"),
    ({"device": "tpu"}, "was made for device tpu. Received: a machine with"),
    ({"cpu": "AVX99"}, "compiled for a CPU with AVX99. Received: one without AVX99"),
    ({"cpu": "riscv64 vector"}, "one without riscv64, vector"),
]


@FORMATS
@pytest.mark.parametrize(("facts", "words"), EDITS, ids=lambda v: str(v)[:20])
def test_ex04_a_package_for_something_else_is_refused_at_load(
    student, tmp_path, monkeypatch, format, facts, words
):
    import uvicorn

    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: pytest.fail("it started half"))
    folder = edited(student.named(format), tmp_path / "package", **facts)
    with pytest.raises(BackendUnavailable, match="Export it again"):
        Predictor.load(folder)
    done = opengem("serve", folder, cwd=tmp_path)
    assert done.exit_code == 4
    assert words in done.output
    assert "Export it again" in done.output


@FORMATS
def test_ex04_a_flipped_byte_is_caught(student, tmp_path, monkeypatch, format):
    import uvicorn

    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: pytest.fail("it started half"))
    folder = edited(student.named(format), tmp_path / "package")
    content = bytearray((folder / "model.pt2").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.pt2").write_bytes(content)
    done = opengem("serve", folder, cwd=tmp_path)
    assert done.exit_code == 3
    assert "model.pt2 is not the file that was exported" in done.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: (f / "ads.arrow").unlink(), "no ads.arrow in it"),
        (lambda f: (f / "calibration.json").unlink(), "no calibration.json in it"),
        (
            lambda f: (f / "encoder" / "vocabulary" / "more.parquet").write_bytes(b""),
            "more.parquet beside it",
        ),
        (lambda f: edit_record(f, files={}), "no ads.arrow|beside it"),
        (lambda f: edit_record(f, files=[]), "damaged"),
        (lambda f: edit_record(f, torch=None, remove="torch"), "damaged"),
        (lambda f: (f / "package.json").write_text("{"), "damaged"),
    ],
)
def test_ex04_files_that_are_missing_added_or_not_vouched_for(student, tmp_path, change, words):
    folder = edited(student.package, tmp_path / "package")
    change(folder)
    with pytest.raises(DataError, match=words):
        Package.open(folder)
    assert opengem("serve", folder, cwd=tmp_path).exit_code == 3


def edit_record(folder, remove="", **facts):
    record = json.loads((folder / "package.json").read_text()) | facts
    record.pop(remove, None)
    (folder / "package.json").write_text(json.dumps(record))


def test_ex04_the_record_says_what_the_package_needs(student):
    facts = student.package.facts
    assert (facts["torch"], facts["device"], facts["cpu"]) == (torch.__version__, "cpu", "any")
    compiled = made_for("aoti", torch.device("cpu"))
    assert len(compiled["cpu"].split()) > 1  # architecture and features


@FORMATS
def test_ex05_names_and_values_stay_together(student, tmp_path, format):
    package = student.named(format)
    assert package.tasks == ("zeta", "alpha")
    count = predict(package.folder, student.stored.folder, "test", tmp_path / "p.parquet")
    table = read_predictions(tmp_path / "p.parquet")
    assert count == len(table) == 240
    assert list(table.predictions) == ["zeta", "alpha"]
    eager = predict_split(student.trained, student.stored.data, "test")
    calibration = student.trained.folder.calibration_file
    assert calibration.exists()
    total = table.predictions["zeta"] + table.predictions["alpha"]
    assert np.abs(total - 1).max() < 0.15
    assert np.abs(total - 1).mean() < 0.03
    for task in package.tasks:  # calibration keeps the order of a surface
        feed = table.surface == "feed"
        order = np.argsort(table.predictions[task][feed])
        assert (np.diff(eager.predictions[task][feed][order]) >= -1e-6).all()
    np.testing.assert_array_equal(table.labels["alpha"], 1 - table.labels["zeta"])
    by_example = {int(i): k for k, i in enumerate(table.example_id)}
    with TestClient(create_app(LivePackage(package.folder))) as client:
        for number in student.stored.data.requests_of_split("test")[::10]:
            answer = client.post("/rank", json=student.logs.request(number)).json()
            examples = student.stored.data.read(np.array([number]), 0).example_id.tolist()
            for ad in answer["ads"]:
                row = by_example[examples[ad["index"]]]
                assert list(ad["scores"]) == ["zeta", "alpha"]
                for task, score in ad["scores"].items():
                    assert score == pytest.approx(table.predictions[task][row], abs=1e-4)
            scores = [ad["scores"]["zeta"] for ad in answer["ads"]]
            assert scores == sorted(scores, reverse=True)


def test_ex05_zeta_rises_with_the_click_rate_of_the_ad(student, tmp_path):
    predict(student.package.folder, student.stored.folder, "train", tmp_path / "p.parquet")
    table = read_predictions(tmp_path / "p.parquet")
    log = pq.read_table(student.case.folder / "impressions.parquet").to_pydict()
    ad_of_example = dict(zip(log["example_id"], log["ad_id"], strict=True))
    ad = np.array([ad_of_example[int(i)] for i in table.example_id]) - 1
    shown = np.bincount(ad, minlength=30)
    rate = np.bincount(ad, table.labels["zeta"], 30) / shown
    for task, sign in (("zeta", 1), ("alpha", -1)):
        mean = np.bincount(ad, table.predictions[task], 30) / shown
        assert sign * np.corrcoef(mean, rate)[0, 1] > 0.7


def test_ex06_onnx_is_refused_by_name(student, tmp_path):
    done = opengem("export", student.run, "--format", "onnx", "--out", tmp_path / "package", cwd=tmp_path)
    assert done.exit_code == 2
    assert all(word in done.output for word in ("onnx", "pt2", "aoti"))
    assert not (tmp_path / "package").exists()


@FORMATS
def test_ex06_empty_lists_and_dropout(student, tmp_path, format):
    data = student.stored.data
    torch.manual_seed(4)
    model = VerticalConfig(width=8, layers=(16, 8), dropout=0.5, history=10).build(data.inputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.train()
    settings = {"sample": [data.read(np.arange(40), 10)], "card": {}, "format": format}
    package = export(model, data, data.inputs, tmp_path / "package", **settings)
    assert model.training  # as it was
    predictor = Predictor.load(package)
    ads = [1, 2, 3, 4, 6]  # every third ad has no tags, the others have two
    batch = predictor._reader.read({"time_ms": NOW, "ads": ads, "surface": "reels"}).batch
    assert batch.bags["tags"].offsets.tolist() == [0, 2, 4, 4, 6, 6]
    named = to_named(batch, data.inputs)
    program = package.program()
    first, second = program(named), program(named)
    assert float((first - second).abs().max()) == 0
    with torch.no_grad():
        dropped = model(batch).logits_BT
        want = model.eval()(batch).logits_BT
    assert float((first - want).abs().max()) < 1e-4
    assert float((dropped - want).abs().max()) > 1e-2  # with dropout on the answer is another one
