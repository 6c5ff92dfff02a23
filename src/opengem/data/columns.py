"""How a column of any Arrow type becomes ids, numbers, labels or vectors: one meaning for ingest and serving."""

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute

from opengem.errors import DataError

pc: Any = pyarrow.compute  # its functions are made at run time, out of a type checker's sight

Column: TypeAlias = pa.Array | pa.ChunkedArray
_ID_TYPES = "integers, text, decimals, floats, booleans, dates, UUIDs, or dictionaries of these"
_ID_LISTS = f"a list of ids (list, large_list, fixed_size_list or list_view of {_ID_TYPES})"


def plain(column: Column) -> pa.Array:
    """Return one array without chunks or dictionary; codes of a dictionary are never taken for values.

    An extension type counts as what it is stored in, but for UUIDs, which are text.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        array = _uuid_text(array) if array.type.extension_name == "arrow.uuid" else array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array


def _uuid_text(array: pa.ExtensionArray) -> pa.Array:
    """Return UUIDs as text of 36 characters."""
    storage = array.storage
    raw = np.frombuffer(storage.buffers()[1] or b"", np.uint8)[16 * storage.offset :][: 16 * len(storage)]
    digits = np.frombuffer(raw.tobytes().hex().encode(), np.uint8).reshape(-1, 32)
    text = np.full((len(storage), 36), ord("-"), np.uint8)
    text[:, np.r_[0:8, 9:13, 14:18, 19:23, 24:36]] = digits
    words = pa.Array.from_buffers(pa.binary(36), len(storage), [None, pa.py_buffer(text)])
    return pc.if_else(storage.is_valid(), words.cast(pa.binary()).cast(pa.string()), None)


def canonical_ids(column: Column, name: str = "column") -> pa.Array:
    """Return ids as text, so that one id has one spelling whatever its type.

    int 5, uint64 5, decimal 5.00, float 5.0 and text "5" are all "5"; text "05" stays "05"; true is "1". Integers of
    64 bits and decimals keep every digit. Floats must lie below the size from which whole numbers are no longer told
    apart (2^53, for 32 bits 2^24): a larger id has lost its digits before it came here. NaN is null, as is null.

    Args:
        column: Ids of any length.
        name: Name of the column, for errors.

    Returns:
        `pa.StringArray` of the same length.

    Raises:
        DataError: The column's type cannot hold ids, or a float is too large to be one.
    """
    array = plain(column)
    kind = array.type
    if pa.types.is_string(kind):
        return array
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_integer(kind):
        return array.cast(pa.string())
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8()).cast(pa.string())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return array.cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            raise DataError(
                f'column "{name}" must hold {_ID_TYPES}. Received: {kind} that is not UTF-8'
            ) from None
    if pa.types.is_decimal(kind):
        text = array.cast(pa.string())
        if kind.scale > 0:
            text = pc.replace_substring_regex(text, pattern=r"(\.\d*?)0+$", replacement=r"\1")
            text = pc.replace_substring_regex(text, pattern=r"\.$", replacement="")
        return text
    if pa.types.is_floating(kind):
        return _float_ids(array, name)
    raise DataError(f'column "{name}" must hold {_ID_TYPES}. Received: {kind}')


def _float_ids(array: pa.Array, name: str) -> pa.Array:
    bits = {16: 11, 32: 24, 64: 53}[array.type.bit_width]
    values = array.cast(pa.float64())
    values = pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
    large = pc.greater_equal(pc.abs(values), 2.0**bits)
    if pc.any(large).as_py():
        raise DataError(
            f'column "{name}" must hold ids below 2^{bits} in {array.type}, where whole numbers are told apart. '
            f"Received: {values.filter(large)[0].as_py()}\n  fix: write the ids as integers, decimals or text"
        )
    whole = pc.equal(pc.floor(values), values)
    as_int = pc.if_else(whole, values, 0.0).cast(pa.int64()).cast(pa.string())
    return pc.if_else(whole, as_int, values.cast(pa.string()))


def canonical_lists(column: Column, name: str = "column", separator: str = "") -> tuple[pa.Array, int]:
    """Return lists of ids as `list<string>` without null elements.

    A null list stays null (missing); an empty list stays empty.

    Args:
        column: Any list type, or text with `separator` between the ids (empty text is an empty list).
        name: Name of the column, for errors.
        separator: What stands between the ids of a text; empty for list columns.

    Returns:
        The lists, and how many null elements were dropped.

    Raises:
        DataError: The column holds neither lists nor, with a separator, text.
    """
    array = plain(column)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.list_(pa.string())), 0
    if separator:
        return _split_text(canonical_ids(array, name), separator), 0
    offsets, values, missing = list_parts(array, name, _ID_LISTS)
    try:
        ids = canonical_ids(values, name)
    except DataError:
        raise DataError(f'column "{name}" must hold {_ID_LISTS}. Received: {array.type}') from None
    keep = np.asarray(ids.is_valid())
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    lists = pa.ListArray.from_arrays(
        pa.array(kept_before[offsets], pa.int32()), ids.filter(pa.array(keep)), mask=pa.array(missing)
    )
    return lists, int(len(keep) - keep.sum())


def _split_text(text: pa.Array, separator: str) -> pa.Array:
    lists = pc.split_pattern(text, separator)
    offsets, values, missing = list_parts(lists, "", "")
    trimmed = pc.utf8_trim_whitespace(values)
    keep = np.asarray(pc.greater(pc.utf8_length(trimmed), 0))
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    return pa.ListArray.from_arrays(
        pa.array(kept_before[offsets], pa.int32()), trimmed.filter(pa.array(keep)), mask=pa.array(missing)
    )


def list_parts(column: Column, name: str, wanted: str) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """Return `(offsets, values, missing)` of a list column of any list type.

    Args:
        column: Lists; null ones count as empty in the offsets.
        name: Name of the column, for errors.
        wanted: What the column must hold, for errors.

    Returns:
        int64 offsets of length n + 1 from 0, the flat values, and a bool mask of null lists.

    Raises:
        DataError: The column holds no lists.
    """
    array = plain(column)
    kind = array.type
    is_view = str(kind).startswith(("list_view", "large_list_view"))
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not (is_list or is_view):
        raise DataError(f'column "{name}" must hold {wanted}. Received: {kind}')
    missing = np.asarray(array.is_null())
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0), dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return offsets, plain(pc.list_flatten(array)), missing


def numbers(column: Column, name: str = "column", cast: bool = False) -> tuple[pa.Array, np.ndarray]:
    """Return numbers as float64 with null where missing (null or NaN), and a mask of unreadable values.

    Args:
        column: Integers, floats, decimals or booleans; with `cast` also text.
        name: Name of the column, for errors.
        cast: Read text as numbers.

    Returns:
        `pa.DoubleArray`, and a bool mask of values that are infinite or text that is no number (null in the array).

    Raises:
        DataError: The column's type is not a number.
    """
    array = plain(column)
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.float64()), np.zeros(len(array), bool)
    given = np.asarray(array.is_valid())
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        if not cast:
            raise DataError(
                f'column "{name}" must hold numbers. Received: {kind}\n'
                "  fix: write numbers; a feature can also be read with cast = true"
            )
        array = cast_or_null(pc.utf8_trim_whitespace(array.cast(pa.string())), pa.float64())
    elif pa.types.is_decimal(kind):
        array = array.cast(pa.string())  # text is read to the nearest double, a cast of the decimal is not
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f'column "{name}" must hold numbers. Received: {kind}')
    values = array.cast(pa.float64(), safe=False)
    floats = values.to_numpy(zero_copy_only=False)
    readable = np.asarray(array.is_valid())
    bad = (given & ~readable) | np.isinf(floats)
    return pa.array(floats, mask=bad | np.isnan(floats)), bad


def cast_or_null(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast text to `kind`, null where a value cannot be read; halves are tried apart, so few bad values cost little."""
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        if len(array) == 1:
            return pa.nulls(1, kind)
    half = len(array) // 2
    return pa.concat_arrays([cast_or_null(array[:half], kind), cast_or_null(array[half:], kind)])


def labels(column: Column, name: str = "column") -> tuple[pa.Array, np.ndarray]:
    """Return labels as float64 0, 1 or null (missing), and a mask of values that are none of these.

    Args:
        column: Numbers or booleans.
        name: Name of the column, for errors.

    Raises:
        DataError: The column's type is not a number.
    """
    values, bad = numbers(column, name)
    floats = values.to_numpy(zero_copy_only=False)
    wrong = bad | ~((floats == 0) | (floats == 1) | np.isnan(floats))
    return pa.array(floats, mask=wrong | np.isnan(floats)), wrong


def vectors(column: Column, name: str = "column", size: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors as float32 `(n, size)`, zeros where null, and a mask of those that are not `size` numbers.

    Args:
        column: Lists of numbers.
        name: Name of the column, for errors.
        size: Size that each must have; 0 takes the size of the first.

    Raises:
        DataError: The column does not hold lists of numbers.
    """
    array = plain(column)
    if pa.types.is_null(array.type):
        return np.zeros((len(array), size), np.float32), np.zeros(len(array), bool)
    offsets, flat, missing = list_parts(array, name, "a list of numbers")
    values, unreadable = numbers(flat, name)
    lengths = np.diff(offsets)
    size = size or int(lengths[~missing][0]) if (~missing).any() else size
    bad = ~missing & (lengths != size)
    unreadable |= np.asarray(values.is_null())  # a missing element has no place to be missing in
    if unreadable.any():
        bad |= np.add.reduceat(np.append(unreadable, False), offsets[:-1]).astype(bool) & (lengths > 0)
    result = np.zeros((len(array), size), np.float32)
    good = np.repeat(~bad & ~missing, lengths)
    floats = values.to_numpy(zero_copy_only=False)
    result[~bad & ~missing] = floats[good].reshape(-1, size)
    return result, bad


def to_json(value: Any) -> Any:
    """Return a value of a row as something JSON can hold; what it cannot is written as text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    return str(value)
