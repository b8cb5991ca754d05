"""Wider types of columns, as in Delta's table feature ``typeWidening``.

Files keep the types with which they were written, and readers convert. The changes of a column's type are noted in the
metadata of the nearest struct field, so a reader can check that it knows all of them.
Source: Delta protocol, "Type Widening".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from lakemerge.delta import Protocol
from lakemerge.errors import SchemaError, UnsupportedFeatureError
from lakemerge.schema.ddl import TIMESTAMP_NTZ
from lakemerge.schema.schema import (
    from_delta_json,
    json_entry,
    needs_timestamp_ntz,
    type_json,
    with_json_entry,
)
from mergers.type_names import type_name

__all__ = ["PROPERTY", "check_type_changes", "check_wider", "is_wider", "with_feature", "with_type_change"]

PROPERTY = "delta.enableTypeWidening"
_FEATURE = "typeWidening"
_CHANGES = "delta.typeChanges"

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_WHOLE_DIGITS: Mapping[pa.DataType, int] = {pa.int8(): 10, pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
"""Integer type -> how many digits before the point a decimal needs to replace it."""


def is_wider(before: pa.DataType, after: pa.DataType) -> bool:
    """Whether Delta allows a column of one type to become a column of the other."""
    if pa.types.is_decimal(after):
        if pa.types.is_decimal(before):
            more, scale = after.precision - before.precision, after.scale - before.scale
            return bool(after != before and more >= scale >= 0)
        return before in _WHOLE_DIGITS and bool(after.precision - after.scale >= _WHOLE_DIGITS[before])
    if before in _INTEGERS and after in _INTEGERS:
        return _INTEGERS.index(before) < _INTEGERS.index(after)
    if after == pa.float64():
        return before in (pa.float32(), *_INTEGERS[:3])
    return bool(before == pa.date32() and after == TIMESTAMP_NTZ)


def check_wider(name: str, before: pa.DataType, after: pa.DataType) -> None:
    """Raise :class:`SchemaError` if the type is not wider."""
    if not is_wider(before, after):
        raise SchemaError(
            f"column {name!r} cannot become {type_name(after)}, since it is {type_name(before)}. Wider types are: of "
            "TINYINT, SMALLINT and INT the larger integers, DOUBLE, and DECIMAL with 10 digits before the point or "
            "more; of BIGINT DECIMAL with 20; of FLOAT DOUBLE; of DECIMAL one with as many digits before and after "
            "the point, or more; of DATE TIMESTAMP_NTZ"
        )


def with_type_change(field: pa.Field, before: pa.DataType, after: pa.DataType, inside: Sequence[str]) -> pa.Field:
    """The struct field with a note that its type changed, or the type at the place ``inside`` it.

    :param inside: ``element`` and ``value``, from the outside in; empty for the field itself.
    """
    change = {"fromType": type_json(before), "toType": type_json(after)}
    if inside:
        change["fieldPath"] = ".".join(inside)
    noted = json_entry(field, _CHANGES)
    return with_json_entry(field, _CHANGES, [*noted, change] if isinstance(noted, list) else [change])


def with_feature(protocol: Protocol, schema: pa.Schema) -> Protocol:
    """The protocol of a table with wider types than it began with."""
    features = {_FEATURE, "timestampNtz"} if needs_timestamp_ntz(schema) else {_FEATURE}
    return Protocol(3, 7, protocol.reader_features | features, protocol.writer_features | features)


def check_type_changes(schema: pa.Schema) -> None:
    """Raise :class:`UnsupportedFeatureError` if a column's type changed in a way that this library does not know."""
    for field in schema:
        _check_changes(field, field.name)


def _check_changes(field: pa.Field, path: str) -> None:
    changes = json_entry(field, _CHANGES)
    for change in changes if isinstance(changes, list) else []:
        if not _is_known(change):
            raise UnsupportedFeatureError(
                f"column {path!r} went through a change of type that this library cannot read: {change}",
                column=path,
            )
    kind = field.type
    children = {child.name: child for child in kind} if pa.types.is_struct(kind) else {}
    if pa.types.is_list(kind):
        children = {"element": kind.value_field}
    elif pa.types.is_map(kind):
        children = {"key": kind.key_field, "value": kind.item_field}
    for name, child in children.items():
        _check_changes(child, f"{path}.{name}")


def _is_known(change: object) -> bool:
    if not isinstance(change, dict):
        return False
    try:
        return is_wider(_parsed(change.get("fromType")), _parsed(change.get("toType")))
    except SchemaError:
        return False


def _parsed(name: object) -> pa.DataType:
    field = {"name": "x", "type": name, "nullable": True, "metadata": {}}
    return from_delta_json(json.dumps({"type": "struct", "fields": [field]})).field(0).type
