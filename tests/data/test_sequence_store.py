import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from opengem.data.sequence_store import BucketEvents, length_histogram, write_bucket


def _read(path):
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


_event = st.tuples(*(st.integers(0, 3) for _ in range(4)), st.integers(0, 4))
_requests = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(_event, max_size=20), _requests, st.randoms())
def test_every_history_is_a_prefix_of_the_user(tmp_path_factory, events, requests, random):
    folder = tmp_path_factory.mktemp("bucket")

    def write(rows):
        columns = np.array(rows, np.int64).reshape(-1, 5)
        user, available, time, position, item = columns.T
        asked = np.array(requests, np.int64).reshape(-1, 2)
        made = BucketEvents(user, available, time, position, {"item": item})
        slices = write_bucket(folder, 0, made, asked[:, 0], asked[:, 1])
        return slices, _read(folder / "bucket-00000.arrow"), _read(folder / "users-00000.arrow")

    (start, end), bucket, users = write(events)
    ordered = sorted(events)
    assert bucket["a_item"].to_pylist() == [e[4] for e in ordered]
    assert bucket["a_item"].type == pa.int8()
    assert bucket["time"].to_pylist() == [e[2] for e in ordered]
    for i, (user, now) in enumerate(requests):
        expected = [e for e in ordered if e[0] == user and e[1] < now]
        assert [ordered[k] for k in range(start[i], end[i])] == expected
    owners = {e[0] for e in events}
    assert users["user"].to_pylist() == sorted(owners)
    spans = zip(users["start"].to_pylist(), users["end"].to_pylist(), strict=True)
    assert [{e[0] for e in ordered[a:b]} for a, b in spans] == [{k} for k in sorted(owners)]
    shuffled = list(events)
    random.shuffle(shuffled)
    assert write(shuffled)[1].equals(bucket)


def test_integers_are_as_small_as_they_can_be(tmp_path):
    zero, ones = np.zeros(1, np.int64), np.ones(1, np.float32)
    rows = {f"b{top}": np.array([top]) for top in (127, 128, 32_768)}
    events = BucketEvents(zero, zero, zero, zero, {**rows, "number": ones})
    write_bucket(tmp_path, 3, events, zero, zero)
    kinds = [str(f.type) for f in _read(tmp_path / "bucket-00003.arrow").schema]
    assert kinds == ["int64", "int8", "int16", "int32", "float"]


def test_lengths_are_counted_in_doubling_steps():
    found = length_histogram(np.array([0, 0, 1, 2, 3, 4, 9]))
    assert found == {"edges": [0, 1, 2, 4, 8, 16], "counts": [2, 1, 2, 1, 1]}
    assert length_histogram(np.array([], np.int64)) == {"edges": [0, 1], "counts": [0]}
