"""Typed values of the conformance cases: Spark DDL to Arrow types, JSON to values, rows to multisets."""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pyarrow as pa

__all__ = ["arrow_schema", "assert_rows", "frame_of", "from_json", "multiset", "rows_of", "same_type"]

_SCALARS: dict[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "INT": pa.int32(),
    "SMALLINT": pa.int16(),
    "STRING": pa.string(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TINYINT": pa.int8(),
}


def arrow_schema(ddl: str) -> pa.Schema:
    """The Arrow schema of the DDL that the cases use: no comments, no quoted names."""
    fields = []
    for part in _split(ddl):
        name, rest = re.split(r"\s+", part.strip(), maxsplit=1)
        required = re.search(r"\s+NOT\s+NULL$", rest)
        fields.append(pa.field(name, _type(rest[: required.start()] if required else rest), nullable=not required))
    return pa.schema(fields)


def _type(text: str) -> pa.DataType:
    text = text.strip()
    if text in _SCALARS:
        return _SCALARS[text]
    decimal = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", text)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    nested = re.fullmatch(r"(ARRAY|MAP|STRUCT)<(.*)>", text)
    if not nested:
        raise ValueError(f"the cases have no type {text!r}")
    parts = _split(nested[2])
    if nested[1] == "ARRAY":
        return pa.list_(_type(nested[2]))
    if nested[1] == "MAP":
        return pa.map_(_type(parts[0]), _type(parts[1]))
    pairs = [part.split(":", maxsplit=1) for part in parts]
    return pa.struct([(name.strip(), _type(kind)) for name, kind in pairs])


def _split(text: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def from_json(value: Any, kind: pa.DataType) -> Any:
    """A value of a case as ``to_pylist`` would give it for a column of type ``kind``."""
    if value is None:
        return None
    if isinstance(kind, pa.StructType):
        return {kind.field(i).name: from_json(item, kind.field(i).type) for i, item in enumerate(value)}
    if isinstance(kind, pa.MapType):
        return [(from_json(k, kind.key_type), from_json(v, kind.item_type)) for k, v in value["map"]]
    if isinstance(kind, pa.ListType):
        return [from_json(item, kind.value_type) for item in value]
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_binary(kind):
        return base64.b64decode(value["b64"], validate=True)
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        return dt.datetime.fromisoformat(value).astimezone(dt.UTC)
    if pa.types.is_floating(kind):
        return float(value)
    return value


def frame_of(
    schema: pa.Schema,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    types: Mapping[str, str] = MappingProxyType({}),
) -> pa.Table:
    """Rows of JSON values as a frame of ``columns``, of the table's types but for those named in ``types``. Every
    field is nullable, also where the table's is not: whether a null may be there is for the table to say."""
    fields = [pa.field(name, _type(types[name]) if name in types else schema.field(name).type) for name in columns]
    values = [[from_json(value, f.type) for value, f in zip(row, fields, strict=True)] for row in rows]
    arrays = [pa.array([row[i] for row in values], f.type) for i, f in enumerate(fields)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Equal, whatever inner fields are called, whether they are nullable, and how UTC is spelt."""
    if isinstance(left, pa.StructType) and isinstance(right, pa.StructType):
        inner = list(zip(left, right, strict=False))
        return left.num_fields == right.num_fields and all(
            a.name == b.name and same_type(a.type, b.type) for a, b in inner
        )
    if isinstance(left, pa.MapType) and isinstance(right, pa.MapType):
        return same_type(left.key_type, right.key_type) and same_type(left.item_type, right.item_type)
    if isinstance(left, pa.ListType) and isinstance(right, pa.ListType):
        return same_type(left.value_type, right.value_type)
    if isinstance(left, pa.TimestampType) and isinstance(right, pa.TimestampType):
        return left.unit == right.unit and (left.tz is None) == (right.tz is None)
    return left == right


def multiset(rows: Iterable[Sequence[Any]], kinds: Sequence[pa.DataType]) -> Counter[tuple[Hashable, ...]]:
    """Rows as a multiset: NaN equals NaN, decimals by value, timestamps as instants, maps unordered."""
    return Counter(tuple(_plain(value, kind) for value, kind in zip(row, kinds, strict=True)) for row in rows)


def _plain(value: Any, kind: pa.DataType) -> Hashable:
    if value is None:
        return None
    if isinstance(kind, pa.StructType):
        return tuple(_plain(value[kind.field(i).name], kind.field(i).type) for i in range(kind.num_fields))
    if isinstance(kind, pa.MapType):
        pairs = [(_plain(k, kind.key_type), _plain(v, kind.item_type)) for k, v in value]
        return frozenset(Counter(pairs).items())
    if isinstance(kind, pa.ListType):
        return tuple(_plain(item, kind.value_type) for item in value)
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    if isinstance(value, bool):
        return str(value)
    result: Hashable = value
    return result


def assert_rows(actual: pa.Table, expected: Iterable[Sequence[Any]], schema: pa.Schema, about: str) -> None:
    """``actual`` has exactly the columns of ``schema``, in order and type, and the rows ``expected``."""
    assert actual.schema.names == schema.names, f"{about}: columns {actual.schema.names}, expected {schema.names}"
    for got, want in zip(actual.schema, schema, strict=True):
        assert same_type(got.type, want.type), f"{about}: {got.name} is {got.type}, expected {want.type}"
    kinds = [f.type for f in schema]
    found = multiset(rows_of(actual), kinds)
    wanted = multiset(expected, kinds)
    assert found == wanted, (
        f"{about}: too many {list((found - wanted).elements())}, missing {list((wanted - found).elements())}"
    )


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
