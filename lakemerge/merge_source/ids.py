"""Ids of entities as text, from the key columns of their tables, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.nested_arrays import Ints, contiguous, list_array
from lakemerge.merge_source.value_texts import json_strings, plain_texts

__all__ = ["composite_ids", "ids_of", "key_texts", "keys_of"]


def ids_of(rows: pa.Table, columns: Sequence[str]) -> pa.Array:
    """The key column as text; several columns as a JSON array."""
    if len(columns) == 1:
        return plain_texts(contiguous(rows.column(columns[0])))
    parts = [_json(contiguous(rows.column(name))) for name in columns]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*parts, ","), "]", "")


def keys_of(ids: pa.Array, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
    """The key columns of entities; the inverse of :func:`ids_of`."""
    if len(columns) == 1:
        parts: list[Any] = [ids]
    else:
        rows = orjson.loads("[" + ",".join(ids.to_pylist()) + "]")
        parts = [[row[place] for row in rows] for place in range(len(columns))]
    typed = [_typed(part, schema.field(name).type) for part, name in zip(parts, columns, strict=True)]
    return pa.table(typed, names=list(columns))


def key_texts(datasets: Ints, ids: pa.Array) -> pa.Array:
    """One text for each entity: offset and id, joined by a bar. It is unique, because no offset contains a bar."""
    return pc.binary_join_element_wise(pa.array(datasets).cast(pa.string()), ids, "|")


def composite_ids(offsets: Ints, datasets: Ints, ids: pa.Array) -> pa.Array:
    """The ids of clusters: the parts of their members, joined by bars.

    :param offsets: where the members of each cluster begin, and where those of the last one end.
    """
    return pc.binary_join(list_array(offsets, key_texts(datasets, ids)), "|")


def _json(values: pa.Array) -> pa.Array:
    bare = pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
    return plain_texts(values) if bare else json_strings(plain_texts(values))


def _typed(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        given = values.to_pylist() if isinstance(values, pa.Array) else values
        return pa.array([bytes.fromhex(value) for value in given], kind)
    texts = values if isinstance(values, pa.Array) else pa.array([_text(value) for value in values], pa.string())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return texts.cast(pa.timestamp("us", "UTC")).cast(kind)
    return texts.cast(kind)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
