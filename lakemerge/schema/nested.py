"""Null structs whose type has NOT NULL fields.

If a struct is null, its fields hold no values, declared NOT NULL or not; Spark and Parquet agree on that. Arrow's
functions make such structs with null fields, which Arrow's casts and its Parquet writer refuse.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

__all__ = ["settled"]


def settled(rows: pa.Table) -> pa.Table:
    """The same rows, in which the NOT NULL fields of null structs hold some value instead of null."""
    for place, field in enumerate(rows.schema):
        if _declares(field.type):
            chunks = [_settled(chunk) for chunk in rows.column(place).chunks]
            rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
    return rows


@cache
def _declares(kind: pa.DataType) -> bool:
    """Whether a struct of the type, outside of lists and maps, has a NOT NULL field."""
    return pa.types.is_struct(kind) and any(not field.nullable or _declares(field.type) for field in kind)


def _settled(array: pa.Array) -> pa.Array:
    if not _declares(array.type):
        return array
    children = []
    for place, field in enumerate(array.type):
        child = _settled(array.field(place))
        children.append(child if field.nullable or not child.null_count else _without_validity(child))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(array.type), mask=mask)


def _without_validity(array: pa.Array) -> pa.Array:
    """The array with any value in place of each null."""
    if pa.types.is_struct(array.type):
        children = [array.field(place) for place in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(array.type))
    if not pa.types.is_nested(array.type):
        return pa.Array.from_buffers(array.type, len(array), [None, *array.buffers()[1:]], offset=array.offset)
    if pa.types.is_map(array.type):
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=array.type)
    return type(array).from_arrays(array.offsets, array.values, type=array.type)
