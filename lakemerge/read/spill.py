"""Keeps log records in a temporary file if a merge would have too much of their files open at once.

All log blocks of a file slice advance together, and of each that is open, Parquet's reader holds a whole column chunk
and a whole page, however few rows are asked for. With a few blocks that is little. Dozens of commits with long values
would take many times the merge budget. So such blocks are decoded one after the other, once, into a file that gives
back as few rows as are asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from threading import Lock
from types import TracebackType
from typing import IO, Final, Self

import pyarrow as pa

from lakemerge.format.log_block import LogBlock
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.sources import Batches

__all__ = ["Spill", "needs_spill"]

_HELD_BYTES: Final = 128 * 2**20
"""About the most that a reader holds of a file: a row group."""
_BUDGETS: Final = 2


def needs_spill(blocks: Iterable[LogBlock], budget_bytes: int) -> bool:
    """Whether open files of the blocks would hold more than a few merge budgets."""
    return sum(min(block.data_bytes, _HELD_BYTES) for block in blocks) > _BUDGETS * budget_bytes


class Spill:
    """A temporary file for streams of tables. It is a context manager, after which no stream goes on. Several threads
    may use it, and one at a time decodes a stream.

    :param is_needed: else streams pass as they are.
    """

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed
        self._file: IO[bytes] | None = None
        self._end = 0
        self._decoding = Lock()
        self._moving = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def through(self, batches: Batches, files: ParquetFiles, path: str) -> Batches:
        """The same tables, which come from one of the files. Once the first one is asked for, all are decoded, and wait
        in the temporary file. Then nothing of the file at ``path`` is held any more."""
        return self._read(batches, files, path) if self._is_needed else batches

    def _read(self, batches: Batches, files: ParquetFiles, path: str) -> Iterator[tuple[pa.Table, bool]]:
        with self._decoding:
            places = [(*self._put(table), last) for table, last in batches]
            files.release(path)
        for start, size, last in places:
            yield self._get(start, size), last

    def _put(self, table: pa.Table) -> tuple[int, int]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        with self._moving:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
            start = self._end
            self._file.seek(start)
            self._file.write(memoryview(data))
            self._end += data.size
        return start, data.size

    def _get(self, start: int, size: int) -> pa.Table:
        with self._moving:
            if self._file is None:
                raise AssertionError("nothing was put into the file")
            self._file.seek(start)
            data = self._file.read(size)
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
