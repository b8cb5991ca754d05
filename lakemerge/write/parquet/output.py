"""Writes a Parquet file row group by row group. The file appears whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.storage.base import Store
from lakemerge.write.parquet.encoding import writer_options
from mergers.portions import is_large, row_bytes, spans

__all__ = ["ParquetOutput", "write_groups"]

GROUP_BYTES = 128 * 2**20
"""About the most bytes of a row group, as Arrow data. Readers hold a row group, and a page of one ends at 2 GiB."""


def write_groups(writer: pq.ParquetWriter, rows: pa.Table, *, group_rows: int) -> int:
    """Append rows as row groups of at most ``group_rows`` rows and about :data:`GROUP_BYTES`, or of one row. Returns
    how many there are."""
    cuts = [(0, rows.num_rows)]
    if rows.num_rows and is_large(rows, than=GROUP_BYTES):
        cuts = list(spans(row_bytes(rows), GROUP_BYTES))
    for start, end in cuts:
        writer.write_table(rows.slice(start, end - start), row_group_size=group_rows)
    return sum(-(-(end - start) // group_rows) for start, end in cuts)


class ParquetOutput:
    """One file being written. End it with :meth:`close` or :meth:`abandon`.

    :param group_rows: a row group has at most this many rows, and about :data:`GROUP_BYTES`.
    :param bounded: the columns whose statistics are needed. ``None`` means all.
    """

    def __init__(self, store: Store, path: str, *, group_rows: int, bounded: Collection[str] | None = None) -> None:
        self.path = path
        self.rows = 0
        self.row_groups = 0
        self._group_rows = group_rows
        self._bounded = bounded
        self._output = store.open_output(path)
        self._sink = self._output.__enter__()
        self._size: int | None = None
        self._writer: Any = None

    @property
    def size_bytes(self) -> int:
        """The bytes written so far. For a closed file, its size."""
        return int(self._sink.tell()) if self._size is None else self._size

    def write(self, rows: pa.Table) -> None:
        """Append rows as new row groups. The rows of the first call decide how columns are encoded."""
        if self._writer is None:
            options = writer_options(rows, group_rows=self._group_rows, bounded=self._bounded)
            self._writer = pq.ParquetWriter(self._sink, rows.schema, **options)
        self.row_groups += write_groups(self._writer, rows, group_rows=self._group_rows)
        self.rows += rows.num_rows

    def close(self) -> pq.FileMetaData:
        """Finish the file and return its footer. Something must have been written to it."""
        self._writer.close()
        footer = self._writer.writer.metadata
        self._size = int(self._sink.tell())
        self._output.__exit__(None, None, None)
        return footer

    def abandon(self) -> None:
        """Give the file up. It does not appear in the store. A file that is already closed stays, but nothing names
        it."""
        if self._size is not None:
            return
        # The footer goes to a file that is never published. A writer that is left open would try to write the footer
        # when it is garbage-collected, long after the file is gone.
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        error = RuntimeError("the write was abandoned")
        self._output.__exit__(type(error), error, None)
