"""Soak of the service: twice the load that it can take, wrong requests among right ones, and a change of the package.

The server is a process of its own; 32 clients send from this one, on a clock that does not wait for answers. Every
tenth request is malformed in one of several ways. Answers are compared with those that the predictor gave beforehand.
The goals: no wrong answer, no 5xx but 503, flat memory, p99 of accepted requests within 3 times that of an idle
server, and no request lost or answered by a mixture of two packages while the package changes. Goals that are missed
are listed in the row. Capacity is that of one client a worker, so that none is refused.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opengem.data import Dataset, ingest
from opengem.data.synth import SynthConfig, synth
from opengem.models.vertical import VerticalConfig
from opengem.schema import load_schema
from opengem.serving import Predictor, export
from opengem.serving.stored_request import RawLogs
from provenance import emit

CLIENTS = 32
HEAD = "POST /rank HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
Answers = dict[str, list[list[tuple[Any, list[float]]]]]
"""Fingerprint of a package -> for each request, its ads in order with their scores."""


@dataclass(frozen=True)
class World:
    """Two packages, requests, and what each package answers to each."""

    packages: list[Path]
    bodies: list[bytes]
    answers: Answers


@dataclass
class Tally:
    """What came back."""

    milliseconds: list[float] = field(default_factory=list)
    statuses: Counter = field(default_factory=Counter)
    packages: Counter = field(default_factory=Counter)
    wrong: int = 0
    lost: int = 0
    late: int = 0

    def p99(self) -> float:
        """Return the 99th percentile of the time of an accepted request, ms."""
        return round(float(np.percentile(self.milliseconds, 99)), 2) if self.milliseconds else float("nan")


def make_world(root: Path, users: int, requests: int) -> World:
    """Make a synthetic world, two packages of different weights, and requests of 1 to 60 ads and 50 events a stream."""
    synth(SynthConfig(users=users, seed=0), root / "world")
    schema = load_schema(root / "world" / "schema.toml")
    data = Dataset.open(ingest(schema, root / "data").folder)
    packages = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = VerticalConfig().build(data.inputs).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        sample = [data.read(np.arange(50), model.config.history)]
        packages.append(
            export(
                model,
                data,
                data.inputs,
                root / f"package-{seed}",
                sample=sample,
                card={"name": f"soak-{seed}"},
            )
        )
    logs, random = RawLogs(schema, data), np.random.default_rng(0)
    keys = [int(key) for key in dict.fromkeys(data.column("ad_key").tolist())]
    raws = []
    for number in random.choice(data.num_requests, requests, replace=False):
        raw = logs.request(int(number))
        ads = random.choice(keys, int(random.integers(1, 61)))
        history = {s: {c: v[-50:] for c, v in columns.items()} for s, columns in raw["history"].items()}
        shown = raw["ads"][0]
        raws.append(
            raw | {"ads": [shown | {str(schema.impressions.ad): int(a)} for a in ads], "history": history}
        )
    answers = {}
    for package in packages:
        predictor = Predictor.load(package)
        answers[package.fingerprint] = [ranked(predictor.rank(raw)) for raw in raws]
    return World([p.folder for p in packages], [json.dumps(raw).encode() for raw in raws], answers)


def ranked(answer: dict[str, Any]) -> list[tuple[Any, list[float]]]:
    """Return the ads of an answer with their scores, in order."""
    return [(ad["ad"], list(ad["scores"].values())) for ad in answer["ads"]]


def equal(a: list[tuple[Any, list[float]]], b: list[tuple[Any, list[float]]]) -> bool:
    """Return whether two answers are the same to 1e-6."""
    return [ad for ad, _ in a] == [ad for ad, _ in b] and all(
        abs(x - y) <= 1e-6 for (_, p), (_, q) in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


def malformed(body: bytes) -> list[tuple[bytes, int]]:
    """Return broken forms of a request, with the status that each must get."""
    raw = json.loads(body)
    texts = [
        (body[: len(body) // 2], 400),
        (b"\xff" + body, 400),
        (json.dumps(raw | {"adz": 1}).encode(), 422),
        (json.dumps(raw | {"time_ms": "now"}).encode(), 422),
        (json.dumps(raw | {"ads": [True]}).encode(), 422),
        (json.dumps(raw | {"user": {"age": float("nan")}}).encode(), 422),
        (json.dumps(raw | {"ads": [1] * 1_001}).encode(), 422),
        (json.dumps(raw | {"schema_fingerprint": "0" * 16}).encode(), 409),
        (b" " * 4_000_001, 413),
    ]
    return [(HEAD.format(len(text)).encode() + text, status) for text, status in texts]


@contextlib.contextmanager
def server(
    package: Path, workers: int, threads: int | None, waiting: int | None
) -> Iterator[tuple[int, int]]:
    """Serve a package; gives the process and the port."""
    command = [
        sys.executable,
        "-m",
        "opengem",
        "serve",
        str(package),
        "--port",
        "0",
        "--workers",
        str(workers),
    ]
    command += ["--threads", str(threads)] if threads is not None else []
    command += ["--waiting", str(waiting)] if waiting is not None else []
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        for line in process.stderr:
            print(line, end="", file=sys.stderr)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise SystemExit("the server did not start")
        port = int(found[1])
        wait_for(port)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(60)


def wait_for(port: int) -> None:
    """Wait until every process of the server answers."""

    async def ask() -> bool:
        client = Client(port)
        try:
            return (await client.send(b"GET /health HTTP/1.1\r\nhost: soak\r\n\r\n"))[0] == 200
        except OSError:
            return False
        finally:
            client.close()

    for _ in range(600):
        if asyncio.run(ask()):
            return
        time.sleep(0.2)
    raise SystemExit("the server does not answer")


class Client:
    """One connection that is kept open, opened anew when the server has closed it."""

    def __init__(self, port: int):
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, message: bytes) -> tuple[int, bytes]:
        """Send a request and return status and body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        reader, writer = self._streams
        try:
            writer.write(message)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        except (OSError, EOFError):
            self.close()
            raise
        if b"connection: close" in head:
            self.close()
        return int(head[9:12]), body

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Load:
    """Clients that send on a clock, and the check of what they get.

    Args:
        world: Requests and answers.
        port: Port of the server.
    """

    def __init__(self, world: World, port: int):
        self._port = port
        self._good = [HEAD.format(len(body)).encode() + body for body in world.bodies]
        self._bad = malformed(world.bodies[0])
        self._answers = world.answers
        self._verified: set[tuple[int, bytes]] = set()

    async def run(self, seconds: float, clients: int, rate: float | None, bad_every: int = 0) -> Tally:
        """Send for some seconds: `rate` requests a second, or each client as soon as it has its answer."""
        tally, numbers = Tally(), itertools.count(1)
        end = time.perf_counter() + seconds
        await asyncio.gather(
            *(self._client(i, clients, end, rate, bad_every, numbers, tally) for i in range(clients))
        )
        return tally

    async def _client(self, place, clients, end, rate, bad_every, numbers, tally) -> None:
        client = Client(self._port)
        due = time.perf_counter() + (place / rate if rate else 0)
        while (now := time.perf_counter()) < end:
            if rate:
                if due > now:
                    await asyncio.sleep(due - now)
                elif now - due > clients / rate:
                    tally.late += 1
                due = max(due + clients / rate, now)
            number = next(numbers)
            if bad_every and number % bad_every == 0:
                message, expected = self._bad[number // bad_every % len(self._bad)]
                await self._ask(client, message, -1, expected, tally)
            else:
                await self._ask(
                    client, self._good[number % len(self._good)], number % len(self._good), 200, tally
                )
        client.close()

    async def _ask(self, client: Client, message: bytes, request: int, expected: int, tally: Tally) -> None:
        began = time.perf_counter()
        try:
            status, body = await asyncio.wait_for(client.send(message), 60)
        except (OSError, EOFError, TimeoutError):
            client.close()
            tally.lost += 1
            return
        took = (time.perf_counter() - began) * 1e3
        tally.statuses[status] += 1
        if status == 503:
            return
        if status != expected:
            tally.wrong += 1
        elif status == 200:
            tally.milliseconds.append(took)
            tally.wrong += not self._is_right(request, body, tally)

    def _is_right(self, request: int, body: bytes, tally: Tally) -> bool:
        tally.packages[body[:40]] += 1
        if (request, body) in self._verified:
            return True
        answer = json.loads(body)
        right = equal(ranked(answer), self._answers[answer["package"]][request])
        if right:
            self._verified.add((request, body))
        return right


def memory_mb(process: int) -> float:
    """Return the resident memory of a process and its children."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    kilobytes = 0
    for number in [str(process), *children]:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{number}/status").read_text())
        kilobytes += int(found[1]) if found else 0
    return round(kilobytes / 1024, 1)


async def soak(load: Load, process: int, rate: float, minutes: float) -> tuple[Tally, float, float]:
    """Run the soak; returns what came back, and memory after the first minute and at the end."""
    running = asyncio.create_task(load.run(60 * minutes, CLIENTS, rate, bad_every=10))
    await asyncio.sleep(min(60.0, 30 * minutes))
    first = memory_mb(process)
    tally = await running
    return tally, first, memory_mb(process)


async def swap(load: Load, world: World, current: Path, rate: float, times: int = 4) -> Tally:
    """Change the package under load: turn the link, several times."""
    running = asyncio.create_task(load.run(5.0 * (times + 1), CLIENTS, rate))
    for number in range(times):
        await asyncio.sleep(5)
        turn(current, world.packages[(number + 1) % 2])
    return await running


def turn(link: Path, target: Path) -> None:
    """Let a link point to another folder, in one step."""
    waiting = link.with_name(f".{link.name}")
    waiting.symlink_to(target)
    os.replace(waiting, link)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--waiting", type=int, default=8)
    parser.add_argument("--users", type=int, default=300, help="users of the synthetic world")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement before the soak")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(folder), chosen.users, 200)
        current = Path(folder) / "current"
        turn(current, world.packages[0])
        with server(current, chosen.workers, chosen.threads, chosen.waiting) as (process, port):
            load = Load(world, port)
            asyncio.run(load.run(5.0, 2, None))  # warm
            unloaded = asyncio.run(load.run(chosen.seconds, 1, None))
            full = asyncio.run(load.run(chosen.seconds, chosen.workers, None))
            capacity = full.statuses[200] / chosen.seconds
            under, first, last = asyncio.run(soak(load, process, 2 * capacity, chosen.minutes))
            swapped = asyncio.run(swap(load, world, current, capacity))
            after = asyncio.run(load.run(chosen.seconds, 1, None))
    row = {
        "benchmark": "soak",
        "minutes": chosen.minutes,
        "workers": chosen.workers,
        "threads": chosen.threads,
        "waiting": chosen.waiting,
        "clients": CLIENTS,
        "unloaded_per_second": round(unloaded.statuses[200] / chosen.seconds, 1),
        "unloaded_p99_ms": [unloaded.p99(), after.p99()],
        "capacity_per_second": round(capacity, 1),
        "requests": under.statuses.total() + under.lost,
        "statuses": {str(k): n for k, n in sorted(under.statuses.items())},
        "accepted_per_second": round(under.statuses[200] / (60 * chosen.minutes), 1),
        "wrong": under.wrong,
        "lost": under.lost,
        "late": under.late,
        "other_5xx": sum(n for s, n in under.statuses.items() if s >= 500 and s != 503),
        "accepted_p99_ms": under.p99(),
        "memory_first_mb": first,
        "memory_last_mb": last,
        "swap": {
            "requests": swapped.statuses.total() + swapped.lost,
            "statuses": {str(k): n for k, n in sorted(swapped.statuses.items())},
            "packages": sorted(swapped.packages.values()),
            "lost": swapped.lost,
            "mixed": swapped.wrong,
            "p99_ms": swapped.p99(),
        },
    }
    emit(row | {"missed": missed(row)})


def missed(row: dict[str, Any]) -> list[str]:
    """Return the goals that a row misses."""
    change = row["swap"]
    goals = {
        "no wrong answer": row["wrong"] == 0,
        "no request lost": row["lost"] == 0,
        "no 5xx but 503": row["other_5xx"] == 0,
        "memory grows by less than 10%": row["memory_last_mb"] < 1.1 * row["memory_first_mb"],
        "p99 within 3 times": row["accepted_p99_ms"] <= 3 * row["unloaded_p99_ms"][0],
        "no request lost in the change": change["lost"] == 0 and set(change["statuses"]) <= {"200", "503"},
        "no mixed answer": change["mixed"] == 0,
        "both packages answered": len(change["packages"]) == 2,
    }
    return [goal for goal, holds in goals.items() if not holds]


if __name__ == "__main__":
    main()
