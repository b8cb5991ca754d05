"""Functions of text, over Unicode characters as in Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.sql.nodes import RowError
from lakemerge.sql.vectors import Mask, from_vector, to_vector, valid

__all__ = [
    "begins_with",
    "concatenated",
    "ends_with",
    "holds",
    "left",
    "length",
    "lower",
    "padded_left",
    "padded_right",
    "replaced",
    "right",
    "split",
    "substring",
    "trimmed",
    "upper",
]

_ALL = 2**31 - 1
_CONTINUES, _OF_CHARACTER = 0xC0, 0x80
"""A byte whose upper two bits are 10 continues a character."""
_MOST_BYTES = 2**31 - 1


def lower(texts: pa.Array) -> pa.Array:
    return _recased(texts, pc.ascii_lower, str.lower)


def upper(texts: pa.Array) -> pa.Array:
    return _recased(texts, pc.ascii_upper, str.upper)


def _recased(texts: pa.Array, ascii_kernel: Callable[[pa.Array], pa.Array], of_text: Callable[[str], str]) -> pa.Array:
    """The texts in another case. Arrow maps one character to one character. Spark and Python map ``ß`` to ``SS``, and
    know the sigma at the end of a word."""
    other = pc.invert(pc.string_is_ascii(texts)).fill_null(False)
    found = ascii_kernel(texts)
    if not pc.any(other).as_py():
        return found
    cased = [of_text(text) for text in texts.filter(other).to_pylist()]
    return pc.replace_with_mask(found, other, pa.array(cased, pa.string()))


def trimmed(texts: pa.Array, *, characters: str | None, at_start: bool, at_end: bool) -> pa.Array:
    """The texts without these characters at their ends."""
    if characters is None:
        return pa.nulls(len(texts), texts.type)
    if not characters:
        return texts
    if at_start:
        texts = pc.utf8_ltrim(texts, characters)
    return pc.utf8_rtrim(texts, characters) if at_end else texts


def length(texts: pa.Array) -> pa.Array:
    """The length of text in characters, and of binary values in bytes."""
    return (pc.binary_length if pa.types.is_binary(texts.type) else pc.utf8_length)(texts).cast(pa.int32())


def substring(texts: pa.Array, position: pa.Array, count: pa.Array | None = None) -> pa.Array:
    """``substring``. Positions count from one, and negative ones from the end. Zero means the first character, too."""
    known = valid(texts, position) if count is None else valid(texts, position, count)
    at = to_vector(position).astype(np.int64)
    start = np.where(at > 0, at - 1, np.where(at < 0, at + to_vector(length(texts)), 0))
    number = np.full(len(texts), _ALL) if count is None else to_vector(count).astype(np.int64)
    return _sliced(texts, start, start + number, known)


def left(texts: pa.Array, count: pa.Array) -> pa.Array:
    return _sliced(texts, 0, to_vector(count), valid(texts, count))


def right(texts: pa.Array, count: pa.Array) -> pa.Array:
    characters = to_vector(length(texts)).astype(np.int64)
    return _sliced(texts, characters - np.maximum(to_vector(count), 0), characters, valid(texts, count))


def concatenated(*texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*texts, "")


def begins_with(texts: pa.Array, start: pa.Array) -> pa.Array:
    return pc.equal(left(texts, length(start)), start)


def ends_with(texts: pa.Array, end: pa.Array) -> pa.Array:
    return pc.equal(right(texts, length(end)), end)


def holds(texts: pa.Array, part: str) -> pa.Array:
    return pc.match_substring(texts, part)


def replaced(texts: pa.Array, *, search: str | None, by: str | None) -> pa.Array:
    if search is None or by is None:
        return pa.nulls(len(texts), texts.type)
    return pc.replace_substring(texts, search, by) if search else texts


def split(texts: pa.Array, *, separator: str) -> pa.Array:
    return pc.split_pattern(texts, separator)


def padded_left(texts: pa.Array, size: pa.Array, pad: pa.Array) -> pa.Array:
    return _padded(texts, size, pad, at_start=True)


def padded_right(texts: pa.Array, size: pa.Array, pad: pa.Array) -> pa.Array:
    return _padded(texts, size, pad, at_start=False)


def _padded(texts: pa.Array, size: pa.Array, pad: pa.Array, *, at_start: bool) -> pa.Array:
    """Texts of ``size`` characters. Longer ones are cut off. Shorter ones are filled up with ``pad``, repeated."""
    known = valid(texts, size, pad)
    wanted = np.where(known, to_vector(size).astype(np.int64), 0)
    cut = _sliced(texts, 0, wanted, known)
    missing = np.where(known, np.maximum(wanted - to_vector(length(texts)), 0), 0)
    width = to_vector(length(pad)).astype(np.int64)
    times = np.where(width > 0, -(-missing // np.maximum(width, 1)), 0)
    if int((times * to_vector(pc.binary_length(pad))).sum()) > _MOST_BYTES:
        raise RowError("the padded texts are too long together")
    blocks = pc.binary_repeat(pad, from_vector(times, known, pa.int64()))
    padding = _sliced(blocks, 0, missing, known)
    return concatenated(*((padding, cut) if at_start else (cut, padding)))


def _sliced(texts: pa.StringArray, start: Any, end: Any, known: Mask) -> pa.StringArray:
    """The characters from ``start`` up to, but not including, ``end``, counted from zero. Each row has its own start
    and end. (Arrow's own slicing has one start and one end for all rows.)

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
