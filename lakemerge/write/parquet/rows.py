"""A Parquet file of merged rows: a base file or a winner file.

It has the columns of the table's schema, and then ``_lm_file``, the file's ordinal, which is not in the Delta schema.
Source: docs/table-format.md, section 2.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.format.bounds import STATISTICS_COLUMNS
from lakemerge.format.names import FILE_COLUMN
from lakemerge.options import Settings
from lakemerge.schema.names import ColumnNames
from lakemerge.storage.base import Store
from lakemerge.write.parquet.output import ParquetOutput
from lakemerge.write.parquet.stats import text_bounds

__all__ = ["RowsFile"]

_HELD_BYTES = 32 * 2**20
"""About the most bytes of rows that wait, as Arrow data."""
_CHUNK_BYTES = 16 * 2**10
"""A column of a row group should have about as many bytes: whoever writes or reads a file has some KiB in memory for
each, in footers and page indexes."""


class RowsFile:
    """One file being written. End it with :meth:`close` or :meth:`abandon`.

    Rows wait in memory until there are enough for a row group. A step of a merge may have a few rows only, and a file
    with hundreds of columns and a row group for each step has a footer that is larger than its rows.

    :param schema: the table's schema.
    :param names: those that its columns have in files.
    :param ordinal: the ordinal that is reserved for this file.
    """

    def __init__(
        self, store: Store, path: str, *, schema: pa.Schema, names: ColumnNames, ordinal: int, settings: Settings
    ) -> None:
        self.path = path
        self.ordinal = ordinal
        self.rows = 0
        self.texts: dict[str, tuple[str, str]] = {}
        """By stored name; see :func:`lakemerge.write.parquet.stats.file_statistics`."""
        self._names = schema.names
        texts = [field.name for field in list(schema)[:STATISTICS_COLUMNS] if pa.types.is_string(field.type)]
        self._text_names = [names.of(name) for name in texts]
        self._schema = pa.schema(list(names.identified(schema))).remove_metadata()
        self._output = ParquetOutput(store, path, group_rows=settings.row_group_rows)
        self._most_rows = settings.row_group_rows
        budget = settings.merge_budget_bytes
        self._most_bytes = max(min(budget // 2, _HELD_BYTES), min(2 * budget, _CHUNK_BYTES * len(schema)))
        self._held: list[pa.Table] = []
        self._held_rows = self._held_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The bytes written so far. For a closed file, its size."""
        return self._output.size_bytes

    def reaches(self, size_bytes: int) -> bool:
        """Whether the file has so many bytes. If it might, the rows that wait are written, because it is not known
        how small they become."""
        if self.size_bytes + self._held_bytes >= size_bytes:
            self._flush()
        return self.size_bytes >= size_bytes

    def add(self, rows: pa.Table) -> None:
        """Append rows with the columns of the table's schema. All calls together must be in key order."""
        if not rows.num_rows:
            return
        self._held.append(pa.table(rows.select(self._names).columns, schema=self._schema))
        self.rows += rows.num_rows
        self._held_rows += rows.num_rows
        self._held_bytes += rows.nbytes
        if self._held_rows >= self._most_rows or self._held_bytes >= self._most_bytes:
            self._flush()

    def close(self) -> pq.FileMetaData:
        """Finish the file and return its footer."""
        self._flush()
        if not self.rows:
            self._write(self._schema.empty_table())
        return self._output.close()

    def abandon(self) -> None:
        """Give the file up. It does not appear in the store."""
        self._output.abandon()

    def _flush(self) -> None:
        if not self._held:
            return
        rows = pa.concat_tables(self._held)
        self._held = []
        self._held_rows = self._held_bytes = 0
        self._write(rows)
        for stored in self._text_names:
            found = text_bounds(rows.column(stored))
            if found is not None:
                low, high = self.texts.get(stored, found)
                self.texts[stored] = min(low, found[0]), max(high, found[1])

    def _write(self, rows: pa.Table) -> None:
        ordinals = np.full(rows.num_rows, self.ordinal, dtype=np.int32)
        self._output.write(rows.append_column(pa.field(FILE_COLUMN, pa.int32()), pa.array(ordinals)))
