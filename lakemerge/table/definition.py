"""Changing what a table is, as a method of :class:`lakemerge.LakeTable`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import pyarrow as pa

from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.table.alter import SchemaChange, alter_table
from mergers import Merger

__all__ = ["TableDefinition"]


class TableDefinition(ABC):
    """Schema, merger and properties."""

    _handle: Handle
    _view: TableView

    @abstractmethod
    def _writable(self) -> TableView:
        """The tip; raises :class:`lakemerge.InputError` where the table stands at an earlier version."""

    def alter(
        self,
        *,
        add_columns: str | pa.Schema | None = None,
        nullable: Sequence[str] | None = None,
        comments: Mapping[str, str | None] | None = None,
        order: Sequence[str] | None = None,
        widen: Mapping[str, str | pa.DataType] | None = None,
        merger: str | Merger | None = None,
        options: Mapping[str, object] | None = None,
        properties: Mapping[str, str | None] | None = None,
    ) -> int:
        """Change the table's definition in one commit; returns the version.

        No file is rewritten, and versions before the change are read as ever. Another merger or other options
        fold the records written from then on, onto the rows as they stand. Key and ordering columns cannot
        change. What the table has already makes no commit. Columns change as the parameters are listed here:
        ``order`` may name one that ``add_columns`` adds. Fields inside of columns have dotted names as in Spark:
        ``address.zip``, ``points.element.x`` in lists, ``prices.value.net`` in maps; a name that itself has a
        dot goes into back quotes.

        :param add_columns: nullable columns (DDL or ``pa.Schema``) for the end of the schema. Earlier records do
            not carry them. New fields of a struct (``"address.zip STRING"``, or the struct column with more
            fields) are null in all that was written before.
        :param nullable: columns, but for those of the key, that are NOT NULL no longer.
        :param comments: comments of columns; ``None`` takes one away.
        :param order: columns that come first, in that order; the others follow as they stand.
        :param widen: wider types of columns, fields, elements of lists or values of maps (``{"n": "BIGINT"}``), but
            not of the key, as Delta's type widening has them. The first such change raises the table's Delta reader
            version to 3: readers that do not know ``typeWidening`` then refuse it.
        :param merger: as for :meth:`create`. Its options are those given with it, else its defaults.
        :param options: without ``merger``: all options of the present one.
        :param properties: table properties to set, such as when services are due; ``None`` takes one away.
        :raises lakemerge.SchemaError: the columns cannot be changed that way.
        :raises lakemerge.CompactFirstError: merger or options, or types that the merger computes in, would change
            under logs that are not compacted: call :meth:`compact` first.
        :raises lakemerge.MergerConfigurationError: options do not validate against the schema.
        :raises lakemerge.CommitConflictError: somebody else changed the definition meanwhile.
        """
        begin = self._writable()
        columns = SchemaChange(add_columns=add_columns, nullable=nullable, comments=comments, order=order, widen=widen)
        snapshot = alter_table(
            self._handle, begin, columns=columns, merger=merger, options=options, properties=properties
        )
        self._view = self._handle.view(snapshot)
        return snapshot.version
