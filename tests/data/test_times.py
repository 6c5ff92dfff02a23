import datetime as dt
import os
import time

import pyarrow as pa
import pytest

from opengem.data.times import read_times
from opengem.errors import ConfigError, DataError
from opengem.schema import TimeColumn

A, B = 1_772_953_199_000, 1_772_953_200_000  # one second apart, across the spring clock change of New York
LOCAL = [dt.datetime(2026, 3, 8, 1, 59, 59), dt.datetime(2026, 3, 8, 3, 0, 0)]


def _read(column, unit="ms", zone=""):
    values, bad = read_times(column, TimeColumn(column="t", unit=unit, zone=zone))
    return values.to_pylist(), bad.tolist()


@pytest.mark.parametrize(
    ("column", "unit", "zone"),
    [
        (pa.array([A, B]), "ms", ""),
        (pa.array([A // 1000, B // 1000], pa.uint32()), "s", ""),
        (pa.array([A / 1000, B / 1000]), "s", ""),
        (pa.array([A * 1000 + 999, B * 1000]), "us", ""),
        (pa.array([A * 10**6, B * 10**6]), "ns", ""),
        (pa.array([A, B], pa.timestamp("ms", "UTC")), "timestamp", ""),
        (pa.array([A * 1000, B * 1000], pa.timestamp("us", "America/New_York")), "timestamp", ""),
        (pa.array(LOCAL, pa.timestamp("ns")), "timestamp", "America/New_York"),
        (pa.array(["2026-03-08T01:59:59-05:00", "2026-03-08 03:00:00.0009-0400"]), "iso8601", ""),
        (pa.array(["2026-03-08T01:59:59", "2026-03-08T03:00"]), "iso8601", "America/New_York"),
        (pa.array(["2026-03-08T06:59:59Z", "2026-03-08T15:00:00+08:00"]).dictionary_encode(), "iso8601", ""),
    ],
)
def test_all_spellings_give_the_same_instants(column, unit, zone):
    assert _read(column, unit, zone) == ([A, B], [False, False])


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_the_zone_of_the_process_does_not_count(zone, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert _read(pa.array(LOCAL, pa.timestamp("ms")), "timestamp", "America/New_York")[0] == [A, B]
        assert _read(pa.array(["2026-03-08 06:59:59"]), "iso8601", "UTC")[0] == [A]
    finally:
        monkeypatch.undo()
        os.environ.pop("TZ", None)
        time.tzset()


def test_local_times_that_exist_twice_or_never_are_unreadable():
    column = pa.array(["2026-11-01T01:30:00", "2026-03-08T02:30:00", "2026-11-01T03:00:00"])
    assert _read(column, "iso8601", "America/New_York") == (
        [None, None, 1_793_520_000_000],
        [True, True, False],
    )


def test_nulls_are_not_unreadable():
    assert _read(pa.array([None, A])) == ([None, A], [False, False])
    assert _read(pa.array([float("nan"), 1e30]), "s") == ([None, None], [False, True])
    assert _read(pa.array([2**64 - 1], pa.uint64())) == ([None], [True])
    assert _read(pa.array([None, "2026-02-30T00:00:00Z", "soon"]), "iso8601") == (
        [None] * 3,
        [False, True, True],
    )


@pytest.mark.parametrize(
    ("column", "unit", "named"),
    [
        (pa.array(LOCAL, pa.timestamp("ms")), "timestamp", "zone"),
        (pa.array(["2026-03-08 06:59:59"]), "iso8601", "zone"),
        (pa.array(LOCAL, pa.timestamp("ms", "UTC")), "ms", 'unit = "timestamp"'),
        (pa.array(["2026-03-08"]), "ms", 'unit = "iso8601"'),
        (pa.array([A]), "timestamp", "unit ="),
    ],
)
def test_a_wrong_unit_or_a_missing_zone_is_refused(column, unit, named):
    with pytest.raises(DataError, match='"t"') as error:
        _read(column, unit)
    assert named in str(error.value)


def test_an_unknown_zone():
    with pytest.raises(ConfigError, match="IANA"):
        _read(pa.array(LOCAL, pa.timestamp("ms")), "timestamp", "Mars/Base")
