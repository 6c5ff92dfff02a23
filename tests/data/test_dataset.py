import json
import math
import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opengem.data.arrow_file import ArrowFile, rows_of_slices
from opengem.data.dataset import Dataset
from opengem.data.packing import pack, unpack
from opengem.errors import ConfigError, DataError
from tests.data import hand_made


@pytest.fixture(scope="module", params=[None, 4], ids=["one piece", "record batches of 4"])
def dataset(request, tmp_path_factory):
    return Dataset.open(hand_made.write(tmp_path_factory.mktemp("hand"), request.param))


def expected(requests: list[int], history: dict[str, int]) -> dict:
    """What a batch must hold, by plain loops over the hand-made rows."""
    table, users, ads = hand_made.examples(), hand_made.USERS, hand_made.ADS
    rows = [i for r in requests for i in range(hand_made.EXAMPLES) if table["request"][i] == r]
    user_rows = [hand_made.requests()["user_row"][r] for r in requests]
    ad_rows = [table["ad_row"][i] for i in rows]
    activity = hand_made.requests()["f_activity"]
    streams = {}
    for name, longest in history.items():
        kept = [hand_made.visible(name, r) for r in requests]
        streams[name] = [events[max(0, len(events) - longest) :] for events in kept]
    return {
        "rows": rows,
        "city": [users["f_city"][u] for u in user_rows],
        "likes": [users["f_likes"][u] for u in user_rows],
        "age": [users["f_age"][u] for u in user_rows],
        "activity": [activity[r] for r in requests],
        "video": [ads["f_video"][a] for a in ad_rows],
        "tags": [ads["f_tags"][a] for a in ad_rows],
        "look": [ads["f_look"][a] for a in ad_rows],
        "price": [table["f_price"][i] for i in rows],
        "hour": [table["f_hour"][i] for i in rows],
        "request_of_example": [requests.index(table["request"][i]) for i in rows],
        "streams": streams,
    }


def check(batch, requests: list[int], history: dict[str, int]) -> None:
    want = expected(requests, history)
    table = hand_made.examples()
    for name in ("city", "video", "hour"):
        assert batch.ids[name].tolist() == want[name]
        assert batch.ids[name].dtype == torch.int64
    for name in ("likes", "tags"):
        assert batch.bags[name].to_list() == want[name]
    for name in ("age", "activity", "price"):
        assert batch.numbers[name].tolist() == [0.0 if math.isnan(x) else x for x in want[name]]
        assert batch.missing[name].tolist() == [float(math.isnan(x)) for x in want[name]]
    assert batch.vectors["look"].tolist() == want["look"]
    assert batch.request_of_example.tolist() == want["request_of_example"]
    assert batch.request_time.tolist() == [hand_made.requests()["time"][r] for r in requests]
    for name in ("surface", "time", "example_id"):
        assert getattr(batch, name).tolist() == [table[name][i] for i in want["rows"]]
        assert getattr(batch, name).dtype == torch.int64
    for task in ("click", "buy"):
        labels = [table[f"y_{task}"][i] for i in want["rows"]]
        assert batch.labels[task].tolist() == [0.0 if math.isnan(y) else y for y in labels]
        assert batch.label_mask[task].tolist() == [float(not math.isnan(y)) for y in labels]
    assert batch.weight.tolist() == [1.0] * len(want["rows"])
    for stream, histories in want["streams"].items():
        check_history(batch.history[stream], histories)


def check_history(history, want: list[list[dict]]) -> None:
    flat = [event for events in want for event in events]
    assert history.offsets.tolist() == np.cumsum([0, *map(len, want)]).tolist()
    assert history.times.tolist() == [e["time"] for e in flat]
    for name, values in history.ids.items():
        assert values.tolist() == [e[f"a_{name}"] for e in flat]
        assert values.dtype == torch.int64
    for name, values in history.numbers.items():
        plays = [e[f"a_{name}"] for e in flat]
        assert values.tolist() == [0.0 if math.isnan(p) else p for p in plays]


@pytest.mark.parametrize("history", [{"watched": 100, "bought": 100}, {"watched": 3, "bought": 1}])
def test_every_request_reads_as_the_rows_that_were_written(dataset, history):
    requests = list(range(hand_made.REQUESTS))
    check(dataset.read(np.array(requests), history), requests, history)


@given(st.lists(st.integers(0, hand_made.REQUESTS - 1), unique=True), st.integers(0, 10), st.integers(0, 10))
def test_any_requests_in_any_order(requests, watched, bought):
    history = {"watched": watched, "bought": bought}
    for folder in _FOLDERS:
        check(Dataset.open(folder).read(np.array(requests, dtype=np.int64), history), requests, history)


_FOLDERS = []


@pytest.fixture(scope="module", autouse=True)
def _folders(tmp_path_factory):
    _FOLDERS.extend(hand_made.write(tmp_path_factory.mktemp("any"), rows) for rows in (None, 3))
    yield
    _FOLDERS.clear()


def test_history_zero_and_users_without_events(dataset):
    batch = dataset.read(np.arange(hand_made.REQUESTS), 0)
    assert batch.num_events() == 0
    assert batch.history["watched"].offsets.tolist() == [0] * (hand_made.REQUESTS + 1)
    silent = dataset.read(np.array([3, 8]), 50)  # user 2 watched nothing and bought three
    assert silent.history["watched"].times.shape == (0,)
    assert silent.history["bought"].offsets.tolist() == [0, 3, 6]


def test_extras_follow_the_examples(dataset):
    teacher = np.linspace(0, 1, hand_made.EXAMPLES, dtype=np.float32)
    batch = dataset.read(np.array([6, 0]), 1, {"teacher": teacher})
    rows = [*range(14, 18), *range(3)]
    assert batch.extras["teacher"].tolist() == teacher[rows].tolist()
    with pytest.raises(ConfigError, match=r'extras\["teacher"\] must hold one value for each of the 27'):
        dataset.read(np.array([0]), 1, {"teacher": teacher[:5]})


def test_columns_splits_and_facts(dataset):
    assert dataset.num_examples == hand_made.EXAMPLES
    assert dataset.example_ids.tolist() == hand_made.examples()["example_id"]
    assert dataset.column("ad_key").tolist() == hand_made.examples()["ad_key"]
    assert dataset.split("validation") == range(14, 20)
    assert dataset.requests_of_split("validation") == range(6, 8)
    assert len(dataset.requests_of_split("empty")) == 0
    assert dataset.schema_fingerprint == "f00d"
    assert dataset.inputs == hand_made.INPUTS


def test_a_column_in_one_piece_is_not_copied(tmp_path):
    dataset = Dataset.open(hand_made.write(tmp_path))
    assert not dataset.column("time").flags.owndata
    assert dataset.column("time") is dataset.column("time")


def test_it_crosses_processes_by_its_folder(dataset):
    again = pickle.loads(pickle.dumps(dataset))
    assert again.folder == dataset.folder
    check(again.read(np.array([2, 5]), 4), [2, 5], {"watched": 4, "bought": 4})


def test_wrong_arguments_say_what_must_hold(dataset):
    with pytest.raises(ConfigError, match=r'"wacthed" is not a stream \(did you mean "watched"\?\)'):
        dataset.read(np.array([0]), {"wacthed": 3})
    with pytest.raises(ConfigError, match='"bought" is left out'):
        dataset.read(np.array([0]), {"watched": 3})
    with pytest.raises(ConfigError, match=r"must be 0 or more\. Received: -1"):
        dataset.read(np.array([0]), -1)
    with pytest.raises(ConfigError, match=r"requests must lie in \[0, 12\)"):
        dataset.read(np.array([12]), 1)
    with pytest.raises(ConfigError, match=r'did you mean "train"'):
        dataset.split("trian")
    with pytest.raises(DataError, match=r'did you mean "time"'):
        dataset.column("tmie")


def test_a_split_that_cuts_a_request_is_refused(tmp_path):
    dataset = Dataset.open(hand_made.write(tmp_path))
    dataset.manifest["splits"]["train"] = [0, 5]
    with pytest.raises(DataError, match="must begin and end between requests"):
        dataset.requests_of_split("train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "must be of format 3"),
        ({"inputs": {"tables": 3}}, "damaged"),
        ({"files": {"ads.arrow": {"bytes": 1}}}, "must have 1 bytes"),
        ({"files": {"gone.arrow": {"bytes": 1}}}, "no such file"),
    ],
)
def test_a_damaged_data_set_is_refused(tmp_path, change, message):
    folder = hand_made.write(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(DataError, match=message):
        Dataset.open(folder)


def test_an_unfinished_data_set_is_refused(tmp_path):
    (hand_made.write(tmp_path) / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"no manifest\.json"):
        Dataset.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        Dataset.open(tmp_path)


def test_a_file_that_is_not_arrow_is_refused(tmp_path):
    path = tmp_path / "ads.arrow"
    with pytest.raises(DataError, match="is missing"):
        ArrowFile(path)
    path.write_bytes(b"not an arrow file at all")
    with pytest.raises(DataError, match="must be an Arrow IPC file"):
        ArrowFile(path)


def test_nulls_in_files(tmp_path):
    path = tmp_path / "x.arrow"
    lists = pa.array([[1], None, [2, 3]], pa.list_(pa.int32()))
    vectors = pa.array([[1.0], None, [2.0]], pa.list_(pa.float32(), 1))
    table = pa.table({"ids": pa.array([1, None, 2], pa.int32()), "lists": lists, "vectors": vectors})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    file = ArrowFile(path)
    values, lengths = file.column("lists").gather_lists(np.array([2, 1, 0]))
    assert (values.tolist(), lengths.tolist()) == ([2, 3, 1], [2, 0, 1])
    assert file.column("vectors").gather(np.array([0, 1, 2])).tolist() == [[1.0], [0.0], [2.0]]
    with pytest.raises(DataError, match=r'column "ids" of x\.arrow must hold no nulls'):
        file.column("ids").gather(np.array([0]))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=20))
def test_rows_of_slices_against_ranges(slices):
    starts = np.array([s for s, _ in slices], dtype=np.int64)
    lengths = np.array([n for _, n in slices], dtype=np.int64)
    want = [i for s, n in slices for i in range(s, s + n)]
    assert rows_of_slices(starts, lengths).tolist() == want


def test_a_packed_batch_is_the_same_batch(dataset):
    batch = dataset.read(np.array([2, 3]), 5, {"teacher": np.arange(27) * 0.5})
    packed = pack(batch)
    assert packed.block.dim() == 1
    again = unpack(packed)
    check(again, [2, 3], {"watched": 5, "bought": 5})
    assert again.extras["teacher"].dtype == torch.float64
    assert torch.equal(again.extras["teacher"], batch.extras["teacher"])


@pytest.mark.parametrize(
    "name", ["examples.arrow", "requests.arrow", "ads.arrow", "sequences/watched/bucket-00001.arrow"]
)
def test_a_flipped_byte_is_found_and_named(tmp_path, name):
    folder = hand_made.write(tmp_path)
    Dataset.open(folder, verify=True)
    path = next(
        p for p in sorted(folder.rglob("*.arrow")) if str(p.relative_to(folder)) == name or p.match(name)
    )
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path.name} must have the checksum"):
        Dataset.open(folder, verify=True)
