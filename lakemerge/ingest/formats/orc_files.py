"""ORC: a file is one block, read stripe by stripe, because pyarrow does not say where stripes are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pyarrow as pa

from lakemerge.ingest.formats.base import Format, Origin, Parsed, Peek, Piece, WindowSchema
from lakemerge.ingest.formats.tabular import record_text, to_frame, told_type
from lakemerge.ingest.source import SourceFile

__all__ = ["OrcRows"]


@dataclass(frozen=True, slots=True)
class OrcRows(Format):
    """``timezone`` is the zone of times that have none, for columns that are moments; ``None``: such times are refused
    there."""

    timezone: str | None = None
    name: ClassVar[str] = "orc"

    def splits(self, path: str) -> bool:
        return False

    def peek(self, data: pa.NativeFile, file: SourceFile) -> Peek:
        schema = _opened(data).schema
        return Peek(tuple(schema.names), tuple(told_type(kind, self.timezone) for kind in schema.types))

    def count(self, data: pa.NativeFile, file: SourceFile) -> int:
        return int(_opened(data).nrows)

    def parsed(self, data: pa.NativeFile, piece: Piece, frame: WindowSchema) -> Iterator[Parsed]:
        orc = _opened(data)
        first = 0
        for number in range(orc.nstripes):
            for batch in pa.Table.from_batches([orc.read_stripe(number)]).to_batches(64 << 10):
                rows, problems = to_frame(batch, frame, zone=self.timezone)
                yield Parsed(rows, problems, partial(_origin, batch, first))
                first += batch.num_rows


def _origin(batch: pa.RecordBatch, first: int, row: int) -> Origin:
    return Origin(record_text(batch, row), None, first + row)


def _opened(data: pa.NativeFile) -> pa.orc.ORCFile:
    import pyarrow.orc

    return pyarrow.orc.ORCFile(data)
