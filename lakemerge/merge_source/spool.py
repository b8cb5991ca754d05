"""Keeps tables in a temporary file until they are needed."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from threading import Lock
from types import TracebackType
from typing import IO, Self

import pyarrow as pa

__all__ = ["Spool"]


class Spool:
    """Tables by the number of their part, read back in the order in which they came. It is a context manager. Several
    threads may add tables.

    Tables that are read back are maps of the file, so the system can drop their pages when it needs the memory.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        self._at: dict[int, list[tuple[int, int]]] = {}
        self._end = 0
        self._lock = Lock()
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
        with self._lock:
            self._file.write(memoryview(data))
            self._at.setdefault(part, []).append((self._end, data.size))
            self._end += data.size
            self.rows += table.num_rows

    def tables(self, part: int) -> Iterator[pa.Table]:
        places = tuple(self._at.get(part, ()))
        if not places:
            return
        self._file.flush()
        # Arrow keeps the map as long as a table needs it.
        whole = pa.py_buffer(mmap.mmap(self._file.fileno(), self._end, access=mmap.ACCESS_READ))
        for start, size in places:
            yield pa.ipc.open_stream(whole.slice(start, size)).read_all()
