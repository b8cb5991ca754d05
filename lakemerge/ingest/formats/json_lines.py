"""JSON lines: one object a line. With ``multiline``, documents over several lines and arrays of objects.

The slow path reads each line by itself. Arrow reads a whole portion at once, if it is sure to give the same rows. So a
portion is searched first for text that Arrow would read differently, or crash on (a line ``null``, pyarrow 26).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json as pj

from lakemerge.ingest.casting import Problems, cast_marking, is_infinite, texts_fitted
from lakemerge.ingest.formats.base import Format, Origin, Parsed, Peek, Piece, WindowSchema
from lakemerge.ingest.formats.encodings import checked_marks, splits, utf8_stream
from lakemerge.ingest.formats.lines import (
    MAX_RECORD_BYTES,
    PORTION_BYTES,
    Bounds,
    Lines,
    cut_block,
    cut_stream,
    line_at,
    more_of,
)
from lakemerge.ingest.formats.record_rows import MAX_VALUE_LEVELS, named_in, nests_deeper, rows_of, spread
from lakemerge.ingest.formats.times import TimeFormats
from lakemerge.ingest.row_casting import exactly
from lakemerge.ingest.source import FileUnreadableError, SourceFile
from lakemerge.write.carried import Sets

__all__ = ["JsonLines", "Unwrap", "cut_documents"]


Unwrap = Callable[[Any], Sequence[Mapping[str, Any]]]
"""Turns a record of the file into the rows that it stands for, or into none. Raises ``ValueError``."""

_ISO: Final = TimeFormats()
_MANY_ON_A_LINE = re.compile(rb"\}[ \t\r]*[^\s,}\]]")
"""Text after an object that may be another object. It also matches within strings, which are then read the slow way."""
_NO_OBJECT = re.compile(rb"\n(?!\{|\r?\n|\Z)")
_NAMED_NUMBER = re.compile(rb"NaN|Inf")
_OTHERWISE = (b"NaN", b"Inf", b"-0")
"""Numbers that Arrow reads differently from other parsers; ``-0`` only if no digits follow."""
_ENDS_NUMBER = np.frombuffer(b",} \t\r\n", np.uint8)


@dataclass(frozen=True, slots=True)
class JsonLines(Format):
    """``unwrap`` takes a row out of its envelope; ``None``: a line is a row."""

    unwrap: Unwrap | None = None
    compression: str | None = None
    encoding: str = "utf-8"
    multiline: bool = False
    """Whether records are documents over several lines, or elements of an array; a file is then one block."""
    times: TimeFormats = field(default_factory=TimeFormats)
    name: ClassVar[str] = "json"
    describes_itself: ClassVar[bool] = False
    records_differ: ClassVar[bool] = True

    def splits(self, path: str) -> bool:
        # A byte of another encoding than UTF-8 is part of no JSON.
        return not self.multiline and self.encoding == "utf-8" and splits(path, self.compression, self.encoding)

    def peek(self, data: pa.NativeFile, file: SourceFile) -> Peek:
        raise AssertionError("JSON lines say nothing before their records")

    def count(self, data: pa.NativeFile, file: SourceFile) -> int:
        return sum(len(lines) for lines in self._streamed(data, file.path))

    def line_of(self, data: pa.NativeFile, path: str, offset: int) -> int | None:
        return line_at(self._stream(data, path), offset)

    def parsed(self, data: pa.NativeFile, piece: Piece, frame: WindowSchema) -> Iterator[Parsed]:
        fast = None if self.unwrap is not None or self.multiline else _fast_schema(frame, self.times)
        for lines in self._portions(data, piece):
            found = None if fast is None else _by_arrow(lines, frame, fast, self.times)
            yield self._by_line(lines, frame) if found is None else found

    def records(self, data: pa.NativeFile, path: str) -> Iterator[Lines]:
        """All records of a file, in portions."""
        return checked_marks(self._streamed(data, path), self.encoding)

    def _portions(self, data: pa.NativeFile, piece: Piece) -> Iterator[Lines]:
        if not self.splits(piece.file.path):
            return self.records(data, piece.file.path)
        return checked_marks(cut_block(data, piece.offset, piece.end, size=piece.file.size), self.encoding)

    def _streamed(self, data: pa.NativeFile, path: str) -> Iterator[Lines]:
        stream = self._stream(data, path)
        return cut_documents(stream) if self.multiline else cut_stream(stream)

    def _stream(self, data: pa.NativeFile, path: str) -> pa.NativeFile:
        return utf8_stream(data, path, self.compression, self.encoding)

    def _by_line(self, lines: Lines, frame: WindowSchema) -> Parsed:
        records: list[Mapping[str, Any]] = []
        places: list[tuple[int, int]] = []  # line, and the row of it, counted from the last
        unread: list[tuple[Origin, str]] = []
        for place, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                found = self._records(_read(line))
            except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
                unread.append((_origin(lines, place), f"{error}{self._hint(line)}"))
                continue
            records += found
            places += [(place, number - len(found)) for number in range(len(found))]

        def again(row: int) -> Mapping[str, Any]:
            place, number = places[row]
            return self._records(exactly(lines[place]))[number]

        rows, problems, new = rows_of(records, frame, again=again, times=self.times)
        spread(problems, places)
        named = named_in(records, frame) if frame.differs else None
        return Parsed(rows, problems, lambda row: _origin(lines, places[row][0]), tuple(unread), new, named)

    def _records(self, value: Any) -> Sequence[Mapping[str, Any]]:
        if self.unwrap is not None:
            return self.unwrap(value)
        if not isinstance(value, dict):
            told = "" if self.multiline else "; in json, each line is an object"
            shown = orjson.dumps(value)[:40].decode(errors="replace")
            raise ValueError(f"the record holds {shown}, which is not an object{told}")
        return (value,)

    def _hint(self, line: bytes) -> str:
        """What to do about a line that looks like a part of something larger."""
        if self.multiline or not line.strip().startswith((b"[", b"]", b"{")) or line.rstrip().endswith(b"}"):
            return ""
        return "; if records are in an array or go over several lines, set multiline (multiline=true)"


def _read(line: bytes) -> Any:
    value = _exactly(line) if _NAMED_NUMBER.search(line) else _quickly(line)
    if line.count(b"[") + line.count(b"{") > MAX_VALUE_LEVELS and nests_deeper(value, MAX_VALUE_LEVELS):
        raise ValueError(f"a value in it nests more than {MAX_VALUE_LEVELS} levels deep")
    return value


def _quickly(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if "infinity" not in str(error):
            raise
        return _exactly(line)  # a number beyond floats is one all the same


def _exactly(line: bytes) -> Any:
    value = exactly(line)
    json.dumps(value, ensure_ascii=False).encode()  # raises for half a surrogate pair, as orjson does
    return value


def _origin(lines: Lines, place: int) -> Origin:
    return Origin(lines[place].decode(errors="backslashreplace"), lines.offset_of(place))


def _fast_schema(frame: WindowSchema, times: TimeFormats = _ISO) -> pa.Schema | None:
    """The schema for Arrow's reader; ``None`` if it reads the type of a column differently from the slow path."""
    kinds = [_fast_type(own, times) for own in frame.schema]
    if frame.rescued is not None or any(kind is None for kind in kinds):
        return None
    return pa.schema([pa.field(field.name, kind) for field, kind in zip(frame.schema, kinds, strict=True)])


def _fast_type(column: pa.Field, times: TimeFormats) -> pa.DataType | None:
    kind, written = column.type, times.format_of(column.name, column.type)
    if written is not None and written.is_number:
        return pa.int64()
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return None
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)  # Arrow's reader does not look at the precision
    return pa.float64() if kind == pa.float32() else kind


def _by_arrow(lines: Lines, frame: WindowSchema, fast: pa.Schema, times: TimeFormats = _ISO) -> Parsed | None:
    """A portion read at once; ``None`` if Arrow refuses it, or might not read it as the slow path does."""
    data = lines.data
    if not _is_plain(data):
        return None
    unknown = "ignore" if frame.ignores else "error"
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
            parse_options=pj.ParseOptions(explicit_schema=fast, unexpected_field_behavior=unknown),
        )
    except pa.ArrowException:
        return None
    if frame.ignores and any(column.null_count for column in table.columns) and _has_other_case(data, frame):
        return None
    ends = data.count(b"\n") + (not data.endswith(b"\n"))
    if table.num_rows != ends and table.num_rows != len(lines):
        return None
    problems: Problems = {}
    arrays = []
    for own in frame.schema:
        column = table[own.name].combine_chunks()
        if pa.types.is_timestamp(own.type) or pa.types.is_date(own.type) or pa.types.is_decimal(own.type):
            column, found = _fitted(column, own, times)
            told = {row: f"column {own.name!r}: {reason}" for row, reason in found.items()}
            problems = told | problems
        column = column.cast(own.type)
        if is_infinite(column):
            return None  # a number that is too large for its column
        arrays.append(column)
    rows = pa.RecordBatch.from_arrays(arrays, schema=frame.schema)
    named = _named(lines, table, frame) if frame.differs else None
    return Parsed(rows, problems, partial(_origin, lines), named=named)


def _named(lines: Lines, table: pa.Table, frame: WindowSchema) -> Sets | None:
    """The columns that each record of a portion names; ``None``: all. A column without nulls is named by all. For the
    others their names are counted: Arrow refuses fields that no column has, and a field twice in a record, so a name
    that is a field as often as there are records is one of each. Only where that says nothing, the records are read."""
    data = lines.data
    lacking: list[str] = []
    for name in frame.schema.names:
        if not table[name].null_count:
            continue
        quoted = orjson.dumps(name)
        if b"\\" in data or (data.count(quoted) and data.count(quoted + b":") != table.num_rows):
            return named_in([_read(line) for line in lines if line.strip()], frame)
        if quoted not in data:
            lacking.append(name)
    if not lacking:
        return None
    return Sets(np.zeros(table.num_rows, np.int64), [frozenset(frame.schema.names) - frozenset(lacking)])


def _fitted(column: pa.Array, own: pa.Field, times: TimeFormats) -> tuple[pa.Array, Problems]:
    kind, written = own.type, times.format_of(own.name, own.type)
    if written is not None:
        return written.read(column.cast(pa.string()), kind)
    if pa.types.is_decimal(kind):
        return cast_marking(column, kind)
    return texts_fitted(column, kind)


def _is_plain(data: bytes) -> bool:
    """Whether every line is empty or is one object, in UTF-8 and with plain numbers."""
    if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
        return False
    if not data.startswith(b"{") or _NO_OBJECT.search(data) or _MANY_ON_A_LINE.search(data):
        return False
    if _has_odd_number(data):
        return False
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


def _has_odd_number(data: bytes) -> bool:
    """Compares columns of bytes. A text search takes several times as long, because most dates begin alike."""
    values = np.frombuffer(data, np.uint8)
    for token in _OTHERWISE:
        places = np.flatnonzero(values[:-2] == token[0])
        for distance in range(1, len(token)):
            places = places[values[places + distance] == token[distance]]
        if token == b"-0":
            places = places[np.isin(values[places + 2], _ENDS_NUMBER)]
        if len(places):
            return True
    return False


def _has_other_case(data: bytes, frame: WindowSchema) -> bool:
    """Whether a column's name occurs in another case, which Arrow takes for another column."""
    names = frame.schema.names
    pattern = "|".join(re.escape(name) for name in names)
    found = set(re.findall(rf'"({pattern})"\s*:'.encode(), data, flags=re.IGNORECASE))
    return bool(found - {name.encode() for name in names})


_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("{"), ord("[")]] = 1
_STEPS[[ord("}"), ord("]")]] = -1
_SIGNS = _STEPS != 0
_SIGNS[ord(",")] = True


def cut_documents(file: pa.NativeFile, *, portion_bytes: int | None = None) -> Iterator[Lines]:
    """All records of a stream, in portions.

    :raises FileUnreadableError: brackets do not match, an array is not closed, or a record is too long.
    """
    portion = portion_bytes or PORTION_BYTES
    position, held, in_array, ends = 0, b"", False, False
    while not ends:
        held, position, ends = more_of(file, held, position, portion)
        found, cut, in_array = _documents(held, position, in_array=in_array)
        if ends:
            if in_array:
                raise FileUnreadableError(
                    f"the array that its records are in is not closed after byte {position + cut}: was it truncated?"
                )
            found += _stripped(held, cut, len(held))
            cut = len(held)
        if found:
            starts, stops = (np.array(part, np.int64) for part in zip(*found, strict=True))
            none = np.zeros(len(starts), np.bool_)
            yield Lines(held[:cut], position, bounds=Bounds(starts, stops, stops, none, none))
        held, position = held[cut:], position + cut
        if len(held) > MAX_RECORD_BYTES:
            raise FileUnreadableError(
                f"the record at byte {position} has more than {MAX_RECORD_BYTES:,} bytes: is a bracket or a quote of "
                "it not closed?",
                offset=position,
            )


def _documents(data: bytes, position: int, *, in_array: bool) -> tuple[list[tuple[int, int]], int, bool]:
    """Where records begin and end, where the first begins that does not end in the data, and whether it is in an
    array."""
    text = re.sub(rb"\\[\s\S]", b"..", data) if b"\\" in data else data
    values = np.frombuffer(text, np.uint8)
    places = np.flatnonzero(_SIGNS[values])
    quotes = np.flatnonzero(values == ord('"'))
    places = places[np.searchsorted(quotes, places) % 2 == 0]
    steps = _STEPS[values[places]].astype(np.int64)
    depths = np.cumsum(steps) + in_array
    # A sign counts if it begins or ends a document, or ends an element of an array.
    outer = ((steps > 0) & (depths == 1)) | ((steps < 0) & (depths <= 0)) | ((steps == 0) & (depths == 1))
    found: list[tuple[int, int]] = []
    start = 0
    for place, depth in zip(places[outer].tolist(), depths[outer].tolist(), strict=True):
        sign = text[place : place + 1]
        if depth < 0 or (in_array and sign == b"}"):
            raise FileUnreadableError(f"the bracket at byte {position + place} does not match the one that it closes")
        if sign == b",":
            if in_array:
                found += _stripped(data, start, place) or [(place, place + 1)]
                start = place + 1
        elif sign == b"]" and in_array:
            found += _stripped(data, start, place)
            start, in_array = place + 1, False
        elif sign in b"}]":
            found.append((start, place + 1))
            start = place + 1
        else:
            found += _stripped(data, start, place)
            start, in_array = (place + 1, True) if sign == b"[" else (place, False)
    return found, start, in_array


def _stripped(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """The bounds without white space around them; none for white space alone."""
    part = data[start:end]
    inner = part.strip()
    if not inner:
        return []
    start += len(part) - len(part.lstrip())
    return [(start, start + len(inner))]
