"""Cases of the stage serving."""

import asyncio
import inspect
import json
import random
import shutil
import socket
import threading
import time
from http.client import HTTPConnection

import numpy as np
import pytest
import torch

from opengem.errors import CheckFailed
from opengem.evaluation import read_predictions
from opengem.serving import predict
from opengem.serving.live import LivePackage
from opengem.serving.server import available_cores, serve
from tests.cases.inputs import DAY, HOUR, opengem
from tests.cases.runs import TestClient, create_app
from tests.cases.served import NOW, Student, served, sign, strict

REQUEST = {"time_ms": NOW, "ads": [{"ad_id": 5, "price": 1.5}, {"ad_id": 7}], "surface": "feed"}


@pytest.fixture(scope="module")
def client(student):
    with TestClient(create_app(LivePackage(student.package.folder)), raise_server_exceptions=False) as client:
        yield client


def post(client, request, status: int = 200):
    """Send a request as text, in which NaN may stand; return the answer, which must be strict JSON."""
    answer = client.post("/rank", content=request if isinstance(request, str) else json.dumps(request))
    assert answer.status_code == status, answer.text
    return strict(answer.content)


def scores(answer) -> list[list[float]]:
    """Return the scores of an answer in the order of the request."""
    return [list(ad["scores"].values()) for ad in sorted(answer["ads"], key=lambda ad: ad["index"])]


def with_price(price: str) -> str:
    return json.dumps(REQUEST).replace('"price": 1.5', f'"price": {price}')


@pytest.mark.parametrize("price", ["NaN", '"NaN"', "1e400", "-Infinity", '"1.5"', "true", "[1.5]", "1e300"])
def test_sv01_a_number_that_is_none_is_refused_by_its_path(client, price):
    error = post(client, with_price(price), 422)["error"]
    assert error["field"] == "ads[0].price"
    assert "number" in error["message"]


def test_sv01_null_is_missing_as_in_training(client, student):
    missing = post(client, with_price("null"))
    without = post(client, REQUEST | {"ads": [5, 7]})
    assert scores(missing) == scores(without)
    assert scores(missing)[0] != scores(post(client, REQUEST))[0]
    read = student.predictor._reader.read(json.loads(with_price("null")))
    assert read.batch.missing["price"].tolist() == [1.0, 1.0]
    assert read.batch.numbers["price"].tolist() == [0.0, 0.0]


def poisoned(student: Student, folder, name: str, place: slice):
    """Copy the package with NaN in a parameter, and vouch for it."""
    shutil.copytree(student.package.folder, folder)
    program = torch.export.load(folder / "model.pt2")
    [key] = [k for k in program.state_dict if k.endswith(name)]
    program.state_dict[key].data[place] = float("nan")
    torch.export.save(program, folder / "model.pt2")
    sign(folder)
    return folder


def test_sv01_a_package_whose_bias_is_nan_fails_its_parity_at_start(student, tmp_path):
    folder = poisoned(student, tmp_path / "package", "heads.bias", slice(None))
    done = opengem("serve", folder, cwd=tmp_path)
    assert done.exit_code == CheckFailed.exit_code == 1
    assert "must answer its sample" in done.output
    assert "Received: a difference of nan" in done.output


def test_sv01_what_its_sample_does_not_show_is_answered_500_with_an_id(student, tmp_path, caplog):
    folder = poisoned(
        student, tmp_path / "package", "surface_bias.weight", slice(0, 1)
    )  # of unknown surfaces
    app = create_app(LivePackage(folder))
    with TestClient(app, raise_server_exceptions=False) as client:
        assert scores(post(client, REQUEST)) == scores(student.predictor.rank(REQUEST))
        error = post(client, REQUEST | {"surface": "nowhere"}, 500)["error"]
    assert "must answer with finite numbers" in caplog.text
    assert f"request {error['id']} failed" in caplog.text
    assert "finite" not in json.dumps(error)
    assert "Traceback" not in json.dumps(error)


def user(client, status: int = 200, **columns):
    return post(client, REQUEST | {"user": columns}, status)


@pytest.mark.parametrize("value", [True, "12", 12.0, 12.5, " 12", 2**63, [12], {"id": 12}])
def test_sv02_an_integer_id_is_a_whole_number_in_range(client, value):
    error = user(client, 422, user_id=value)["error"]
    assert error["field"] == "user.user_id"
    assert (
        "must be an id as the log writes it: a whole number from -2^63 to 2^63 - 1. Received: "
        in error["message"]
    )


def test_sv02_an_integer_that_was_never_seen_is_no_other_one(client):
    unseen = scores(user(client, user_id=999_999))
    assert scores(user(client, user_id=-1)) == unseen
    assert scores(user(client, user_id=2**63 - 1)) == unseen
    assert scores(user(client, user_id=12)) != unseen
    assert scores(user(client, user_id=None)) != unseen  # missing is not unseen


@pytest.mark.parametrize("value", [12, True, 12.0, ["12"]])
def test_sv02_a_text_id_is_text(client, value):
    error = user(client, 422, segment=value)["error"]
    assert error["field"] == "user.segment"
    assert "must be an id as the log writes it: text. Received: " in error["message"]


def test_sv02_text_is_taken_letter_by_letter(client):
    known, unseen = scores(user(client, segment="12")), scores(user(client, segment="never"))
    assert known != unseen
    for other in ("012", " 12", "12 ", "12.0", "１２", ""):
        assert scores(user(client, segment=other)) == unseen


def test_sv02_ads_and_items_keep_the_rule_too(client):
    for ads, field in ([1, "2"], "ads[1]"), ([{"ad_id": 2.0}], "ads[0].ad_id"), ([True], "ads[0]"):
        assert post(client, REQUEST | {"ads": ads}, 422)["error"]["field"] == field
    acts = {"item_id": [1, "1"], "ts": [NOW - 2, NOW - 1]}
    error = post(client, REQUEST | {"history": {"acts": acts}}, 422)["error"]
    assert error["field"] == "history.acts.item_id[1]"


@pytest.mark.parametrize(
    ("change", "status", "field", "hint"),
    [
        ({"ads": [{"ad_id": 5, "pirce": 3.0}]}, 422, "ads[0].pirce", 'did you mean "price"'),
        (
            {"history": {"acts": {"itm_id": [1], "ts": [NOW - 1]}}},
            422,
            "history.acts.itm_id",
            'did you mean "item_id"',
        ),
        ({"context": {"cuntry": "DE"}}, 422, "context.cuntry", "Allowed: price"),
        ({"schema_fingerprint": "0123456789abcdef"}, 409, "schema_fingerprint", "Received: 0123456789abcdef"),
    ],
)
def test_sv03_what_the_schema_has_not_is_named(client, student, change, status, field, hint):
    error = post(client, REQUEST | change, status)["error"]
    assert error["field"] == field
    assert hint in error["message"]
    if status == 409:
        assert student.package.inputs.fingerprint in error["message"]
    else:
        assert "unknown field" in error["message"]


def test_sv03_the_right_fingerprint_is_welcome(client, student):
    assert scores(
        post(client, REQUEST | {"schema_fingerprint": student.package.inputs.fingerprint})
    ) == scores(post(client, REQUEST))


def made_request(number: int) -> dict:
    """Return a request with its own user, 1 to 200 ads (some unknown, some twice) and 0 to 30 events."""
    r = random.Random(number)
    events = r.randint(0, 30)
    acts = {
        "item_id": [r.randint(1, 33) for _ in range(events)],
        "type": [r.choice(["view", "click", "buy", None]) for _ in range(events)],
        "ts": [NOW - r.randint(1, 3 * DAY) for _ in range(events)],
    }
    ads = [{"ad_id": r.randint(1, 35), "price": r.choice([None, 1.0, 2.5])} for _ in range(r.randint(1, 200))]
    person = {"user_id": 1 + number % 45, "segment": r.choice(["12", "7", "?"])}
    surface = r.choice(["feed", "reels", "nowhere"])
    return {"time_ms": NOW, "ads": ads, "user": person, "history": {"acts": acts}, "surface": surface}


class Caller:
    """One of many clients at once: every tenth request is invalid, every twentieth is cut off by the client."""

    def __init__(self, port: int, numbers: list[int], expected: dict[int, list]):
        self.port, self.numbers, self.expected = port, numbers, expected
        self.compared = self.invalid = self.cut = 0
        self.faults: list[str] = []

    def run(self) -> None:
        """Send all requests, one after another."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        for number in self.numbers:
            body = json.dumps(made_request(number)).encode()
            if number % 20 == 7:
                self._cut(body)
            elif number % 10 == 3:
                status, answer = self._ask(connection, body.replace(b'"surface"', b'"surfce"'))
                self.invalid += 1
                if status != 422 or answer["error"]["field"] != "surfce":
                    self.faults.append(f"{number}: {status} {answer}")
            else:
                status, answer = self._ask(connection, body)
                self.compared += 1
                if status != 200 or not self._equal(answer["ads"], self.expected[number]):
                    self.faults.append(f"{number}: {status}")
        connection.close()

    def _ask(self, connection: HTTPConnection, body: bytes):
        while True:
            connection.request("POST", "/rank", body)
            answer = connection.getresponse()
            content = strict(answer.read())
            if answer.status != 503:
                return answer.status, content
            assert answer.headers["retry-after"] == "1"
            time.sleep(random.random() * 0.2)

    def _cut(self, body: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as raw:
            head = f"POST /rank HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            raw.sendall(
                head.encode() + body[: len(body) // (1 + self.cut % 2)]
            )  # half of it, or all and no patience
        self.cut += 1

    def _equal(self, have: list, want: list) -> bool:
        keys = [(ad["ad"], ad["index"], ad["known"]) for ad in have]
        return keys == [(ad["ad"], ad["index"], ad["known"]) for ad in want] and all(
            abs(a["scores"][t] - b["scores"][t]) <= 1e-6
            for a, b in zip(have, want, strict=True)
            for t in ("zeta", "alpha")
        )


@pytest.mark.parametrize("count", [240, pytest.param(2_000, marks=pytest.mark.slow)])
def test_sv04_each_of_many_callers_gets_its_own_answer(student, count):
    numbers = list(range(count))
    expected = {n: student.predictor.rank(made_request(n))["ads"] for n in numbers}
    with served(student.package.folder) as (port, process):
        callers = [Caller(port, numbers[i::32], expected) for i in range(32)]
        threads = [threading.Thread(target=caller.run) for caller in callers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert process.poll() is None
    assert [fault for caller in callers for fault in caller.faults] == []
    assert sum(c.cut for c in callers) == count // 20
    assert sum(c.invalid for c in callers) == count // 10
    assert sum(c.compared for c in callers) == count - count // 10 - count // 20


def test_sv04_a_doubled_ad_comes_back_twice_and_ties_keep_the_order_of_the_request(client):
    ads = [{"ad_id": a, "price": 2.0} for a in (9, 4, 9, 999, 4, 1_000, 9)]
    answer = post(client, REQUEST | {"ads": ads})
    assert sorted(ad["index"] for ad in answer["ads"]) == list(range(7))
    assert all(ad["ad"] == ads[ad["index"]]["ad_id"] for ad in answer["ads"])
    order = [(-ad["scores"]["zeta"], ad["index"]) for ad in answer["ads"]]
    assert order == sorted(order)
    assert len({score for score, _ in order}) == 3  # 9, 4, and the two that nobody knows


class Throughput:
    """What several clients get in some seconds; who is refused waits as long as he is told."""

    def __init__(self, port: int, clients: int, seconds: float):
        self.milliseconds: list[float] = []
        self.refused = 0
        self._body = json.dumps(made_request(11) | {"ads": list(range(1, 31))}).encode()
        asyncio.run(self._all(port, clients, seconds))
        self.per_second = len(self.milliseconds) / seconds

    async def _all(self, port: int, clients: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._one(port, end) for _ in range(clients)))

    async def _one(self, port: int, end: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /rank HTTP/1.1\r\nhost: x\r\ncontent-length: {len(self._body)}\r\n\r\n".encode()
        while time.monotonic() < end:
            began = time.perf_counter()
            writer.write(head + self._body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\r\n")[0]))
            if answer.startswith(b"http/1.1 503"):
                self.refused += 1
                await asyncio.sleep(int(answer.split(b"retry-after: ")[1].split(b"\r\n")[0]))
            else:
                assert answer.startswith(b"http/1.1 200")
                self.milliseconds.append((time.perf_counter() - began) * 1e3)
        writer.close()


def memory(process: int) -> int:
    """Return the resident memory of a process and its children, kB."""
    with open(f"/proc/{process}/task/{process}/children") as file:
        numbers = [process, *map(int, file.read().split())]
    found = 0
    for number in numbers:
        with open(f"/proc/{number}/status") as file:
            found += next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    return found


def said(port: int) -> dict:
    """Return what `/health` says."""
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/health")
    answer = strict(connection.getresponse().read())
    connection.close()
    return answer


def check_throughput(student: Student, workers: int, seconds: float, least: float) -> None:
    with served(student.package.folder, "--workers", str(workers)) as (port, process):
        service = said(port)["service"]
        assert (service["workers"], service["threads"], service["cores"]) == (workers, 1, available_cores())
        Throughput(port, 2 * workers, 0.5)  # warm
        before = memory(process.pid)
        one = Throughput(port, 1, seconds)
        eight = Throughput(port, 8, seconds)
        again = Throughput(port, 1, seconds)  # the machine may have become busier meanwhile
        crowd = Throughput(port, 20 * workers, 1.0)
        after = memory(process.pid)
    single = min(one.per_second, again.per_second)
    p99 = {n: round(float(np.percentile(t.milliseconds, 99)), 1) for n, t in ((1, one), (8, eight))}
    print(f"{workers} workers: {single:.0f}/s by 1 client, {eight.per_second:.0f}/s by 8, p99 {p99} ms")
    assert eight.per_second >= least * single
    assert crowd.refused > 0  # with Retry-After: a short queue, not a growing one
    assert after < 1.1 * before


def test_sv05_throughput_does_not_fall_with_the_number_of_clients(student):
    workers = inspect.signature(serve).parameters["workers"].default
    threads = inspect.signature(serve).parameters["threads"].default
    assert workers * threads <= available_cores()
    check_throughput(student, workers, 1.0, least=0.8)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_sv05_throughput_over_a_minute(student, workers):
    check_throughput(student, workers, 60.0, least=0.95 if workers <= available_cores() else 0.8)


def test_sv06_events_after_the_request_are_left_out_and_counted(client):
    request = REQUEST | {"ads": list(range(1, 31)), "user": {"user_id": 9}}
    none = post(client, request)
    assert none["ignored_events"] == {"acts": 0}
    past = {"item_id": [3, 4], "type": ["click", "buy"], "ts": [NOW - 9 * DAY, NOW - HOUR]}
    known = post(client, request | {"history": {"acts": past}})
    assert scores(known) != scores(none)
    later = {
        "item_id": [3, 8, 4, 8],
        "type": ["click", "view", "buy", "buy"],
        "ts": [NOW - 9 * DAY, NOW, NOW - HOUR, NOW + HOUR],
    }
    answer = post(client, request | {"history": {"acts": later}})
    assert answer["ignored_events"] == {"acts": 2}
    assert scores(answer) == scores(known)
    alone = {name: values[1::2] for name, values in later.items()}
    assert scores(post(client, request | {"history": {"acts": alone}})) == scores(none)


def test_sv06_stored_examples_sent_again_are_scored_as_by_predict(client, student, tmp_path):
    data = student.stored.data
    predict(student.package.folder, student.stored.folder, "test", tmp_path / "p.parquet")
    table = read_predictions(tmp_path / "p.parquet")
    row = {int(example): k for k, example in enumerate(table.example_id)}
    compared = 0
    for number in data.requests_of_split("test")[::10]:
        examples = data.read(np.array([number]), 0).example_id.tolist()
        answer = post(client, student.logs.request(number))
        for example, have in zip(examples, scores(answer), strict=True):
            want = [table.predictions[task][row[example]] for task in ("zeta", "alpha")]
            np.testing.assert_allclose(have, want, rtol=0, atol=1e-6)
            compared += 1
    assert compared >= 20
