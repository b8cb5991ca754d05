"""SQL's types: their names, and Spark's rules for the common type of two values and for the digits of a result."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakemerge.errors import FilterError
from lakemerge.sql.nodes import Constant, Node
from mergers.type_names import type_name

__all__ = [
    "BIGINT",
    "DATE",
    "DOUBLE",
    "INT",
    "LOCAL",
    "STRING",
    "TIMESTAMP",
    "as_decimal",
    "bounded",
    "field_ddl",
    "is_number",
    "is_text",
    "is_time",
    "type_ddl",
    "wider",
    "widest",
]

INT, BIGINT, DOUBLE, STRING = pa.int32(), pa.int64(), pa.float64(), pa.string()
DATE, TIMESTAMP, LOCAL = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")

_MAX_DIGITS = 38
_LEAST_SCALE = 6
"""If a result has too many digits, at least this many digits behind the point are kept."""
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}


def type_ddl(kind: pa.DataType) -> str:
    """The type as Spark's DDL writes it."""
    if kind == TIMESTAMP:
        return "TIMESTAMP_LTZ"  # TIMESTAMP alone means what spark.sql.timestampType says
    if pa.types.is_struct(kind):
        return "STRUCT<" + ", ".join(field_ddl(field, ": ") for field in kind) + ">"
    if pa.types.is_map(kind):
        return f"MAP<{type_ddl(kind.key_type)}, {type_ddl(kind.item_type)}>"
    return f"ARRAY<{type_ddl(kind.value_type)}>" if pa.types.is_list(kind) else type_name(kind)


def field_ddl(field: pa.Field, separator: str) -> str:
    """Name, type, ``NOT NULL`` and comment of a column or of a struct's field, as Spark's DDL writes them."""
    name = field.name.replace("`", "``")
    text = f"`{name}`{separator}{type_ddl(field.type)}"
    if not field.nullable:
        text += " NOT NULL"
    comment = (field.metadata or {}).get(b"comment")
    if comment is not None:
        quoted = comment.decode().replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        text += f" COMMENT '{quoted}'"
    return text


def is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind)


def is_time(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def as_decimal(node: Node) -> pa.DataType:
    """The decimal type that holds an integer or decimal operand. For a literal, the digits that are written count."""
    if pa.types.is_decimal(node.kind):
        return node.kind
    if isinstance(node, Constant) and node.literal:
        return pa.decimal128(len(str(abs(node.value))), 0)
    return _of_integer(node.kind)


def bounded(digits: int, scale: int) -> pa.DataType:
    """The decimal type of a result that needs ``digits`` digits, ``scale`` of them behind the point.

    If that is more than a decimal holds, digits behind the point are given up, but six of them stay.
    """
    if digits <= _MAX_DIGITS:
        return pa.decimal128(digits, scale)
    whole = digits - scale
    return pa.decimal128(_MAX_DIGITS, max(_MAX_DIGITS - whole, min(scale, _LEAST_SCALE)))


def wider(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The common type of two types. ``None`` if there is none."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_number(left) and is_number(right):
        return _wider_number(left, right)
    if is_time(left) and is_time(right):
        return TIMESTAMP if TIMESTAMP in (left, right) else LOCAL
    return None


def widest(nodes: Sequence[Node], text: str) -> pa.DataType:
    """The common type of all the values. As in Spark, a text literal is cast to the type of the others. A text column
    among numbers needs a CAST in the filter.

    :raises lakemerge.FilterError: if there is no common type.
    """
    typed = [node for node in nodes if not (isinstance(node, Constant) and is_text(node.kind))]
    found: pa.DataType | None = pa.null()
    for node in typed:
        found = None if found is None else wider(found, node.kind)
    if found is None:
        kinds = ", ".join(f"{node.text} is {type_name(node.kind)}" for node in nodes)
        raise FilterError(f"{text} cannot be compared or mixed: {kinds}; use CAST", construct=text)
    if len(typed) == len(nodes) or is_text(found):
        return found
    if pa.types.is_null(found):
        return STRING
    if pa.types.is_integer(found):
        return BIGINT
    return DOUBLE if is_number(found) else found


def _of_integer(kind: pa.DataType) -> pa.DataType:
    return pa.decimal128(_INTEGER_DIGITS[kind.bit_width], 0)


def _wider_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    decimals = [pa.types.is_decimal(kind) for kind in (left, right)]
    if any(pa.types.is_floating(kind) for kind in (left, right)):
        return DOUBLE  # FLOAT is only the common type of FLOAT and FLOAT
    if not any(decimals):
        return max(left, right, key=lambda kind: kind.bit_width)
    left, right = (kind if pa.types.is_decimal(kind) else _of_integer(kind) for kind in (left, right))
    scale = max(left.scale, right.scale)
    digits = max(left.precision - left.scale, right.precision - right.scale) + scale
    if digits > _MAX_DIGITS:  # digits before the point come first
        scale = max(0, scale - (digits - _MAX_DIGITS))
    return pa.decimal128(min(digits, _MAX_DIGITS), scale)
