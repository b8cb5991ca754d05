"""Text: every line is a value, empty ones too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from lakemerge.ingest.formats.base import Format, Origin, Parsed, Peek, Piece, WindowSchema
from lakemerge.ingest.formats.encodings import checked_marks, parsed_encoding, splits, text_stream
from lakemerge.ingest.formats.lines import Lines, cut_block, cut_stream, line_at
from lakemerge.ingest.source import SourceFile

__all__ = ["TextLines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLines(Format):
    """Lines of text, with the path and place that they come from."""

    column: str = "value"
    """The column for the line."""
    path_column: str | None = None
    """The column for the path of the file."""
    offset_column: str | None = None
    """The column for the place of the line's first byte."""
    encoding: str = "utf-8"
    compression: str | None = None
    name: ClassVar[str] = "text"
    describes_itself: ClassVar[bool] = False

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in (self.column, self.path_column, self.offset_column) if name is not None)

    def splits(self, path: str) -> bool:
        return splits(path, self.compression, self.encoding)

    def peek(self, data: pa.NativeFile, file: SourceFile) -> Peek:
        raise AssertionError("text says nothing before its lines")

    def count(self, data: pa.NativeFile, file: SourceFile) -> int:
        return sum(len(_lines(lines)) for lines in cut_stream(self._stream(data, file.path)))

    def line_of(self, data: pa.NativeFile, path: str, offset: int) -> int | None:
        return line_at(self._stream(data, path), offset)

    def parsed(self, data: pa.NativeFile, piece: Piece, frame: WindowSchema) -> Iterator[Parsed]:
        if self.splits(piece.file.path):
            portions = cut_block(data, piece.offset, piece.end, size=piece.file.size)
        else:
            portions = cut_stream(self._stream(data, piece.file.path))
        for portion in checked_marks(portions, self.encoding):
            lines = _lines(portion)
            problems: dict[int, str] = {}
            texts = [self._text(line, place, problems) for place, line in enumerate(lines)]
            columns = {
                self.column: pa.array(texts, pa.string()),
                self.path_column: pa.array([piece.file.path] * len(texts), pa.string()),
                self.offset_column: pa.array(np.asarray(lines.offsets)),
            }
            arrays = [
                columns[field.name].cast(field.type) if field.name in columns else pa.nulls(len(texts), field.type)
                for field in frame.schema
            ]
            rows = pa.RecordBatch.from_arrays(arrays, schema=frame.schema)
            yield Parsed(rows, problems, partial(_origin, lines))

    def _stream(self, data: pa.NativeFile, path: str) -> pa.NativeFile:
        return text_stream(data, path, self.compression, self.encoding)

    def _text(self, line: bytes, place: int, problems: dict[int, str]) -> str | None:
        try:
            return line.decode(parsed_encoding(self.encoding))
        except UnicodeDecodeError as error:
            problems[place] = f"it is not {self.encoding}: {error.reason}"
            return None


def _lines(portion: Lines) -> Lines:
    return replace(portion.without_mark(), blanks=True)


def _origin(lines: Lines, row: int) -> Origin:
    return Origin(lines[row].decode(errors="backslashreplace"), lines.offset_of(row))
