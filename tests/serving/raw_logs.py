"""Small raw logs that use every kind of feature, attribute and history that a schema knows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START = 1_736_294_400_000  # 2025-01-08 UTC
HOUR = 3_600_000

SCHEMA = """
name = "every-kind"

[tables.impressions]
path = "impressions.parquet"
key = "request"
user = "user_id"
ad = "shown_ad"
time = { column = "at", unit = "ms" }
surface = "place"

[tables.users]
path = "users.parquet"
key = "uid"

[tables.ads]
path = "ads.parquet"
key = "ad_id"

[tables.plays]
path = "plays.parquet"
user = "user_id"
item = "item"
type = "kind"
where = { good = [1] }
deduplicate = true
span = ["2025-01-06T12:00:00Z", "2025-02-01T00:00:00Z"]
time = { column = "at", unit = "timestamp" }
arrival = { column = "seen", unit = "s" }

[[streams]]
name = "played"
from = "plays"
types = ["play", "skip"]
attributes = [
  { name = "item", table = "ad" },
  { name = "author", table = "author" },
  { name = "kind" },
  { name = "mood", column = "moods", separator = "|" },
  { name = "seconds", kind = "number" },
  { name = "price", kind = "number" },
  { name = "good", optional = true },
]
[streams.ready]
path = "ready.parquet"
user = "user_id"
lists = { item = "items", kind = "kinds" }
members = { good = "good_items" }

[[streams]]
name = "shown"
from = "impressions"
attributes = [
  { name = "shown_ad", table = "ad" },
  { name = "author", table = "author" },
  { name = "place" },
  { name = "click" },
]

[[features]]
name = "user_id"
owner = "user"
kind = "id"

[[features]]
name = "city"
owner = "user"
kind = "id"

[[features]]
name = "likes"
owner = "user"
kind = "ids"
table = "author"

[[features]]
name = "age"
owner = "user"
kind = "number"
cast = true

[[features]]
name = "mood_of_day"
owner = "user"
kind = "id"

[[features]]
name = "ad"
owner = "ad"
kind = "id"
column = "ad_id"

[[features]]
name = "author"
owner = "ad"
kind = "id"

[[features]]
name = "topics"
owner = "ad"
kind = "ids"
separator = ","

[[features]]
name = "price"
owner = "ad"
kind = "number"

[[features]]
name = "look"
owner = "ad"
kind = "vector"

[[features]]
name = "bid"
owner = "ad"
kind = "number"

[[features]]
name = "device"
owner = "context"
kind = "id"

[[features]]
name = "slot"
owner = "context"
kind = "number"

[[features]]
name = "words"
owner = "context"
kind = "ids"

[[features]]
name = "hour"
owner = "context"
kind = "id"
derive = "hour"

[[tasks]]
name = "click"
label = "click"

[[tasks]]
name = "buy"
label = "buy"
given = "click"

[splits]
train = ["2025-01-08", "2025-01-10"]
validation = ["2025-01-11", "2025-01-11"]
test = ["2025-01-12", "2025-01-12"]
"""


def write(folder: Path) -> Path:
    """Write the logs and return the schema file."""
    random = np.random.default_rng(7)
    folder.mkdir(parents=True, exist_ok=True)
    _write_ads(folder, random)
    _write_users(folder, random)
    _write_impressions(folder, random)
    _write_plays(folder, random)
    _write_ready(folder, random)
    (folder / "schema.toml").write_text(SCHEMA)
    return folder / "schema.toml"


def _some(random, values: list, share: float = 0.2) -> list:
    """Return the values with some nulls."""
    return [None if random.random() < share else v for v in values]


def _write_ads(folder: Path, random) -> None:
    n = 25
    columns = {
        "ad_id": pa.array(range(1, n + 1), pa.uint64()),
        "author": _some(random, [f"a{i % 6}" for i in range(n)]),
        "topics": _some(random, [",".join(f"t{j}" for j in range(i % 4)) for i in range(n)]),
        "price": pa.array(_some(random, (random.random(n) * 90).tolist()), pa.float64()),
        "look": pa.array(_some(random, random.standard_normal((n, 3)).tolist()), pa.list_(pa.float32())),
    }
    pq.write_table(pa.table(columns), folder / "ads.parquet")


def _write_users(folder: Path, random) -> None:
    n = 18  # users 19 and 20 act but are not in the table
    columns = {
        "uid": pa.array(range(1, n + 1), pa.int32()),
        "city": _some(random, [f"c{i % 5}" for i in range(n)]),
        "likes": pa.array(
            _some(random, [[f"a{j}" for j in range(i % 3)] for i in range(n)]), pa.list_(pa.string())
        ),
        "age": _some(random, [str(20 + i) for i in range(n)]),
    }
    pq.write_table(pa.table(columns), folder / "users.parquet")


def _write_impressions(folder: Path, random) -> None:
    rows: dict[str, list] = {name: [] for name in ("request", "user_id", "shown_ad", "at", "place", "device")}
    rows |= {name: [] for name in ("slot", "words", "bid", "mood_of_day", "click", "buy")}
    for request in range(160):
        user, at = int(random.integers(1, 21)), START + int(random.integers(0, 5 * 24)) * HOUR
        place, mood = f"p{random.integers(0, 3)}", f"m{random.integers(0, 3)}"
        ads = random.permutation(27)[: random.integers(1, 5)] + 1  # 26 and 27 are unknown ads
        for slot, ad in enumerate(ads.tolist()):
            click = bool(random.random() < 0.4)
            values = {
                "request": f"r{request}",
                "user_id": user,
                "shown_ad": ad,
                "at": at,
                "place": place,
                "device": None if request % 7 == 0 else f"d{request % 3}",
                "slot": None if slot == 3 else slot,
                "words": None if slot == 2 else [f"w{j}" for j in range(slot)],
                "bid": None if slot == 1 else float(random.random()),
                "mood_of_day": mood,
                "click": click,
                "buy": click and bool(random.random() < 0.5),
            }
            for name, value in values.items():
                rows[name].append(value)
    words = pa.array(rows.pop("words"), pa.list_(pa.string()))
    slot = pa.array(rows.pop("slot"), pa.int8())
    pq.write_table(pa.table(rows | {"words": words, "slot": slot}), folder / "impressions.parquet")


def _write_plays(folder: Path, random) -> None:
    n = 900
    at = START // 1000 + random.integers(-48, 5 * 24, n) * 3600
    seen = at + random.choice([0, 0, 0, 3600, 7200, 30 * 3600], n)  # some arrive much later
    columns = {
        "user_id": random.integers(3, 21, n),  # users 1 and 2 have ready-made events alone
        "item": random.integers(1, 28, n),
        "kind": random.choice(["play", "skip", "noise"], n),
        "at": pa.array(at * 1000, pa.timestamp("ms", "UTC")),
        "seen": seen,
        "seconds": _some(random, random.integers(0, 5, n).tolist()),
        "moods": _some(random, [f"x{i % 4}|y{i % 3}" for i in range(n)]),
    }
    table = pa.table(columns | {"good": pa.array(np.arange(n) % 9 != 0).cast(pa.int8())})
    table = pa.concat_tables([table, table.slice(0, 200)])  # some rows come twice
    pq.write_table(table, folder / "plays.parquet")


def _write_ready(folder: Path, random) -> None:
    users = [1, 2, 3, 5, 8, 13]
    items = [random.integers(1, 28, 3 * k).tolist() for k in range(len(users))]
    kinds = [["play"] * len(i) for i in items]
    good = [None if u == 3 else i[::2] for u, i in zip(users, items, strict=True)]
    table = pa.table({"user_id": users, "items": items, "kinds": kinds, "good_items": good})
    pq.write_table(table, folder / "ready.parquet")
