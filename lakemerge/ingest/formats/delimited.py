"""CSV: lines of texts between delimiters, read by Arrow.

Arrow's reader gives columns their type where it can read the table's type; times are read as texts and then cast. If
it refuses a portion, the portion is halved: so the lines at fault are found, and the same reader reads all others.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv as pcsv

from lakemerge.ingest.casting import is_infinite
from lakemerge.ingest.formats.base import Format, Frame, Origin, Parsed, Peek, Piece
from lakemerge.ingest.formats.compressed import codec_of, decompressed
from lakemerge.ingest.formats.lines import Lines, Quoting, cut_block, cut_stream
from lakemerge.ingest.formats.tabular import to_frame
from lakemerge.ingest.source import FileUnreadableError, SourceFile

__all__ = ["Delimited"]

_HEAD_BYTES = 64 << 10
_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?(?:CSV conversion error to [^:]+: )?")
_ROW = re.compile(r"CSV parse error: (?:Row #\d+: )?")
_READABLE = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delimited(Format):
    """CSV with its options."""

    names: tuple[str, ...] = ()
    """The columns, where files have no header."""
    header: bool = True
    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null: tuple[str, ...] = ("",)
    """Texts that stand for null, unless they are quoted."""
    encoding: str = "utf-8"
    multiline: bool = False
    """Whether quoted values hold line breaks; a file is then one block."""
    compression: str | None = None
    name: ClassVar[str] = "csv"

    @property
    def describes_itself(self) -> bool:  # type: ignore[override]
        return self.header

    def splits(self, path: str) -> bool:
        return not self.multiline and codec_of(path, self.compression) is None

    def peek(self, data: pa.NativeFile, file: SourceFile) -> Peek:
        stream = decompressed(data, file.path, self.compression)
        for lines in cut_stream(stream, quoting=self._quoting, portion_bytes=_HEAD_BYTES):
            head = lines.without_mark()
            if len(head):
                end = head.offset_of(0) + len(head[0])
                rest = lines.data[end - lines.offset :]
                feed = rest.find(b"\n")
                return Peek(self._header(head[0]), None, end + (len(rest) if feed < 0 else feed + 1))
        return Peek((), None, file.size)

    def count(self, data: pa.NativeFile, file: SourceFile) -> int:
        stream = decompressed(data, file.path, self.compression)
        lines = sum(len(lines) for lines in cut_stream(stream, quoting=self._quoting))
        return max(0, lines - self.header)

    def parsed(self, data: pa.NativeFile, piece: Piece, frame: Frame) -> Iterator[Parsed]:
        names = self.names if piece.peek is None else piece.peek.names
        types = _types(names, frame)
        for lines in self._portions(data, piece):
            unread: list[tuple[Origin, str]] = []
            for part, table in self._tables(lines, names, types, unread):
                rows, problems = to_frame(table, frame)
                yield Parsed(rows, problems, part.origin)
            if unread:
                yield Parsed(_nothing(frame), {}, lambda row: Origin(""), tuple(unread))

    @property
    def _quoting(self) -> Quoting | None:
        return Quoting(self.quote, self.escape) if self.multiline and self.quote is not None else None

    def _header(self, line: bytes) -> tuple[str, ...]:
        try:
            text = line.decode(self.encoding)
            return tuple(next(csv.reader([text], **_dialect(self))))
        except (UnicodeDecodeError, csv.Error) as error:
            raise FileUnreadableError(f"its header is no line of CSV: {error}") from error

    def _portions(self, data: pa.NativeFile, piece: Piece) -> Iterator[Lines]:
        start = 0 if piece.peek is None else piece.peek.data_start
        if self.splits(piece.file.path):
            portions = cut_block(data, piece.offset, piece.end, size=piece.file.size, data_start=start)
        else:
            stream = decompressed(data, piece.file.path, self.compression)
            portions = cut_stream(stream, skip=start, quoting=self._quoting)
        return (lines.without_mark() for lines in portions)

    def _tables(
        self,
        lines: Lines,
        names: Sequence[str],
        types: Mapping[str, pa.DataType],
        unread: list[tuple[Origin, str]],
    ) -> Iterator[tuple[_Part, pa.RecordBatch]]:
        """The lines as batches of the wanted columns, in their order."""
        try:
            batch = self._batch(lines, names, types)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            count = len(lines)
            if count == 1:
                unread.append((_Part(lines, self.encoding).origin(0), _told(error, names)))
            elif count:
                yield from self._tables(lines.part(0, count // 2), names, types, unread)
                yield from self._tables(lines.part(count // 2, count), names, types, unread)
            return
        if batch.num_rows:
            yield _Part(lines, self.encoding), batch

    def _batch(self, lines: Lines, names: Sequence[str], types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
        """All lines at once. Raises :class:`pa.ArrowInvalid` if a line is or may be at fault."""
        data = lines.data
        # Tests that can end at the first byte come first, because a portion has millions of bytes.
        if b"\r" in data and data.count(b"\r") != data.count(b"\r\n") and len(lines) > 1:
            raise pa.ArrowInvalid("a carriage return alone ends no record")
        probe = b""
        if self.quote is not None and self.quote.encode() in data:
            # A quote that is not closed swallows what follows. So the first line is added once more, and has to come
            # out whole.
            probe = (b"" if data.endswith(b"\n") else b"\n") + (lines[0] if len(lines) else b"")
        text = (data + probe).decode(self.encoding).encode() if self.encoding != "utf-8" else data + probe
        if text[:1] in (b"", b"\r", b"\n") and not text.strip(b"\r\n"):
            return pa.RecordBatch.from_pylist([], schema=pa.schema([(name, types[name]) for name in types]))
        table = pcsv.read_csv(
            pa.BufferReader(text),
            read_options=pcsv.ReadOptions(
                use_threads=False, block_size=len(text) + 1, column_names=[str(place) for place in range(len(names))]
            ),
            parse_options=pcsv.ParseOptions(
                delimiter=self.delimiter,
                quote_char=self.quote or False,
                escape_char=self.escape or False,
                newlines_in_values=self.multiline,
            ),
            convert_options=pcsv.ConvertOptions(
                column_types={str(place): types[name] for place, name in enumerate(names) if name in types},
                include_columns=[str(place) for place, name in enumerate(names) if name in types],
                null_values=list(self.null),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        rows = table.num_rows - bool(probe)
        if rows != data.count(b"\n") + (not data.endswith(b"\n")) and rows != len(lines):
            raise pa.ArrowInvalid("a quote is not closed in the line; if values hold line breaks, set multiline")
        table = table.slice(0, rows).rename_columns([name for name in names if name in types]).combine_chunks()
        if infinite := [name for name in table.column_names if is_infinite(table[name])]:
            # A number that is too large, or a text that says so. Their texts tell which.
            return self._batch(lines, names, {**types, **dict.fromkeys(infinite, pa.string())})
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines whose rows are in a batch, in the same order."""

    lines: Lines
    encoding: str

    def origin(self, row: int) -> Origin:
        return Origin(self.lines[row].decode(self.encoding, errors="backslashreplace"), self.lines.offset_of(row))


def _types(names: Sequence[str], frame: Frame) -> dict[str, pa.DataType]:
    """The types as which the wanted columns are read."""
    types: dict[str, pa.DataType] = {}
    for name in names:
        place = frame.places.get(name.lower())
        if place is None:
            if frame.rescued is not None:
                types[name] = pa.string()
            continue
        kind = frame.schema.field(place).type
        types[name] = kind if any(is_kind(kind) for is_kind in _READABLE) or pa.types.is_binary(kind) else pa.string()
    return types


def _dialect(options: Delimited) -> dict[str, Any]:
    quoting = csv.QUOTE_NONE if options.quote is None else csv.QUOTE_MINIMAL
    return {
        "delimiter": options.delimiter,
        "quotechar": options.quote or '"',
        "escapechar": options.escape,
        "quoting": quoting,
        "strict": True,
    }


def _nothing(frame: Frame) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in frame.schema], schema=frame.schema)


def _told(error: Exception, names: Sequence[str]) -> str:
    """Arrow's error message, with the column's name in place of its number."""
    match = _COLUMN.match(str(error))
    text = str(error) if match is None else f"column {names[int(match[1])]!r}: {str(error)[match.end() :]}"
    return _ROW.sub("", text).partition("\n")[0][:300]
