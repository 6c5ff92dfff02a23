"""How a column of times becomes Unix milliseconds UTC; the zone of the process never counts."""

import zoneinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from opengem.data.columns import Column, cast_or_null, plain
from opengem.errors import ConfigError, DataError
from opengem.schema.words import TimeColumn

pc: Any = pyarrow.compute  # its functions are made at run time, out of a type checker's sight

_PER_MS = {"s": 1_000, "ms": 1, "us": -1_000, "ns": -1_000_000}
_DATE = r"^(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01]))"
_CLOCK = r"[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d([.,]\d{1,9})?)?"
_OFFSET = r"(Z|z|[+-]([01]\d|2[0-3]):?[0-5]\d)"


def read_times(column: Column, time: TimeColumn) -> tuple[pa.Array, np.ndarray]:
    """Return times as int64 Unix milliseconds, and a mask of values that could not be read.

    Units below a millisecond are rounded down. A local time that a clock change skips, or makes happen twice, is
    unreadable: no choice is made in silence.

    Args:
        column: The column, of a type that fits `time.unit`.
        time: Its name, unit and zone.

    Returns:
        `pa.Int64Array` with null where null or unreadable, and the bool mask of unreadable values.

    Raises:
        DataError: The type does not fit the unit, or times carry no zone and the schema gives none.
        ConfigError: The zone is unknown.
    """
    array = plain(column)
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.int64()), np.zeros(len(array), bool)
    if time.unit in _PER_MS:
        return _from_numbers(array, time)
    if time.unit == "timestamp":
        if pa.types.is_date(kind):
            array = array.cast(pa.timestamp("ms"))
        if not pa.types.is_timestamp(array.type):
            raise _wrong_type(time, kind, "a timestamp")
        values = _from_timestamps(array, time)
    else:
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
            raise _wrong_type(time, kind, "ISO 8601 text")
        values = _from_text(array.cast(pa.string()), time)
    return values, np.asarray(array.is_valid()) & np.asarray(values.is_null())


def _wrong_type(time: TimeColumn, kind: pa.DataType, wanted: str) -> DataError:
    fix = ""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        fix = '\n  fix: set unit = "timestamp"'
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        fix = '\n  fix: set unit = "iso8601"'
    elif pa.types.is_integer(kind):
        fix = '\n  fix: set unit = "s", "ms", "us" or "ns"'
    return DataError(f'column "{time.column}" must hold {wanted}. Received: {kind}{fix}')


def _from_numbers(array: pa.Array, time: TimeColumn) -> tuple[pa.Array, np.ndarray]:
    wanted = f"{time.unit} since 1970-01-01 UTC as a number"
    kind = array.type
    factor = _PER_MS[time.unit]
    if pa.types.is_decimal(kind):
        array, kind = array.cast(pa.float64()), pa.float64()
    if pa.types.is_integer(kind):
        given = np.asarray(array.is_valid())
        limit = 2**61 // max(factor, 1)
        big = np.zeros(len(array), bool)
        if pa.types.is_uint64(kind):
            big = np.asarray(pc.fill_null(pc.greater(array, pa.scalar(limit, pa.uint64())), False))
            array = pc.if_else(pa.array(big), pa.scalar(0, pa.uint64()), array)
        values = np.asarray(pc.fill_null(array, 0).cast(pa.int64()))
        bad = given & (big | (values > limit) | (values < -limit))
        scaled = values * factor if factor > 0 else values // -factor
        return pa.array(scaled, mask=bad | ~given), bad
    if not pa.types.is_floating(kind):
        raise _wrong_type(time, kind, wanted)
    floats = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    scaled = np.floor(floats * factor if factor > 0 else floats / -factor)
    missing = np.isnan(floats)
    bad = ~missing & ~(np.abs(scaled) < 2.0**61)
    whole = np.where(missing | bad, 0.0, scaled).astype(np.int64)
    return pa.array(whole, mask=missing | bad), bad


def _from_timestamps(array: pa.Array, time: TimeColumn) -> pa.Array:
    if array.type.tz is None:
        if not time.zone:
            raise DataError(
                f'column "{time.column}" must carry a zone, or the schema must give it. Received: {array.type} '
                'without a zone\n  fix: add zone = "UTC" (or another) to the time in the schema'
            )
        array = _in_zone(array, time.zone)
    return _floor_ms(array)


def _floor_ms(array: pa.Array) -> pa.Array:
    per_ms = {"s": 1_000, "ms": 1, "us": -1_000, "ns": -1_000_000}[array.type.unit]
    values = np.asarray(pc.fill_null(array.cast(pa.int64()), 0))
    scaled = values * per_ms if per_ms > 0 else values // -per_ms
    return pa.array(scaled, mask=np.asarray(array.is_null()))


def _in_zone(array: pa.Array, zone: str) -> pa.Array:
    """Return naive times as instants of `zone`; null where the local time exists twice or not at all."""
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        raise ConfigError(
            f'zone must be an IANA name such as "America/New_York". Received: "{zone}"'
        ) from None
    early = pc.assume_timezone(array, zone, ambiguous="earliest", nonexistent="earliest")
    late = pc.assume_timezone(array, zone, ambiguous="latest", nonexistent="latest")
    return pc.if_else(pc.equal(early, late), early, pa.scalar(None, early.type))


def _from_text(text: pa.Array, time: TimeColumn) -> pa.Array:
    """Return the instants of ISO 8601 text, with an offset or in the schema's zone; null where unreadable."""
    text = pc.utf8_trim_whitespace(text)
    zoned = np.asarray(pc.fill_null(pc.match_substring_regex(text, _DATE + _CLOCK + _OFFSET + "$"), False))
    naive = np.asarray(pc.fill_null(pc.match_substring_regex(text, _DATE + f"({_CLOCK})?$"), False))
    if naive.any() and not time.zone:
        example = text.filter(pa.array(naive))[0]
        raise DataError(
            f'column "{time.column}" must carry an offset, or the schema must give the zone. Received: "{example}"\n'
            '  fix: add zone = "UTC" (or another) to the time in the schema'
        )
    short = pc.replace_substring(text, pattern=",", replacement=".")
    short = pc.replace_substring_regex(short, pattern=r"(\.\d{3})\d+", replacement=r"\1")
    result = np.zeros(len(text), np.int64)
    known = np.zeros(len(text), bool)
    if zoned.any():
        part = _floor_ms(cast_or_null(short.filter(pa.array(zoned)), pa.timestamp("ms", "UTC")))
        _place(part, zoned, result, known)
    if naive.any():
        local = cast_or_null(short.filter(pa.array(naive)), pa.timestamp("ms"))
        _place(_floor_ms(_in_zone(local, time.zone)), naive, result, known)
    return pa.array(result, mask=~known)


def _place(part: pa.Array, where: np.ndarray, result: np.ndarray, known: np.ndarray) -> None:
    result[where] = np.asarray(pc.fill_null(part, 0))
    known[where] = np.asarray(part.is_valid())
