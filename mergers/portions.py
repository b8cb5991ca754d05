"""Rows that are too many bytes for one array, in portions that are not.

Arrow's strings, binary values, lists and maps have 32-bit offsets: one array of them ends at 2 GiB, or at 2^31
elements. Tables of several chunks have no such end. But whatever concatenates chunks has it: ``combine_chunks``,
``take``, sorts. The functions here do the same for tables of any size. Their result is in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.contract import Ints

__all__ = [
    "ARRAY_BYTES",
    "LARGEST_BYTES",
    "VALUE_BYTES",
    "bounded_batches",
    "gather",
    "is_large",
    "is_overflow",
    "plain_bytes",
    "portion_bytes",
    "row_bytes",
    "spans",
    "together",
]

ARRAY_BYTES: Final = 2**31 - 2**20
"""About the most bytes that one array of strings holds."""

VALUE_BYTES: Final = 960 * 2**20
"""The most bytes of a value that a table takes: two of them fit into one array."""

LARGEST_BYTES = VALUE_BYTES
"""Tables of more bytes are taken in portions. Tests set it to a few bytes, so that every table is."""

_PORTION_BYTES = 256 * 2**20
"""A portion has fewer bytes than an array may have, because it is copied several times."""


def is_large(*tables: pa.Table | pa.RecordBatch, than: int | None = None) -> bool:
    """Whether the tables together have too many bytes to be one table without chunks, or more than so many bytes."""
    limit = LARGEST_BYTES if than is None else than
    return sum(_weight(table.schema) * table.nbytes for table in tables) > limit


def _weight(schema: pa.Schema) -> int:
    """Lists of booleans have eight elements in a byte, and each counts as a byte."""
    return 8 if any(_has_bits(field.type) for field in schema) else 1


@cache
def _has_bits(kind: pa.DataType, *, inside: bool = False) -> bool:
    """Whether elements of lists or maps are booleans, or structs of booleans."""
    inside = inside or pa.types.is_list(kind) or pa.types.is_map(kind)
    if pa.types.is_map(kind):
        return _has_bits(kind.key_type, inside=True) or _has_bits(kind.item_type, inside=True)
    if pa.types.is_nested(kind):
        return any(_has_bits(kind.field(place).type, inside=inside) for place in range(kind.num_fields))
    return inside and pa.types.is_boolean(kind)


def portion_bytes() -> int:
    """About the most bytes of a portion."""
    return min(_PORTION_BYTES, LARGEST_BYTES)


def together(table: pa.Table) -> pa.Table:
    """The rows without chunks or, if they are large, in chunks."""
    return table if is_large(table) else table.combine_chunks()


def gather(table: pa.Table, positions: Ints) -> pa.Table:
    """The rows at these positions, in their order. No position is there twice."""
    if not is_large(table):
        return table.combine_chunks().take(pa.array(positions))
    batches = table.to_batches()
    ends = np.cumsum([batch.num_rows for batch in batches])
    parts = [table.slice(0, 0)]
    for start, end in spans(row_bytes(table)[positions], portion_bytes()):
        wanted = positions[start:end]
        order = np.argsort(wanted, kind="stable")
        cuts = np.searchsorted(wanted[order], np.concatenate([[0], ends]))
        found = [
            pa.Table.from_batches([batch.take(pa.array(wanted[order[low:high]] - first))])
            for batch, first, low, high in zip(batches, [0, *ends[:-1]], cuts[:-1], cuts[1:], strict=True)
            if low < high
        ]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        parts.append(pa.concat_tables(found).combine_chunks().take(pa.array(back)))
    return pa.concat_tables(parts)


def spans(sizes: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Consecutive entries, from the first to the last excluded, whose sizes are at most ``limit``, or one entry."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield start, end
        start = end


def bounded_batches(table: pa.Table, *, rows: int) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most so many rows, and of about the bytes of a portion, or of one row."""
    for batch in table.to_batches(max_chunksize=rows):
        if not is_large(batch, than=portion_bytes()):
            yield batch
            continue
        for start, end in spans(row_bytes(batch), portion_bytes()):
            yield batch.slice(start, end - start)


def row_bytes(table: pa.Table | pa.RecordBatch) -> Ints:
    """About how many bytes each row has."""
    sizes = np.zeros(table.num_rows, dtype=np.int64)
    for column in table.columns:
        at = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            sizes[at : at + len(chunk)] += _sizes(chunk)
            at += len(chunk)
    return sizes


def plain_bytes(batch: pa.RecordBatch) -> int:
    """How many bytes the rows have once values are repeated that a dictionary, runs or views share."""
    return int(row_bytes(batch).sum()) if any(_shares(field.type) for field in batch.schema) else int(batch.nbytes)


@cache
def _shares(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or kind in _VIEWS:
        return True
    if not pa.types.is_nested(kind):
        return False
    return any(_shares(kind.field(place).type) for place in range(kind.num_fields))


_VIEWS = (pa.string_view(), pa.binary_view())


def _sizes(array: pa.Array) -> Ints:
    kind = array.type
    if pa.types.is_dictionary(kind):
        if not len(array.dictionary):
            return np.zeros(len(array), dtype=np.int64)
        at = pc.fill_null(array.indices, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        # An index beyond the dictionary is found, and named, when the values are checked.
        return _sizes(array.dictionary)[np.clip(at, 0, len(array.dictionary) - 1)]
    if pa.types.is_run_end_encoded(kind):
        ends = np.minimum(array.run_ends.to_numpy(), array.offset + len(array))
        return np.repeat(_sizes(array.values), np.diff(np.maximum(ends, array.offset), prepend=array.offset))
    if kind in _VIEWS:
        # A view has 16 bytes, of which the first four are the length. Null has any.
        views = np.frombuffer(array.buffers()[1] or b"", dtype=np.int32).reshape(-1, 4)
        return views[array.offset : array.offset + len(array), 0].astype(np.int64) + 4
    if pa.types.is_struct(kind):
        return sum((_sizes(child) for child in array.flatten()), np.zeros(len(array), dtype=np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = array.offsets.to_numpy().astype(np.int64)
        first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        # Null lists may have elements, too, which count as well.
        children = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
        own = sum((_sizes(child[first:last]) for child in children), np.zeros(last - first, dtype=np.int64))
        ends = np.concatenate([[0], np.cumsum(own)])
        return ends[offsets[1:] - first] - ends[offsets[:-1] - first] + array.offsets.type.bit_width // 8
    if _has_lengths(kind):
        lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
        return lengths.astype(np.int64) + 4
    width = max(1, kind.bit_width // 8) if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) else 0
    return np.full(len(array), width or -(-array.nbytes // max(1, len(array))), dtype=np.int64)


def _has_lengths(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def is_overflow(error: pa.ArrowException) -> bool:
    """Whether Arrow refused to make an array because its offsets do not fit into 32 bits."""
    text = str(error)
    return isinstance(error, pa.ArrowCapacityError) or "offset overflow" in text or "cannot contain more than" in text
