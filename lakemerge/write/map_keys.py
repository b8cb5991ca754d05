"""Checks that no map has a key twice. Delta and Spark do not allow it, and readers would disagree about the value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FrameError
from lakemerge.schema.soundness import first_bad_row
from mergers.builtin.functions.equal import equality_codes
from mergers.contract import Ints

__all__ = ["check_map_keys"]

_SHORT = 16
"""Maps of up to this many keys are compared key by key, without a sort."""


def check_map_keys(rows: pa.RecordBatch, first_row: int) -> None:
    """Raise :class:`FrameError` for a map that has a key twice, at any depth of a column.

    :param rows: rows in the table's types.
    :param first_row: the number of the first row, for the error message.
    """
    for field, column in zip(rows.schema, rows.columns, strict=True):
        try:
            _check(column)
        except pa.ArrowInvalid as error:
            row = first_bad_row(column, _check)
            at = None if row is None else first_row + row
            raise FrameError(
                f"column {field.name!r} has a map with {error} in row {at}; keep one of the values",
                column=field.name,
                row=at,
            ) from error


def _check(array: pa.Array) -> None:
    """Raise :class:`pyarrow.ArrowInvalid`, which names a repeated key."""
    kind = array.type
    if pa.types.is_struct(kind) and _has_map(kind):
        for child in array.flatten():
            _check(child)
    elif pa.types.is_list(kind) and _has_map(kind):
        _check(array.flatten())
    elif pa.types.is_map(kind) and len(array):
        _check_keys(array)


def _check_keys(maps: pa.MapArray) -> None:
    offsets = maps.offsets.to_numpy()
    keys, items = (child.slice(offsets[0], offsets[-1] - offsets[0]) for child in (maps.keys, maps.items))
    sizes = np.diff(offsets)
    if maps.null_count:
        valid = maps.is_valid().to_numpy(zero_copy_only=False)
        kept = pa.array(np.repeat(valid, sizes))
        keys, items, sizes = keys.filter(kept), items.filter(kept), sizes[valid]
    again = _repeated(keys, np.repeat(np.arange(len(sizes)), sizes), int(sizes.max(initial=0)))
    if again is not None:
        raise pa.ArrowInvalid(f"the key {keys[again].as_py()!r} twice")
    for child in (keys, items):
        _check(child)


def _repeated(keys: pa.Array, maps: Ints, longest: int) -> int | None:
    """The position of a key that occurs earlier in the same map.

    :param maps: for each key, the number of its map. The numbers ascend.
    :param longest: a map has at most this many keys.
    """
    if pa.types.is_nested(keys.type) or pa.types.is_floating(keys.type):
        keys = pa.array(equality_codes(keys))
    if longest > _SHORT:
        entries = equality_codes(keys) + maps * len(keys)
        order = np.argsort(entries, kind="stable")
        equal = np.flatnonzero(np.diff(entries[order]) == 0)
        return int(order[equal[0] + 1]) if len(equal) else None
    for distance in range(1, longest):
        equal = pc.equal(keys[distance:], keys[:-distance]).to_numpy(zero_copy_only=False)
        equal &= maps[distance:] == maps[:-distance]
        if equal.any():
            return int(np.argmax(equal)) + distance
    return None


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))
