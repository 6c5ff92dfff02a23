"""The sequence store against rows that carry their histories: bytes on disk, and reading at batch 1,024.

The log is the synthetic world with long histories, 60 days of it; the first requests have short histories, as in any
log that begins somewhere.

Bytes: all files of the data set against the same data set with the histories copied into its examples, which then
needs neither store nor requests. What both need, such as ads, users and vocabularies, counts on both sides. Copies are
weighed as raw values of the store's types (Arrow), and as zstd Parquet list columns, in the order of the log, in which
a trainer reads them, and in the order that compresses best, by user.

Reading: the loader, from the files to a batch of tensors, against rows that are ready made in Parquet, each
history padded to its longest, from the file to tensors. Same examples, attributes and labels; the page cache is warm;
turns are taken, and the best pass of each counts. A pass of the loader includes the start of its workers. The
loader yields a history once a request and without padding, the rows once an example and padded. The rows lie in
Parquet as fixed-size lists, uncompressed and memory-mapped, which is the fastest of what was tried, and as blobs of
fixed size, faster still, though nothing but the program that wrote them can read those. Reading is timed twice: with
the requests of the log, several ads each, and with each ad as a request of its own, so that no read is shared.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from opengem.data import Dataset, Loader, ingest
from opengem.data.segments import Segments
from opengem.data.synth import SynthConfig, synth
from opengem.jagged import Batch
from opengem.schema import load_schema
from padded_rows import BATCH, LONGEST, as_blobs, padded_rows, read_rows
from provenance import emit

SPLITS = ("train", "validation", "test")


def stored_types(dataset: Dataset) -> dict[tuple[str, str], np.dtype]:
    """Return the type in which the store holds each attribute of each stream, and its times."""
    segments = Segments(dataset.folder, dataset.manifest)
    types = {}
    for stream in dataset.inputs.streams:
        types[stream.name, "time"] = np.dtype(np.int64)
        for a in stream.attributes:
            column = segments.events(0, stream.name, 0).column(f"a_{a.name}")
            types[stream.name, a.name] = column.values.dtype
    return types


def copied_rows(dataset: Dataset, requests: np.ndarray) -> pa.Table:
    """Return the examples of requests, each with a copy of its history as list columns."""
    batch = dataset.read(requests, LONGEST)
    first = dataset.first_examples(requests)
    sizes = dataset.first_examples(requests + 1) - first
    rows = np.arange(len(batch.example_id)) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
    examples = Segments(dataset.folder, dataset.manifest).file("examples.arrow")
    table = examples.table(examples.names).take(pa.array(rows)).drop_columns(["request"])
    owner = batch.request_of_example.numpy()
    types = stored_types(dataset)
    for name, stream in batch.history.items():
        bounds = stream.offsets.numpy()
        lengths = np.diff(bounds)[owner]
        ends = np.concatenate([[0], lengths.cumsum()])
        source = np.repeat(bounds[owner] - ends[:-1], lengths) + np.arange(ends[-1])
        for key, values in {"time": stream.times, **stream.ids, **stream.numbers}.items():
            copied = values.numpy().astype(types[name, key])[source]
            table = table.append_column(
                f"{name}_{key}", pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(copied))
            )
    return table.combine_chunks()


def weigh(dataset: Dataset) -> dict[str, Any]:
    """Return the bytes of a data set and of its copied forms."""
    files = {name: f["bytes"] for name, f in dataset.manifest["files"].items()} | {
        "manifest.json": (dataset.folder / "manifest.json").stat().st_size
    }
    ours = sum(files.values())
    own = sum(size for name, size in files.items() if name.startswith("sequences/"))
    both = ours - own - files["requests.arrow"] - files["examples.arrow"]
    in_log_order = np.arange(dataset.num_requests)
    users = Segments(dataset.folder, dataset.manifest).requests.column("user").values
    copies = {}
    for order, requests in (("", in_log_order), ("_by_user", np.argsort(users, kind="stable"))):
        raw, zstd = pa.MockOutputStream(), pa.MockOutputStream()
        writers: list[Any] = []
        for first in range(0, len(requests), 500):
            table = copied_rows(dataset, requests[first : first + 500])
            if not writers:
                writers = [pq.ParquetWriter(zstd, table.schema, compression="zstd")]
                writers += [] if order else [pa.ipc.new_file(raw, table.schema)]
            for writer in writers:
                writer.write_table(table)
        for writer in writers:
            writer.close()
        copies |= {f"copied_parquet_zstd{order}": zstd.size() + both}
        copies |= {} if order else {"copied_raw": raw.size() + both}
    counts = dataset.manifest["counts"]
    lengths, examples_of = history_lengths(dataset)
    return {
        "users": counts["users"],
        "requests": counts["requests"],
        "examples": counts["examples"],
        "events": counts["events"],
        "mean_history": {n: float(np.average(v, weights=examples_of)) for n, v in lengths.items()},
        "full_histories": float(np.average(lengths["organic"] == LONGEST["organic"], weights=examples_of)),
        "bytes": {"data_set": ours, "store": own, "ads_users_vocabularies": both} | copies,
        "bytes_per_event": dataset.manifest["storage"]["bytes_per_event"],
        "bytes_per_example": dataset.manifest["storage"]["bytes_per_example"],
        "times_smaller": {name: round(size / ours, 1) for name, size in copies.items()},
    }


def history_lengths(dataset: Dataset) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the length of each request's history by stream, and how many examples each request has."""
    segments = Segments(dataset.folder, dataset.manifest)
    every = np.arange(dataset.num_requests)
    lengths = {
        name: np.sum([end - start for _, start, end in segments.newest(name, every, longest)], axis=0)
        for name, longest in LONGEST.items()
    }
    return lengths, dataset.first_examples(every + 1) - dataset.first_examples(every)


def passes(readers: dict[str, Callable[[], tuple[int, int]]], repeats: int) -> dict[str, dict[str, float]]:
    """Time passes of several readers in turn, after one that warms up; return the best rates of each."""
    best: dict[str, dict[str, float]] = {}
    for turn in range(repeats + 1):
        for name, reader in readers.items():
            began = time.perf_counter()
            examples, events = reader()
            took = time.perf_counter() - began
            if turn and examples / took > best.get(name, {}).get("examples_a_second", 0):
                best[name] = {
                    "examples_a_second": round(examples / took),
                    "events_a_second": round(events / took),
                    "seconds": round(took, 3),
                    "examples": examples,
                }
    return best


def compare_reading(dataset: Dataset, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Time the loader and the ready-made rows of the first batches of its epoch.

    An event counts once for each example that has it in its history, whoever shares the read.
    """
    paths = {name: folder / f"{name}.parquet" for name in ("lists", "blobs")}
    writers: dict[str, Any] = {}
    types: list[np.dtype] = []
    left: pa.Table | None = None
    for batch in islice(loader(dataset, 0), chosen.rows_batches):
        table = padded_rows(batch)
        table = pa.concat_tables([left, table]) if left is not None else table
        # row groups of just one batch, for a batch of two groups would be copied together when it is read
        lists, left = table.slice(0, BATCH).combine_chunks(), table.slice(BATCH)
        for name, rows_of in (("lists", lists), ("blobs", as_blobs(lists))):
            if name not in writers:
                writers[name] = pq.ParquetWriter(
                    paths[name], rows_of.schema, compression="none", use_dictionary=False
                )
            writers[name].write_table(rows_of, row_group_size=BATCH)
        types = [np.dtype(getattr(t, "value_type", t).to_pandas_dtype()) for t in lists.schema.types]
    for writer in writers.values():
        writer.close()
    os.sync()  # what is still being written to disk would slow the readers down
    check_same(next(iter(loader(dataset, 0))), paths, types)
    lengths, _ = history_lengths(dataset)
    total = np.sum(list(lengths.values()), axis=0)
    in_order = np.concatenate([dataset.requests_of_split(s) for s in SPLITS])
    of_example = np.concatenate([[0], np.cumsum(np.repeat(total[in_order], sizes_of(dataset, in_order)))])

    def rows(name: str, threads: bool) -> Callable[[], tuple[int, int]]:
        def reader() -> tuple[int, int]:
            count = sum(len(t["surface"]) for t in read_rows(paths[name], types, threads))
            return count, int(of_example[count])

        return reader

    def ours(workers: int) -> Callable[[], tuple[int, int]]:
        def reader() -> tuple[int, int]:
            count = sum(b.num_examples for b in loader(dataset, workers))
            return count, int(of_example[count])

        return reader

    found = passes(
        {
            "lists_one_thread": rows("lists", False),
            "lists_threads": rows("lists", True),
            "blobs_one_thread": rows("blobs", False),
            "loader_no_workers": ours(0),
            "loader_two_workers": ours(2),
        },
        chosen.repeats,
    )
    rate = {name: r["examples_a_second"] for name, r in found.items()}
    lists = max(rate["lists_one_thread"], rate["lists_threads"])
    return {
        "batch": BATCH,
        "padded_bytes_an_example": paths["lists"].stat().st_size // found["lists_threads"]["examples"],
        **found,
        "times_as_fast_as_lists": {w: round(rate[f"loader_{w}_workers"] / lists, 2) for w in ("no", "two")},
        "times_as_fast_as_blobs": {
            w: round(rate[f"loader_{w}_workers"] / rate["blobs_one_thread"], 2) for w in ("no", "two")
        },
    }


def check_same(batch: Batch, paths: dict[str, Path], types: list[np.dtype]) -> None:
    """Stop unless the first ready-made rows hold what the loader's first batch holds."""
    for path in paths.values():
        rows = next(read_rows(path, types, threads=False))
        n = min(len(rows["surface"]), batch.num_examples)
        assert torch.equal(rows["example_id"][:n, 0], batch.example_id[:n])
        for name, stream in batch.history.items():
            owner = batch.request_of_example[n - 1]
            last = slice(int(stream.offsets[owner]), int(stream.offsets[owner + 1]))
            length = last.stop - last.start
            assert rows[f"{name}_length"][n - 1] == length
            for key, values in {"time": stream.times, **stream.ids}.items():
                assert torch.equal(rows[f"{name}_{key}"][n - 1, :length].long(), values[last])


def loader(dataset: Dataset, workers: int) -> Loader:
    """Return the loader of all splits in the order of the log."""
    return Loader(dataset, SPLITS, batch_size=BATCH, history=LONGEST, workers=workers)


def sizes_of(dataset: Dataset, requests: np.ndarray) -> np.ndarray:
    """Return how many examples each request has."""
    return dataset.first_examples(requests + 1) - dataset.first_examples(requests)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=150)
    parser.add_argument("--events", type=int, default=8_000, help="median organic events of a user")
    parser.add_argument("--impressions", type=int, default=240, help="mean ads shown to a user")
    parser.add_argument("--rows-batches", type=int, default=12, help="batches of ready-made rows")
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        world = root / "world"
        config = SynthConfig(
            users=chosen.users,
            history_events=chosen.events,
            history_minimum=chosen.events * 3 // 4,
            activity_spread=0.3,
            impressions_per_user=chosen.impressions,
        )
        synth(config, world)
        told = (world / "schema.toml").read_text(encoding="utf-8")
        (world / "alone.toml").write_text(told.replace('key = "request_id"\n', ""), encoding="utf-8")
        for log, schema in (("requests of several ads", "schema"), ("each ad a request", "alone")):
            ingest(load_schema(world / f"{schema}.toml"), root / schema)
            dataset = Dataset.open(root / schema)
            if schema == "schema":
                emit({"benchmark": "storage", "log": log, **weigh(dataset)})
            emit({"benchmark": "reading", "log": log} | compare_reading(dataset, root, chosen))


if __name__ == "__main__":
    main()
