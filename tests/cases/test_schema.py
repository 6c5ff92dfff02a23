"""SC01 to SC06: settings that nobody reads, folders, and types that differ from file to file."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opengem.errors import DataError
from tests.cases.inputs import opengem

_RUN = 'data = "nowhere"\n[model]\ntype = "vertical"\n'


@pytest.mark.parametrize(
    ("files", "arguments", "named"),
    [
        (
            {"schema.toml": "[features.ad_id]\nknid = 'id'\n[tables]\n[tasks]\n[splits]\n"},
            ["ingest", "schema.toml"],
            ["features.ad_id.knid", 'did you mean "kind"', "schema.toml line 2"],
        ),
        (
            {"run.toml": f"{_RUN}[training]\nlearning_rat = 0.1\n"},
            ["train", "run.toml"],
            ["training.learning_rat ", 'did you mean "learning_rate"', "run.toml line 5"],
        ),
        (
            {"run.toml": f"{_RUN}[train]\nlearning_rat = 0.1\n"},
            ["train", "run.toml"],
            ["train.learning_rat ", 'did you mean "training.learning_rate"', "run.toml line 5"],
        ),
        (
            {"run.toml": _RUN},
            ["train", "run.toml", "training.lerning_rate=0.1"],
            ["training.lerning_rate ", 'did you mean "learning_rate"', "command line"],
        ),
        (
            {"run.toml": _RUN},
            ["train", "run.toml", "train.lerning_rate=0.1"],
            ["train.lerning_rate ", 'did you mean "training.learning_rate"', "command line"],
        ),
        (
            {"run.toml": f"{_RUN}[trian]\nepochs = 1\n"},
            ["train", "run.toml"],
            ["trian ", 'did you mean "training"', "run.toml line 4"],
        ),
        (
            {"run.toml": 'extends = "below.toml"\ndata = "nowhere"\n', "below.toml": "[model]\ntype='din'\nwdith=8\n"},
            ["train", "run.toml"],
            ["model.wdith", 'did you mean "width"', "below.toml line 3"],
        ),
        (
            {"run.toml": f'{_RUN}[transfer]\nlabels = "l"\n[transfer.method]\ntype = "plain"\nweigt = 1.0\n'},
            ["transfer", "distill", "run.toml"],
            ["transfer.method.weigt", 'did you mean "weight"', "run.toml line 8"],
        ),
    ],
)  # fmt: skip
def test_sc01_a_setting_that_nobody_reads(tmp_path, files, arguments, named):
    # the section of a run file that holds the learning rate is called `training`
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = opengem(*arguments, cwd=tmp_path)
    assert done.exit_code == 2, done.stderr
    for words in named:
        assert words in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(files)  # no run folder, no data set


def test_sc02_partition_folders_that_look_like_numbers(case):
    given = case("sc02_hive_ids.py", own=True)
    given.schema["features"]["campaign"] = {"owner": "ad", "kind": "id"}
    stored = given.ingest()
    assert stored.data.num_examples == 12
    assert stored.vocabulary("campaign") == {"007": 4, "7": 4, "abc": 4}
    assert stored.ids("campaign") == {
        10 * n + k: v for n, v in enumerate(["007", "7", "abc"]) for k in range(4)
    }
    shutil.rmtree(given.folder / "impressions" / "campaign=abc")
    stored = given.ingest()
    assert stored.data.num_examples == 8
    assert stored.vocabulary("campaign") == {"007": 4, "7": 4}


def test_sc02_folders_declared_as_numbers(case):
    given = case("sc02_hive_ids.py", own=True)
    given.schema["features"]["campaign"] = {"owner": "context", "kind": "number"}
    done = given.command()
    assert done.exit_code == 3
    for words in ('"campaign"', '"abc"', "campaign=abc/part-0.parquet", 'clash: "007", "7"', 'kind = "id"'):
        assert words in done.stderr
    given.schema["features"]["campaign"]["cast"] = True  # read as numbers all the same: 007 and 7 are one
    stored = given.ingest()
    assert stored.rows["quarantined"] == {"impressions: number campaign is infinite or unreadable": 4}
    assert set(stored.numbers("campaign").values()) == {7.0}
    shutil.rmtree(given.folder / "impressions" / "campaign=abc")
    del given.schema["features"]["campaign"]["cast"]
    with pytest.raises(DataError, match='clash: "007", "7"'):
        given.ingest()


@pytest.mark.parametrize("order", ["012", "102", "210"])
def test_sc04_types_that_drift_from_file_to_file(case, order):
    given = case("sc04_drift.py", own=True)
    given["impressions"]["path"] = "impressions/*.parquet"
    parts = {k: given.folder / "impressions" / f"part-{k}.parquet" for k in "012"}
    for place, k in enumerate(order):
        parts[k].rename(given.folder / "impressions" / f"in-order-{place}.parquet")
    given.schema["features"]["price"]["optional"] = True
    stored = given.ingest()
    prices = stored.numbers("price")
    wanted = {0: 1, 1: 2, 2: 3, 10: 4.5, 11: 5.5, 12: None, 20: None, 21: None, 22: None}
    assert prices == {k: None if v is None else pytest.approx(v, abs=1e-6) for k, v in wanted.items()}
    del given.schema["features"]["price"]["optional"]
    done = given.command()
    assert done.exit_code == 3
    missing = f"in-order-{order.index('2')}.parquet"
    assert f'{missing} must hold column "price"' in done.stderr


def test_sc04_text_for_a_number(case):
    given = case("sc04_drift.py")
    given["impressions"]["path"] = "impressions_text"
    done = given.command()
    assert done.exit_code == 3
    for words in ("impressions_text/part-1.parquet", '"price"', "must hold numbers", "Received: string"):
        assert words in done.stderr
    given.schema["features"]["price"]["cast"] = True
    stored = given.ingest()
    prices = stored.numbers("price")
    assert prices == {k: pytest.approx(v, abs=1e-6) for k, v in {0: 1, 1: 1, 2: 1, 10: 4.5, 12: 6}.items()}
    assert stored.rows["quarantined"] == {"impressions: number price is infinite or unreadable": 1}
    assert [q["row"] for q in stored.quarantine()] == [1]
    stored.check_balance()


def test_sc05_a_column_that_is_all_null_in_one_file(case):
    found = []
    for swap in (False, True):
        given = case("sc05_null_typed_list.py", own=True)
        given.schema["features"]["tags"] = {"owner": "context", "kind": "ids"}
        if swap:
            folder = given.folder / "impressions"
            (folder / "part-0.parquet").rename(folder / "part-2.parquet")
        stored = given.ingest()
        assert stored.example_ids() == [1, 2, 3, 4]
        assert stored.lists("tags") == {1: [], 2: [], 3: ["x", "y"], 4: []}
        assert set(stored.vocabulary("tags")) == {"x", "y"}
        assert stored.manifest["vocabularies"]["tags"]["missing"] == 2
        found.append(stored.fingerprint)
    assert found[0] == found[1]


def test_sc06_six_spellings_of_a_list(case):
    found = set()
    for name in ("plain", "element_not_null", "other_child_name", "large", "fixed", "dictionary"):
        given = case("sc06_list_spellings.py", name)
        given.schema["features"]["tags"] = {"owner": "ad", "kind": "ids"}
        stored = given.ingest()
        assert stored.vocabulary("tags") == {"a": 2, "b": 3, "c": 1}
        assert stored.lists("tags") == {1: ["a", "b"], 2: ["c", "a"], 3: ["b", "b"]}
        found.add(stored.fingerprint)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())), "map<string, int64"),
        (pa.array([{"a": 1}] * 3), "struct<a: int64>"),
        (pa.array([[["a"]]] * 3), "list<"),
        (pa.array(["a,b"] * 3), "string"),
    ],
)
def test_sc06_a_list_of_a_kind_that_is_not_supported(case, values, words):
    given = case("sc06_list_spellings.py", "plain", own=True)
    given.schema["features"]["tags"] = {"owner": "ad", "kind": "ids"}
    path = given.folder / "impressions.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("tags")
    pq.write_table(table.set_column(place, "tags", values), path)
    done = given.command()
    assert done.exit_code == 3
    for named in ("impressions.parquet", '"tags"', f"Received: {words}", "list, large_list, fixed_size_list"):
        assert named in done.stderr
