"""A small data set folder written by hand with pyarrow, and what it holds as plain Python."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from opengem.schema.inputs import (
    AttributeInput,
    FeatureInput,
    InputSpec,
    StreamInput,
    TableInput,
    TaskInput,
)

NAN = float("nan")
SIZES = [3, 1, 6, 2, 1, 1, 4, 2, 1, 3, 2, 1]  # examples of each request
REQUESTS = len(SIZES)
EXAMPLES = sum(SIZES)
USER_OF_REQUEST = [0, 1, 0, 2, 3, 1, 0, 4, 2, 0, 1, 4]
SPLITS = {"train": [0, 14], "validation": [14, 20], "test": [20, 27], "empty": [14, 14]}

INPUTS = InputSpec(
    tables=(
        TableInput(name="video", rows=9),
        TableInput(name="tag", rows=6),
        TableInput(name="city", rows=5),
    ),
    features=(
        FeatureInput(name="city", owner="user", kind="id", table="city"),
        FeatureInput(name="likes", owner="user", kind="ids", table="tag"),
        FeatureInput(name="age", owner="user", kind="number"),
        FeatureInput(name="activity", owner="user", kind="number"),
        FeatureInput(name="video", owner="ad", kind="id", table="video"),
        FeatureInput(name="tags", owner="ad", kind="ids", table="tag"),
        FeatureInput(name="look", owner="ad", kind="vector", size=2),
        FeatureInput(name="price", owner="ad", kind="number"),
        FeatureInput(name="hour", owner="context", kind="id", table="city"),
    ),
    streams=(
        StreamInput(
            name="watched",
            attributes=(
                AttributeInput(name="video", kind="id", table="video"),
                AttributeInput(name="play", kind="number"),
            ),
            item="video",
        ),
        StreamInput(name="bought", attributes=(AttributeInput(name="tag", kind="id", table="tag"),)),
    ),
    tasks=(TaskInput(name="click", base_rate=0.5), TaskInput(name="buy", given="click", base_rate=0.1)),
    surfaces=("feed", "reels"),
    ad_feature="video",
    fingerprint="f00d",
)

USERS = {
    "f_city": [0, 2, 3, 0, 4, 1],
    "f_likes": [[], [2, 3], [], [5], [2, 2, 4], [1]],
    "f_age": [NAN, 0.5, -1.5, NAN, 2.0, 0.25],
}
ADS = {
    "f_video": [0, 2, 3, 4, 5, 1],
    "f_tags": [[], [2], [3, 4, 5], [], [1], [2, 5]],
    "f_look": [[0.0, 0.0], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 1.0]],
}
EVENTS_OF_USER = {"watched": [7, 4, 0, 2, 9], "bought": [1, 0, 3, 0, 0]}
BUCKET_OF_USER = [0, 1, 0, 1, 0]


def events(stream: str) -> dict[int, list[dict]]:
    """Return the events of each user, oldest first; each has a number that occurs once."""
    result, counter = {}, 0
    for user, count in enumerate(EVENTS_OF_USER[stream]):
        result[user] = []
        for i in range(count):
            counter += 1
            time = 1000 * i + user
            if stream == "watched":
                play = NAN if counter % 5 == 0 else counter / 4
                result[user].append({"time": time, "a_video": 2 + counter % 7, "a_play": play})
            else:
                result[user].append({"time": time, "a_tag": 2 + counter % 4})
    return result


def visible(stream: str, request: int) -> list[dict]:
    """Return the history of a request: a growing prefix of the user's events."""
    own = events(stream)[USER_OF_REQUEST[request]]
    return own[: min(len(own), request + 1)]


def examples() -> dict[str, list]:
    """Return the columns of the examples as lists."""
    request = [r for r, n in enumerate(SIZES) for _ in range(n)]
    rows = range(EXAMPLES)
    return {
        "example_id": [100 + 3 * i for i in rows],
        "request": request,
        "user": [USER_OF_REQUEST[r] for r in request],
        "user_key": [f"u{USER_OF_REQUEST[r]}" for r in request],
        "ad_key": [f"v{i % 5}" for i in rows],
        "ad_row": [i % 6 for i in rows],
        "surface": [i % 3 for i in rows],
        "time": [100_000 * (r + 1) + i for i, r in enumerate(request)],
        "f_price": [NAN if i % 4 == 0 else i / 8 for i in rows],
        "f_hour": [i % 5 for i in rows],
        "y_click": [float(i % 2) for i in rows],
        "y_buy": [NAN if i % 3 == 0 else float(i % 4 == 1) for i in rows],
    }


TYPES = {
    "ad_row": pa.int32(),
    "surface": pa.int32(),
    "user_row": pa.int32(),
    "f_city": pa.int32(),
    "f_video": pa.int32(),
    "f_hour": pa.int32(),
    "f_likes": pa.list_(pa.int32()),
    "f_tags": pa.list_(pa.int32()),
    "f_look": pa.list_(pa.float32(), 2),
    "f_age": pa.float32(),
    "f_activity": pa.float32(),
    "f_price": pa.float32(),
    "y_click": pa.float32(),
    "y_buy": pa.float32(),
    "a_video": pa.int8(),
    "a_tag": pa.int16(),
    "a_play": pa.float32(),
}


def requests() -> dict[str, list]:
    """Return the columns of the requests, with the slices of their histories."""
    first = np.cumsum([0, *SIZES[:-1]]).tolist()
    result = {
        "first_example": first,
        "time": [examples()["time"][i] for i in first],
        "user": USER_OF_REQUEST,
        "user_row": [u + 1 if u < 4 else 0 for u in USER_OF_REQUEST],
        "f_activity": [NAN if r == 2 else r / 2 for r in range(REQUESTS)],
    }
    for stream in EVENTS_OF_USER:
        starts = _starts(stream)
        result[f"start_{stream}"] = [starts[u] for u in USER_OF_REQUEST]
        result[f"end_{stream}"] = [starts[u] + len(visible(stream, r)) for r, u in enumerate(USER_OF_REQUEST)]
    return result


def _starts(stream: str) -> dict[int, int]:
    used, starts = {0: 0, 1: 0}, {}
    for user, count in enumerate(EVENTS_OF_USER[stream]):
        starts[user] = used[BUCKET_OF_USER[user]]
        used[BUCKET_OF_USER[user]] += count
    return starts


def write(folder: Path, rows_per_batch: int | None = None) -> Path:
    """Write the data set; `rows_per_batch` cuts every file into record batches."""
    _write(folder / "examples.arrow", examples(), rows_per_batch)
    _write(folder / "requests.arrow", requests(), rows_per_batch)
    _write(folder / "users.arrow", USERS, rows_per_batch)
    _write(folder / "ads.arrow", ADS, rows_per_batch)
    for stream in EVENTS_OF_USER:
        for bucket in (0, 1):
            rows = [e for u, es in events(stream).items() if BUCKET_OF_USER[u] == bucket for e in es]
            if rows:  # a bucket without events has no file
                columns = {name: [row[name] for row in rows] for name in rows[0]}
                _write(folder / "sequences" / stream / f"bucket-{bucket:05d}.arrow", columns, rows_per_batch)
    files = {
        str(p.relative_to(folder)): {
            "bytes": p.stat().st_size,
            "sha256": hashlib.sha256(p.read_bytes()).hexdigest(),
        }
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }
    manifest = {
        "format": 3,
        "inputs": INPUTS.to_dict(),
        "segments": [{"folder": ".", "examples": sum(SIZES), "requests": REQUESTS, "buckets": 2}],
        "schema": {"name": "hand", "fingerprint": INPUTS.fingerprint},
        "source_fingerprint": "x",
        "splits": SPLITS,
        "codes": {},
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _write(path: Path, columns: dict[str, list], rows_per_batch: int | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({n: pa.array(v, TYPES.get(n)) for n, v in columns.items()})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
