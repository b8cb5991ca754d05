"""Records that are lines: which of them a block has, and where they are.

A line ends with a line feed, a carriage return, or both. A record belongs to the block that holds the byte before it;
the first record belongs to the first block. So every record is in exactly one block, whatever the size of blocks, and
a block is read without looking at the others. A reader begins after the first line end in the block. It ends with the
record that holds the first byte after the block.

A quoted value may hold line ends. Where such records are announced (``multiline``), a file is one block, and they are
records like others. Elsewhere a record with a line end in it is *torn*: all of it is one bad record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge.ingest.source import FileUnreadableError

__all__ = [
    "MARK",
    "MAX_RECORD_BYTES",
    "PORTION_BYTES",
    "Bounds",
    "Lines",
    "Quoting",
    "cut_block",
    "cut_stream",
    "line_at",
    "more_of",
    "skipped",
]

PORTION_BYTES = 8 << 20
"""How many bytes are parsed at a time."""
MAX_RECORD_BYTES = 128 << 20
"""If a record is longer, the file is taken to have no records at all."""

_LINE_FEED, _RETURN = 10, 13
MARK = b"\xef\xbb\xbf"
"""The byte order mark that some programs put before UTF-8."""
_STEP = 64 << 10
_MOST_COUNTED = 256 << 20

Offsets = npt.NDArray[np.int64]


class Bounds(NamedTuple):
    """Records within some bytes, one after the other from the first byte on."""

    starts: Offsets
    ends: Offsets
    """Where they end, without their line end."""
    nexts: Offsets
    """Where the next one begins."""
    torn: npt.NDArray[np.bool_]
    """Records that no reader can take for one line: a quote is not closed in the line, or an escape escapes its end."""
    ignored: npt.NDArray[np.bool_]
    """Comments."""

    def first(self, count: int) -> Bounds:
        return self.of(slice(count))

    def of(self, which: slice | npt.NDArray[np.bool_]) -> Bounds:
        """Some of the records."""
        starts, ends, nexts, torn, ignored = self
        return Bounds(starts[which], ends[which], nexts[which], torn[which], ignored[which])


@dataclass(frozen=True, slots=True)
class Quoting:
    """How CSV quotes values, and so which line ends are part of a value.

    As Python's ``csv``, Arrow and DuckDB read it, a quote opens a quoted value only where a value begins. Elsewhere in
    a value that is not quoted it is a character like others. In a quoted value two quotes are one. What follows the
    closing quote is part of the value.
    """

    quote: str | None
    escape: str | None
    delimiter: str = ","
    multiline: bool = True
    comment: str | None = None
    """Records that begin with it are comments."""

    def bounds(self, data: bytes, *, final: bool, patient: bool = True) -> Bounds:
        """The whole records of data that begin with a record.

        :param final: whether no more data follows.
        :param patient: whether a quote that is not closed in the data may be closed in what follows.
        """
        text = self._without_escapes(data)
        quote = None if self.quote is None or self.quote.encode() not in text else self.quote.encode()
        lines = _plain(text, final=final)
        if self.comment is not None and re.search(rb"(?:\A|[\r\n])" + re.escape(self.comment.encode()), text):
            return self._told(data, text, self._one_by_one(text, final=final, patient=patient), final=final)
        if quote is None:
            return self._told(data, text, lines, final=final)
        places = np.flatnonzero(np.frombuffer(text, np.uint8) == quote[0])
        inside = np.searchsorted(places, lines.ends) % 2 == 1
        gives_up = not self.multiline and len(places) % 2 == 1 and (final or not patient)
        if gives_up or not self._is_plain(text, places):
            return self._told(data, text, self._one_by_one(text, final=final, patient=patient), final=final)
        if not inside.any():
            return self._told(data, text, lines, final=final)
        keep = ~inside
        if final:
            keep[-1] = True
        nexts = lines.nexts[keep]
        starts = np.concatenate([np.zeros(min(len(nexts), 1), np.int64), nexts[:-1]])
        torn = np.zeros(len(nexts), np.bool_)
        if not self.multiline:
            torn = np.diff(np.concatenate([[0], np.cumsum(inside)[keep]])) > 0
        elif final and inside[-1]:
            torn[-1] = True
        return self._told(data, text, Bounds(starts, lines.ends[keep], nexts, torn, np.zeros_like(torn)), final=final)

    def _without_escapes(self, data: bytes) -> bytes:
        """The data with other characters in place of escapes and what they escape."""
        if self.escape is None or self.escape == self.quote or self.escape.encode() not in data:
            return data
        return re.sub(re.escape(self.escape.encode()) + rb"[\s\S]", b"..", data)

    def _told(self, data: bytes, text: bytes, bounds: Bounds, *, final: bool) -> Bounds:
        """The bounds with what escapes tear marked."""
        if self.escape is None or self.escape == self.quote or not len(bounds.starts):
            return bounds
        if self.escape.encode() not in data:
            return bounds
        torn = bounds.torn.copy()
        if not self.multiline and any(text.count(end) != data.count(end) for end in (b"\n", b"\r")):
            for place, (start, end) in enumerate(zip(bounds.starts.tolist(), bounds.ends.tolist(), strict=True)):
                torn[place] |= re.search(rb"[\r\n]", data[start:end]) is not None and not bounds.ignored[place]
        if final and text.endswith(self.escape.encode()):
            torn[-1] = True
        return bounds._replace(torn=torn)

    def _is_plain(self, text: bytes, places: Offsets) -> bool:
        """Whether quotes open where values begin, and close where values end. Then their parity says what is quoted."""
        values = np.frombuffer(text, np.uint8)
        ends = np.zeros(256, np.bool_)
        ends[[ord(self.delimiter), _LINE_FEED, _RETURN, ord(self.quote or "\0")]] = True
        opening, closing = places[::2], places[1::2]
        before = ends[values[np.maximum(opening - 1, 0)]] | (opening == 0)
        after = ends[values[np.minimum(closing + 1, len(values) - 1)]] | (closing == len(values) - 1)
        # Two quotes in a row stand for one: the first counts as closing, the second as opening.
        return bool(before.all() and after.all())

    def _one_by_one(self, text: bytes, *, final: bool, patient: bool) -> Bounds:
        """The records, each by a search from where it begins."""
        whole, proper, line = _patterns(self.quote, self.delimiter)
        comment = None if self.comment is None else self.comment.encode()
        found: list[tuple[int, int, int, bool, bool]] = []
        start, size = 0, len(text)
        while start < size:
            ignored, torn = comment is not None and text.startswith(comment, start), False
            if ignored:
                match = _TO_LINE_END.match(text, start)
            elif self.multiline:
                match = whole.match(text, start)
                if match is None:  # a quote is not closed in what is here
                    if not final:
                        break
                    found.append((start, size, size, True, False))
                    break
            else:
                match = line.match(text, start)
                if match is None:
                    match, torn = proper.match(text, start), True
                    if match is None:
                        if not final and patient and whole.match(text, start) is None:
                            break
                        match = _TO_LINE_END.match(text, start)
            end = size if match is None else match.end()
            after = end + (2 if text.startswith(b"\r\n", end) else 1)
            if not final and (end >= size or (after > size - 1 and text[end:] == b"\r")):
                break
            found.append((start, end, min(after, size), torn, ignored))
            start = min(after, size)
        columns = list(zip(*found, strict=True)) or [()] * 5
        starts, ends, nexts = (np.array(column, np.int64) for column in columns[:3])
        return Bounds(starts, ends, nexts, *(np.array(column, np.bool_) for column in columns[3:]))


_TO_LINE_END = re.compile(rb"[^\r\n]*+")


@lru_cache(maxsize=16)
def _patterns(quote: str | None, delimiter: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes], re.Pattern[bytes]]:
    """Patterns of a record: one that may have line ends in its quotes, one whose quotes with line ends close where a
    value ends, and one without line ends. They do not go back, so a search takes time in proportion to the record."""
    sign = re.escape(delimiter.encode())
    rest = rb"[^" + sign + rb"\r\n]*+"
    if quote is None:
        bare = re.compile(rb"[^\r\n]*+")
        return bare, bare, bare
    q = re.escape(quote.encode())

    def record(*quoted: bytes) -> re.Pattern[bytes]:
        value = rb"(?>" + b"|".join(quoted) + rb"|(?!" + q + rb")" + rest + rb")"
        return re.compile(value + rb"(?:" + sign + value + rb")*+(?=[\r\n]|\Z)")

    within = q + rb"[^" + q + rb"]*+(?:" + q + q + rb"[^" + q + rb"]*+)*+" + q
    on_line = q + rb"[^" + q + rb"\r\n]*+(?:" + q + q + rb"[^" + q + rb"\r\n]*+)*+" + q
    ends = rb"(?=[" + sign + rb"\r\n]|\Z)"
    return record(within + rest), record(on_line + rest, within + ends), record(on_line + rest)


def _plain(data: bytes, *, final: bool) -> Bounds:
    """The lines of some data, whatever is in them."""
    values = np.frombuffer(data, np.uint8)
    # A long line without an end is looked through without a copy.
    feeds = np.flatnonzero(values == _LINE_FEED) if b"\n" in data else np.zeros(0, np.int64)
    ends, nexts = feeds, feeds + 1
    if b"\r" in data:
        if len(feeds):
            ends = feeds - ((feeds > 0) & (values[np.maximum(feeds - 1, 0)] == _RETURN))
        if data.count(b"\r") != data.count(b"\r\n"):
            returns = np.flatnonzero(values == _RETURN)
            last = returns == len(values) - 1
            alone = returns[(last & final) | (~last & (values[np.minimum(returns + 1, len(values) - 1)] != _LINE_FEED))]
            ends, nexts = np.concatenate([ends, alone]), np.concatenate([nexts, alone + 1])
            order = np.argsort(nexts, kind="stable")
            ends, nexts = ends[order], nexts[order]
    if final and len(data) and (not len(nexts) or nexts[-1] < len(data)):
        ends, nexts = np.append(ends, len(data)), np.append(nexts, len(data))
    starts = np.concatenate([np.zeros(min(len(nexts), 1), np.int64), nexts[:-1]])
    none = np.zeros(len(nexts), np.bool_)
    return Bounds(starts, ends, nexts, none, none)


def _bounds(data: bytes, quoting: Quoting | None, *, final: bool, patient: bool = True) -> Bounds:
    return _plain(data, final=final) if quoting is None else quoting.bounds(data, final=final, patient=patient)


@dataclass(frozen=True)
class Lines:
    """Whole records of a file: its bytes from ``offset`` on. For a compressed file these are the decompressed bytes."""

    data: bytes
    offset: int
    quoting: Quoting | None = None
    blanks: bool = False
    """Whether empty lines are records."""
    bounds: Bounds | None = field(default=None, compare=False)
    """Of all lines, if they are known already."""

    @cached_property
    def _bounds(self) -> Bounds:
        """Of the records."""
        found = self.bounds if self.bounds is not None else _bounds(self.data, self.quoting, final=True)
        drop = found.ignored if self.blanks else found.ignored | (found.ends <= found.starts)
        return found.of(~drop) if drop.any() else found

    def __len__(self) -> int:
        return len(self._bounds.starts)

    def __getitem__(self, index: int) -> bytes:
        found = self._bounds
        return self.data[found.starts[index] : found.ends[index]]

    def __iter__(self) -> Iterator[bytes]:
        found = self._bounds
        for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
            yield self.data[start:end]

    def offset_of(self, index: int) -> int:
        """The offset of a record in the file."""
        return self.offset + int(self._bounds.starts[index])

    def end_of(self, index: int) -> int:
        """The offset of the byte after a record and its line end."""
        return self.offset + int(self._bounds.nexts[index])

    @property
    def offsets(self) -> Offsets:
        """The offset of every record in the file."""
        return self._bounds.starts + self.offset

    @property
    def torn(self) -> npt.NDArray[np.bool_]:
        """Which records are torn."""
        return self._bounds.torn

    def without_mark(self) -> Lines:
        """The same records without the byte order mark, if the file begins with one."""
        if self.offset or not self.data.startswith(MARK):
            return self
        return replace(self, data=self.data[len(MARK) :], offset=len(MARK), bounds=None)

    def part(self, first: int, last: int) -> Lines:
        """The records from ``first`` up to, not including, ``last``."""
        if first >= last:
            return Lines(b"", self.offset, self.quoting, self.blanks)
        found = self._bounds
        start, end = int(found.starts[first]), int(found.ends[last - 1])
        own = found.of(slice(first, last))
        own = own._replace(starts=own.starts - start, ends=own.ends - start, nexts=own.nexts - start)
        return Lines(self.data[start:end], self.offset + start, self.quoting, self.blanks, own)

    def only(self, rows: npt.NDArray[np.int64]) -> bytes:
        """Some of the records, each with a line feed."""
        found = self._bounds
        bounds = zip(found.starts[rows].tolist(), found.ends[rows].tolist(), strict=True)
        return b"".join(self.data[start:end] + b"\n" for start, end in bounds)


def cut_block(
    file: pa.NativeFile,
    start: int,
    end: int,
    *,
    size: int,
    data_start: int = 0,
    quoting: Quoting | None = None,
    portion_bytes: int | None = None,
) -> Iterator[Lines]:
    """The records of the block from ``start`` up to, not including, ``end``, in portions.

    :param size: the size of the file.
    :param data_start: where its first record begins, after a header.
    :raises FileUnreadableError: a record is too long, or one with line ends in its quotes goes on in the next block.
    """
    portion = portion_bytes or PORTION_BYTES
    if start < data_start:
        # The first record belongs to the block that holds the byte before it.
        position = data_start if data_start <= end else None
    else:
        position = 0 if start == 0 else _after_line(file, start, end, portion)
    if position is None or position > end or position >= size:
        return
    yield from _portions(file, position, end, size, portion, quoting)


def cut_stream(
    file: pa.NativeFile,
    *,
    skip: int = 0,
    skip_lines: int = 0,
    quoting: Quoting | None = None,
    portion_bytes: int | None = None,
) -> Iterator[Lines]:
    """All records, in portions, of a stream that can only be read from its beginning.

    :param skip: bytes before the first record.
    :param skip_lines: lines before the first record.
    """
    portion = portion_bytes or PORTION_BYTES
    position, held, ends = 0, b"", False
    left = skip_lines
    while not ends:
        held, position, ends = more_of(file, held, position, portion)
        if skip > position:  # still in the header
            gone = min(skip - position, len(held))
            held, position = held[gone:], position + gone
        if left:
            lines = _plain(held, final=ends).first(left)
            if len(lines.nexts):
                gone = int(lines.nexts[-1])
                held, position, left = held[gone:], position + gone, left - len(lines.nexts)
            if left:
                continue
        found = _bounds(held, quoting, final=ends, patient=len(held) <= MAX_RECORD_BYTES)
        if len(found.nexts):
            cut = int(found.nexts[-1])
            yield Lines(held[:cut], position, quoting, bounds=found)
            held, position = held[cut:], position + cut
        _check_length(held, position)


def more_of(file: pa.NativeFile, held: bytes, position: int, portion: int) -> tuple[bytes, int, bool]:
    """The bytes held of a stream and those that follow, without a byte order mark; their place, and whether the stream
    ends with them."""
    # As much as is held already, so that a long record is not looked at more often than its length doubles.
    wanted = max(portion, len(held), len(MARK))
    data = _filled(file, wanted)
    held = held + data if held else data
    if position == 0 and held.startswith(MARK):
        held, position = held[len(MARK) :], len(MARK)
    return held, position, len(data) < wanted


def _filled(file: pa.NativeFile, size: int) -> bytes:
    """So many bytes, fewer only at the end. A stream may give less at a time than it is asked for."""
    data: bytes = file.read(size)
    if len(data) == size or not data:
        return data
    parts, missing = [data], size - len(data)
    while missing and (data := file.read(missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def skipped(file: pa.NativeFile, lines: int) -> int:
    """The place after the first lines of a file."""
    for found in cut_stream(file, skip_lines=lines, portion_bytes=_STEP):
        return found.offset
    return int(file.tell())


def _goes_on(held: bytes, data: bytes, quoting: Quoting | None) -> bool:
    """Whether a line goes on beyond the data that was read after it."""
    return quoting is None and b"\n" not in data and b"\r" not in data and not held.endswith(b"\r") and bool(held)


def line_at(file: pa.NativeFile, offset: int) -> int | None:
    """The number of the line, from 1 on, that holds a byte of a stream; ``None`` if it is far from the beginning."""
    if offset > _MOST_COUNTED:
        return None
    lines, left, last = 1, offset, b""
    while left and (data := file.read(min(left, PORTION_BYTES))):
        # A carriage return and the line feed after it end one line.
        lines += data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") - (last == b"\r" and data[:1] == b"\n")
        left, last = left - len(data), data[-1:]
    return lines


def _after_line(file: pa.NativeFile, start: int, end: int, portion: int) -> int | None:
    """The place after the first line end of the block; ``None`` where it has none."""
    file.seek(start)
    position = start
    while position < end:
        data = file.read(min(portion, _STEP, end - position))
        if not data:
            return None
        if found := re.search(rb"[\r\n]", data):
            place = position + found.start()
            if found[0] == b"\r":
                file.seek(place + 1)
                return place + (2 if file.read(1) == b"\n" else 1)
            return place + 1
        position += len(data)
    return None


def _portions(
    file: pa.NativeFile, position: int, end: int, size: int, portion: int, quoting: Quoting | None
) -> Iterator[Lines]:
    file.seek(position)
    read_to, held = position, b""
    beyond: list[bytes] = []
    while True:
        # Beyond the end of the block only the rest of one record has to be read. It is usually short. A long one is
        # read in steps that double.
        known = len(held) if quoting is not None else min(portion, len(held) + sum(map(len, beyond)))
        wanted = max(min(portion, max(end - read_to, _STEP)), known, len(MARK))
        data = _filled(file, wanted)
        read_to += len(data)
        ends = len(data) < wanted or read_to >= size
        if not ends and _goes_on(held, data, quoting):
            beyond.append(data)
            if len(held) + sum(map(len, beyond)) <= MAX_RECORD_BYTES:
                continue
            data = b""
        held = b"".join((held, *beyond, data))
        beyond.clear()
        if position == 0 and held.startswith(MARK):
            held, position = held[len(MARK) :], len(MARK)
            end = max(end, position)
        found = _bounds(held, quoting, final=ends, patient=len(held) <= MAX_RECORD_BYTES)
        found = found.first(int(np.searchsorted(found.starts, end - position, side="right")))
        if len(found.nexts):
            cut = int(found.nexts[-1])
            _check_torn(held, position, end, found)
            yield Lines(held[:cut], position, quoting, bounds=found)
            held, position = held[cut:], position + cut
        if ends or position > end:
            return
        _check_length(held, position)


def _check_torn(held: bytes, position: int, end: int, found: Bounds) -> None:
    """Raise an error if the reader of the next block would begin within the last record."""
    if not found.torn[-1]:
        return
    start, after = int(found.starts[-1]), int(found.nexts[-1])
    inner = _plain(held[start:after], final=True).nexts + start
    if ((inner < after) & (inner + position > end)).any():
        raise FileUnreadableError(
            f"the record at byte {position + start} has a line break between quotes and continues in the next block, "
            "where it is unknown what is quoted: set multiline, which reads the file as one block (or quote=None, if "
            "quotes are ordinary characters)",
            offset=position + start,
        )


def _check_length(held: bytes, position: int) -> None:
    if len(held) > MAX_RECORD_BYTES:
        raise FileUnreadableError(
            f"the record at byte {position} has more than {MAX_RECORD_BYTES:,} bytes: is the file of another format, "
            "compressed without saying so in its name, or one array of JSON (multiline=true)?",
            offset=position,
        )
