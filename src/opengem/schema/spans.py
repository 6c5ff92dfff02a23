"""Spans of time as people write them: lengths such as "7d", and ranges of UTC days or ISO times."""

import datetime as dt
import re
from typing import Any

from opengem.errors import ConfigError

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DAY_MS = 86_400_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def length_ms(value: Any, key: str) -> int:
    """Return the milliseconds of a length such as "90s", "30m", "12h" or "7d".

    Args:
        value: Text: a whole number followed by `ms`, `s`, `m`, `h` or `d`.
        key: Dotted key, for the error.

    Raises:
        ConfigError: The text is no such length, or the length is zero.
    """
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h|d)\s*", value) if isinstance(value, str) else None
    if match is None or int(match[1]) == 0:
        raise ConfigError(f'{key} must be a length of time such as "30m", "12h" or "7d". Received: {value!r}')
    return int(match[1]) * _UNIT_MS[match[2]]


def range_ms(value: Any, key: str) -> tuple[int, int]:
    """Return `[start, end)` in Unix milliseconds UTC.

    Two days are inclusive; two ISO times mean from the first up to, but not including, the second. A time
    without an offset is UTC.

    Args:
        value: A pair of days ("2022-04-25") or of ISO times ("2022-04-25T16:00:00+08:00").
        key: Dotted key, for the error.

    Raises:
        ConfigError: The value is no such pair, or the range is empty.
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError(f"{key} must be a pair: two days or two ISO times. Received: {value!r}")
    (start, first_is_day), (end, second_is_day) = (_instant_ms(v, key) for v in value)
    if first_is_day != second_is_day:
        raise ConfigError(f"{key} must be two days or two times, not one of each. Received: {value!r}")
    if second_is_day:
        end += _DAY_MS
    if end <= start:
        raise ConfigError(f"{key} must end after it starts. Received: {value!r}")
    return start, end


def _instant_ms(value: Any, key: str) -> tuple[int, bool]:
    is_day = isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None
    is_day = is_day or (isinstance(value, dt.date) and not isinstance(value, dt.datetime))
    try:
        moment = dt.datetime.fromisoformat(str(value))
    except ValueError:
        raise ConfigError(
            f'{key} must hold days such as "2022-04-25" or ISO times. Received: {value!r}'
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1), is_day
