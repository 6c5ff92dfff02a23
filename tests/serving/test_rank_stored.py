import json

import numpy as np
import pytest
import torch

from opengem.errors import CheckFailed, ConfigError, DataError
from opengem.evaluation import read_predictions
from opengem.serving.predict import predict
from opengem.serving.rank_stored import rank_stored
from opengem.serving.request import Limits, RequestReader
from opengem.serving.signature import to_named
from tests.serving.conftest import client_of
from tests.serving.test_service import ask


def differences(a, b) -> list[str]:
    return [
        n for n in b if a[n].dtype != b[n].dtype or a[n].shape != b[n].shape or not torch.equal(a[n], b[n])
    ]


def test_every_stored_request_is_read_from_raw_rows_as_ingest_read_it(made):
    """Train-serve equality, bit for bit, for each kind of feature, attribute and history."""
    seen = {"events": 0, "ready": 0, "unknown ads": 0, "lists": 0}
    for request in range(made.data.num_requests):
        raw = json.loads(json.dumps(made.logs.request(request)))  # what survives JSON
        batch = made.predictor._reader.read(raw).batch
        stored = made.data.read(np.array([request]), made.package.history)
        assert differences(to_named(batch, made.data.inputs), to_named(stored, made.data.inputs)) == []
        seen["events"] += stored.num_events()
        seen["ready"] += int((stored.history["played"].times < 0).sum())
        seen["unknown ads"] += int((stored.ids["author"] == 0).sum())
        seen["lists"] += stored.bags["topics"].values.shape[0]
    assert all(count > 20 for count in seen.values()), seen  # the logs do hold what is tested


def test_scores_are_those_of_the_model_itself(made):
    with torch.no_grad():
        for request in (0, 7, 50, made.data.num_requests - 1):
            batch = made.data.read(np.array([request]), made.package.history)
            want = torch.sigmoid(made.model(batch).logits_BT.double()).numpy()
            answer = rank_stored(made.predictor, made.data, made.schema, request)
            for ad in answer["ads"]:
                have = [ad["scores"]["click"], ad["scores"]["buy"]]
                np.testing.assert_allclose(have, want[ad["index"]], rtol=0, atol=1e-6)
            assert answer["largest_difference"] <= 1e-6
            assert answer["request"]["example_ids"] == batch.example_id.tolist()


def test_each_stored_example_sent_over_http_is_scored_as_predict_scores_it(made, live, tmp_path):
    """What is written for a split, and what a caller gets for the raw rows of the same examples, agree to 1e-6."""
    predict(made.package.folder, made.data.folder, "test", tmp_path / "p.parquet")
    table = read_predictions(tmp_path / "p.parquet")
    row = {int(example): k for k, example in enumerate(table.example_id)}
    app = client_of(live).app
    compared = 0
    for number in made.data.requests_of_split("test"):
        examples = made.data.read(np.array([number]), 0).example_id.tolist()
        status, _, content = ask(app, json.dumps(made.logs.request(number)).encode())
        assert status == 200, content
        for ad in json.loads(content)["ads"]:
            for task, score in ad["scores"].items():
                assert abs(score - table.predictions[task][row[examples[ad["index"]]]]) <= 1e-6
            compared += 1
    assert compared == len(table) > 20


def test_the_default_request_has_the_most_ads_of_the_test_split(made):
    answer = rank_stored(made.package.folder, made.data.folder, made.schema)
    sizes = np.unique(
        made.data.column("request")[slice(*made.data.manifest["splits"]["test"])], return_counts=True
    )[1]
    assert len(answer["ads"]) == sizes.max()


def test_differing_logs_are_noticed(made, monkeypatch):
    with pytest.raises(ConfigError, match=r"request must lie in \[0, "):
        rank_stored(made.predictor, made.data, made.schema, -1)
    original = RequestReader.read

    def forgetful(self, raw):
        return original(self, {**raw, "history": {}, "user": {}})

    monkeypatch.setattr(RequestReader, "read", forgetful)
    longest = int(np.argmax(made.data._requests.column("end_shown").values))
    with pytest.raises(CheckFailed, match="must be scored from raw rows as from the data set"):
        rank_stored(made.predictor, made.data, made.schema, longest)


def test_logs_that_lost_a_request_are_named(made):
    rows = made.data.column("ad_key")
    made.logs.data = type("Other", (), {"__getattr__": lambda _, name: getattr(made.data, name)})()
    try:
        made.logs.data.column = lambda name: (
            np.full_like(rows, "999") if name == "ad_key" else made.data.column(name)
        )
        with pytest.raises(DataError, match="a request that is not there any more"):
            made.logs.request(0)
    finally:
        made.logs.data = made.data


def test_histories_are_cut_the_same_at_any_length(made):
    """The newest events, ties and late arrivals at the cut included."""
    for longest in (0, 1, 2, 3, 50):
        history = {"played": longest, "shown": longest}
        reader = RequestReader(
            made.schema,
            made.data.inputs,
            made.predictor._reader._encoder,
            made.predictor._reader._ads,
            history,
            Limits(),
        )
        for request in range(0, made.data.num_requests, 5):
            batch = reader.read(made.logs.request(request)).batch
            stored = made.data.read(np.array([request]), history)
            assert differences(to_named(batch, made.data.inputs), to_named(stored, made.data.inputs)) == []
