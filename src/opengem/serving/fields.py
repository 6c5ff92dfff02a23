"""Values of a request as JSON brings them, checked one by one and turned into Arrow arrays.

The rule: a value must be written as the log writes it, and is taken as it is. A whole number is never text, true is
never 1, 12.0 is never 12; only numbers may be written with or without a decimal point.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from opengem.data.column_kinds import ColumnKind
from opengem.data.columns import canonical_ids, numbers
from opengem.errors import DataError, nearest

Kinds = Collection[ColumnKind]
Where = Callable[[int], str]
"""Path of the i-th of several values, such as `ads[3].price`."""

_LONGEST_TEXT = 1_000
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DECIMAL = re.compile(r"-?[0-9]{1,38}(\.[0-9]{1,38})?")
_RANGES = {"integer": (-(2**63), 2**63), "unsigned": (0, 2**64), "number": (1 - 2**53, 2**53)}
_RANGES["decimal"] = (1 - 10**38, 10**38)
_WORDS = {
    "integer": "a whole number from -2^63 to 2^63 - 1",
    "unsigned": "a whole number from 0 to 2^64 - 1",
    "decimal": "a whole number, or text of digits with a point",
    "number": "a number between -2^53 and 2^53",
    "boolean": "true or false",
    "text": "text",
}


class RequestError(DataError):
    """A request breaks a rule. The message names the field and the rule; no value that was sent is repeated.

    Attributes:
        field: Path of the field, such as `history.watched.video_id[3]`.
        rule: What must hold.
    """

    def __init__(self, field: str, rule: str):
        super().__init__(f"{field} {rule}")
        self.field = field
        self.rule = rule


class OtherSchemaError(RequestError):
    """The request was made for another schema than that of the package."""


def one(field: str) -> Where:
    """Return the path of a single value."""
    return lambda _: field


def each(field: str) -> Where:
    """Return the paths of the values of the list `field`."""
    return lambda i: f"{field}[{i}]"


def is_plain(word: Any) -> bool:
    """Return whether a word of a caller may be repeated: up to 64 letters, digits and `_.-`."""
    return isinstance(word, str) and _PLAIN.fullmatch(word) is not None


def mapping(value: Any, field: str) -> Mapping[str, Any]:
    """Return `value`, which must be an object.

    Raises:
        RequestError: It is something else.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise RequestError(field, f"must be an object. Received: {kind_of(value)}.")
    return value


def only(value: Mapping[str, Any], known: Collection[str], field: str) -> None:
    """Refuse keys that are not `known`.

    Raises:
        RequestError: There is another key; it is named if it is a plain word, with the nearest known one.
    """
    for key in value:
        if key not in known:
            allowed = f"Allowed: {', '.join(sorted(known)) or 'none'}."
            if not is_plain(key):
                raise RequestError(field, f"holds an unknown field. {allowed}")
            path = key if field == "request" else f"{field}.{key}"
            raise RequestError(path, f"is an unknown field{nearest(key, known)}. {allowed}")


def sequence(value: Any, longest: int, field: str) -> Sequence[Any]:
    """Return `value`, which must be a list of at most `longest` entries.

    Raises:
        RequestError: It is something else, or longer.
    """
    if not isinstance(value, list | tuple):
        raise RequestError(field, f"must be a list. Received: {kind_of(value)}.")
    if len(value) > longest:
        raise RequestError(field, f"must hold at most {longest} entries. Received: {len(value)}.")
    return value


def whole_number(value: Any, least: int, below: int, field: str) -> int:
    """Return `value`, which must be a whole number in `[least, below)`.

    Raises:
        RequestError: It is something else.
    """
    if type(value) is not int:
        raise RequestError(field, f"must be a whole number. Received: {kind_of(value)}.")
    if not least <= value < below:
        raise RequestError(field, f"must lie in [{least}, {below}).")
    return value


def id_array(values: Sequence[Any], kinds: Kinds, where: Where) -> pa.Array:
    """Return ids as an array of canonical text, null where null.

    Args:
        values: Ids.
        kinds: The kinds in which the log writes them; whole numbers and text if there is none.
        where: Path of each value.

    Raises:
        RequestError: A value is of no such kind, out of its range, no Unicode, or text of more than 1,000 characters.
    """
    kinds = kinds or ("integer", "unsigned", "text")
    types = set(map(type, values)) - {type(None)}
    if types == {int} and "integer" in kinds:
        try:
            return pa.array(values, pa.int64()).cast(pa.string())
        except (OverflowError, pa.ArrowInvalid):
            pass  # one by one, which finds the place
    return pa.array([_id(v, kinds, where, i) for i, v in enumerate(values)], pa.string())


def number_array(values: Sequence[Any], kinds: Kinds, where: Where) -> pa.Array:
    """Return numbers as float64, null where null.

    Args:
        values: Numbers.
        kinds: The kinds in which the log writes them: `boolean` lets true and false stand for 1 and 0, `text` and
            `decimal` let text be read as ingest reads it.
        where: Path of each value.

    Raises:
        RequestError: A value is no finite number.
    """
    return pa.array([_number(v, kinds, where, i) for i, v in enumerate(values)], pa.float64())


def time_array(values: Sequence[Any], text: bool, field: str) -> pa.Array:
    """Return times as they are written in the log, null where null.

    Args:
        values: All numbers, or all text.
        text: Whether they must be text.
        field: Path of the list.

    Raises:
        RequestError: A value is something else.
    """
    where = each(field)
    for i, value in enumerate(values):
        if value is not None and type(value) not in ((str,) if text else (int, float)):
            wanted = "times as ISO 8601 text" if text else "times as numbers"
            raise RequestError(where(i), f"must hold {wanted}. Received: {kind_of(value)}.")
    if text:
        return id_array(values, ("text",), where)
    if any(type(v) is float for v in values):
        for i, value in enumerate(values):
            if type(value) is int and abs(value) > 2**53:
                raise RequestError(where(i), "must be written like the others of its list: with a point.")
        return number_array(values, (), where)
    return pa.array(
        [None if v is None else whole_number(v, -(2**61), 2**61, where(i)) for i, v in enumerate(values)],
        pa.int64(),
    )


def finite_float32(encoded: np.ndarray, where: Where) -> np.ndarray:
    """Return standardised numbers, which must fit 32 bits; NaN stands for missing.

    Raises:
        RequestError: One does not fit.
    """
    if np.isinf(encoded).any():
        place = int(np.argwhere(np.isinf(encoded))[0][0])
        raise RequestError(where(place), "must be a number of the size of those in the log.")
    return encoded


def _id(value: Any, kinds: Kinds, where: Where, i: int) -> str | None:
    if value is None:
        return None
    kind = type(value)
    if kind is str:
        if "text" in kinds:
            return _text(value, where(i))
        if "decimal" in kinds and _DECIMAL.fullmatch(value):
            return canonical_ids(pa.array([Decimal(value)]))[0].as_py()
    elif kind is bool:
        if "boolean" in kinds:
            return str(int(value))
    elif kind is int:
        if any(r in kinds and _RANGES[r][0] <= value < _RANGES[r][1] for r in _RANGES):
            return str(value)
        if "boolean" in kinds and value in (0, 1):
            return str(value)
    elif kind is float and "number" in kinds and abs(value) < 2**53:
        return canonical_ids(pa.array([value]))[0].as_py()
    wanted = " or ".join(_WORDS[k] for k in sorted(kinds))
    raise RequestError(where(i), f"must be an id as the log writes it: {wanted}. Received: {kind_of(value)}.")


def _text(value: str, field: str) -> str:
    if len(value) > _LONGEST_TEXT:
        raise RequestError(field, f"must hold at most {_LONGEST_TEXT} characters.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(field, "must be Unicode text; half of a surrogate pair is none.") from None
    return value


def _number(value: Any, kinds: Kinds, where: Where, i: int) -> float | None:
    kind = type(value)
    if value is None or (kind is float and math.isfinite(value)):
        return value
    if kind is int:
        try:
            return float(value)
        except OverflowError:
            raise RequestError(where(i), "must be a finite number of 64 bits.") from None
    if kind is bool and "boolean" in kinds:
        return float(value)
    if kind is str and ("text" in kinds or ("decimal" in kinds and _DECIMAL.fullmatch(value))):
        read, bad = numbers(pa.array([_text(value, where(i))]), cast=True)
        if not bad[0] and read[0].is_valid:
            return read[0].as_py()
        raise RequestError(where(i), "must be a finite number, or text that is one.")
    raise RequestError(where(i), f"must be a finite number. Received: {kind_of(value)}.")


def kind_of(value: Any) -> str:
    """Return what a value is, without repeating it."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return "a number with a point" if math.isfinite(value) else "a number that is not finite"
    names = {bool: "true or false", int: "a whole number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), "something else")
