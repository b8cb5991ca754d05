"""Keeps tables until they are needed: in memory if they are small, in a temporary file if they are large."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Self

import pyarrow as pa

__all__ = ["Spool"]

_IN_MEMORY_BYTES = 64 * 2**20


class Spool:
    """Tables by the number of their part, read back in the order in which they came. It is a context manager."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - closed below
        self._at: dict[int, list[tuple[int, int]]] = {}
        self.rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, part: int, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        start = self._file.seek(0, 2)
        self._file.write(memoryview(data))
        self._at.setdefault(part, []).append((start, data.size))
        self.rows += table.num_rows

    def tables(self, part: int) -> Iterator[pa.Table]:
        for start, size in self._at.get(part, ()):
            self._file.seek(start)
            yield pa.ipc.open_stream(self._file.read(size)).read_all()
