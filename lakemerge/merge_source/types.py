"""The type that a property has in the output, from its types in the datasets.

A property of several datasets gets the type that holds the values of all of them without loss. If there is none, the
configuration is refused, or the property becomes text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lakemerge.errors import SchemaError
from lakemerge.merge_source.inputs import Shape
from lakemerge.schema.evolution import loosened
from mergers.type_names import type_name

__all__ = ["Property", "common_type", "element_type", "properties_of"]

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_DIGITS = frozenset(_INTEGERS)


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the output."""

    name: str
    type: pa.DataType
    """The type of one value. For a list it is the type of the elements."""
    columns: Mapping[int, str] = field(default_factory=dict)
    """Offset of the dataset -> its column for this property."""
    lists: frozenset[int] = frozenset()
    """Offsets of the datasets in which it is a list."""
    as_text: bool = False
    """Whether its values become text, because they have no common type."""


def properties_of(shapes: Sequence[Shape | None], *, as_text: bool) -> list[Property]:
    """The properties of all datasets, in the order in which they first occur.

    :param as_text: whether a property without a common type becomes text.
    :raises lakemerge.SchemaError: there is no common type; the error names every such property.
    """
    found: dict[str, Property] = {}
    problems: list[str] = []
    for offset, shape in enumerate(shapes):
        if shape is None:
            continue
        for name in shape.properties:
            kind = loosened(shape.schema.field(name).type)
            known = found.get(name.lower(), Property(name, element_type(kind)))
            found[name.lower()] = _joined(known, offset, name, kind, as_text=as_text, problems=problems)
    if problems:
        raise SchemaError(
            "columns of one name have types without a common one: "
            + "; ".join(problems)
            + '. Rename or cast one of them, or configure type_conflicts="string"',
            problems=tuple(problems),
        )
    return list(found.values())


def _joined(
    known: Property, offset: int, name: str, kind: pa.DataType, *, as_text: bool, problems: list[str]
) -> Property:
    element = element_type(kind)
    common = pa.string() if known.as_text else common_type(known.type, element)
    text = known.as_text or common is None
    if common is None and not as_text:
        problems.append(f"{known.name!r} is {type_name(known.type)} and {type_name(element)}")
    lists = known.lists | {offset} if pa.types.is_list(kind) else known.lists
    return Property(known.name, common or pa.string(), {**known.columns, offset: name}, lists, text)


def element_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds the values of both without loss; ``None`` if there is none."""
    if one == other:
        return one
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _common_struct(one, other)
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = common_type(one.value_type, other.value_type)
        return None if inner is None else pa.list_(pa.field("element", inner))
    if pa.types.is_map(one) and pa.types.is_map(other):
        inner = common_type(one.item_type, other.item_type) if one.key_type == other.key_type else None
        return None if inner is None else pa.map_(one.key_type, pa.field("value", inner))
    if one in _INTEGERS and other in _INTEGERS:
        return max(one, other, key=_INTEGERS.index)
    if pa.types.is_decimal(one) or pa.types.is_decimal(other):
        return _common_decimal(one, other)
    doubles = (pa.float32(), pa.float64(), *_INTEGERS[:3])
    return pa.float64() if one in doubles and other in doubles else None


def _common_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    types = {child.name.lower(): child for child in one}
    for child in other:
        known = types.get(child.name.lower())
        common = child.type if known is None else common_type(known.type, child.type)
        if common is None:
            return None
        types[child.name.lower()] = pa.field(child.name if known is None else known.name, common)
    return pa.struct(list(types.values()))


def _common_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    whole, scale = 0, 0
    for kind in (one, other):
        if pa.types.is_decimal(kind):
            whole, scale = max(whole, kind.precision - kind.scale), max(scale, kind.scale)
        elif kind in _DIGITS:
            # For integers Delta counts more digits than they have, and does not widen to fewer.
            whole = max(whole, 20 if kind == pa.int64() else 10)
        else:
            return None
    return pa.decimal128(whole + scale, scale) if whole + scale <= 38 else None
