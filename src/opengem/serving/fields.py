"""Values of a request as JSON brings them, checked one by one and turned into Arrow arrays."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from opengem.data.columns import canonical_ids
from opengem.errors import DataError, nearest

_LONGEST_TEXT = 1_000
_INT64 = 2**63


class RequestError(DataError):
    """A request breaks a rule. The message names the field and the rule and never repeats what was sent.

    Attributes:
        field: Path of the field, such as `history.watched.video_id`.
        rule: What must hold.
    """

    def __init__(self, field: str, rule: str):
        super().__init__(f"{field} {rule}")
        self.field = field
        self.rule = rule


def mapping(value: Any, field: str) -> Mapping[str, Any]:
    """Return `value`, which must be an object.

    Raises:
        RequestError: It is something else.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise RequestError(field, f"must be an object. Received: {_kind(value)}.")
    return value


def only(value: Mapping[str, Any], known: Collection[str], field: str) -> None:
    """Refuse keys that are not `known`.

    Raises:
        RequestError: There is another key; the nearest known ones are named, not the key itself.
    """
    for key in value:
        if key not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise RequestError(field, f"holds an unknown field{nearest(key, known)}. Allowed: {allowed}.")


def sequence(value: Any, longest: int, field: str) -> Sequence[Any]:
    """Return `value`, which must be a list of at most `longest` entries.

    Raises:
        RequestError: It is something else, or longer.
    """
    if not isinstance(value, list | tuple):
        raise RequestError(field, f"must be a list. Received: {_kind(value)}.")
    if len(value) > longest:
        raise RequestError(field, f"must hold at most {longest} entries. Received: {len(value)}.")
    return value


def whole_number(value: Any, field: str) -> int:
    """Return `value`, which must be a whole number of 62 bits.

    Raises:
        RequestError: It is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**61:
        raise RequestError(field, f"must be a whole number. Received: {_kind(value)}.")
    return value


def id_array(values: Sequence[Any], field: str) -> pa.Array:
    """Return ids as an array of canonical text, null where null.

    Raises:
        RequestError: A value is no id: an object, a list, a number that is not finite, or text that is too long.
    """
    kinds = set(map(type, values))
    if kinds <= {str, type(None)}:
        array = pa.array(values, pa.string())
    else:
        array = pa.array([_id(v, field) for v in values], pa.string())
    if any(len(v) > _LONGEST_TEXT for v in values if isinstance(v, str)):
        raise RequestError(field, f"must hold ids of at most {_LONGEST_TEXT} characters.")
    return array


def number_array(values: Sequence[Any], field: str, cast: bool = False) -> pa.Array:
    """Return numbers as float64, null where null; text only with `cast`.

    Raises:
        RequestError: A value is no finite number.
    """
    return pa.array([_number(v, field, cast) for v in values], pa.float64())


def time_array(values: Sequence[Any], field: str) -> pa.Array:
    """Return times as they are written in the log: all numbers or all text, null where null.

    Raises:
        RequestError: A value is something else, or numbers and text are mixed.
    """
    kinds = {type(v) for v in values if v is not None}
    if not kinds:
        return pa.nulls(len(values))
    if not kinds <= {int, float} and kinds != {str}:
        raise RequestError(field, "must hold times as the log writes them: all numbers or all text.")
    if kinds == {str}:
        return id_array(values, field)
    if kinds <= {int}:
        return pa.array([None if v is None else whole_number(v, field) for v in values], pa.int64())
    return number_array(values, field)


def _id(value: Any, field: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        if not -_INT64 <= value < 2 * _INT64:
            raise RequestError(field, "must hold whole numbers of 64 bits.")
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return canonical_ids(pa.array([value]), field)[0].as_py()
    raise RequestError(field, f"must hold ids: text or finite numbers. Received: {_kind(value)}.")


def _number(value: Any, field: str, cast: bool) -> float | None:
    if value is None:
        return None
    if cast and isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise RequestError(field, "must hold numbers, or text that is a number.") from None
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise RequestError(field, "must hold finite numbers.")
    raise RequestError(field, f"must hold numbers. Received: {_kind(value)}.")


def _kind(value: Any) -> str:
    """Return what a value is, without repeating it."""
    if value is None:
        return "null"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite"
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "something else")
