"""Values in options: JSON on the outside, values of a column's type on the inside."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Mapping, Sequence

import pyarrow as pa

from mergers.type_names import type_name

__all__ = ["frozen", "thawed", "typed_array", "typed_value"]


def typed_value(value: object, kind: pa.DataType) -> object:
    """A JSON value as a Python value of a column's type. In JSON, dates and timestamps are ISO strings, decimals are
    strings and binary is ``{"b64": ...}``. Raises :class:`TypeError` or :class:`ValueError`."""
    if isinstance(value, bool) != pa.types.is_boolean(kind):
        raise TypeError(f"{value!r} is not a {type_name(kind)}")
    if pa.types.is_integer(kind) and value is not None and not (isinstance(value, int) and -(2**63) <= value < 2**63):
        raise TypeError(f"{value!r} is not a {type_name(kind)}")
    if isinstance(value, str):
        if pa.types.is_decimal(kind):
            return decimal.Decimal(value)
        if pa.types.is_date(kind):
            return dt.date.fromisoformat(value)
        if pa.types.is_timestamp(kind):
            return dt.datetime.fromisoformat(value)
    if isinstance(value, Mapping) and set(value) == {"b64"}:
        return base64.b64decode(str(value["b64"]))
    return value


def typed_array(value: object, kind: pa.DataType) -> pa.Array:
    """One JSON value as an array of a column's type. Structs are objects, maps are lists of pairs; values inside them
    are written as anywhere else.

    Raises :class:`TypeError`, :class:`ValueError`, a decimal or a pyarrow exception.
    """
    return pa.array([_nested(thawed(value), kind)], type=kind)


def _nested(value: object, kind: pa.DataType) -> object:
    if value is None:
        return None
    if not pa.types.is_nested(kind):
        return typed_value(value, kind)
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        unknown = set(value) - {kind.field(i).name for i in range(kind.num_fields)}
        if unknown:
            raise TypeError(f"a {type_name(kind)} has no {', '.join(map(repr, sorted(unknown)))}")
        return {name: _nested(item, kind.field(name).type) for name, item in value.items()}
    if pa.types.is_map(kind) and isinstance(value, list) and all(isinstance(v, list) and len(v) == 2 for v in value):
        return [(_nested(key, kind.key_type), _nested(item, kind.item_type)) for key, item in value]
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_nested(item, kind.value_type) for item in value]
    raise TypeError(f"{value!r} is not a {type_name(kind)}")


def frozen(value: object) -> object:
    """A JSON value with tuples for lists."""
    if isinstance(value, Mapping):
        return {str(name): frozen(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(frozen(item) for item in value)
    return value


def thawed(value: object) -> object:
    """The reverse of :func:`frozen`."""
    if isinstance(value, Mapping):
        return {name: thawed(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [thawed(item) for item in value]
    return value
