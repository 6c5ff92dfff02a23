import math

import pytest

from opengem.report.numbers import count, decimals, ends, finite, number, seconds, size, span


@pytest.mark.parametrize(
    ("interval", "shown"),
    [((0.80, 0.85), 3), ((0.8, 0.802), 4), ((0.8, 1.4), 2), ((1, 90), 1), ((0.5, 0.5), 4), (None, 4)],
)
def test_no_more_digits_than_the_interval_allows(interval, shown):
    assert decimals(interval, 4) == shown


def test_values_and_intervals_have_the_same_digits():
    assert number(0.82345, [0.80111, 0.85222]) == "0.823"
    assert span([0.80111, 0.85222]) == "[0.801, 0.852]"
    assert number(-3.512, {"low": -5.4, "high": -1.9}, most=2, sign=True) == "−3.5"
    assert span({"low": -5.44, "high": 1.91}, most=2, sign=True) == "[−5.4, +1.9]"
    assert number(0.823456) == "0.8235"


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "0.5", True])
def test_what_is_no_number_is_a_dash(value):
    assert finite(value) is None
    assert number(value) == count(value) == seconds(value) == size(value) == "–"


@pytest.mark.parametrize("interval", [None, [0.1], [0.1, None], "ab", {"low": 0.1}, [math.nan, 1]])
def test_half_an_interval_is_none(interval):
    assert ends(interval) is None
    assert span(interval) == ""


def test_counts_durations_sizes():
    assert count(1234567) == "1,234,567"
    assert [seconds(v) for v in (0.4, 41.4, 200, 7500)] == ["0.40 s", "41 s", "3 min 20 s", "2 h 5 min"]
    assert [size(v) for v in (12, 2048, 21_000_000, 5 * 2**30)] == ["12 B", "2.0 KiB", "20.0 MiB", "5.0 GiB"]
