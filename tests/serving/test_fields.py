import math

import numpy as np
import pytest

from opengem.serving.fields import RequestError, each, finite_float32, id_array, is_plain, number_array, one

ACCEPTED = [
    (
        ("integer",),
        [0, -(2**63), 2**63 - 1, None],
        ["0", "-9223372036854775808", "9223372036854775807", None],
    ),
    (("unsigned",), [2**64 - 1, 18165473391510152529], ["18446744073709551615", "18165473391510152529"]),
    (("integer", "unsigned"), [-1, 2**64 - 1], ["-1", "18446744073709551615"]),
    (("text",), ["012", "12", " 12", ""], ["012", "12", " 12", ""]),
    (("number",), [12, 12.0, 12.5], ["12", "12", "12.5"]),
    (("decimal",), [10**37 + 1, "5.50", "-0.25", "7.00"], [str(10**37 + 1), "5.5", "-0.25", "7"]),
    (("boolean",), [True, False, 1, 0], ["1", "0", "1", "0"]),
    ((), [12, "12"], ["12", "12"]),  # the log holds nulls alone
]


@pytest.mark.parametrize(("kinds", "values", "ids"), ACCEPTED, ids=lambda v: str(v)[:20])
def test_ids_written_as_the_log_writes_them(kinds, values, ids):
    assert id_array(values, kinds, each("ids")).to_pylist() == ids


REFUSED = [
    (("integer",), [True, "12", 12.0, 12.5, " 12", 2**63, -(2**63) - 1, [], {}, math.nan, math.inf]),
    (("unsigned",), [-1, 2**64, True, "1", 1.0]),
    (("text",), [12, True, 1.5, [], "x" * 1001, "\ud800"]),
    (("number",), [True, "12", math.nan, -math.inf, 2**63]),
    (("decimal",), [10**38, 5.5, "5,5", "1e3", True, "٣"]),
    (("boolean",), [2, -1, "true", 1.0]),
    ((), [True, 1.5, {}]),
]


@pytest.mark.parametrize(
    ("kinds", "value"), [(k, v) for k, values in REFUSED for v in values], ids=lambda v: str(v)[:20]
)
def test_nothing_is_bent_into_an_id(kinds, value):
    good = {"integer": 1, "unsigned": 1, "text": "a", "number": 1, "decimal": 1, "boolean": 1}
    with pytest.raises(RequestError) as caught:
        id_array([good[kinds[0]] if kinds else 1, None, value], kinds, each("ids"))
    assert caught.value.field == "ids[2]"
    assert "12.5" not in str(caught.value)  # no value is repeated


def test_numbers_are_numbers_unless_the_log_holds_something_else():
    where = one("price")
    assert number_array([1, 2.5, None, -0.0], ("number",), where).to_pylist() == [1.0, 2.5, None, 0.0]
    assert number_array([True, 0], ("boolean",), where).to_pylist() == [1.0, 0.0]
    assert number_array(["19.99", 0.01], ("decimal",), where).to_pylist() == [19.99, 0.01]
    assert number_array([" 1.5 ", "-2"], ("text",), where).to_pylist() == [1.5, -2.0]
    wrong = [
        (True, "number"),
        ("1", "number"),
        ("nan", "text"),
        ("1_0", "text"),
        ("", "text"),
        ("1e3", "decimal"),
    ]
    wrong += [
        (math.nan, "number"),
        (math.inf, "integer"),
        (10**400, "integer"),
        ([], "number"),
        ("inf", "text"),
    ]
    for value, kind in wrong:
        with pytest.raises(RequestError, match="price must be a finite number"):
            number_array([value], (kind,), where)


def test_numbers_beyond_32_bits_are_refused_and_missing_ones_are_not():
    kept = np.array([1.0, np.nan], np.float32)
    assert finite_float32(kept, each("x")) is kept
    assert finite_float32(np.zeros(0, np.float32), each("x")).shape == (0,)
    with pytest.raises(RequestError) as caught:
        finite_float32(np.array([[0.0, 1.0], [np.inf, 0.0]], np.float32), each("x"))
    assert caught.value.field == "x[1]"


def test_only_plain_words_are_repeated():
    assert is_plain("pirce")
    assert is_plain("a.b-c_9")
    for word in ("", "a b", "<b>", "x" * 65, "ü", 5, None, "a\n"):
        assert not is_plain(word)
