"""One call from settings to a folder of logs with planted truth."""

import dataclasses
import datetime
import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from opengem.data.synth.catalogue import build_catalogue
from opengem.data.synth.config import EFFECTS, SynthConfig
from opengem.data.synth.schema_file import schema_text
from opengem.data.synth.simulate import World, build_world, simulate
from opengem.data.synth.truth import PARAMETERS_FILE, TaskTruth, measure_truth
from opengem.data.synth.write import write_catalogue, write_shard, write_users
from opengem.errors import DataError

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class WorldInfo:
    """What `synth` wrote.

    Args:
        out: world folder.
        schema: its schema file.
        users: users.
        impressions: ads shown.
        events: rows of the events log.
        clicks, conversions, likes: events of the ads; conversions include those after the 7-day window.
        all_days: task to what the truth allows on all days; tasks without examples are left out.
        test: the same on the test days.
        seconds: wall time.
    """

    out: Path
    schema: Path
    users: int
    impressions: int
    events: int
    clicks: int
    conversions: int
    likes: int
    all_days: dict[str, TaskTruth]
    test: dict[str, TaskTruth]
    seconds: float


def synth(config: SynthConfig, out: Path, progress: Progress | None = None) -> WorldInfo:
    """Build a synthetic world whose true probabilities are known.

    Users are simulated in shards, each from its own random stream; the same settings give the same bytes at any
    number of workers. Files are written beside `out` and moved there when all are whole.

    Args:
        config: settings.
        out: folder to make; it must not exist, or be empty.
        progress: called with users done and users in all after each shard.

    Returns:
        Counts and the best reachable NE.

    Raises:
        DataError: `out` holds files already.
    """
    began = time.monotonic()
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out}: must be a new or empty folder, it holds files; name another or remove it.")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)

    catalogue = build_catalogue(config)
    world = build_world(config, catalogue)
    (partial / "truth").mkdir()
    world.parameters.save(partial / PARAMETERS_FILE)
    write_catalogue(config, catalogue, partial / "ads.parquet")
    (partial / "schema.toml").write_text(schema_text(config))
    counts = _write_shards(world, partial, progress)
    _write_world_file(config, counts, partial / "world.json")

    all_days = _measured(partial)
    test = _measured(partial, *config.splits()["test"])
    if out.exists():
        out.rmdir()
    partial.rename(out)
    return WorldInfo(
        out=out,
        schema=out / "schema.toml",
        users=config.users,
        **counts,
        all_days=all_days,
        test=test,
        seconds=time.monotonic() - began,
    )


def _measured(world: Path, *days: datetime.date) -> dict[str, TaskTruth]:
    """Measure the truth; a world of very few users may show no ad on these days."""
    try:
        return measure_truth(world, *days)
    except DataError:
        return {}


def _write_shards(world: World, out: Path, progress: Progress | None) -> dict[str, int]:
    """Simulate and write every shard, then the users table."""
    config = world.config
    firsts = range(0, config.users, config.users_of_shard)
    age = np.empty(config.users, dtype=np.int8)
    country = np.empty(config.users, dtype=np.int8)
    total: dict[str, int] = {}
    done = 0
    for first, counts, ages, countries in _run_shards(world, list(firsts), out):
        age[first : first + len(ages)] = ages
        country[first : first + len(ages)] = countries
        total = {name: total.get(name, 0) + count for name, count in counts.items()}
        done += len(ages)
        if progress is not None:
            progress(done, config.users)
    write_users(age, country, out / "users.parquet")
    return total


_ShardResult = tuple[int, dict[str, int], np.ndarray, np.ndarray]


def _run_shards(world: World, firsts: list[int], out: Path) -> Iterator[_ShardResult]:
    """Run shards here, or in worker processes that never share anything but the folder."""
    workers = min(world.config.workers, len(firsts))
    if workers == 1:
        for first in firsts:
            yield _one_shard(world, first, out)
        return
    # A fresh interpreter: a fork of a process with running threads may hang. It gets the catalogue once.
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_hand_over, initargs=(world, out)
    ) as pool:
        for future in as_completed([pool.submit(_next_shard, first) for first in firsts]):
            yield future.result()


_handed: list[tuple[World, Path]] = []


def _hand_over(world: World, out: Path) -> None:
    """Keep in a worker process what all its shards need."""
    _handed[:] = [(world, out)]


def _next_shard(first: int) -> _ShardResult:
    """Run one shard in a worker process."""
    world, out = _handed[0]
    return _one_shard(world, first, out)


def _one_shard(world: World, first: int, out: Path) -> _ShardResult:
    """Simulate the users of one shard, block by block, and write their logs."""
    config = world.config
    last = min(first + config.users_of_shard, config.users)
    step = config.users_of_block
    blocks = [simulate(world, at, min(step, last - at)) for at in range(first, last, step)]
    counts = write_shard(config, world.catalogue, blocks, first // config.users_of_shard, out)
    ages = np.concatenate([block.users.age for block in blocks]).astype(np.int8)
    countries = np.concatenate([block.users.country for block in blocks]).astype(np.int8)
    return first, counts, ages, countries


def _write_world_file(config: SynthConfig, counts: dict[str, int], path: Path) -> None:
    """Write the resolved settings and the counts; workers are left out, they change nothing."""
    settings = dataclasses.asdict(config)
    del settings["workers"]
    settings.update(
        start=config.start.isoformat(),
        effects={effect: config.weight(effect) for effect in EFFECTS},
        ads=config.num_ads,
        items=config.num_items,
        shard_users=config.users_of_shard,
    )
    resolved = {
        "log_days": config.log_days,
        "jump_day": config.jump_day,
        "messaging_day": config.messaging_day,
        "advertisers": config.num_advertisers,
    }
    path.write_text(json.dumps({"config": settings, "resolved": resolved, "counts": counts}, indent=2) + "\n")
