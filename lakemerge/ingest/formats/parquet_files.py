"""Parquet: a row group belongs to the block that holds its middle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge._internal.parquet import ParquetFile
from lakemerge.ingest.casting import EITHER
from lakemerge.ingest.formats.base import Format, Origin, Parsed, Peek, Piece, WindowSchema
from lakemerge.ingest.formats.tabular import record_text, to_frame, told_type
from lakemerge.ingest.source import FileUnreadableError, SourceFile
from lakemerge.read.parquet.footers import END, Footer
from mergers.interrupts import is_foreign

__all__ = ["ParquetRows"]

_BATCH_ROWS = 64 << 10
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ParquetRows(Format):
    """``timezone`` is the zone of times that have none, for columns that are moments; ``None``: such times are refused
    there. Times of INT96 are in UTC, as Spark, Hive and Impala write them by default."""

    timezone: str | None = None
    name: ClassVar[str] = "parquet"

    def splits(self, path: str) -> bool:
        return True

    def peek(self, data: pa.NativeFile, file: SourceFile) -> Peek:
        footer = _footer(data, file)
        schema, either = footer.schema.to_arrow_schema(), _int96(footer)
        kinds = [EITHER if field.name in either else told_type(field.type, self.timezone) for field in schema]
        return Peek(tuple(schema.names), tuple(kinds))

    def count(self, data: pa.NativeFile, file: SourceFile) -> int:
        return int(_footer(data, file).num_rows)

    def parsed(self, data: pa.NativeFile, piece: Piece, frame: WindowSchema) -> Iterator[Parsed]:
        footer = _footer(data, piece.file)
        first, either = 0, _int96(footer)
        # Without the unit, times of INT96 outside of the years 1678 to 2261 would wrap around.
        options = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
        with ParquetFile(data, metadata=footer, **options) as parquet:
            names = parquet.schema_arrow.names
            wanted = [name for name in names if name.lower() in frame.places or frame.rescued is not None]
            # pyarrow would take a name with a dot for a field of a struct.
            columns = None if any("." in name for name in wanted) else wanted
            for number in range(footer.num_row_groups):
                if piece.offset <= _middle(footer, number, piece.file.size) < max(piece.end, piece.offset + 1):
                    place = first
                    for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[number], columns=columns):
                        rows, problems = to_frame(batch.select(wanted), frame, zone=self.timezone, either=either)
                        yield Parsed(rows, problems, partial(_origin, batch, place))
                        place += batch.num_rows
                first += footer.row_group(number).num_rows


def _origin(batch: pa.RecordBatch, first: int, row: int) -> Origin:
    return Origin(record_text(batch, row), None, first + row)


def _int96(footer: pq.FileMetaData) -> frozenset[str]:
    """The columns of the type INT96. It does not say whether its times are moments or wall clocks."""
    columns = (footer.schema.column(place) for place in range(footer.num_columns))
    return frozenset(column.path for column in columns if column.physical_type == "INT96")


def _middle(footer: pq.FileMetaData, number: int, size: int) -> int:
    """The place in the file of the middle of a row group's bytes."""
    group = footer.row_group(number)
    starts, ends = [], []
    for place in range(group.num_columns):
        chunk = group.column(place)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
            start = chunk.dictionary_page_offset
        starts.append(start)
        ends.append(start + chunk.total_compressed_size)
    middle = (min(starts, default=0) + max(ends, default=0)) // 2
    return min(max(middle, 0), max(size - 1, 0))


def _footer(data: pa.NativeFile, file: SourceFile) -> pq.FileMetaData:
    """The checked footer. It is checked because some damaged footers make pyarrow end the process."""
    size = file.size
    start = max(0, size - _TAIL_BYTES)
    data.seek(start)
    tail = data.read(size - start)
    length = int.from_bytes(tail[-END:-4], "little") + END
    if tail[-4:] == b"PARE":
        raise FileUnreadableError("its footer is encrypted, and ingest has no keys: decrypt it first")
    if tail[-4:] != b"PAR1" or length > size:
        raise FileUnreadableError("it is not a Parquet file, or it was truncated")
    if length > len(tail):
        data.seek(size - length)
        tail = data.read(length)
    try:
        return Footer(tail[-length:]).checked
    except (ValueError, pa.ArrowException, OSError) as error:
        if is_foreign(error):
            raise
        raise FileUnreadableError(f"its footer is damaged: {error}") from error
