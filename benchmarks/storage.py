"""Bytes on disk: the sequence store against histories copied into every example.

Both hold the same events of the same examples, on the synthetic world with histories of about 1,000 events. The copies
are written twice: as uncompressed Arrow, as the store is, and as zstd Parquet, as a warehouse would; the store is
compared with both.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opengem.data import Dataset, ingest
from opengem.data.synth import SynthConfig, synth
from opengem.schema import load_schema
from provenance import emit


def copied_bytes(dataset: Dataset, history: int, out: Path) -> tuple[int, int, int]:
    """Write every example with its own history; return bytes as Arrow, bytes as Parquet, and events copied."""
    arrow, parquet = out / "copied.arrow", out / "copied.parquet"
    writers: list = []
    events = 0
    for first in range(0, dataset.num_requests, 500):
        batch = dataset.read(np.arange(first, min(first + 500, dataset.num_requests)), history)
        columns: dict[str, pa.Array] = {"example_id": pa.array(batch.example_id.numpy())}
        owner = batch.request_of_example.numpy()
        for name, stream in batch.history.items():
            bounds = stream.offsets.numpy()
            lengths = (bounds[1:] - bounds[:-1])[owner]
            events += int(lengths.sum())
            ends = np.concatenate([[0], lengths.cumsum()])
            rows = np.repeat(bounds[owner] - ends[:-1], lengths) + np.arange(ends[-1])
            values = {"time": stream.times.numpy(), **{k: v.numpy() for k, v in stream.ids.items()}}
            for key, value in values.items():
                copied = value[rows] if key == "time" else value[rows].astype(np.int32)
                columns[f"{name}_{key}"] = pa.ListArray.from_arrays(
                    pa.array(ends, pa.int32()), pa.array(copied)
                )
        table = pa.table(columns)
        if not writers:
            writers = [
                pa.ipc.new_file(arrow, table.schema),
                pq.ParquetWriter(parquet, table.schema, compression="zstd"),
            ]
        for writer in writers:
            writer.write_table(table)
    for writer in writers:
        writer.close()
    return arrow.stat().st_size, parquet.stat().st_size, events


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=400)
    parser.add_argument("--events", type=int, default=1000, help="median organic events of a user")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = SynthConfig(
            users=chosen.users,
            history_events=chosen.events,
            history_minimum=chosen.events // 2,
            activity_spread=0.8,
        )
        synth(config, root / "world")
        made = ingest(load_schema(root / "world" / "schema.toml"), root / "dataset")
        dataset = Dataset.open(root / "dataset")
        store = sum(f.stat().st_size for f in (root / "dataset" / "sequences").rglob("*") if f.is_file())
        # what an example needs to find its history stands in requests.arrow
        index = (root / "dataset" / "requests.arrow").stat().st_size
        arrow, parquet, events = copied_bytes(dataset, 100_000, root)
        counts = made.manifest["counts"]
        emit(
            {
                "benchmark": "storage",
                "examples": counts["examples"],
                "events": counts["events"],
                "mean_history": events / counts["examples"],
                "store_bytes": store + index,
                "copied_arrow_bytes": arrow,
                "copied_parquet_bytes": parquet,
                "ratio_to_arrow": arrow / (store + index),
                "ratio_to_parquet": parquet / (store + index),
            }
        )


if __name__ == "__main__":
    main()
