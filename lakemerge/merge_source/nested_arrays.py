"""Lists of lists as flat arrays and offsets, and back."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "Bools",
    "Ints",
    "contiguous",
    "lengths_of",
    "list_array",
    "offsets_of",
    "run_starts",
    "spread",
]

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


def contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array without an offset into its buffers."""
    if isinstance(column, pa.ChunkedArray):
        # pyarrow copies even a single chunk.
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # pyarrow gives back a chunked array without chunks as it is
        return pa.array([], column.type)
    return pa.concat_arrays([column]) if column.offset else column


def lengths_of(lists: pa.Array) -> Ints:
    """How many elements each list has; 0 for null."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def offsets_of(lists: pa.Array) -> Ints:
    """Where the elements of each list begin in ``pc.list_flatten`` of the lists, and where those of the last end."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths_of(lists), dtype=np.int64)])


def list_array(offsets: Ints, elements: pa.Array, present: Bools | None = None) -> pa.Array:
    """Lists of consecutive elements; null where they are not ``present``.

    Raises ``pa.ArrowInvalid`` if there are more elements than one array can hold.
    """
    if len(offsets) and int(offsets[-1]) > np.iinfo(np.int32).max:
        raise pa.ArrowInvalid(f"{int(offsets[-1])} elements are more than one array of lists can hold")
    kind = pa.list_(pa.field("element", elements.type))
    validity = None
    if present is not None and not present.all():
        validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    data = pa.py_buffer(offsets.astype(np.int32).tobytes())
    return pa.Array.from_buffers(kind, len(offsets) - 1, [validity, data], children=[elements])


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """For groups with the given numbers of items: the group of each item, and its place in the group."""
    group = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    starts = np.cumsum(counts) - counts
    return group, np.arange(len(group), dtype=np.int64) - np.repeat(starts, counts)


def run_starts(*sorted_columns: Ints) -> Ints:
    """Positions at which a new run of equal rows begins."""
    rows = len(sorted_columns[0])
    changed = np.zeros(rows, dtype=np.bool_)
    if rows:
        changed[0] = True
    for column in sorted_columns:
        changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)
