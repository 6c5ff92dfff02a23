"""How a log writes its ids: the kinds of the columns, so that a service can tell an id from what only looks like one."""

from typing import Literal

import pyarrow as pa

IdKind = Literal["integer", "unsigned", "decimal", "number", "boolean", "text"]


def id_kind(kind: pa.DataType) -> IdKind | None:
    """Return how a column of this Arrow type writes ids; None for a type that holds nulls alone.

    `integer` and `unsigned` are whole numbers of 64 bits, `decimal` has fixed digits, `number` is a float, `boolean`
    true or false; text, bytes and dates are `text`. A list is of the kind of its elements, a dictionary of the kind of
    its words.
    """
    if pa.types.is_dictionary(kind) or hasattr(kind, "value_field"):
        return id_kind(kind.value_type)
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
