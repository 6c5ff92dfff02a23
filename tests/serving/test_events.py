"""A history that is sent, in whatever order, against the one that is stored."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from opengem.data import Dataset
from opengem.data.arrow_sink import write_table
from opengem.schema import parse_schema
from opengem.serving.ads import AdsTable
from opengem.serving.events import EventReader
from tests.data.logs import DAY, T0, Log, rows

ASKED = T0 + 5 * DAY


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Log:
    """Return a log with many events of one moment, most of them of items that the training window does not hold."""
    log = Log(tmp_path_factory.mktemp("ties"))
    random = np.random.default_rng(2)
    log.schema["streams"]["acts"]["attributes"] = ["category", "item", "type"]
    log.schema["splits"] = {"train": ["2026-01-01", "2026-01-01"], "test": ["2026-01-02", "2026-01-31"]}
    log.schema["vocabularies"] = {"item": {"min_count": 2}}
    log.impressions({"ts": T0}, {"ts": ASKED})
    log.write("ads", rows("ads", *({"ad": k, "category": f"c{k % 7}"} for k in range(1, 30))))
    log.events(
        {"item": 4, "ts": T0 - 1},
        {"item": 4, "ts": T0 - 2},
        *(
            {
                "item": int(random.integers(1, 30)),
                "type": str(random.choice(["view", "buy", "new"])),
                "ts": T0 + DAY * d,
            }
            for d in (1, 2, 2, 3)
            for _ in range(20)
        ),
    )
    log.ingest()
    return log


@pytest.mark.parametrize("splits", [("train",), ("test",)])
@pytest.mark.parametrize("history", [1000, 30])
def test_ties_are_ordered_as_they_are_stored_whatever_the_model_knows(log, splits, history, tmp_path):
    data = Dataset.open(log.folder / "out").grown(splits)
    schema = parse_schema(log.schema, log.folder)
    write_table(tmp_path / "ads.arrow", data.ads())
    reader = EventReader(
        schema.streams[0], schema, data.encoder, AdsTable(tmp_path / "ads.arrow"), history, 1000
    )
    sent = pq.read_table(log.folder / "events").to_pydict()
    del sent["user"]
    random = np.random.default_rng(0)
    stored = data.read(np.array([1]), history).history["acts"]
    for _ in range(3):
        order = random.permutation(len(sent["ts"]))
        read, _ = reader.read({name: [values[k] for k in order] for name, values in sent.items()}, ASKED)
        for name, ids in stored.ids.items():
            assert read.ids[name].tolist() == ids.tolist(), name
    known = stored.ids["item"] >= data.encoder.window["item"]
    assert bool(known.any()) == (splits == ("test",))
