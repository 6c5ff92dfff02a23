"""IN01 to IN14: ids, numbers, times, lists and labels of many types; copies, room, unseen and rare ids."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from opengem import evaluate, label, write_report
from opengem.data import Dataset
from opengem.data.columns import numbers
from opengem.evaluation import PredictionTable, evaluate_predictions, read_predictions
from opengem.models.vertical import VerticalConfig
from tests.cases.inputs import DAY, DAYS, T0, Case
from tests.cases.runs import service, tiny_run

BIG = 2**53


def without_histories(given: Case) -> None:
    """Bend a case's schema to the ids of the impressions alone: nothing but the ids tells two examples apart."""
    given.schema["streams"] = {}
    for name in ("country", "category", "price"):
        del given.schema["features"][name]
    for name in ("events", "users", "ads"):
        del given.schema["tables"][name]


def replaced(path, **columns):
    """Write a Parquet file again with other values in some columns."""
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    pq.write_table(table, path)


def test_in01_ids_above_2_to_the_53_in_a_column_with_nulls(case, tmp_path):
    given = case("in01_nullable_ids.py", own=True)
    replaced(given.folder / "impressions.parquet", example_id=pa.array([BIG + k for k in range(4)]))
    stored = given.ingest()
    kept = [BIG, BIG + 1, BIG + 3]
    assert stored.example_ids() == kept
    assert stored.rows["quarantined"] == {
        "events: null key user_id": 1,
        "impressions: null key user_id": 1,
    }
    assert (stored.rows["kept"]["impressions"], stored.rows["kept"]["events"]) == (3, 2)
    stored.check_balance()
    assert stored.ids("user_id") == dict(zip(kept, [str(BIG), str(BIG + 1), str(BIG + 2)], strict=True))
    assert stored.histories() == dict(zip(kept, [["11"], ["22"], []], strict=True))
    run = tiny_run(stored, tmp_path / "run")
    label(run, tmp_path / "labels.parquet", splits=("train",))
    evaluate(run, split="train", replicates=20)
    for path in (tmp_path / "labels.parquet", run / "predictions.train.parquet"):
        written = pq.read_table(path)
        assert written.schema.field("example_id").type == pa.int64()
        assert sorted(written["example_id"].to_pylist()) == kept
        assert len(set(written["user"].to_pylist())) == 3


def test_in02_unsigned_64_bit_hashes(case, tmp_path):
    ids = [18165473391510152529, 2**64 - 1, 2**63, 2**63 - 1, 1, 1]
    given = case("in02_uint64_ids.py")
    without_histories(given)
    stored = given.ingest()
    assert stored.ids("ad_id") == {k + 1: str(i) for k, i in enumerate(ids)}
    assert stored.vocabulary("ad_id") == {str(i): ids.count(i) for i in ids}
    for path in stored.folder.rglob("*"):
        assert not path.is_file() or b"-281270682199399087" not in path.read_bytes()
    run = tiny_run(stored, tmp_path / "run")
    evaluate(run, split="train", replicates=20)
    table = read_predictions(run / "predictions.train.parquet")
    predicted = dict(zip(table.example_id.tolist(), table.predictions["click"].tolist(), strict=True))
    with service(run, tmp_path / "package") as client:
        body = {"time_ms": T0, "surface": "feed", "user": {"user_id": 1}, "ads": [{"ad_id": ids[0]}]}
        answer = client.post("/rank", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["ads"][0]["ad"] == ids[0]
        # nobody clicks in this input, so all probabilities are small: they are told apart by their ratio
        assert answer.json()["ads"][0]["scores"]["click"] == pytest.approx(predicted[1], rel=1e-6)
        unseen = client.post("/rank", json=body | {"ads": [{"ad_id": ids[0] - 1}]})
        assert unseen.json()["ads"][0]["scores"]["click"] != pytest.approx(predicted[1], rel=1e-4)


def test_in03_decimals(case):
    stored = case("in03_decimals.py").ingest()
    digits = "1234567890123456789012345678901234567"
    assert stored.vocabulary("ad_id") == {digits + "8": 2, digits + "9": 2}
    assert stored.ids("ad_id") == {1: digits + "8", 2: digits + "9", 3: digits + "8", 4: digits + "9"}
    assert stored.numbers("price") == {
        1: pytest.approx(19.99, abs=1e-6),
        2: pytest.approx(0.01, abs=1e-6),
        3: None,
        4: pytest.approx(-5.5, abs=1e-6),
    }
    assert stored.encoder.numbers["price"][0] == pytest.approx((19.99 + 0.01 - 5.5) / 3, abs=1e-9)
    assert round(stored.encoder.numbers["price"][0], 4) == 4.8333
    read, _ = numbers(pq.read_table(case("in03_decimals.py").folder / "impressions.parquet")["price"])
    as_float32 = read.to_numpy(zero_copy_only=False).astype(np.float32)
    assert as_float32[0] == np.float32(19.9899998)
    assert as_float32[1] == np.float32(0.01)
    assert np.isnan(as_float32[2])
    assert as_float32[3] == np.float32(-5.5)


@pytest.mark.parametrize(
    ("part", "time"),
    [
        ("int_ms", {"unit": "ms"}),
        ("utc_ms", {"unit": "timestamp"}),
        ("new_york_us", {"unit": "timestamp"}),
        ("text_offset", {"unit": "iso8601"}),
        ("naive_local_ns", {"unit": "timestamp", "zone": "America/New_York"}),
    ],
)
def test_in04_one_pair_of_instants_in_many_spellings(case, part, time):
    given = case("in04_time_zones.py", part)
    given["impressions"]["time"] = {"column": "ts", **time}
    stored = given.ingest()
    assert sorted(stored.data.column("time").tolist()) == [1772953199000, 1772953200000]


@pytest.mark.parametrize("part", ["naive_local_ns", "autumn_naive"])
def test_in04_a_naive_time_is_refused_without_a_zone(case, part):
    given = case("in04_time_zones.py", part)
    given["impressions"]["time"] = {"column": "ts", "unit": "timestamp"}
    done = given.command()
    assert done.exit_code == 3
    for words in ("impressions.parquet", '"ts"', "must carry a zone", "zone ="):
        assert words in done.stderr


def test_in04_an_hour_that_comes_twice(case):
    given = case("in04_time_zones.py", "autumn_naive")
    given["impressions"]["time"] = {"column": "ts", "unit": "timestamp", "zone": "America/New_York"}
    stored = given.ingest()
    assert stored.rows["quarantined"] == {"impressions: unreadable or ambiguous time ts": 1}
    assert "2026-11-01 01:30:00" in stored.quarantine()[0]["content"]
    assert stored.data.column("time").tolist() == [1793520000000]  # 03:00 in New York, in winter again
    stored.check_balance()


def test_in07_dictionary_columns(case):
    wanted = {"explore": 2, "feed": 5, "reels": 4}
    found = set()
    for part, counts in (("plain", wanted), ("dictionary", wanted), ("two_chunks", {"feed": 4, "reels": 4})):
        given = case("in07_dictionaries.py", part)
        given.schema["features"]["surface"] = {"owner": "context", "kind": "id"}
        stored = given.ingest()
        assert stored.vocabulary("surface") == counts
        surfaces = [stored.encoder.surfaces[k - 1] for k in stored.data.column("surface")]
        assert {s: surfaces.count(s) for s in set(surfaces)} == counts
        if part != "two_chunks":
            found.add(stored.fingerprint)
        for name, count in counts.items():
            given["impressions"]["where"] = {"surface": [name]}
            assert given.ingest(f"only-{name}").data.num_examples == count
    assert len(found) == 1


def test_in08_null_list_empty_list_null_inside(case):
    found = set()
    for part in ("", "one_row_groups"):
        given = case("in08_list_nulls.py", part)
        given.schema["features"]["tags"] = {"owner": "context", "kind": "ids"}
        given.schema["features"]["marker"] = {"owner": "context", "kind": "id"}
        stored = given.ingest()
        assert stored.manifest["null_elements"] == {"impressions: tags": 2}
        assert stored.manifest["vocabularies"]["tags"]["missing"] == 1
        bag = stored.batch().bags["tags"]
        by_id = stored.lists("tags")
        assert list(by_id) == [1, 2, 3, 4, 5, 6]
        assert bag.lengths.tolist() == [2, 0, 0, 0, 2, 1]
        assert bag.offsets.tolist() == [0, 2, 2, 2, 2, 4, 5]
        markers = stored.ids("marker")
        assert [markers[k] for k in range(1, 7)] == ["11", None, None, None, "15", "17"]
        assert all(by_id[k][0] == word for k, word in markers.items() if word is not None)
        found.add(stored.fingerprint)
    assert len(found) == 1


def test_in09_one_table_stored_in_seven_ways(case):
    parts = ("default", "no_dictionary", "pages_v2", "delta", "split", "zstd_small_groups", "no_statistics")
    found = []
    for part in parts:
        stored = case("in09_encodings.py", part).ingest()
        assert stored.data.num_examples == 300
        found.append(stored.fingerprint)
    assert len(found) == 7
    assert len(set(found)) == 1
    top = 2**63 - 1
    ids = stored.vocabulary("ad_id")
    assert ids == {str(i): 50 for i in (top, -top, 0, -1, top - 1, 7)}
    assert (top, top - 1) == (9223372036854775807, 9223372036854775806)


def test_in10_labels_that_are_not_0_or_1(case):
    stored = case("in10_labels.py").ingest()
    labels = stored.manifest["labels"]["click"]
    assert (labels["labelled"], labels["positives"], labels["missing"]) == (4, 2, 2)
    assert stored.rows["quarantined"] == {"impressions: label click is not 0, 1 or null": 4}
    assert [json.loads(q["content"])["click"] for q in stored.quarantine()] == [-1.0, 2.0, 0.5, "inf"]
    assert stored.labels() == {1: 0, 2: 1, 6: None, 7: None, 9: 1, 10: 0}
    batch = stored.batch()
    assert batch.label_mask["click"].sum() == 4
    assert stored.data.inputs.tasks[0].base_rate == 0.5
    stored.check_balance()
    data = stored.data
    half = PredictionTable(
        example_id=data.example_ids,
        request=data.column("request"),
        user=data.column("user"),
        surface=np.array(["feed"] * 6),
        time=data.column("time"),
        predictions={"click": np.full(6, 0.5)},
        labels={"click": data.column("y_click")},
    )
    total = evaluate_predictions(half, replicates=20).tasks["click"].total
    assert (total.rows, total.masked) == (4, 2)
    assert total.metrics["ne"].value == pytest.approx(1.0, abs=1e-12)


def test_in11_rows_logged_twice_and_once_differently(case):
    given = case("in11_double_rows.py", own=True)
    del given["impressions"][
        "key"
    ]  # the script numbers requests by row: read, they would tell the copies apart
    check_in11(given.ingest())
    given["impressions"]["key"] = "request_id"
    told_apart = given.ingest()
    assert told_apart.rows["quarantined"] == {"impressions: example_id repeated with different content": 4}
    assert told_apart.example_ids() == [3]
    told_apart.check_balance()
    path = given.folder / "impressions.parquet"
    replaced(path, request_id=pq.read_table(path)["example_id"])
    check_in11(given.ingest())


def check_in11(stored):
    assert stored.example_ids() == [1, 3]
    assert stored.labels() == {1: 1, 3: 0}
    assert stored.rows["read"]["impressions"] == 5
    assert stored.rows["kept"]["impressions"] == 2
    assert stored.rows["copies"]["impressions"] == 1
    assert stored.rows["quarantined"] == {"impressions: example_id repeated with different content": 2}
    stored.check_balance()


@pytest.mark.slow
def test_in12_one_row_group_of_20_million_rows_in_little_memory(case, capsys):
    given = case("in12_one_big_row_group.py")
    for name in ("country", "category", "price"):
        del given.schema["features"][name]
    small = ("--memory", "512MB")
    no_room = (*small, "--temporary-limit", "50MB", "--temporary-folder", given.out)
    done, peak = ingest_in_a_process(given, *no_room)
    assert done.returncode == 3, done.stderr
    for words in ("memory_limit = 512MB", f"temporary_folder = {given.out}", "temporary_limit = 50MB"):
        assert words in done.stderr
    assert "raise memory_limit or temporary_limit, or set temporary_folder" in done.stderr
    assert not (given.out / "dataset").exists()
    done, peak = ingest_in_a_process(given, *small)
    assert done.returncode == 0, done.stderr
    assert "nothing to do" not in done.stdout
    manifest = json.loads((given.out / "dataset" / "manifest.json").read_text())
    assert manifest["counts"]["events"] == {"acts": 20_000_000}
    assert manifest["counts"]["users"] <= 1_000_003
    data = Dataset.open(given.out / "dataset")
    last = data.num_requests - 1
    batch = data.read(np.array([last]), 1000)
    user = int(data.column("user_key")[data.num_examples - 1])
    k = np.arange(20_000_000, dtype=np.int64)
    k = k[k * 2654435761 % 1_000_003 == user]
    times = np.sort(T0 + k * 7919 % (3 * DAY))
    assert batch.history["acts"].times.tolist() == times[times < int(batch.request_time[0])].tolist()
    assert len(k) in (19, 20, 21)
    with capsys.disabled():
        print(f"\nIN12: peak resident memory {peak:,} MB at a memory setting of 512 MB")
    assert (
        peak < 1_500
    )  # the setting is that of sorting and joining; the process itself and its reader come on top


def ingest_in_a_process(given: Case, *arguments):
    """Run `opengem ingest` in a process of its own; return how it ended, and its peak resident memory in MB."""
    files = ("ingest", given.write_schema(), "--root", given.folder, "--out", given.out / "dataset")
    code = (
        "import resource, sys; from opengem.cli.app import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    command = [sys.executable, "-c", code, *map(str, files), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return done, int(done.stdout.split()[-1])


def test_in13_unseen_ids_share_one_row(case, tmp_path):
    given = case("in13_unseen_ids.py")
    without_histories(given)
    given.schema["splits"] = DAYS | {"validation": ["2026-01-03", "2026-01-03"]}
    del given.schema["splits"]["validation"]
    stored = given.ingest()
    test = stored.data.split("test")
    ads = stored.ids("ad_id")
    unseen = [int(k) for k in stored.data.example_ids[test.start : test.stop] if ads[int(k)] == "?"]
    assert len(test) == 5
    assert unseen == [23, 24, 25]
    for name, rows in stored.batch().ids.items():
        assert rows.max() < stored.data.inputs.table_rows(name)  # never the row behind the table
    run = tiny_run(stored, tmp_path / "run", max_steps=0, epochs=5, batch_size=4)
    evaluate(run, split="test", replicates=20)
    table = read_predictions(run / "predictions.parquet")
    by_id = dict(zip(table.example_id.tolist(), table.predictions["click"].tolist(), strict=True))
    assert by_id[23] == by_id[24] == by_id[25]
    assert json.loads((run / "eval.json").read_text())["coverage"]["unseen"] == {"user_id": 3, "ad_id": 3}
    assert "ad_id in 3 of 5 rows" in write_report(run).read_text()
    evaluate(run, split="train", replicates=20)
    train = read_predictions(run / "predictions.train.parquet")
    known = dict(zip(train.example_id.tolist(), train.predictions["click"].tolist(), strict=True))
    assert known[4] != by_id[23]  # (5, 5)
    with service(run, tmp_path / "package") as client:
        scores = {}
        for k in (4, 5, 7, 8):
            body = {"time_ms": T0, "surface": "feed", "user": {"user_id": k}, "ads": [k]}
            answer = client.post("/rank", json=body)
            assert answer.status_code == 200, answer.text
            scores[k] = answer.json()["ads"][0]["scores"]["click"]
        assert scores[4] == scores[7] == scores[8]
        assert scores[5] != scores[4]
        assert scores[4] == pytest.approx(by_id[23], abs=1e-6)


def test_in14_missing_rare_and_padding_are_told_apart(case):
    given = case("in14_missing_and_rare.py")
    given.schema["vocabularies"] = {"ad_id": {"limit": 2}}
    stored = given.ingest()
    assert stored.vocabulary("ad_id") == {"1": 10, "3": 10}
    counted = stored.manifest["vocabularies"]["ad_id"]
    assert (counted["ids"], counted["seen"], counted["rare_ids"], counted["rare"], counted["missing"]) == (
        2, 20, 1, 5, 5,
    )  # fmt: skip
    found = list(stored.ids("ad_id").values())
    assert {word: found.count(word) for word in set(found)} == {"1": 10, "3": 10, "?": 5, None: 5}
    model = VerticalConfig(width=4, heads=1, layers=(8,), dropout=0.0, history=20).build(stored.data.inputs)
    batch = stored.batch(20)
    weights = model.train().arch.tables.weights["@ad_id"]
    assert len(weights) == 2 + 2  # missing, rare or unseen, and the two ids

    def gradient(examples):
        model.zero_grad()
        model(batch).logits_BT[examples].square().sum().backward()
        return weights.grad.to_dense()

    missing = batch.ids["ad_id"] == 0
    assert missing.sum() == 5
    assert torch.count_nonzero(gradient(~missing)[0]) == 0  # nothing but the five: no padding, no rare id
    assert torch.allclose(gradient(missing)[0], gradient(torch.ones(30, dtype=torch.bool))[0], atol=1e-7)
    assert torch.count_nonzero(gradient(missing)[0]) > 0
    assert torch.count_nonzero(gradient(missing)[1:]) == 0
