"""Parts of texts, counted in characters. Each row has its own start and end. (Arrow's own slicing has one start and one
end for all rows.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge.sql.nodes import RowError
from lakemerge.sql.vectors import Mask

__all__ = ["sliced"]

_CONTINUES, _OF_CHARACTER = 0xC0, 0x80
"""A byte whose upper two bits are 10 continues a character."""
_MOST_BYTES = 2**31 - 1


def sliced(texts: pa.StringArray, start: Any, end: Any, known: Mask) -> pa.StringArray:
    """The characters from ``start`` up to, but not including, ``end``. They are counted from zero.

    Positions outside of a text are ignored. The result is null where ``known`` is false. ``known`` must be false where
    ``texts`` is null.
    """
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    buffer = texts.buffers()[2]
    data = np.frombuffer(b"" if buffer is None else buffer, dtype=np.uint8)
    starts, first = _characters(data, offsets)
    counts = np.diff(first)
    low = np.clip(start, 0, counts)
    high = np.where(known, np.clip(end, low, counts), low)
    begins, ends = starts[first[:-1] + low], starts[first[:-1] + high]
    return _gathered(data, begins, ends, known)


def _characters(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32]) -> tuple[Any, Any]:
    """The byte at which each character begins, and the number of each text's first character."""
    low, high = int(offsets[0]), int(offsets[-1])
    part = data[low:high]
    if not (part >= _OF_CHARACTER).any():
        return np.arange(low, high + 1), (offsets - low).astype(np.int64)
    starts = np.flatnonzero((part & _CONTINUES) != _OF_CHARACTER) + low
    return np.append(starts, high), np.searchsorted(starts, offsets)


def _gathered(data: npt.NDArray[np.uint8], begins: Any, ends: Any, known: Mask) -> pa.StringArray:
    lengths = ends - begins
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] > _MOST_BYTES:
        raise RowError("the texts are too long together")
    index = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
    buffers = [pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data[index]))]
    bitmap = None if known.all() else pa.array(known).buffers()[1]
    return pa.Array.from_buffers(pa.string(), len(known), [bitmap, *buffers])
