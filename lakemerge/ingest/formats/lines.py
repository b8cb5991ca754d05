"""Records that are lines: which of them a block has, and where they are.

A record belongs to the block that holds the byte before it; the first record belongs to the first block. So every
record is in exactly one block, whatever the size of blocks, and a block is read without looking at the others. A reader
begins after the first line feed in the block. It ends with the record that holds the first byte after the block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge.ingest.source import FileUnreadableError

__all__ = ["MAX_RECORD_BYTES", "Lines", "Quoting", "cut_block", "cut_stream"]

PORTION_BYTES = 8 << 20
"""How many bytes are parsed at a time."""
MAX_RECORD_BYTES = 128 << 20
"""If a record is longer, the file is taken to have no records at all."""

_LINE_FEED = 10
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that some programs put before UTF-8."""

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Quoting:
    """How values are quoted, and so which line feeds are part of a value."""

    quote: str
    escape: str | None

    def ends(self, data: bytes) -> Offsets:
        """The places of line feeds that end records. The data must begin with a record."""
        if self.escape is not None and self.escape != self.quote:
            escaped = re.escape(self.escape.encode())
            data = re.sub(escaped + rb"[\s\S]", b"  ", data)
        values = np.frombuffer(data, dtype=np.uint8)
        open_quotes = np.cumsum(values == ord(self.quote)) & 1
        return np.flatnonzero((values == _LINE_FEED) & (open_quotes == 0))


@dataclass(frozen=True)
class Lines:
    """Whole records of a file: its bytes from ``offset`` on. For a compressed file these are the decompressed bytes."""

    data: bytes
    offset: int
    quoting: Quoting | None = None
    blanks: bool = False
    """Whether empty lines are records."""

    @cached_property
    def _bounds(self) -> tuple[Offsets, Offsets]:
        """Where records begin, and where they end without their line feed."""
        feeds = _feeds(self.data, self.quoting)
        ends = feeds if not self.data or self.data.endswith(b"\n") else np.append(feeds, len(self.data))
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]) if len(ends) else ends
        values = np.frombuffer(self.data, dtype=np.uint8)
        returns = values[np.maximum(ends - 1, 0)] == 13 if len(ends) else np.zeros(0, np.bool_)
        ends = ends - (returns & (ends > starts))
        some = (ends >= starts) if self.blanks else (ends > starts)
        return starts[some], ends[some]

    def __len__(self) -> int:
        return len(self._bounds[0])

    def __getitem__(self, index: int) -> bytes:
        starts, ends = self._bounds
        return self.data[starts[index] : ends[index]]

    def __iter__(self) -> Iterator[bytes]:
        starts, ends = self._bounds
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            yield self.data[start:end]

    def offset_of(self, index: int) -> int:
        """The offset of a record in the file."""
        return self.offset + int(self._bounds[0][index])

    @property
    def offsets(self) -> Offsets:
        """The offset of every record in the file."""
        return self._bounds[0] + self.offset

    def without_mark(self) -> Lines:
        """The same records without the byte order mark, if the file begins with one."""
        if self.offset or not self.data.startswith(_MARK):
            return self
        return replace(self, data=self.data[len(_MARK) :], offset=len(_MARK))

    def part(self, first: int, last: int) -> Lines:
        """The records from ``first`` up to, not including, ``last``."""
        starts, ends = self._bounds
        if first >= last:
            return Lines(b"", self.offset, self.quoting)
        start = int(starts[first])
        return Lines(self.data[start : int(ends[last - 1])], self.offset + start, self.quoting)


def cut_block(
    file: pa.NativeFile, start: int, end: int, *, size: int, data_start: int = 0, portion_bytes: int | None = None
) -> Iterator[Lines]:
    """The records of the block from ``start`` up to, not including, ``end``, in portions.

    :param size: the size of the file.
    :param data_start: where its first record begins, after a header.
    """
    portion = portion_bytes or PORTION_BYTES
    position = data_start if start == 0 else _after_feed(file, start, end, portion)
    if position is None or position > end or position >= size:
        return
    yield from _portions(file, position, end, size, portion)


def cut_stream(
    file: pa.NativeFile, *, skip: int = 0, quoting: Quoting | None = None, portion_bytes: int | None = None
) -> Iterator[Lines]:
    """All records, in portions, of a stream that can only be read from its beginning.

    :param skip: bytes before the first record.
    """
    portion = portion_bytes or PORTION_BYTES
    position, held = 0, b""
    while data := file.read(portion):
        held += data
        if skip > position:  # still in the header
            gone = min(skip - position, len(held))
            held, position = held[gone:], position + gone
        feeds = _feeds(held, quoting)
        if len(feeds):
            cut = int(feeds[-1]) + 1
            yield Lines(held[:cut], position, quoting)
            held, position = held[cut:], position + cut
        _check_length(held, position)
    if held:
        yield Lines(held, position, quoting)


def _after_feed(file: pa.NativeFile, start: int, end: int, portion: int) -> int | None:
    """The place after the first line feed of the block; ``None`` where it has none."""
    file.seek(start)
    position = start
    while position < end:
        data = file.read(min(portion, 64 << 10, end - position))
        if not data:
            return None
        found = data.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(data)
    return None


def _portions(file: pa.NativeFile, position: int, end: int, size: int, portion: int) -> Iterator[Lines]:
    file.seek(position)
    read_to, held = position, b""
    while True:
        # Beyond the end of the block only the rest of one record has to be read. It is usually short.
        wanted = min(portion, max(end - read_to, 64 << 10))
        data = file.read(wanted)
        held, read_to = held + data, read_to + len(data)
        if not data or read_to >= size:
            last = held.find(b"\n", max(end - position, 0))
            held = held if last < 0 else held[: last + 1]
            if held:
                yield Lines(held, position)
            return
        if read_to > end:
            last = held.find(b"\n", max(end - position, 0))
            if last >= 0:
                yield Lines(held[: last + 1], position)
                return
        cut = held.rfind(b"\n", 0, max(end - position, 0)) + 1
        if cut and read_to < end:
            yield Lines(held[:cut], position)
            held, position = held[cut:], position + cut
        _check_length(held, position)


def _feeds(data: bytes, quoting: Quoting | None) -> Offsets:
    if quoting is not None:
        return quoting.ends(data)
    return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == _LINE_FEED)


def _check_length(held: bytes, position: int) -> None:
    if len(held) > MAX_RECORD_BYTES:
        raise FileUnreadableError(
            f"the record at byte {position} has more than {MAX_RECORD_BYTES:,} bytes: is the file of another format, "
            "or compressed without saying so in its name?",
            offset=position,
        )
