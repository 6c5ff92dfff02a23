import json
import threading
import warnings

import pytest

from opengem.serving.request import Limits
from opengem.serving.service import create_app
from tests.serving.raw_logs import HOUR, START

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the test client asks for a successor of httpx
    from fastapi.testclient import TestClient

REQUEST = {"time_ms": START + 100 * HOUR, "ads": [1, 2, 3], "surface": "p1"}
SECRET = "zq-secret-zq"


@pytest.fixture(scope="module")
def client(made):
    with TestClient(create_app(made.predictor, Limits(body_bytes=20_000))) as client:
        yield client


def refused(answer, status: int, field: str, message: str) -> None:
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["field"] == field
    assert message in error["message"]
    assert SECRET not in answer.text
    assert "Traceback" not in answer.text


def test_rank_answers_as_the_predictor(client, made):
    for number in (0, 3, 77):
        raw = json.loads(json.dumps(made.logs.request(number)))
        answer = client.post("/rank", json=raw)
        assert answer.status_code == 200
        assert answer.json() == json.loads(json.dumps(made.predictor.rank(raw)))


def test_health_and_card(client, made):
    health = client.get("/health").json()
    assert health["status"] == "ok"
    assert health["schema"]["fingerprint"] == made.schema.fingerprint
    assert health["tasks"] == ["click", "buy"]
    assert client.get("/card").json() == {"name": "every-kind"}


def test_wrong_fields_are_named_and_nothing_is_repeated(client):
    post = lambda **change: client.post("/rank", json=REQUEST | change)  # noqa: E731
    refused(post(**{SECRET: 1}), 422, "request", "unknown field")
    refused(post(user={SECRET: 1}), 422, "user", "unknown field")
    refused(post(user={"age": SECRET}), 422, "user.age", "must hold numbers")
    refused(post(sort_by=SECRET), 422, "sort_by", "must be a task")
    refused(post(history={SECRET: {}}), 422, "history", "unknown field")
    refused(post(ads=[{"ad_id": {SECRET: 1}}]), 422, "ads", "must hold ids")
    refused(post(history={"played": {"item": [1], "at": [SECRET]}}), 422, "history.played.at", "can be read")
    refused(client.post("/rank", json=[SECRET]), 422, "request", "must be an object")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(client, word):
    body = json.dumps(REQUEST)[:-1] + f', "context": {{"slot": {word}}}}}'
    answer = client.post("/rank", content=body)
    assert answer.status_code == 422
    assert "NaN" in answer.text or "finite" in answer.text


def test_bodies_that_are_no_json_are_refused(client):
    for body in (b"", b"{", b"\xff\xfe", SECRET.encode(), b'{"a": ' + b"9" * 5000 + b"}", b"[" * 9000):
        refused(client.post("/rank", content=body), 400, "request", "must ")
    refused(client.post("/rank", content=b'{"time_ms": 1, "time_ms": 2}'), 422, "request", "once")


def test_large_bodies_are_refused_whether_declared_or_not(client):
    refused(client.post("/rank", content=b" " * 20_001), 413, "request", "at most 20000 bytes")

    def pieces():
        for _ in range(30):
            yield b" " * 1_000

    refused(client.post("/rank", content=pieces()), 413, "request", "at most 20000 bytes")
    refused(client.post("/rank", content=b"{}", headers={"content-length": "x"}), 413, "request", "at most")


def test_other_routes_and_methods(client):
    assert client.get("/rank").status_code == 404
    assert client.get("/docs").status_code == 404
    refused(client.get(f"/{SECRET}"), 404, "", "POST /rank")


def test_a_failure_inside_says_nothing_of_itself(made, monkeypatch, caplog):
    def broken(request):
        raise RuntimeError(SECRET)

    monkeypatch.setattr(made.predictor, "rank", broken)
    with TestClient(create_app(made.predictor), raise_server_exceptions=False) as client:
        refused(client.post("/rank", json=REQUEST), 500, "", "failed inside")
    assert SECRET in caplog.text  # the log says why


def test_an_overloaded_server_says_so(made, monkeypatch):
    started, finish = threading.Event(), threading.Event()

    def slow(request):
        started.set()
        assert finish.wait(20)
        return {}

    monkeypatch.setattr(made.predictor, "rank", slow)
    with TestClient(create_app(made.predictor, Limits(concurrent=1))) as client:
        answers = []
        first = threading.Thread(target=lambda: answers.append(client.post("/rank", json=REQUEST)))
        first.start()
        assert started.wait(20)
        busy = client.post("/rank", json=REQUEST)
        finish.set()
        first.join(20)
        refused(busy, 503, "", "is busy")
        assert busy.headers["retry-after"] == "1"
        assert answers[0].status_code == 200
        assert client.post("/rank", json=REQUEST).status_code == 200  # the place is free again


def test_serve_binds_to_loopback_by_default(made, monkeypatch):
    import uvicorn

    from opengem.serving.service import serve

    calls = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **settings: calls.append(settings))
    serve(made.package.folder)
    assert calls[0]["host"] == "127.0.0.1"
    assert calls[0]["port"] == 8080
