"""The names of types in messages: those of SQL, as people wrote them."""

from __future__ import annotations

import re

import pyarrow as pa

__all__ = ["type_name"]

_NAMES = {
    pa.null(): "VOID",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}
_PLAIN = re.compile(r"\w+")


def type_name(kind: pa.DataType) -> str:
    """The type in SQL. A type that SQL does not have, such as ``uint8`` or ``timestamp[ns]``, keeps its name in
    Arrow."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return "STRUCT<" + ", ".join(f"{_quoted(field.name)}: {type_name(field.type)}" for field in kind) + ">"
    if pa.types.is_map(kind):
        return f"MAP<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_name(kind.value_type)}>"
    return str(kind)


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
