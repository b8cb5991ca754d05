"""Fields of structs, elements of lists, values of maps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge.errors import FilterError
from lakemerge.sql.casts import cast
from lakemerge.sql.logic import equal_values, of_one_kind
from lakemerge.sql.nodes import Constant, Field, Node, call
from lakemerge.sql.types import BIGINT, INT, is_text
from lakemerge.sql.vectors import from_vector, refuse, to_vector, truths, valid
from mergers.builtin.functions.equal import equality_codes, grouped
from mergers.type_names import type_name

__all__ = ["array_contains", "array_distinct", "array_of_two", "element", "field", "size"]


def field(of: Node, wanted: str, text: str) -> Node:
    """A field of a struct. The case of its name does not matter. Raises :class:`FilterError` if there is no such
    field."""
    fields = [of.kind.field(i) for i in range(of.kind.num_fields)] if pa.types.is_struct(of.kind) else []
    found = [index for index, field in enumerate(fields) if field.name.lower() == wanted.lower()]
    if len(found) != 1:
        raise FilterError(f"{of.text} has no field {wanted!r}", column=text)
    return Field(of, found[0], fields[found[0]].type, text, of.may_fail)


def element(of: Node, key: Node, text: str) -> Node:
    """``of[key]``.

    An element of a list is found by its position from zero, and it is an error if the list is too short. A value of a
    map is found by its key, and is null if the key is missing. A field of a struct is found by its name.
    """
    if pa.types.is_struct(of.kind) and isinstance(key, Constant) and is_text(key.kind) and key.value is not None:
        return field(of, key.value, text)
    if pa.types.is_list(of.kind) and pa.types.is_integer(key.kind):
        return call(_element, [of, cast(key, BIGINT)], of.kind.value_type, text, fails=True)
    if pa.types.is_map(of.kind):
        key = cast(key, of.kind.key_type) if isinstance(key, Constant) else key
        if key.kind == of.kind.key_type and not pa.types.is_nested(key.kind):
            return call(_value, [of, key], of.kind.item_type, text)
    raise FilterError(f"{text}: {of.text} is {type_name(of.kind)} and has no element {key.text}, {type_name(key.kind)}")


def size(of: Node, text: str) -> Node:
    """``size``. The size of null is null, as under ANSI mode."""
    if not (pa.types.is_list(of.kind) or pa.types.is_map(of.kind)):
        raise FilterError(f"{text}: {of.text} is {type_name(of.kind)}, not an array or a map", construct=text)
    return call(_size, [of], INT, text)


def array_contains(of: Node, value: Node, text: str) -> Node:
    """``array_contains``. It is null if the value is missing and the list has a null."""
    if not pa.types.is_list(of.kind) or pa.types.is_null(value.kind):
        raise FilterError(
            f"{text}: {of.text} is {type_name(of.kind)}, and {value.text} {type_name(value.kind)}", construct=text
        )
    items = Constant(None, of.kind.value_type, of.text)
    one, other = of_one_kind([items, value], text)
    if one.kind != items.kind or is_text(value.kind) != is_text(items.kind):
        raise FilterError(f"{text}: the elements are {type_name(items.kind)}; CAST the value to it", construct=text)
    return call(_contains, [of, other], pa.bool_(), text)


def array_distinct(of: Node, text: str) -> Node:
    """``array_distinct``. Of equal elements the first one stays. Null equals null, and NaN equals NaN."""
    return call(_distinct, [_list(of, text)], of.kind, text)


def array_of_two(operator: str, nodes: Sequence[Node], text: str) -> Node:
    """``array_union``, ``array_intersect`` or ``array_except``. No element comes twice. The order is that of
    the first array, and then that of the second."""
    one, other = (_list(node, text) for node in nodes)
    if one.kind.value_type != other.kind.value_type:
        raise FilterError(
            f"{text}: {one.text} is {type_name(one.kind)}, and {other.text} {type_name(other.kind)}: the elements must "
            "have one type",
            construct=text,
        )
    kind = one.kind if one.kind.value_field.nullable else other.kind
    return call(partial(_of_two, operator=operator, kind=kind), [one, other], kind, text)


def _list(node: Node, text: str) -> Node:
    if not pa.types.is_list(node.kind):
        raise FilterError(f"{text}: {node.text} is {type_name(node.kind)}, not an array", construct=text)
    return node


def _distinct(values: pa.ListArray) -> pa.Array:
    return _of_two(values, values.slice(0, 0), operator="union", kind=values.type)


def _of_two(left: pa.ListArray, right: pa.ListArray, *, operator: str, kind: pa.DataType) -> pa.Array:
    known = valid(left) if not len(right) else valid(left, right)
    (entries, owners), (others, other_owners) = _entries(left), _entries(right)
    elements = pa.concat_arrays(
        [left.values.take(pa.array(entries)), right.values.take(pa.array(others)).cast(left.type.value_type)]
    )
    both = np.concatenate([owners, other_owners])
    codes = grouped(both, equality_codes(elements))
    order = np.argsort(both, kind="stable")
    if operator != "union":
        of_left = order[order < len(owners)]
        there = np.isin(codes[of_left], codes[len(owners) :])
        order = of_left[there if operator == "intersect" else ~there]
    order = order[known[both[order]]]
    first = np.sort(np.unique(codes[order], return_index=True)[1])
    kept = order[first]
    ends = np.concatenate([[0], np.cumsum(np.bincount(both[kept], minlength=len(left)))]).astype(np.int32)
    # A list is null if its offset is.
    offsets = pa.array(ends, mask=None if known.all() else np.append(~known, False))
    return pa.ListArray.from_arrays(offsets, elements.take(pa.array(kept))).cast(kind)


def _bounds(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each row's elements begin and end. A null list has no elements."""
    offsets = values.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    known = valid(values)
    return offsets[:-1], np.where(known, offsets[1:], offsets[:-1])


def _element(values: pa.ListArray, positions: pa.Array) -> pa.Array:
    starts, ends = _bounds(values)
    known, at = valid(values, positions), to_vector(positions)
    bad = known & ((at < 0) | (at >= ends - starts))
    refuse(bad, "an array of {} elements has none at {}, counted from 0", _size(values), positions)
    return values.values.take(pa.array(np.where(known, starts + at, 0), mask=~known))


def _value(values: pa.MapArray, keys: pa.Array) -> pa.Array:
    entries, owners = _entries(values)
    there = truths(equal_values(values.keys.take(pa.array(entries)), keys.take(pa.array(owners))))
    rows, first = np.unique(owners[there], return_index=True)
    places = np.zeros(len(values), dtype=np.int64)
    missing = np.ones(len(values), dtype=np.bool_)
    places[rows], missing[rows] = entries[there][first], False
    return values.items.take(pa.array(places, mask=missing))


def _contains(values: pa.ListArray, wanted: pa.Array) -> pa.Array:
    entries, owners = _entries(values)
    found = equal_values(values.values.take(pa.array(entries)), wanted.take(pa.array(owners)))
    count = len(values)
    holds = np.bincount(owners, truths(found), count) > 0
    unsure = np.bincount(owners, truths(found.is_null()), count) > 0
    return from_vector(holds, valid(values, wanted) & (holds | ~unsure), pa.bool_())


def _entries(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The positions of all elements, and the row that each element belongs to."""
    starts, ends = _bounds(values)
    lengths = ends - starts
    owners = np.repeat(np.arange(len(values)), lengths)
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum())), owners


def _size(values: pa.Array) -> pa.Array:
    starts, ends = _bounds(values)
    return from_vector((ends - starts).astype(np.int32), valid(values), INT)
