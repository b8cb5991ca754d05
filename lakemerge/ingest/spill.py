"""Rows that may be too many for memory, in their order or sorted. Beyond a bound they go to temporary files."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterator, Sequence
from operator import itemgetter
from types import TracebackType
from typing import IO, Any, Self

import pyarrow as pa

from lakemerge.format.ledger import columns_of

__all__ = ["Row", "SortedSpill", "Spill"]

Row = tuple[Any, ...]

_BATCH_ROWS = 16_384
_SORT_ROWS = 200_000
_MEMORY_BYTES = 32 << 20


class Spill:
    """Batches in the order in which they were added. They can be read any number of times."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - closed by close()
        self._writer = pa.ipc.new_stream(self._file, schema)
        self._is_open = True

    def add(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def add_rows(self, rows: Sequence[Row]) -> None:
        self.add(columns_of(rows, self.schema))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._is_open:
            self._writer.close()
            self._is_open = False
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class SortedSpill:
    """Sorts rows by some of their columns."""

    def __init__(self, schema: pa.Schema, by: Sequence[str], *, rows_in_memory: int = _SORT_ROWS) -> None:
        self._schema = schema
        self._by = list(by)
        self._limit = rows_in_memory
        self._held: list[Row] = []
        self._runs: list[Spill] = []
        self._key = itemgetter(*(schema.names.index(name) for name in by))

    @property
    def is_empty(self) -> bool:
        return not self._held and not self._runs

    def add(self, row: Row) -> None:
        self._held.append(row)
        if len(self._held) >= self._limit:
            self._spill()

    def __iter__(self) -> Iterator[Row]:
        """The sorted rows. They can be read only once."""
        if not self._runs:
            held, self._held = sorted(self._held, key=self._key), []
            yield from held
            return
        self._spill()
        try:
            yield from heapq.merge(*(_rows(run) for run in self._runs), key=self._key)
        finally:
            self.close()

    def close(self) -> None:
        for run in self._runs:
            run.close()
        self._held, self._runs = [], []

    def _spill(self) -> None:
        rows = sorted(self._held, key=self._key)
        run = Spill(self._schema)
        for start in range(0, len(rows), _BATCH_ROWS):
            run.add_rows(rows[start : start + _BATCH_ROWS])
        self._runs.append(run)
        self._held = []


def _rows(run: Spill) -> Iterator[Row]:
    for batch in run:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
