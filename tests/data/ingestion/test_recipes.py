"""The shipped schema files on the real logs that they are for."""

from pathlib import Path

import duckdb
import numpy as np
import pytest

from opengem.data import Dataset, ingest
from opengem.schema import load_schema

RECIPES = Path(__file__).parents[3] / "recipes"


def _ingest(name, out):
    schema = load_schema(RECIPES / name / "schema.toml")
    if not Path(schema.root).is_dir():
        pytest.skip(f"the log of {name} is not at {schema.root}")
    return schema, ingest(schema, out, workers=1)


def test_kuairand_follows_the_published_split(tmp_path):
    schema, made = _ingest("kuairand", tmp_path / "data")
    log = f"{schema.root}/{schema.impressions.path}"
    con = duckdb.connect()
    con.execute(f"CREATE TABLE log AS SELECT DISTINCT * FROM '{log}'")
    splits = {name: stop - start for name, (start, stop) in made.manifest["splits"].items()}
    published = dict(con.execute("SELECT split, count(*) FROM log GROUP BY split").fetchall())
    assert splits["train"] + splits["validation"] == published["val"]
    assert splits["test"] == published["test"]
    assert made.manifest["rows"]["deduplicated"] == 5460
    assert made.manifest["rows"]["quarantined"] == {}
    data = Dataset.open(made.folder)
    test = data.split("test")
    for task in ("is_click", "long_view"):
        ours = float(data.column(f"y_{task}")[test.start : test.stop].sum())
        assert con.execute(f"SELECT sum({task}) FROM log WHERE split = 'test'").fetchall() == [(ours,)]
    # The history of one user's last exposure: `watch_seq`, then all earlier exposures.
    user, last = con.execute(
        "SELECT user_id, max(time_ms) FROM log GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"
    ).fetchall()[0]
    ready = con.execute(
        f"SELECT len(watch_seq) FROM '{schema.root}/user_sequences_to_2022-04-24.parquet' WHERE user_id = {user}"
    ).fetchall()
    earlier = con.execute(
        "SELECT count(*) FROM log WHERE user_id = ? AND time_ms < ?", [user, last]
    ).fetchall()
    (row,) = np.flatnonzero(data.column("time") == last)  # no one else was shown anything at that millisecond
    batch = data.read([int(data.column("request")[row])], 10_000)
    assert batch.num_events() == sum(n for (n,) in ready) + earlier[0][0]


def test_taobao_labels_are_the_purchases_within_a_day(tmp_path):
    schema, made = _ingest("taobao", tmp_path / "data")
    con = duckdb.connect()
    con.execute(
        f"CREATE TABLE log AS SELECT * FROM '{schema.root}/events.parquet' "
        "WHERE timestamp >= 1511539200 AND timestamp < 1512316800"
    )
    credited = con.execute(
        "SELECT count(*) FROM (SELECT DISTINCT v.user_id, v.item_id, max(v.timestamp) AS seen FROM log v JOIN log b "
        "ON v.user_id = b.user_id AND v.item_id = b.item_id AND v.behavior = 'pv' AND b.behavior = 'buy' "
        "AND v.timestamp < b.timestamp GROUP BY v.user_id, v.item_id, b.timestamp "
        "HAVING max(b.timestamp) - seen <= 86400)"
    ).fetchall()
    labels = made.manifest["labels"]["buy"]
    assert (
        labels["events"]
        == 1750
        - con.execute(
            f"SELECT count(*) FROM '{schema.root}/events.parquet' WHERE behavior = 'buy' "
            "AND NOT (timestamp >= 1511539200 AND timestamp < 1512316800)"
        ).fetchall()[0][0]
    )
    assert labels["positives"] == credited[0][0]
    data = Dataset.open(made.folder)
    start, end = made.manifest["splits"]["test"]
    masked = np.isnan(data.column("y_buy"))
    open_at_end = data.column("time") + 86_400_000 > 1_512_316_763_000  # the log's last event
    assert (masked <= open_at_end).all()
    assert (
        masked.sum() == made.manifest["immature"]["buy"] == (open_at_end & (data.column("y_buy") != 1)).sum()
    )
    assert masked[start:end].sum() == 7  # shown in the last minute of the test day
