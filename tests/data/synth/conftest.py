import datetime
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from opengem.data.synth import SynthConfig, WorldInfo, load_truth, synth


@dataclass(frozen=True, kw_only=True)
class Written:
    config: SynthConfig
    info: WorldInfo
    path: Path
    impressions: pa.Table
    events: pa.Table
    users: pa.Table
    ads: pa.Table
    truth: pa.Table


def read_logs(path: Path, table: str) -> pa.Table:
    return ds.dataset(path / table, format="parquet").to_table()


def write_and_read(config: SynthConfig, path: Path) -> Written:
    info = synth(config, path)
    return Written(
        config=config,
        info=info,
        path=path,
        impressions=read_logs(path, "impressions").sort_by("impression_id"),
        events=read_logs(path, "events").sort_by("event_id"),
        users=pq.read_table(path / "users.parquet"),
        ads=pq.read_table(path / "ads.parquet"),
        truth=load_truth(path).sort_by("impression_id"),
    )


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Few users with long, dense histories, over the jump and the young surface, in two shards."""
    config = SynthConfig(
        users=60,
        days=24,
        seed=3,
        start=datetime.date(2024, 2, 20),
        history_events=150,
        impressions_per_user=50,
        shard_users=40,
    )
    return write_and_read(config, tmp_path_factory.mktemp("small") / "world")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The default world."""
    return write_and_read(SynthConfig(), tmp_path_factory.mktemp("default") / "world")
