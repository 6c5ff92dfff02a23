"""Slices of memory-mapped columns, against Python lists."""

import numpy as np
import pyarrow as pa
import pytest

from opengem.data import arrow_file
from opengem.data.arrow_file import ArrowFile

ROWS = 1_000
COLUMNS = {
    "tiny": np.arange(ROWS).astype(np.int8),
    "time": np.arange(ROWS) + 1_700_000_000_000,
    "price": np.where(np.arange(ROWS) % 7, np.arange(ROWS) / 3, np.nan).astype(np.float32),
}
TYPES = {"tiny": np.int64, "time": np.int64, "price": np.float32}


def written(path, batches: list[int]) -> ArrowFile:
    """Return a file of the columns in record batches of these numbers of rows."""
    table = pa.table(COLUMNS)
    first = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for rows in batches:
            writer.write_table(table.slice(first, rows))
            first += rows
    assert first == ROWS
    return ArrowFile(path)


@pytest.mark.parametrize("batches", [[ROWS], [1, 0, 499, 500], [10] * 100])
@pytest.mark.parametrize("long", [1, 10**9], ids=["one by one", "by row number"])
@pytest.mark.parametrize("seed", range(4))
def test_slices_are_copied_to_their_places_and_nowhere_else(tmp_path, monkeypatch, batches, long, seed):
    monkeypatch.setattr(arrow_file, "LONG_SLICE", long)
    random = np.random.default_rng(seed)
    starts = random.integers(0, ROWS, 30)
    lengths = np.array([random.integers(0, ROWS - s + 1) for s in starts])
    starts, lengths = np.append(starts, [ROWS, 0]), np.append(lengths, [0, ROWS])
    gaps = random.integers(0, 3, len(starts))
    places = np.cumsum(lengths + gaps) - lengths  # with places between that nothing is copied to
    total = int(lengths.sum() + gaps.sum()) + 2
    out = {name: np.full(total, -5, kind) for name, kind in TYPES.items()}
    written(tmp_path / "file.arrow", batches).copy_slices(starts, lengths, out, places)
    for name, column in COLUMNS.items():
        want = [-5] * total
        for start, length, place in zip(starts, lengths, places, strict=True):
            want[place : place + length] = column[start : start + length].tolist()
        np.testing.assert_array_equal(out[name], np.array(want, TYPES[name]))


def test_no_slices_copy_nothing(tmp_path):
    nothing, out = np.empty(0, np.int64), {"tiny": np.array([3])}
    written(tmp_path / "file.arrow", [ROWS]).copy_slices(nothing, nothing, out, nothing)
    assert out["tiny"].tolist() == [3]
