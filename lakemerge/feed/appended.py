"""The rows of a commit's keys before and after it, from one read of what was stored.

Only these keys are merged. The merge kernel makes the rows after from the rows before and the commit's records. That is
right because a state is a left fold: the fold can continue from any commit (docs/merge-semantics.md, section 1). A
compaction does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakemerge.format.keys import KeySpan, keys_at
from lakemerge.format.log_block import LogBlock
from lakemerge.layout.view import FileSlice
from lakemerge.read.merge import check_keys, fold_live, frame_of
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.runs import each_file
from lakemerge.read.sources import MergeSpec, block_schema, block_stream, stored_streams, tombstone_stream
from lakemerge.schema.nested import settled
from mergers import Frame, fold
from mergers.kernel import Folded, overlay_rows, tombstone_schema
from mergers.keys import KeyColumns, key_columns, locate, sort_order
from mergers.portions import gather, together

__all__ = ["Allowance", "OverAllowanceError", "before_and_after"]


class OverAllowanceError(Exception):
    """The rows of some keys are more than may be held."""


class Allowance:
    """How many bytes of rows may be held.

    :param limit: the bytes; ``None`` if it does not matter.
    """

    def __init__(self, limit: int | None) -> None:
        self._left = limit

    def take(self, rows: pa.Table) -> pa.Table:
        """The rows, which are held from now on. Raises :class:`OverAllowanceError`."""
        if self._left is not None:
            self._left -= rows.nbytes
            if self._left < 0:
                raise OverAllowanceError
        return rows


def before_and_after(
    spec: MergeSpec,
    before: FileSlice,
    brought: Sequence[LogBlock],
    keys: pa.Table,
    files: ParquetFiles,
    allowance: Allowance,
) -> tuple[pa.Table, pa.Table]:
    """The rows of these keys in both versions, with all columns, sorted by key. Raises :class:`OverAllowanceError`.

    :param before: the file slice without the records of the commit.
    :param keys: the keys of the commit's records in the file slice, sorted, each once.
    """
    schema = pa.schema([field.with_nullable(True) for field in spec.config.schema])
    if not keys.num_rows:
        return schema.empty_table(), schema.empty_table()
    sought = key_columns(keys, spec.config.key)
    looked = _Looked(spec, _narrowed(before, sought), sought, schema, files, allowance)
    rows, tombstones = looked.state()
    folded = looked.fold(rows, tombstones, looked.frames(brought))
    return rows, looked.rows(rows, folded)


@dataclass(frozen=True, slots=True)
class _Looked:
    """The look-up of some keys in a file slice."""

    spec: MergeSpec
    file_slice: FileSlice
    sought: KeyColumns
    schema: pa.Schema
    files: ParquetFiles
    allowance: Allowance

    def state(self) -> tuple[pa.Table, pa.Table]:
        """The rows and the tombstones of the keys."""
        file_slice, shape = self.file_slice, self.spec.config.shape
        budget = self.spec.settings.merge_budget_bytes // 2
        streams = stored_streams(self.spec, file_slice, self.schema, self.files, budget)
        stored = self._among((table for _, stream in streams for table, _ in stream), self.schema)
        remembered = tombstone_stream(self.spec, file_slice, self.files)
        tombstones = self._among((table for table, _ in remembered), tombstone_schema(shape))
        _, folded = fold_live(
            self.spec,
            file_slice,
            base=stored,
            tombstones=tombstones,
            frames=self.frames(file_slice.blocks),
            columns=self.schema.names,
        )
        return self.rows(stored, folded), folded.tombstones

    def fold(self, rows: pa.Table, tombstones: pa.Table, frames: Sequence[Frame]) -> Folded:
        shape, names = self.spec.config.shape, self.schema.names
        return fold(self.spec.merger, shape, base=rows, tombstones=tombstones, frames=frames, columns=names)

    def rows(self, before: pa.Table, folded: Folded) -> pa.Table:
        return settled(overlay_rows(before, folded, self.schema.names, sort=True)).cast(self.schema)

    def frames(self, blocks: Iterable[LogBlock]) -> list[Frame]:
        """The records of the keys, in commit order. Where the store is far away, several files are read at once."""
        numbered = [(block.file.path, (number, block)) for number, block in enumerate(blocks)]
        found = dict(each_file(numbered, self._frame, self.spec.store.reads_at_once))
        return [frame for _, frame in sorted(found.items()) if frame is not None]

    def _frame(self, numbered: tuple[int, LogBlock]) -> tuple[int, Frame | None]:
        number, block = numbered
        schema = block_schema(self.schema, block)
        budget = self.spec.settings.merge_budget_bytes
        stream = block_stream(block, schema, self.file_slice, self.spec.config, self.files, budget)
        # Within a block equal keys are in commit order, and a sort by key keeps that order.
        records = self._among((table for table, _ in stream), schema)
        return number, frame_of(records, block) if records.num_rows else None

    def _among(self, tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
        """The rows of the tables with these keys, sorted by key."""
        key = self.spec.config.key
        found = pa.concat_tables([schema.empty_table(), *self._parts(tables, key)])
        return gather(found, sort_order(key_columns(found, key))) if found.num_rows else found

    def _parts(self, tables: Iterable[pa.Table], key: tuple[str, ...]) -> Iterator[pa.Table]:
        for table in tables:
            if table.num_rows:
                check_keys(self.file_slice, key, [table])
                _, among = locate(self.sought, key_columns(table, key))
                yield self.allowance.take(together(table).filter(pa.array(among)))


def _narrowed(file_slice: FileSlice, sought: KeyColumns) -> FileSlice:
    """The file slice from the first key to the last. A file without rows stays, because it may have tombstones."""
    span = KeySpan.closed(*keys_at(sought, [0, len(sought[0]) - 1]))
    blocks = tuple(block for block in file_slice.blocks if span.may_hold(block.key_min or (), block.key_max or ()))
    return replace(file_slice, blocks=blocks, wanted=span)
