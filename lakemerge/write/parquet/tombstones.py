"""Tombstone files: the deletes that go with a base file or a minor entry.

Source: docs/table-format.md, section 6.
"""

from __future__ import annotations

import pyarrow as pa

from lakemerge.format.names import TOMBSTONE_FOLDER
from lakemerge.options import Settings
from lakemerge.schema.names import ColumnNames
from lakemerge.storage.base import Store
from lakemerge.write.parquet.output import ParquetOutput

__all__ = ["TombstonesOutput"]


class TombstonesOutput:
    """Writes the tombstones of one key range. The file is opened when there are enough tombstones for a row group.
    If there are no tombstones, there is no file. End it with :meth:`close` or :meth:`abandon`.

    :param name: begin version and transaction id of the write.
    :param ordinal: the ordinal of the file of merged rows that the tombstones belong to.
    :param names: those that the table's columns have in files.
    """

    def __init__(self, store: Store, name: str, ordinal: int, settings: Settings, names: ColumnNames) -> None:
        self._store = store
        self._path = f"{TOMBSTONE_FOLDER}/{name}-{ordinal:010d}.parquet"
        self._settings = settings
        self._names = names
        self._held: list[pa.Table] = []
        self._held_rows = self._held_bytes = 0
        self._output: ParquetOutput | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes so far, in the file or waiting to be written. For a closed file, its size."""
        return self._held_bytes + (0 if self._output is None else self._output.size_bytes)

    def add(self, rows: pa.Table) -> None:
        """Append tombstones, see :func:`mergers.kernel.tombstone_schema`. All calls together must be in key order."""
        if not rows.num_rows:
            return
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._held_bytes += rows.nbytes
        settings = self._settings
        if self._held_rows >= settings.row_group_rows or self._held_bytes >= settings.merge_budget_bytes // 2:
            self._flush()

    def close(self) -> str | None:
        """Finish the file, if there is one, and return its path."""
        if self._held:
            self._flush()
        if self._output is None:
            return None
        self._output.close()
        return self._path

    def abandon(self) -> None:
        """Give the file up. It does not appear in the store."""
        if self._output is not None:
            self._output.abandon()

    def _flush(self) -> None:
        if self._output is None:
            self._output = ParquetOutput(self._store, self._path, group_rows=self._settings.row_group_rows)
        rows = pa.concat_tables(self._held)
        self._output.write(rows.rename_columns(self._names.all_of(rows.column_names)))
        self._held = []
        self._held_rows = self._held_bytes = 0
