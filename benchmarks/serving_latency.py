"""Latency of ranking 1, 20 and 100 ads: the model alone, a whole request in process, and over loopback HTTP.

The model is a vertical model with its first weights (latency does not depend on their values) on the synthetic
world; each request carries the user's raw events. The rival of a package is the eager model on the same batch. One
client sends one request at a time; the server is a process of its own.
"""

import argparse
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opengem.data import Dataset, ingest
from opengem.data.synth import SynthConfig, synth
from opengem.models.vertical import VerticalConfig
from opengem.schema import load_schema
from opengem.serving import Predictor, export
from opengem.serving.signature import to_named
from opengem.serving.stored_request import RawLogs
from provenance import emit

ADS = (1, 20, 100)
WARM_UP = 20


def milliseconds(call: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Time a call after a warm-up; p50, p95 and p99 in milliseconds."""
    for _ in range(WARM_UP):
        call()
    times = np.empty(repeats)
    for i in range(repeats):
        began = time.perf_counter()
        call()
        times[i] = time.perf_counter() - began
    return {f"p{q}_ms": round(float(np.percentile(times, q)) * 1e3, 3) for q in (50, 95, 99)}


@contextmanager
def server(package: Path) -> Iterator[http.client.HTTPConnection]:
    """Serve a package from a process of its own, and give a connection to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = f"import logging, opengem.serving as s; logging.disable(); s.serve({str(package)!r}, port={port})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        for _ in range(300):
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
                break
            except OSError:
                connection.close()
                time.sleep(0.2)
        yield connection
    finally:
        connection.close()
        process.terminate()
        process.wait(30)


def request_of(logs: RawLogs, data: Dataset, ads: int, history: int) -> dict[str, Any]:
    """Return the raw request with the longest history of the test split, with `ads` known ads."""
    requests = np.array(data.requests_of_split("test"))
    lengths = sum(np.diff(h.offsets.numpy()) for h in data.read(requests, history).history.values())
    raw = logs.request(int(requests[np.argmax(lengths)]))
    entry = raw["ads"][0]
    keys = [int(key) for key in dict.fromkeys(data.column("ad_key").tolist())][:ads]
    key_name = str(logs.schema.impressions.ad)
    newest = {s: {c: v[-history:] for c, v in columns.items()} for s, columns in raw["history"].items()}
    return json.loads(json.dumps(raw | {"ads": [entry | {key_name: k} for k in keys], "history": newest}))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--users", type=int, default=300, help="users of the synthetic world")
    parser.add_argument("--history", type=int, default=50, help="events of a stream that the model reads")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--formats", nargs="+", default=["pt2", "aoti"], choices=["pt2", "aoti"])
    parser.add_argument("--threads", type=int, default=1, help="threads of the model")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        synth(SynthConfig(users=chosen.users, seed=0), root / "world")
        schema = load_schema(root / "world" / "schema.toml")
        data = Dataset.open(ingest(schema, root / "data").folder)
        model = VerticalConfig(width=chosen.width, history=chosen.history).build(data.inputs).eval()
        logs = RawLogs(schema, data)
        about = {
            "benchmark": "serving_latency",
            "device": "cpu",
            "threads": chosen.threads,
            "repeats": chosen.repeats,
            "parameters": sum(p.numel() for p in model.parameters()),
        }
        for kind in chosen.formats:
            sample = [data.read(np.arange(50), chosen.history)]
            out = root / kind
            export(model, data, data.inputs, out, sample=sample, card={}, format=kind)
            predictor = Predictor.load(out)
            with server(out) as connection:
                for ads in ADS:
                    raw = request_of(logs, data, ads, chosen.history)
                    measure(model, predictor, connection, raw, kind, chosen.repeats, about)


def measure(
    model: torch.nn.Module,
    predictor: Predictor,
    connection: http.client.HTTPConnection,
    raw: dict[str, Any],
    kind: str,
    repeats: int,
    about: dict[str, Any],
) -> None:
    """Measure one package at one number of ads, and print a row for each way of calling it."""
    batch = predictor._reader.read(raw).batch
    named = to_named(batch, predictor.package.inputs)
    body = json.dumps(raw).encode()

    def over_http() -> None:
        connection.request("POST", "/rank", body)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200

    @torch.inference_mode()
    def eager() -> None:
        model(batch)

    @torch.inference_mode()
    def packaged() -> None:
        predictor._program(named)

    calls = {
        "model, eager": eager,
        "model, package": packaged,
        "rank, in process": lambda: predictor.rank(raw),
        "rank, loopback HTTP": over_http,
    }
    events = {s: len(next(iter(columns.values()), [])) for s, columns in raw["history"].items()}
    for way, call in calls.items():
        row = {
            "way": way,
            "format": kind,
            "ads": batch.num_examples,
            "events": events,
            "body_bytes": len(body),
        }
        emit(about | row | milliseconds(call, repeats))


if __name__ == "__main__":
    main()
