from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opengem.errors import CheckFailed, DataError
from opengem.evaluation import read_predictions, write_predictions
from opengem.evaluation.predictions import to_arrow


def test_round_trip_keeps_every_bit(table, tmp_path):
    big = replace(table, example_id=table.example_id + 2**62)
    big.predictions["click"] = big.predictions["click"].astype(np.float64)
    back = read_predictions(write_predictions(big, tmp_path / "new" / "predictions.parquet"))
    for name in ("example_id", "request", "user", "time", "surface"):
        assert np.array_equal(getattr(back, name), getattr(big, name)), name
    for task in big.tasks:
        assert back.predictions[task].dtype == big.predictions[task].dtype
        assert np.array_equal(back.predictions[task], big.predictions[task])
        assert np.array_equal(back.labels[task], big.labels[task], equal_nan=True)
    assert (back.model, back.schema_fingerprint, back.split) == ("model", "abc123", "test")
    assert back.tasks == ["click", "like"]


def test_the_file_has_the_columns_and_nulls_that_others_read(table, tmp_path):
    found = pq.read_table(write_predictions(table, tmp_path / "p.parquet"))
    kinds = {field.name: str(field.type) for field in found.schema}
    assert kinds == {
        "example_id": "int64",
        "request": "int64",
        "user": "int64",
        "surface": "string",
        "time": "int64",
        "p_click": "float",
        "y_click": "float",
        "p_like": "float",
        "y_like": "float",
    }
    assert found["y_like"].null_count == int(np.isnan(table.labels["like"]).sum()) > 0
    assert found.schema.metadata[b"opengem.model"] == b"model"


def test_a_failed_write_leaves_the_old_file_and_no_other(table, tmp_path, monkeypatch):
    path = write_predictions(table, tmp_path / "p.parquet")
    before = path.read_bytes()

    def broken(*_args, **_kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", broken)
    with pytest.raises(OSError, match="disk full"):
        write_predictions(table.take(np.arange(5)), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["p.parquet"]


def test_surface_codes_are_sorted_and_right(table):
    names, codes = table.surface_codes()
    assert names == ["explore", "feed", "reels"]
    assert np.array_equal(np.array(names)[codes], table.surface)


def test_rows_leave_out_masked_labels(table):
    rows = table.rows("like")
    kept = ~np.isnan(table.labels["like"])
    assert np.array_equal(rows.labels, table.labels["like"][kept])
    assert np.array_equal(rows.predictions, table.predictions["like"][kept].astype(np.float64))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.5, 1.25])
def test_a_prediction_that_is_no_probability_names_task_count_and_example(table, bad):
    table.predictions["click"][[3, 8]] = bad
    with pytest.raises(
        CheckFailed, match=rf'task "click".*2 of 3000.*first: {bad} for example_id 8 by model'
    ):
        table.rows("click")
    assert len(table.rows("like").labels)


def test_a_label_of_two_names_the_task(table):
    table.labels["click"][0] = 2
    with pytest.raises(DataError, match=r'task "click": labels must be 0 or 1.*1 of 3000'):
        table.rows("click")


def test_wrong_tables_are_refused(table):
    with pytest.raises(DataError, match=r"example_id must be unique.*1 repeated rows; first id: 6"):
        table.take(np.array([0, 1, 1]))
    with pytest.raises(DataError, match=r"same tasks.*\['click', 'like'\] and \['click'\]"):
        replace(table, labels={"click": table.labels["click"]})
    with pytest.raises(DataError, match=r"3000 rows.*'user': \(7,\)"):
        replace(table, user=table.user[:7])
    with pytest.raises(DataError, match=r'column "user".*fit int64.*float64'):
        replace(table, user=table.user.astype(float))
    with pytest.raises(DataError, match=r'column "user".*fit int64.*uint64'):
        replace(table, user=table.user.astype(np.uint64))
    assert replace(table, user=table.user.astype(np.int32)).user.dtype == np.int64


def test_wrong_files_are_refused(table, tmp_path):
    with pytest.raises(DataError, match="must be a Parquet file"):
        read_predictions(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(DataError, match="must be a Parquet file"):
        read_predictions(tmp_path / "text.parquet")
    arrow = to_arrow(table)
    cases = {
        r"Missing: \['y_like'\]": arrow.drop_columns("y_like"),
        r"Missing: \['p_TASK'\]": arrow.select(["example_id", "request", "user", "surface", "time"]),
        '"surface".*no null.*3000': arrow.set_column(3, "surface", pa.nulls(3000, pa.string())),
        '"user".*must be int64.*uint64': arrow.set_column(2, "user", arrow["user"].cast(pa.uint64())),
    }
    for message, wrong in cases.items():
        pq.write_table(wrong, tmp_path / "wrong.parquet")
        with pytest.raises(DataError, match=message):
            read_predictions(tmp_path / "wrong.parquet")
