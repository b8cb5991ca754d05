"""CSV: lines of texts between delimiters, read by Arrow.

Which bytes are a record is decided before (:class:`~lakemerge.ingest.formats.lines.Quoting`), and Arrow has to find as
many. Its reader gives columns their type where it can read the table's type; times are read as texts and then cast. If
it refuses a portion, the portion is halved: so the lines at fault are found, and the same reader reads all others. What
is found is given at once, so that a caller can give up a file at the first line at fault.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from lakemerge.ingest.casting import is_infinite
from lakemerge.ingest.formats.base import Format, Origin, Parsed, Peek, Piece, WindowSchema
from lakemerge.ingest.formats.encodings import checked_marks, parsed_encoding, splits, text_stream
from lakemerge.ingest.formats.lines import Lines, Quoting, cut_block, cut_stream, line_at, skipped
from lakemerge.ingest.formats.tabular import to_frame
from lakemerge.ingest.formats.times import TimeFormats
from lakemerge.ingest.source import FileUnreadableError, SourceFile

__all__ = ["Delimited"]

_HEAD_BYTES = 64 << 10
_MOST_INVALID = 1000
"""After so many lines with a wrong number of columns a portion is halved, because each of them takes a call."""
_MANY = 64
"""In a portion of at least this many lines, all bad lines are searched for in one pass first."""
_MOST_TOLD = 300
_SHAPES = (
    (pa.types.is_integer, r"^([+-]?\d+|0[xX][0-9a-fA-F]+|)$"),
    (pa.types.is_floating, r"^([+-]?[\d.]+([eE][+-]?\d+)?|[+-]?(?i:inf|infinity|nan)|)$"),
    (pa.types.is_decimal, r"^([+-]?[\d.]+([eE][+-]?\d+)?|)$"),
    (pa.types.is_boolean, r"^(?i:true|false|[01]|)$"),
    (pa.types.is_date, r"^(\d{4}-\d\d-\d\d|)$"),
)
"""Texts that do not look so are no values of the types, whatever Arrow's reader takes for one."""
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
    comment: str | None = None
    """Lines that begin with it are no records."""
    skip_lines: int = 0
    """How many lines come before the header, or before the first record."""
    times: TimeFormats = field(default_factory=TimeFormats)
    name: ClassVar[str] = "csv"

    @property
    def describes_itself(self) -> bool:  # type: ignore[override]
        return self.header

    def splits(self, path: str) -> bool:
        return not self.multiline and splits(path, self.compression, self.encoding)

    def peek(self, data: pa.NativeFile, file: SourceFile) -> Peek:
        stream = text_stream(data, file.path, self.compression, self.encoding)
        portions = cut_stream(stream, quoting=self._quoting, skip_lines=self.skip_lines, portion_bytes=_HEAD_BYTES)
        for head in checked_marks(portions, self.encoding):
            if len(head):
                if head.torn[0]:
                    raise FileUnreadableError(f"its header is not a line of CSV: {self._torn}")
                return Peek(self._header(head[0]), None, head.end_of(0))
        return Peek((), None, file.size)

    def count(self, data: pa.NativeFile, file: SourceFile) -> int:
        stream = text_stream(data, file.path, self.compression, self.encoding)
        lines = sum(len(lines) for lines in cut_stream(stream, quoting=self._quoting, skip_lines=self.skip_lines))
        return max(0, lines - self.header)

    def line_of(self, data: pa.NativeFile, path: str, offset: int) -> int | None:
        return line_at(text_stream(data, path, self.compression, self.encoding), offset)

    def parsed(self, data: pa.NativeFile, piece: Piece, frame: WindowSchema) -> Iterator[Parsed]:
        names = self.names if piece.peek is None else piece.peek.names
        types = _types(names, frame, self.times)
        texts = None if frame.rescued is None else dict.fromkeys(types, pa.string())
        for lines in self._portions(data, piece):
            for part, table, unread in self._tables(lines, names, types, texts):
                if unread:
                    yield Parsed(_nothing(frame), {}, lambda row: Origin(""), unread)
                if table is not None:
                    rows, problems = to_frame(table, frame, times=self.times)
                    yield Parsed(rows, problems, part.origin)

    @property
    def _quoting(self) -> Quoting:
        return Quoting(self.quote, self.escape, self.delimiter, self.multiline, self.comment)

    @property
    def _torn(self) -> str:
        """Why a torn record cannot be read."""
        if self.multiline:
            return "a quote is not closed, or there is nothing after the last escape"
        return "a quote is not closed in the line; if values hold line breaks, set multiline (multiline=true)"

    def _header(self, line: bytes) -> tuple[str, ...]:
        try:
            text = line.decode(parsed_encoding(self.encoding))
            return tuple(next(csv.reader([text], **_dialect(self))))
        except (UnicodeDecodeError, csv.Error) as error:
            raise FileUnreadableError(f"its header is not a line of CSV: {error}") from error

    def _portions(self, data: pa.NativeFile, piece: Piece) -> Iterator[Lines]:
        start = 0 if piece.peek is None else piece.peek.data_start
        path, encoding, quoting = piece.file.path, self.encoding, self._quoting
        skip_lines = self.skip_lines if piece.peek is None else 0
        if self.splits(path):
            if skip_lines:
                data.seek(0)
                start = skipped(data, skip_lines)
            portions = cut_block(data, piece.offset, piece.end, size=piece.file.size, data_start=start, quoting=quoting)
        else:
            stream = text_stream(data, path, self.compression, encoding)
            portions = cut_stream(stream, skip=start, skip_lines=skip_lines, quoting=quoting)
        return checked_marks(portions, encoding)

    def _tables(
        self,
        lines: Lines,
        names: Sequence[str],
        types: Mapping[str, pa.DataType],
        texts: Mapping[str, pa.DataType] | None,
    ) -> Iterator[tuple[_Part, pa.RecordBatch | None, tuple[tuple[Origin, str], ...]]]:
        """The lines as batches of the wanted columns, in their order, and those that cannot be read, with the reason.

        :param texts: the types as which the columns of a line are read that cannot be read as ``types``.
        """
        part = _Part(lines, None, parsed_encoding(self.encoding))
        if lines.torn.any():
            torn = np.flatnonzero(lines.torn)
            yield part, None, tuple((part.origin(row), self._torn) for row in torn.tolist())
            part = part.of(np.flatnonzero(~lines.torn))
        elif self.comment is not None:
            part = part.of(np.arange(len(lines)))
        yield from self._halves(part, names, types, texts)

    def _halves(
        self,
        part: _Part,
        names: Sequence[str],
        types: Mapping[str, pa.DataType],
        texts: Mapping[str, pa.DataType] | None,
        *,
        sifted: bool = False,
    ) -> Iterator[tuple[_Part, pa.RecordBatch | None, tuple[tuple[Origin, str], ...]]]:
        count = len(part)
        if not count:
            return
        wrong: list[tuple[int, str]] = []
        try:
            batch = self._batch(part, names, types, wrong)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            if count >= _MANY and texts is None and not sifted:
                yield from self._sifted(part, names, types)
            elif count == 1 and texts is not None:
                yield from self._halves(part, names, texts, None)
            elif count == 1:
                yield part, None, ((part.origin(0), _told(error, names)),)
            else:
                yield from self._halves(part.between(0, count // 2), names, types, texts, sifted=sifted)
                yield from self._halves(part.between(count // 2, count), names, types, texts, sifted=sifted)
            return
        if wrong:
            yield part, None, tuple((part.origin(row), reason) for row, reason in wrong)
            keep = np.ones(count, np.bool_)
            keep[[row for row, _ in wrong]] = False
            part = part.of(np.flatnonzero(keep))
        if batch.num_rows:
            yield part, batch, ()

    def _sifted(
        self, part: _Part, names: Sequence[str], types: Mapping[str, pa.DataType]
    ) -> Iterator[tuple[_Part, pa.RecordBatch | None, tuple[tuple[Origin, str], ...]]]:
        """Lines of which some are at fault. Those with a value that is surely none of its type are found at once."""
        wrong: list[tuple[int, str]] = []
        try:
            batch = self._batch(part, names, dict.fromkeys(types, pa.string()), wrong)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            yield from self._halves(part, names, types, None, sifted=True)
            return
        rows = np.delete(np.arange(len(part)), [row for row, _ in wrong])
        reasons = dict(wrong)
        for name in batch.schema.names:
            shape = next((shape for is_kind, shape in _SHAPES if is_kind(types[name])), None)
            if shape is not None:
                values = batch.column(name)
                fits = pc.match_substring_regex(pc.utf8_trim_whitespace(values), shape)
                for place in np.flatnonzero(
                    pc.fill_null(pc.invert(fits), False).to_numpy(zero_copy_only=False)
                ).tolist():
                    text = f"column {name!r}: invalid value '{values[place].as_py()}'"
                    reasons.setdefault(int(rows[place]), text[:_MOST_TOLD])
        told = sorted(reasons)
        for some in (told[first : first + _MOST_INVALID] for first in range(0, len(told), _MOST_INVALID)):
            yield part, None, tuple((part.origin(row), reasons[row]) for row in some)
        kept = np.ones(len(part), np.bool_)
        kept[list(reasons)] = False
        yield from self._halves(part.of(np.flatnonzero(kept)), names, types, None, sifted=True)

    def _batch(
        self, part: _Part, names: Sequence[str], types: Mapping[str, pa.DataType], wrong: list[tuple[int, str]]
    ) -> pa.RecordBatch:
        """All lines at once. Raises :class:`pa.ArrowInvalid` if a line is or may be at fault.

        :param wrong: gets the lines with a wrong number of columns, and why.
        """
        data, encoding = part.data, part.encoding
        text = data if encoding == "utf-8" else data.decode(encoding).encode()

        def told(row: Any) -> str:
            if row.number is None or len(wrong) == _MOST_INVALID:
                return "error"
            wrong.append((row.number - 1, self._uneven(row.expected_columns, row.actual_columns)))
            return "skip"

        table = pcsv.read_csv(
            pa.BufferReader(text),
            read_options=pcsv.ReadOptions(
                use_threads=False, block_size=len(text) + 1, column_names=[str(place) for place in range(len(names))]
            ),
            parse_options=pcsv.ParseOptions(
                delimiter=self.delimiter,
                quote_char=self.quote or False,
                escape_char=(self.escape if self.escape != self.quote else None) or False,
                newlines_in_values=self.multiline,
                invalid_row_handler=told,
            ),
            convert_options=pcsv.ConvertOptions(
                column_types={str(place): types[name] for place, name in enumerate(names) if name in types},
                include_columns=[str(place) for place, name in enumerate(names) if name in types],
                null_values=list(self.null),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        if table.num_rows + len(wrong) != len(part):
            wrong.clear()
            raise pa.ArrowInvalid("it is not a record of CSV with these quotes and escapes")
        table = table.rename_columns([name for name in names if name in types]).combine_chunks()
        if infinite := [name for name in table.column_names if is_infinite(table[name])]:
            # A number that is too large, or a text that says so. Their texts tell which.
            wrong.clear()
            return self._batch(part, names, {**types, **dict.fromkeys(infinite, pa.string())}, wrong)
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)

    def _uneven(self, expected: int, actual: int) -> str:
        hint = ""
        if actual == 1 and expected > 1:
            hint = f"; if its columns end with another character than {self.delimiter!r}, set delimiter"
        return f"Expected {expected} columns, got {actual}{hint}"


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines whose rows are in a batch, in the same order."""

    lines: Lines
    rows: npt.NDArray[np.int64] | None
    """Which of them; ``None``: all."""
    encoding: str

    def __len__(self) -> int:
        return len(self.lines) if self.rows is None else len(self.rows)

    @property
    def data(self) -> bytes:
        return self.lines.data if self.rows is None else self.lines.only(self.rows)

    def of(self, rows: npt.NDArray[np.int64]) -> _Part:
        return _Part(self.lines, rows if self.rows is None else self.rows[rows], self.encoding)

    def between(self, first: int, last: int) -> _Part:
        if self.rows is None:
            return _Part(self.lines.part(first, last), None, self.encoding)
        return _Part(self.lines, self.rows[first:last], self.encoding)

    def origin(self, row: int) -> Origin:
        place = row if self.rows is None else int(self.rows[row])
        return Origin(self.lines[place].decode(self.encoding, errors="backslashreplace"), self.lines.offset_of(place))


def _types(names: Sequence[str], frame: WindowSchema, times: TimeFormats) -> dict[str, pa.DataType]:
    """The types as which the wanted columns are read."""
    types: dict[str, pa.DataType] = {}
    for name in names:
        place = frame.places.get(name.lower())
        if place is None:
            if frame.rescued is not None:
                types[name] = pa.string()
            continue
        kind = frame.schema.field(place).type
        if times.format_of(frame.schema.field(place).name, kind) is not None:
            types[name] = pa.string()
            continue
        types[name] = kind if any(is_kind(kind) for is_kind in _READABLE) or pa.types.is_binary(kind) else pa.string()
    return types


def _dialect(options: Delimited) -> dict[str, Any]:
    quoting = csv.QUOTE_NONE if options.quote is None else csv.QUOTE_MINIMAL
    return {
        "delimiter": options.delimiter,
        "quotechar": options.quote,
        "escapechar": options.escape if options.escape != options.quote else None,
        "quoting": quoting,
        "strict": True,
    }


def _nothing(frame: WindowSchema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in frame.schema], schema=frame.schema)


def _told(error: Exception, names: Sequence[str]) -> str:
    """Arrow's error message, with the column's name in place of its number."""
    match = _COLUMN.match(str(error))
    text = str(error) if match is None else f"column {names[int(match[1])]!r}: {str(error)[match.end() :]}"
    return _ROW.sub("", text).partition("\n")[0][:_MOST_TOLD]
