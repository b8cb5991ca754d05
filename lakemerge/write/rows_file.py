"""A Parquet file of merged rows: a base file or a winner file.

The columns of the table's schema, then ``_lm_file``, the file's ordinal, which the Delta schema does not
name. Source: docs/table-format.md, section 2.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.options import Settings
from lakemerge.slices.model import FILE_COLUMN
from lakemerge.storage.base import Store
from lakemerge.write.encoding import writer_options

__all__ = ["RowsFile"]


class RowsFile:
    """One file being written. End it with :meth:`close` or :meth:`abandon`.

    :param schema: the table's.
    :param ordinal: reserved for this file.
    """

    def __init__(self, store: Store, path: str, *, schema: pa.Schema, ordinal: int, settings: Settings) -> None:
        self.path = path
        self.ordinal = ordinal
        self.rows = 0
        self._names = schema.names
        self._schema = pa.schema([*schema, pa.field(FILE_COLUMN, pa.int32())])
        self._row_group_rows = settings.row_group_rows
        self._output = store.open_output(path)
        self._sink = self._output.__enter__()
        self._size: int | None = None
        self._writer: Any = None

    @property
    def size_bytes(self) -> int:
        """Bytes written so far; of a closed file, all."""
        return int(self._sink.tell()) if self._size is None else self._size

    def add(self, rows: pa.Table) -> None:
        """Append rows with the columns of the table's schema, in key order from call to call."""
        count = rows.num_rows
        if not count:
            return
        ordinals = pa.array(np.full(count, self.ordinal, dtype=np.int32))
        columns = [*rows.select(self._names).columns, ordinals]
        self._write(pa.table(columns, schema=self._schema).replace_schema_metadata(None))
        self.rows += count

    def close(self) -> pq.FileMetaData:
        """Finish the file; returns its footer."""
        if self._writer is None:
            self._write(self._schema.remove_metadata().empty_table())
        self._writer.close()
        footer = self._writer.writer.metadata
        self._size = int(self._sink.tell())
        self._output.__exit__(None, None, None)
        return footer

    def abandon(self) -> None:
        """Give the file up; the store shows nothing of it."""
        # The footer goes to a file that is never published; a writer left open would try to write it
        # when it is collected, long after the file has gone.
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        error = RuntimeError("the write was abandoned")
        self._output.__exit__(type(error), error, None)

    def _write(self, table: pa.Table) -> None:
        if self._writer is None:
            options = writer_options(table, group_rows=self._row_group_rows)
            self._writer = pq.ParquetWriter(self._sink, table.schema, **options)
        self._writer.write_table(table, row_group_size=self._row_group_rows)
