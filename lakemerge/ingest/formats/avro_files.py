"""Avro: a file is one block, whose records are read one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa

from lakemerge.ingest.formats.avro_container import Container
from lakemerge.ingest.formats.base import Format, Origin, Parsed, Peek, Piece, WindowSchema
from lakemerge.ingest.formats.json_lines import Unwrap
from lakemerge.ingest.formats.record_rows import MAX_VALUE_LEVELS, nests_deeper, rows_of, spread
from lakemerge.ingest.row_casting import json_text
from lakemerge.ingest.source import FileUnreadableError, SourceFile

__all__ = ["AvroRecords"]

_BATCH_RECORDS = 8192


@dataclass(frozen=True, slots=True)
class AvroRecords(Format):
    """``unwrap`` takes a row out of its envelope; ``None``: a record is a row."""

    unwrap: Unwrap | None = None
    name: ClassVar[str] = "avro"

    @property
    def describes_itself(self) -> bool:  # type: ignore[override]
        return self.unwrap is None

    def splits(self, path: str) -> bool:
        return False

    def peek(self, data: pa.NativeFile, file: SourceFile) -> Peek:
        found = self._opened(data).types.fields or ()
        return Peek(tuple(name for name, _ in found), tuple(kind for _, kind in found))

    def count(self, data: pa.NativeFile, file: SourceFile) -> int:
        return sum(Container.opened(data).counts())

    def parsed(self, data: pa.NativeFile, piece: Piece, frame: WindowSchema) -> Iterator[Parsed]:
        records = self._opened(data).records()
        first = 0
        while found := list(islice(records, _BATCH_RECORDS)):
            yield self._rows(found, first, frame)
            first += len(found)

    def _opened(self, data: pa.NativeFile) -> Container:
        """Raises :class:`FileUnreadableError`, also for values that are no records and are in no envelope."""
        container = Container.opened(data)
        if self.unwrap is None and container.types.fields is None:
            raise FileUnreadableError(f"its values are not records: {str(container.schema)[:80]}")
        return container

    def _rows(self, found: list[Any], first: int, frame: WindowSchema) -> Parsed:
        records: list[Mapping[str, Any]] = []
        places: list[tuple[int, int]] = []
        unread: list[tuple[Origin, str]] = []
        for place, value in enumerate(found):
            try:
                if nests_deeper(value, MAX_VALUE_LEVELS):
                    raise ValueError(f"a value in it nests more than {MAX_VALUE_LEVELS} levels deep")
                made = (value,) if self.unwrap is None else self.unwrap(value)
                if not all(isinstance(record, dict) for record in made):
                    raise ValueError("it is not a record")
            except (ValueError, TypeError, ArithmeticError) as error:
                text = json_text(value) if not nests_deeper(value, MAX_VALUE_LEVELS) else ""
                unread.append((Origin(text, None, first + place), str(error)))
                continue
            records += made
            places += [(place, number - len(made)) for number in range(len(made))]
        rows, problems, new = rows_of(records, frame)
        spread(problems, places)

        def origin(row: int) -> Origin:
            place = places[row][0]
            return Origin(json_text(found[place]), None, first + place)

        return Parsed(rows, problems, origin, tuple(unread), new)
