import asyncio
import json
import logging
import time

import pytest

from opengem.serving.service import Load
from tests.serving.conftest import client_of, served
from tests.serving.raw_logs import HOUR, START

REQUEST = {"time_ms": START + 100 * HOUR, "ads": [1, 2, 3], "surface": "p1"}
SECRET = "zq-secret-zq"
TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def client(made):
    with client_of(served(made), body_bytes=20_000, body_seconds=1) as client:
        yield client


def refused(answer, status: int, field: str, message: str) -> None:
    assert answer.status_code == status, answer.text
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
    assert health["package"] == made.package.fingerprint
    assert health["schema"]["fingerprint"] == made.schema.fingerprint
    assert health["tasks"] == ["click", "buy"]
    assert (health["service"]["workers"], health["service"]["waiting"]) == (1, 8)
    assert health["limits"] == {"ads": 1_000, "events": 10_000, "values": 1_000}
    assert health["refused_package"] is None
    assert client.get("/card").json() == {"name": "every-kind"}


def test_wrong_fields_are_named_and_no_value_is_repeated(client):
    post = lambda **change: client.post("/rank", json=REQUEST | change)  # noqa: E731
    refused(post(usr=SECRET), 422, "usr", 'unknown field (did you mean "user"?)')
    refused(post(**{f"<{SECRET}>": 1}), 422, "request", "unknown field")
    refused(post(user={"aeg": SECRET}), 422, "user.aeg", 'did you mean "age"')
    refused(post(user={"age": SECRET}), 422, "user.age", "must be a finite number")
    refused(post(sort_by=SECRET), 422, "sort_by", "must be a task")
    refused(post(ads=[1, {"ad_id": SECRET}]), 422, "ads[1].ad_id", "as the log writes it")
    refused(
        post(history={"played": {"item": [1], "at": [SECRET]}}), 422, "history.played.at[0]", "can be read"
    )
    refused(client.post("/rank", json=[SECRET]), 422, "request", "must be an object")
    other = post(schema_fingerprint=f"<{SECRET}>")
    refused(other, 409, "schema_fingerprint", "that of the package")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused_by_their_field(client, word):
    body = json.dumps(REQUEST)[:-1] + f', "context": {{"slot": {word}}}}}'
    refused(client.post("/rank", content=body), 422, "context.slot", "finite number")


def test_bodies_that_are_no_json_are_refused(client):
    for body in (b"", b"{", b"\xff\xfe", SECRET.encode(), b'{"a": ' + b"9" * 5000 + b"}", b"[" * 9000):
        refused(client.post("/rank", content=body), 400, "request", "must ")
    refused(client.post("/rank", content=b'{"time_ms": 1, "time_ms": 2}'), 422, "request", "once")


def test_large_bodies_are_refused_whether_declared_or_not(client):
    refused(client.post("/rank", content=b" " * 20_001), 413, "request", "at most 20000 bytes")

    def pieces(count):
        for _ in range(count):
            yield b" " * 1_000

    for count in (30, 300):  # read to its end, and given up
        refused(client.post("/rank", content=pieces(count)), 413, "request", "at most 20000 bytes")
    for declared in ("x", "-1", "9" * 30, str(10**9)):
        answer = client.post("/rank", content=b"{}", headers={"content-length": declared})
        refused(answer, 413, "request", "at most")
        assert answer.headers["connection"] == "close"


def test_a_body_that_comes_too_slowly_is_refused(client):
    sent = []

    async def receive():
        await asyncio.sleep(0.6)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/rank", "headers": [], "query_string": b""}
    asyncio.run(client.app(scope, receive, send))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_other_routes_and_methods(client):
    assert client.get("/rank").status_code == 404
    assert client.get("/docs").status_code == 404
    refused(client.get(f"/{SECRET}"), 404, "", "POST /rank")


def test_a_failure_inside_says_nothing_of_itself_but_its_id(live, monkeypatch, caplog):
    def broken(request):
        raise RuntimeError(SECRET)

    monkeypatch.setattr(live.predictor, "rank", broken)
    with client_of(live) as client:
        answer = client.post("/rank", json=REQUEST, headers={"x-request-id": "call-7"})
        refused(answer, 500, "", "failed inside")
    assert answer.json()["error"]["id"] == answer.headers["x-request-id"] == "call-7"
    assert SECRET in caplog.text  # the log says why, under the id
    assert "call-7" in caplog.text


async def ask_once(app, body: bytes, path: str = "/rank") -> tuple[int, dict, bytes]:
    """Send a body to the application itself; return status, headers and content of the answer."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(m.get("body", b"") for m in sent[1:])


def ask(app, body: bytes) -> tuple[int, dict, bytes]:
    """Send a body to the application itself."""
    return asyncio.run(ask_once(app, body))


def together(app, bodies: list[bytes]) -> list[tuple[int, dict]]:
    """Send requests that all arrive at one time; return their status and headers."""

    async def all_of_them():
        return await asyncio.gather(*(ask_once(app, body) for body in bodies))

    return [answer[:2] for answer in asyncio.run(all_of_them())]


@pytest.mark.parametrize(("waiting", "full"), [(0, False), (2, False), (2, True)])
def test_an_overloaded_server_says_so(live, monkeypatch, waiting, full):
    order = []
    monkeypatch.setattr(Load, "is_full", lambda self: full)
    monkeypatch.setattr(
        live.predictor, "rank", lambda request: order.append(request["time_ms"]) or {"ads": []}
    )
    bodies = [json.dumps(REQUEST | {"time_ms": i}).encode() for i in range(6)]
    app = client_of(live, waiting=waiting).app
    answers = together(app, bodies)
    taken = 1 if full else 1 + waiting  # nobody waits where there is no time to spare
    assert [status for status, _ in answers] == [200] * taken + [503] * (6 - taken)
    assert all(headers[b"retry-after"] == b"1" for status, headers in answers if status == 503)
    assert order == list(range(taken))  # in the order in which they came
    assert [status for status, _ in together(app, bodies[:1])] == [200]  # the places are free again


def test_a_request_that_waits_too_long_is_refused(live, monkeypatch):
    monkeypatch.setattr(Load, "is_full", lambda self: False)
    monkeypatch.setattr(live.predictor, "rank", lambda request: time.sleep(0.3) or {"ads": []})
    app = client_of(live, waiting=2, wait_seconds=0.1).app
    answers = together(app, [json.dumps(REQUEST).encode()] * 3)
    assert answers[0][0] == 200
    assert 503 in [status for status, _ in answers]
    assert together(app, [json.dumps(REQUEST).encode()])[0][0] == 200


def test_a_process_is_full_when_it_has_had_no_time_to_spare(monkeypatch):
    clock = {"now": 100.0, "used": 5.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(time, "process_time", lambda: clock["used"])
    load = Load()
    steps = [(0.2, 0.2, False), (0.1, 0.1, True), (0.2, 0.0, True), (0.1, 0.1, False), (0.3, 0.26, False)]
    for now, used, full in [*steps, (0.3, 0.28, True), (60.0, 1.0, False)]:
        clock["now"] += now
        clock["used"] += used
        assert load.is_full() == full, (now, used)


def test_a_request_that_fails_gives_its_place_back(live, monkeypatch):
    app = client_of(live, waiting=0).app
    for body, status in ((b"{", 400), (b"[]", 422), (json.dumps(REQUEST).encode(), 200)):
        assert together(app, [body])[0][0] == status
    monkeypatch.setattr(live.predictor, "rank", lambda request: 1 / 0)
    assert together(app, [b"{}"])[0][0] == 500
    assert together(app, [b"{}"])[0][0] == 500


def test_a_token_is_asked_for(made, live):
    with client_of(live, token=TOKEN) as client:
        refused(client.post("/rank", json=REQUEST), 401, "", "bearer token")
        refused(client.get("/card"), 401, "", "bearer token")
        for wrong in ("", "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff"):
            headers = {"authorization": wrong.encode("latin-1")}
            answer = client.post("/rank", json=REQUEST, headers=headers)
            refused(answer, 401, "", "bearer token")
            assert answer.headers["www-authenticate"] == "Bearer"
        good = {"authorization": f"bearer {TOKEN}"}
        assert client.post("/rank", json=REQUEST, headers=good).status_code == 200
        assert client.get("/health").json() == {"status": "ok"}  # a load balancer has no token
        assert client.get("/health", headers=good).json()["tasks"] == ["click", "buy"]


def test_each_request_leaves_one_line_of_log_without_what_was_sent(client, made, caplog):
    caplog.set_level(logging.INFO, "opengem.access")
    client.post("/rank", json=REQUEST | {"user": {"city": SECRET}}, headers={"x-request-id": "one"})
    client.post("/rank", json=REQUEST | {"user": {SECRET: 1}}, headers={"x-request-id": f"<{SECRET}>"})
    client.get(f"/{SECRET}?{SECRET}")
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "opengem.access"]
    assert SECRET not in json.dumps(lines)
    assert [(line["path"], line["status"], line["ads"]) for line in lines] == [
        ("/rank", 200, 3),
        ("/rank", 422, None),
        ("other", 404, None),
    ]
    assert lines[0]["id"] == "one"
    assert lines[0]["package"] == made.package.fingerprint
    assert lines[0]["ms"] > 0
    assert lines[0]["time"].endswith("+00:00")
    assert len({line["id"] for line in lines}) == 3
