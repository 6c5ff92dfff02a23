"""Ingest of a large log against what DuckDB alone takes to sort and write the same events; and what one more day costs.

The log is made here: users with heavy-tailed activity, one Parquet file a day of impressions and of events. Each
measured run is a process of its own, so that its peak memory is its own: `ru_maxrss` of that process.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from provenance import emit

T0, DAY = 1_767_225_600_000, 86_400_000
SCHEMA = """
name = "growth"
[tables.impressions]
path = "impressions"
user = "user"
ad = "ad"
surface = "surface"
time = "ts"
[tables.events]
path = "events"
user = "user"
item = "item"
type = "type"
time = "ts"
[[streams]]
name = "acts"
from = "events"
attributes = ["item", "type"]
[features]
user = {{ owner = "user", kind = "id" }}
ad = {{ owner = "ad", kind = "id", table = "item" }}
price = {{ owner = "context", kind = "number" }}
[tasks]
click = {{ label = "click" }}
[splits]
train = ["2026-01-01", "2026-01-{train:02d}"]
validation = ["2026-01-{validation:02d}", "2026-01-{validation:02d}"]
test = ["2026-01-{test:02d}", "2026-03-31"]
[vocabularies.user]
min_count = 5
"""


def write_day(folder: Path, day: int, events: int, impressions: int, users: int) -> None:
    """Write the log of a day."""
    random = np.random.default_rng(day)
    popular = lambda n, top: (top * random.random(n) ** 3).astype(np.int64)  # noqa: E731
    start = T0 + day * DAY
    tables = {
        "events": {
            "user": popular(events, users),
            "item": popular(events, 200_000),
            "type": pa.array(random.choice(["view", "click", "cart", "buy"], events)),
            "ts": start + random.integers(0, DAY, events),
        },
        "impressions": {
            "user": popular(impressions, users),
            "ad": popular(impressions, 200_000),
            "surface": pa.array(random.choice(["feed", "reels", "stories"], impressions)),
            "ts": start + random.integers(0, DAY, impressions),
            "price": random.random(impressions),
            "click": (random.random(impressions) < 0.1).astype(np.int8),
        },
    }
    for name, columns in tables.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), folder / name / f"day-{day:03d}.parquet", compression="zstd")


def write_schema(folder: Path, days: int) -> Path:
    """Write the schema of a log of some days: the last but one validates, the last tests."""
    path = folder / "schema.toml"
    path.write_text(SCHEMA.format(train=days - 2, validation=days - 1, test=days))
    return path


RIVAL = """
import duckdb, sys
con = duckdb.connect(config={"memory_limit": sys.argv[3], "threads": 2, "temp_directory": sys.argv[2] + ".tmp",
                             "preserve_insertion_order": True})
con.execute(f"COPY (SELECT * FROM '{sys.argv[1]}/events/*.parquet' ORDER BY user, ts) TO '{sys.argv[2]}' "
            "(FORMAT parquet, COMPRESSION uncompressed)")
"""
OURS = """
import sys
from opengem.data import ingest
result = ingest(sys.argv[1], sys.argv[2], memory_limit=sys.argv[3])
print(len(result.manifest["segments"]), result.manifest["counts"], result.manifest["storage"])
"""


def measured(code: str, *arguments: object) -> dict[str, float]:
    """Run Python code in a process of its own; return its seconds and its peak memory in MiB."""
    wrapped = f"{code}\nimport resource\nprint('PEAK', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", wrapped, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    peak = int(done.stdout.rsplit("PEAK", 1)[1])
    return {"seconds": round(seconds, 2), "peak_mib": round(peak / 1024, 1)}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--impressions", type=int, default=2_000_000)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=20)
    parser.add_argument("--memory", default="1GB", help="limit of the joins; the process itself takes more")
    options = parser.parse_args()
    a_day = (options.events // options.days, options.impressions // options.days, options.users)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for day in range(options.days):
            write_day(root / "log", day, *a_day)
        schema = write_schema(root / "log", options.days)
        rival = measured(RIVAL, root / "log", root / "sorted.parquet", options.memory)
        ours = measured(OURS, schema, root / "dataset", options.memory)
        size = {"events": options.events, "impressions": options.impressions, "memory_limit": options.memory}
        emit({"benchmark": "growth", "what": "DuckDB alone sorts and writes the events", **size, **rival})
        row = {"what": "ingest", **size, **ours, "times_duckdb": round(ours["seconds"] / rival["seconds"], 2)}
        manifest = json.loads((root / "dataset" / "manifest.json").read_text())
        emit({"benchmark": "growth", **row, "storage": manifest["storage"]})
        write_day(root / "log", options.days, *a_day)
        appended = measured(OURS, schema, root / "dataset", options.memory)
        # the same day alone, with a day of each split before it that is as small as can be
        alone = root / "alone"
        for day in range(3):
            write_day(alone, day, 10, 10, 10)
        write_day(alone, 3, *a_day)
        (alone / "schema.toml").write_text(SCHEMA.format(train=1, validation=2, test=3))
        single = measured(OURS, alone / "schema.toml", root / "one", options.memory)
        ratio = round(appended["seconds"] / single["seconds"], 2)
        emit(
            {
                "benchmark": "growth",
                "what": "append of one more day",
                **appended,
                "alone": single,
                "ratio": ratio,
            }
        )


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
