"""The life of a data set: nothing done twice, nothing half done, nothing lost when killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tomli_w

from opengem.data import Dataset, ingest
from opengem.data.ingestion import run
from opengem.data.storage import times_smaller
from opengem.errors import ConfigError, DataError
from tests.data.logs import T0, Log, rows


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "log")
    log.impressions(*({"user": k % 7, "ad": k % 3, "ts": T0 + k} for k in range(40)))
    log.events(*({"user": k % 7, "item": k % 5, "ts": T0 + k % 31} for k in range(60)))
    return log


def test_a_second_ingest_does_nothing(log):
    first = log.ingest()
    before = {p: p.stat().st_mtime_ns for p in first.folder.rglob("*")}
    again = log.ingest()
    assert (first.fresh, again.fresh) == (True, False)
    assert {p: p.stat().st_mtime_ns for p in first.folder.rglob("*")} == before
    source = log.folder / "events" / "part-0.parquet"
    os.utime(source, ns=(1, 1))  # touched, not changed
    assert not log.ingest().fresh


def test_a_change_of_data_schema_or_output_is_seen(log):
    first = log.ingest()
    log.impressions({"user": 1, "ts": T0 - 5}, part="late")
    second = log.ingest()
    assert second.fresh
    assert second.manifest["counts"]["examples"] == first.manifest["counts"]["examples"] + 1
    assert second.manifest["data_fingerprint"] == log.ingest("other").manifest["data_fingerprint"]
    log.schema["splits"]["train"] = ["2026-01-01", "2026-06-30"]
    assert log.ingest().fresh
    (second.folder / "requests.arrow").write_bytes(b"cut")
    assert log.ingest().fresh


def test_the_manifest_tells_what_is_there(log):
    stored = log.ingest()
    manifest = json.loads((stored.folder / "manifest.json").read_text())
    assert manifest == stored.manifest
    assert manifest["counts"] == {
        "examples": 40,
        "requests": 40,
        "users": 7,
        "ads": 1,
        "events": {"acts": 60},
    }
    files = {str(p.relative_to(stored.folder)) for p in stored.folder.rglob("*") if p.is_file()}
    assert set(manifest["files"]) == files - {"manifest.json"}
    lengths = [len(h) for h in stored.items()]
    counted = manifest["history_lengths"]["acts"]
    assert sum(counted["counts"]) == 40
    assert counted["counts"][0] == lengths.count(0)
    size = sum(f.stat().st_size for f in (stored.folder / "sequences" / "acts").iterdir())
    assert manifest["storage"]["bytes_store"] == size
    # an event is its time, 8 bytes, and an item of few and a type, 1 byte each
    assert manifest["storage"]["bytes_copied_estimate"] == sum(lengths) * 10
    rows = sum((stored.folder / f"{name}.arrow").stat().st_size for name in ("examples", "requests"))
    assert times_smaller(manifest["storage"]) == (sum(lengths) * 10 + rows) / (size + rows)


def test_the_loader_reads_it(log):
    data = Dataset.open(log.ingest().folder)
    assert (data.num_examples, data.inputs.ad_feature) == (40, "ad")
    assert data.inputs.table_rows("item") == 2 + 5
    batch = data.read(list(range(40)), 4)
    assert batch.history["acts"].offsets[-1] == sum(min(len(h), 4) for h in log.ingest().items())


def test_buckets_hold_the_same_histories(log, monkeypatch):
    one = log.ingest("one")
    monkeypatch.setattr(run, "BYTES_PER_EVENT", 50 << 20)  # as if events were huge
    many = log.ingest("many")
    assert many.manifest["segments"][0]["buckets"] == 4
    assert many.items() == one.items()
    assert many.column("f_ad") == one.column("f_ad")


def test_what_is_no_data_set_is_not_replaced(log, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"x")
    with pytest.raises(ConfigError, match="photos"):
        log.ingest(str(tmp_path / "photos"))
    assert (tmp_path / "photos" / "a.jpg").read_bytes() == b"x"


def test_a_failed_ingest_leaves_the_old_one_and_no_litter(log):
    old = log.ingest().manifest
    log.write("events", rows("events", {"ts": "soon"}), "bad")
    with pytest.raises(DataError, match=r"bad\.parquet"):
        log.ingest()
    assert json.loads((log.folder / "out" / "manifest.json").read_text()) == old
    assert not [p for p in log.folder.iterdir() if p.name.startswith(".")]


def test_a_killed_ingest_leaves_the_old_one_whole(log):
    old = log.ingest()
    log.events(*({"user": k % 7, "item": k, "ts": T0 + k} for k in range(100_000)))
    (log.folder / "schema.toml").write_text(tomli_w.dumps(log.schema))
    code = (
        "import sys; from opengem.data import ingest\n"
        "def tell(stage, done, total): print(stage, flush=True)\n"
        "ingest(sys.argv[1], sys.argv[2], workers=1, progress=tell)"
    )
    command = [sys.executable, "-c", code, str(log.folder / "schema.toml"), str(log.folder / "out")]
    for stage in ("sequences", "manifest"):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == stage:
                    process.send_signal(signal.SIGKILL)
                    break
            process.wait()
        assert json.loads((old.folder / "manifest.json").read_text()) == old.manifest
        Dataset.open(old.folder)
    assert [p for p in log.folder.iterdir() if ".ingest-" in p.name]
    assert log.ingest().manifest["counts"]["events"] == {"acts": 100_000}
    assert not [p for p in log.folder.iterdir() if ".ingest-" in p.name]


def test_a_lack_of_room_names_the_limits(log):
    log.events(*({"user": k % 999, "item": k, "ts": T0 + k} for k in range(200_000)))
    with pytest.raises(DataError, match="temporary_limit = 1MB") as error:
        log.ingest(memory_limit="20MB", temporary_limit="1MB")
    assert "memory_limit = 20MB" in str(error.value)
    assert log.ingest().fresh
    with pytest.raises(ConfigError, match="memory_limit"):
        log.ingest("other", memory_limit="much")


def test_stages_are_told_in_order(log):
    told: list[tuple[str, int, int | None]] = []
    log.ingest(progress=lambda *step: told.append(step))
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages == ["read", "order", "statistics", "users and ads", "sequences", "examples", "manifest"]
    assert told[-2][1:] == (40, 40)


def test_importing_ingest_and_the_encoder_stays_light():
    code = "import sys; from opengem.data import Encoder, ingest; assert not {'torch', 'duckdb'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_schema_file_will_do(log):
    path = log.folder / "schema.toml"
    path.write_text(tomli_w.dumps(log.schema))
    result = ingest(path, log.folder / "out", workers=1)
    assert (result.folder / "schema.toml").read_text() == path.read_text()
    assert pq.read_table(result.folder / "quarantine.parquet").num_rows == 0
    assert isinstance(result.folder, Path)
    assert time.time() - (result.folder / "manifest.json").stat().st_mtime < 60
