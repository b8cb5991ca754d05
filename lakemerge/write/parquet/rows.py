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


class RowsFile:
    """One file being written. End it with :meth:`close` or :meth:`abandon`.

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
        self._text_names = {name: names.of(name) for name in texts}
        self._schema = pa.schema([*names.identified(schema), pa.field(FILE_COLUMN, pa.int32())]).remove_metadata()
        self._output = ParquetOutput(store, path, group_rows=settings.row_group_rows)

    @property
    def size_bytes(self) -> int:
        """The bytes written so far. For a closed file, its size."""
        return self._output.size_bytes

    def add(self, rows: pa.Table) -> None:
        """Append rows with the columns of the table's schema. All calls together must be in key order."""
        count = rows.num_rows
        if not count:
            return
        ordinals = pa.array(np.full(count, self.ordinal, dtype=np.int32))
        self._output.write(pa.table([*rows.select(self._names).columns, ordinals], schema=self._schema))
        self.rows += count
        for name, stored in self._text_names.items():
            found = text_bounds(rows.column(name))
            if found is not None:
                low, high = self.texts.get(stored, found)
                self.texts[stored] = min(low, found[0]), max(high, found[1])

    def close(self) -> pq.FileMetaData:
        """Finish the file and return its footer."""
        if not self.rows:
            self._output.write(self._schema.empty_table())
        return self._output.close()

    def abandon(self) -> None:
        """Give the file up. It does not appear in the store."""
        self._output.abandon()
