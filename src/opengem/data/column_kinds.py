"""How a log writes its values: the kind of a column, so that a service takes what the log holds and bends nothing."""

from typing import Literal

import pyarrow as pa

ColumnKind = Literal["integer", "unsigned", "decimal", "number", "boolean", "text"]


def column_kind(kind: pa.DataType) -> ColumnKind | None:
    """Return the kind of a column of this Arrow type; None for a type that holds nulls alone.

    `integer` and `unsigned` are whole numbers of 64 bits, `decimal` has fixed digits, `number` is a float, `boolean`
    true or false; text, bytes and dates are `text`. A list is of the kind of its elements, a dictionary of the kind of
    its words.
    """
    if pa.types.is_dictionary(kind) or hasattr(kind, "value_field"):
        return column_kind(kind.value_type)
    if pa.types.is_null(kind):
        return None
    if pa.types.is_signed_integer(kind):
        return "integer"
    if pa.types.is_unsigned_integer(kind):
        return "unsigned"
    if pa.types.is_decimal(kind):
        return "decimal"
    if pa.types.is_floating(kind):
        return "number"
    return "boolean" if pa.types.is_boolean(kind) else "text"
