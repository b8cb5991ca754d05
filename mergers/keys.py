"""Sorting, grouping and searching rows by key, without per-row Python.

Keys have no nulls and no floats. The key order is that of :mod:`mergers.ordering`, which is also
how Spark sorts the same columns, so that files written by either are sorted for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers import portions
from mergers.contract import Bools, Ints
from mergers.ordering import plain_integers

__all__ = ["KeyColumns", "group_starts", "key_columns", "locate", "sort_order"]

KeyColumns = tuple[pa.Array, ...]

_CODE_SPACE = 2**63
_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def key_columns(table: pa.Table | pa.RecordBatch, key: Sequence[str]) -> KeyColumns:
    """The key columns of a table, each as one contiguous array. Texts and binary values that are too long for one array
    of their type are of Arrow's large types."""
    return tuple(_contiguous(table.column(name)) for name in key)


def sort_order(keys: KeyColumns) -> Ints:
    """The stable order that sorts the rows by key."""
    codes = _codes(keys)
    if codes is not None:
        return np.argsort(codes[0], kind="stable").astype(np.int64, copy=False)
    names = [str(i) for i in range(len(keys))]
    table = pa.Table.from_arrays(list(keys), names=names)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    return order.to_numpy().astype(np.int64)


def group_starts(keys: KeyColumns) -> Ints:
    """Positions at which a new key begins; the rows are sorted by key."""
    rows = len(keys[0])
    if rows == 0:
        return np.empty(0, dtype=np.int64)
    changed = np.zeros(rows, dtype=np.bool_)
    changed[0] = True
    for column in keys:
        changed[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(changed)


def locate(haystack: KeyColumns, needles: KeyColumns) -> tuple[Ints, Bools]:
    """For each needle, the first position in the haystack whose key is not below it, and whether the key at that
    position is equal. Haystack keys are sorted and unique."""
    rows = len(haystack[0])
    if rows == 0:
        return np.zeros(len(needles[0]), dtype=np.int64), np.zeros(len(needles[0]), dtype=np.bool_)
    codes = _codes(haystack, needles)
    if codes is not None:
        stack, sought = codes
        positions = np.searchsorted(stack, sought, side="left").astype(np.int64, copy=False)
        found = positions < rows
        found[found] = stack[positions[found]] == sought[found]
        return positions, found
    return _bisect(haystack, needles, rows)


def _bisect(haystack: KeyColumns, needles: KeyColumns, rows: int) -> tuple[Ints, Bools]:
    """Binary search of all needles at once: log2(rows) rounds of take and compare."""
    low = np.zeros(len(needles[0]), dtype=np.int64)
    high = np.full(len(needles[0]), rows, dtype=np.int64)
    open_ = np.flatnonzero(low < high)
    while len(open_):
        middle = (low[open_] + high[open_]) // 2
        below = _less(_take(haystack, middle), _take(needles, open_))
        low[open_[below]] = middle[below] + 1
        high[open_[~below]] = middle[~below]
        open_ = open_[low[open_] < high[open_]]
    found = low < rows
    inside = np.flatnonzero(found)
    pairs = zip(_take(haystack, low[inside]), _take(needles, inside), strict=True)
    found[inside] = reduce(
        np.logical_and,
        (pc.equal(left, right).to_numpy(zero_copy_only=False) for left, right in pairs),
        np.ones(len(inside), dtype=np.bool_),
    )
    return low, found


def _less(left: KeyColumns, right: KeyColumns) -> Bools:
    """Lexicographic ``left < right``, row by row."""
    result = np.zeros(len(left[0]), dtype=np.bool_)
    equal = np.ones(len(left[0]), dtype=np.bool_)
    for a, b in zip(left, right, strict=True):
        result |= equal & pc.less(a, b).to_numpy(zero_copy_only=False)
        equal &= pc.equal(a, b).to_numpy(zero_copy_only=False)
    return result


def _take(keys: KeyColumns, positions: Ints) -> KeyColumns:
    indices = pa.array(positions)
    return tuple(column.take(indices) for column in keys)


def _codes(*tables: KeyColumns) -> list[Ints] | None:
    """One int64 for each row, in key order, comparable between the given tables; ``None`` if the key has a type without
    such codes, or if its range does not fit."""
    plain: list[list[Ints]] = []
    for table in tables:
        columns = [plain_integers(column) for column in table]
        if any(column is None for column in columns):
            return None
        plain.append([column for column in columns if column is not None])
    if len(plain[0]) == 1:
        return [columns[0] for columns in plain]
    filled = [columns for columns in plain if len(columns[0])]
    if not filled:
        return [np.empty(0, dtype=np.int64) for _ in plain]
    lows = [min(int(columns[i].min()) for columns in filled) for i in range(len(plain[0]))]
    highs = [max(int(columns[i].max()) for columns in filled) for i in range(len(plain[0]))]
    spans = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
    if reduce(lambda product, span: product * span, spans) >= _CODE_SPACE:
        return None
    return [_pack(columns, lows, spans) for columns in plain]


def _pack(columns: Sequence[Ints], lows: Sequence[int], spans: Sequence[int]) -> Ints:
    code = columns[0] - lows[0]
    for column, low, span in zip(columns[1:], lows[1:], spans[1:], strict=True):
        # In place, because to allocate an array of this size costs more than the computation.
        code *= span
        code += column
        code -= low
    return code


def _contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        wide = _WIDE.get(column.type)
        if wide is not None and column.nbytes > portions.LARGEST_BYTES:
            column = column.cast(wide)
        return column.combine_chunks()
    return column
