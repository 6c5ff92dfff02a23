"""Tables written one after another come back as one, in record batches of at least the size asked for."""

import pyarrow as pa
import pytest

from opengem.data.arrow_file import ArrowFile
from opengem.data.arrow_sink import ArrowSink

SCHEMA = pa.schema([("n", pa.int64())])


def batches(path, *lengths, piece_rows):
    first = 0
    with ArrowSink(path, SCHEMA, piece_rows) as sink:
        for length in lengths:
            sink.add(pa.table({"n": range(first, first + length)}, schema=SCHEMA))
            first += length
    with pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_file(file)
        return [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([3, 1, 2, 5, 1], [4, 7, 1]), ([4], [4]), ([], [0]), ([0, 0], [0]), ([2, 2, 0], [4]), ([9], [9])],
)
def test_pieces_wait_for_their_size(tmp_path, lengths, expected):
    path = tmp_path / "out.arrow"
    assert batches(path, *lengths, piece_rows=4) == expected
    assert ArrowFile(path).column("n").values.tolist() == list(range(sum(lengths)))
