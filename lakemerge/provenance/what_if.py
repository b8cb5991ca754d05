"""The same records under another merger, as a read-only view.

The view is a version put together from what the table has (:mod:`lakemerge.provenance.retained`), with another merger
in its definition. So everything that reads tables can read it, Spark included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.cache import Cache
from lakemerge.errors import InputError
from lakemerge.feed.difference import KIND, row_changes
from lakemerge.format.block_index import DecodedLogs
from lakemerge.handle import Handle
from lakemerge.layout.travel import guarded, unless_replaced
from lakemerge.layout.view import TableView
from lakemerge.provenance.retained import retained
from lakemerge.provenance.short import short_notes
from lakemerge.python_values import python_rows
from lakemerge.read.lookup import look_up
from lakemerge.read.scan import read_arrow, scan
from lakemerge.results.display import definition_html
from lakemerge.table.create import choose_merger
from lakemerge.table.session import TableSession
from mergers import Merger, RowKind
from mergers.keys import group_starts, key_columns, sort_order
from mergers.portions import gather
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["WhatIf", "what_if"]

_SCAN_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The rows that a table would have under another merger. It is read-only."""

    version: int
    """The version of the table whose records are folded."""
    begins: int
    """The version whose rows the records are folded onto."""
    merger: str
    options: Mapping[str, object]
    notes: tuple[str, ...]
    """Sentences on what the answer does not take into account."""
    _handle: Handle = field(repr=False)
    _view: TableView = field(repr=False)
    _own: tuple[Handle, TableView] = field(repr=False)
    """The table as it is."""
    _session: TableSession = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._view.config.schema

    def to_arrow(self, *, columns: Sequence[str] | None = None, filter: str | pc.Expression | None = None) -> pa.Table:
        """The rows as an Arrow table; as :meth:`lakemerge.LakeTable.to_arrow`."""
        with unless_replaced(self._handle.log, self._view.snapshot):
            return read_arrow(self._handle, self._view, columns=columns, filter=filter)

    def diff(self, *, filter: str | pc.Expression | None = None) -> pa.Table:
        """The rows that would not be as they are, sorted by key, with the column ``_row_kind`` in front: ``-U`` for a
        row as it is and ``+U`` as it would be, ``-D`` for one that would be gone, and ``+I`` for one that would be new.

        Both tables are read into memory.

        :param filter: as for :meth:`to_arrow`. Of each table, it keeps the rows that meet it.
        """
        key = self._view.config.key
        handle, view = self._own
        with unless_replaced(handle.log, view.snapshot):
            sides = [
                _by_key(read_arrow(each, of, columns=None, filter=filter), key)
                for each, of in ((handle, view), (self._handle, self._view))
            ]
        keys = _by_key(pa.concat_tables([side.select(key) for side in sides]), key)
        starts = group_starts(key_columns(keys, key))
        rows, kinds = row_changes(_AsTheyAre(self.schema), key, keys.take(pa.array(starts)), *sides, before_images=True)
        words = pa.array([RowKind(kind).symbol for kind in kinds.tolist()], pa.string())
        return rows.add_column(0, KIND, words)

    def scan(
        self, *, columns: Sequence[str] | None = None, filter: str | pc.Expression | None = None
    ) -> pa.RecordBatchReader:
        """As :meth:`to_arrow`, as a stream."""
        reader = scan(self._handle, self._view, columns=columns, filter=filter)
        return guarded(reader, self._handle.log, self._view.snapshot)

    def to_df(self, *, columns: Sequence[str] | None = None, filter: str | Column | None = None) -> DataFrame:
        """The rows as a Spark DataFrame, merged by Spark's tasks; as :meth:`lakemerge.LakeTable.to_df`."""
        spark = self._session.of_dataframes()
        from lakemerge.spark.reader import read_dataframe

        return read_dataframe(spark, self._handle, self._view, columns=columns, filter=filter, hypothetical=True)

    def get(self, key: Mapping[str, object]) -> dict[str, Any] | None:
        """The row of one key; as :meth:`lakemerge.LakeTable.get`."""
        with unless_replaced(self._handle.log, self._view.snapshot):
            return next(iter(python_rows(look_up(self._handle, self._view, [key], None))), None)

    def _repr_html_(self) -> str:
        facts = [
            ("rows of version", self.version),
            ("as if merged by", f"{self.merger} {dict(self.options) or ''}"),
            ("records on top of version", self.begins),
        ]
        return definition_html([*facts, *(("note", note) for note in self.notes)])


@dataclass(frozen=True, slots=True)
class _AsTheyAre:
    """The columns of rows of one schema."""

    schema: pa.Schema

    def shaped(self, rows: pa.Table) -> pa.Table:
        return rows


def _by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return gather(rows, sort_order(key_columns(rows, key)))


def what_if(
    handle: Handle,
    tip: TableView,
    merger: str | Merger | None,
    options: Mapping[str, object] | None,
    since: int | None,
    session: TableSession,
) -> WhatIf:
    """See :meth:`lakemerge.LakeTable.what_if`."""
    known = retained(handle, tip, since)
    handle = handle.knowing(merger)
    if merger is None:
        merger = tip.config.merger_id
        options = tip.config.merger_options if options is None else options
    chosen = choose_merger(handle, merger, options, tip.config.shape)
    late = [expiry.version for expiry in known.expiries if expiry.version > known.start.version]
    if late:
        raise InputError(
            f"old deletes were forgotten at version {late[-1]}, in the middle of these records, so another merger "
            f"cannot fold all of them: start there, {argument('since', late[-1])}",
            version=late[-1],
        )
    config = known.view.config.merged_by(chosen)
    # The handle's caches are by version, and this view has other rows than the table's version.
    apart = replace(handle, decoded=DecodedLogs(), scans=Cache(_SCAN_BYTES))
    view = TableView(known.view.snapshot, config, handle.store, apart.decoded)
    notes = list(known.notes)
    own = tip.config
    if (chosen.id, dict(chosen.options())) != (own.merger_id, dict(own.merger_options)):
        notes += short_notes(handle, known)
    if any(file_slice.base is not None for file_slice in view.file_slices):
        notes.append(
            f"the rows that version {known.start.version} has in base files stay as they are: the table's own "
            "merger made them"
        )
    return WhatIf(
        version=tip.version,
        begins=known.start.version,
        merger=chosen.name,
        options=chosen.options(),
        notes=tuple(notes),
        _handle=apart,
        _view=view,
        _own=(handle, tip),
        _session=session,
    )
