import contextlib
import json
import socket
import time
from types import SimpleNamespace

import h11
import pytest
import uvicorn
from typer.testing import CliRunner

from opengem.cli.app import app
from opengem.errors import ConfigError, DataError
from opengem.serving import Package, connections, serve, server
from opengem.serving.server import available_cores, bound
from tests.serving.conftest import running, served

TOKEN = "a-token-of-some-length"


@pytest.fixture
def started(made, monkeypatch):
    """What the server would listen on; it does not run, and does not load the package again."""
    addresses = []

    def run(server, sockets):
        addresses.extend(sock.getsockname() for sock in sockets)
        server.config.load()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(server, "LivePackage", lambda folder, limits: Package.open(folder) and served(made))
    return addresses


def test_it_binds_to_loopback_and_says_what_it_does(made, started, capfd):
    serve(made.package.folder, port=0)
    [(host, port)] = started
    assert host == "127.0.0.1"
    line = capfd.readouterr().err
    assert f"serving every-kind ({made.package.fingerprint}) at http://127.0.0.1:{port}: " in line
    assert (
        f"workers 1 x threads 1 on {available_cores()} cores, 9 requests a worker at once; no token\n" in line
    )


def test_beyond_loopback_without_a_token_is_said(made, started, capfd):
    serve(made.package.folder, "0.0.0.0", 0)
    assert "Anyone who reaches this address can ask: set OPENGEM_TOKEN" in capfd.readouterr().err
    serve(made.package.folder, "0.0.0.0", 0, token=TOKEN)
    assert capfd.readouterr().err.endswith("bearer token\n")
    assert [host for host, _ in started] == ["0.0.0.0"] * 2


def test_wrong_arguments_start_nothing(made, started, tmp_path):
    for wrong in ({"workers": 0}, {"threads": 0}, {"waiting": -1}, {"token": "short"}, {"token": "ü" * 20}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be"):
            serve(made.package.folder, port=0, **wrong)
    with bound("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="must be a free address"):
            serve(made.package.folder, port=taken.getsockname()[1])
    with pytest.raises(ConfigError, match="must be a free address"):
        serve(made.package.folder, "203.0.113.7", 0)
    with pytest.raises(DataError, match="must be a package"):
        serve(tmp_path, port=0)
    assert started == []


def test_the_token_comes_from_a_file_or_the_environment(made, started, tmp_path, monkeypatch, capfd):
    def run(*arguments, **environment):
        command = ["serve", str(made.package.folder), "--port", "0", *arguments]
        return CliRunner().invoke(app, command, env=environment)

    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "empty").write_text("\n")
    assert "bearer token" in run("--token-file", str(tmp_path / "token")).output
    assert "bearer token" in run(OPENGEM_TOKEN=TOKEN).output
    assert "no token" in run().output
    refused = run("--token-file", str(tmp_path / "empty"))
    assert refused.exit_code == 2
    assert "must hold a token" in refused.output
    assert run("--token-file", str(tmp_path / "none")).exit_code == 2
    assert run(OPENGEM_TOKEN="short").exit_code == 2


def read_to_the_end(connection: socket.socket) -> bytes:
    """Return all that comes until the other side closes or resets the connection."""
    connection.settimeout(20)
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


ASK = b"GET /none HTTP/1.1\r\nhost: x\r\n\r\n"


def is_answered(connection: socket.socket) -> bool:
    connection.sendall(ASK)
    with connection.makefile("rb") as answer:
        status = answer.readline()
        length = 0
        while (line := answer.readline()).strip():
            name, _, value = line.partition(b": ")
            length = int(value) if name.lower() == b"content-length" else length
        answer.read(length)
    return status.startswith(b"HTTP/1.1 404 ")


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def test_a_client_without_a_whole_head_is_cut_off(live, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.4)
    with running(live) as port, connect(port) as silent, connect(port) as dribbling, connect(port) as good:
        assert is_answered(good)
        began = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT012 - which letter it is, is left open
            for letter in ASK * 100:
                dribbling.sendall(bytes([letter]))
                time.sleep(0.05)
        assert time.monotonic() - began > 0.3
        assert read_to_the_end(silent) == b""
        assert is_answered(good)  # this one is kept open


def test_too_many_connections_are_refused_in_words(live, monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS", 3)
    with running(live) as port:
        with connect(port) as a, connect(port) as b, connect(port) as c:
            assert all(map(is_answered, (a, b, c)))
            with connect(port) as one_more:
                answer = read_to_the_end(one_more)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in head
        assert f"content-length: {len(body)}".encode() in head
        assert json.loads(body)["error"]["message"] == "is busy. Try again."
        deadline = time.monotonic() + 20
        while True:  # until the server has seen that they are gone
            with connect(port) as later, contextlib.suppress(OSError):
                if is_answered(later):
                    break
            assert time.monotonic() < deadline


@pytest.mark.parametrize("left", [0, 70_000])
def test_an_answer_that_nobody_takes_is_dropped(left):
    """At the end of the keep-alive time: closing would wait for a client that does not read."""
    calls = []
    transport = SimpleNamespace(
        get_write_buffer_size=lambda: left,
        is_closing=lambda: False,
        abort=lambda: calls.append("abort"),
        close=lambda: calls.append("close"),
    )
    connection = object.__new__(connections.GuardedConnection)
    connection.transport, connection.conn = transport, h11.Connection(h11.SERVER)
    connection.timeout_keep_alive_handler()
    assert calls == ["abort" if left else "close"]


def test_a_slow_body_holds_no_place(live):
    """A client that sends its body slowly waits alone: others are answered meanwhile, and it gets 408."""
    head = "POST /rank HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n"
    with running(live, waiting=0, body_seconds=0.5) as port, connect(port) as slow:
        slow.sendall(head.format(100).encode() + b"{")
        for _ in range(3):
            with connect(port) as quick:
                quick.sendall(head.format(2).encode() + b"{}")
                assert quick.recv(1_000).startswith(b"HTTP/1.1 422 ")
        answer = read_to_the_end(slow)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"must arrive within 0.5 s" in answer


def test_what_is_no_http_is_refused(live):
    with running(live) as port, connect(port) as raw:
        raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert read_to_the_end(raw).startswith(b"HTTP/1.1 400 ")
