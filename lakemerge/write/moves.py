"""Keys that move to another partition: a record that says where its row was is also a delete there.

Partition columns are key columns, so a record that has another partition than the row before it is one of another key.
Whoever has before-images names the columns with their partition values. Where these differ from the record's, the old
key gets a delete with the record's ordering, before the record and in the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.near import did_you_mean
from lakemerge.errors import FrameError, InputError
from lakemerge.format.config import TableConfig
from lakemerge.frames import check_sound
from lakemerge.schema.casts import castable, safe_cast
from mergers import RowKind
from mergers.type_names import type_name
from mergers.wording import argument

__all__ = ["Moves"]

_KIND = "_lm_moved"
"""The column of kinds of a frame that came without one."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Which columns of a frame hold where rows were."""

    partition: tuple[pa.Field, ...]
    """The partition columns for which the caller names a column with the value before."""
    now: tuple[str, ...]
    """The frame's columns with their values, in the same order."""
    before: tuple[str, ...]
    """The frame's columns with the values before."""
    standing: frozenset[str]
    """The frame's columns that a delete has: key and ordering."""
    kept: tuple[str, ...]
    """The frame's columns that are records."""
    given_kind: str | None

    @property
    def kind_column(self) -> str:
        return _KIND if self.given_kind is None else self.given_kind

    @staticmethod
    def of(before: Mapping[str, str], schema: pa.Schema, config: TableConfig, kind_column: str | None) -> Moves:
        """Raises :class:`InputError` for columns that are no partition columns, and :class:`FrameError` for columns
        that the frame lacks or that do not fit.

        :param before: partition column -> the frame's column with the value before.
        :param schema: the frame's.
        """
        if not config.partition_by:
            raise InputError(f"{argument('before')} is for tables with partitions, and this table has none")
        by_name = {name.lower(): name for name in config.partition_by}
        frame = {name.lower(): name for name in schema.names}
        told: dict[str, str] = {}
        for name, column in before.items():
            if name.lower() not in by_name:
                known = ", ".join(config.partition_by)
                raise InputError(f"{argument('before')} names {name!r}, and partition columns are {known}")
            told[by_name[name.lower()]] = column
        partition = [config.schema.field(name) for name in config.partition_by if name in told]
        for field in partition:
            column = told[field.name]
            if column not in schema.names:
                raise FrameError(
                    f"the frame has no column {column!r}, which {argument('before')} names"
                    + did_you_mean(column, schema.names),
                    column=column,
                )
            if column.lower() in {name.lower() for name in config.schema.names}:
                raise FrameError(
                    f"{argument('before')} names {column!r}, which is a column of the table: give the value before in "
                    "a column of its own",
                    column=column,
                )
            if field.name.lower() not in frame:
                raise FrameError(f"key column {field.name!r} is missing", column=field.name)
            kind = schema.field(column).type
            if not castable(kind, field.type):
                raise FrameError(f"column {column!r} is {type_name(kind)}, the table has {type_name(field.type)}")
        columns = tuple(told[field.name] for field in partition)
        return Moves(
            partition=tuple(partition),
            now=tuple(frame[field.name.lower()] for field in partition),
            before=columns,
            standing=frozenset(
                frame[name.lower()] for name in (*config.key, *config.ordering) if name.lower() in frame
            ),
            kept=tuple(name for name in schema.names if name not in (*columns, kind_column)),
            given_kind=kind_column,
        )

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """That of the frame with the deletes."""
        kept = [self._field(schema.field(name)) for name in self.kept]
        return pa.schema([*kept, pa.field(self.kind_column, pa.string())])

    def _field(self, field: pa.Field) -> pa.Field:
        if field.name in self.now:
            return pa.field(field.name, self.partition[self.now.index(field.name)].type)
        return field.with_nullable(True)

    def expanded(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """The frame's records, each after the delete that goes with it. Raises :class:`FrameError` for values that do
        not fit."""
        schema = self.schema(reader.schema)

        def batches() -> Iterator[pa.RecordBatch]:
            first_row = 0
            for batch in reader:
                yield from self._expanded(batch, schema, first_row).to_batches()
                first_row += batch.num_rows

        return pa.RecordBatchReader.from_batches(schema, batches())

    def _expanded(self, batch: pa.RecordBatch, schema: pa.Schema, first_row: int) -> pa.Table:
        check_sound(batch.select([*self.now, *self.before]), first_row)
        now, before = (self._typed(batch, names, first_row) for names in (self.now, self.before))
        kinds = pa.repeat(RowKind.UPDATE_AFTER.symbol, batch.num_rows)
        if self.given_kind is not None:
            given = batch.column(self.given_kind)
            if pa.types.is_dictionary(given.type):
                given = given.dictionary_decode()
            kinds = given.cast(pa.string())
        moved = np.zeros(batch.num_rows, dtype=np.bool_)
        was: list[pa.Array] = []
        for new, old in zip(now.columns, before.columns, strict=True):
            moved |= pc.fill_null(pc.not_equal(new, old), False).to_numpy(zero_copy_only=False)
            was.append(pc.coalesce(old, new))
        if self.given_kind is not None:
            retracts = pc.is_in(kinds, value_set=pa.array([RowKind.UPDATE_BEFORE.symbol, "update_preimage"]))
            moved &= ~retracts.to_numpy(zero_copy_only=False)
        at = np.flatnonzero(moved)
        rows = pa.table([*(self._values(batch, name, now.columns) for name in self.kept), kinds], schema=schema)
        if not len(at):
            return rows
        deletes = pa.table(
            [
                *(
                    self._values(batch, name, was).take(pa.array(at))
                    if name in self.standing
                    else pa.nulls(len(at), schema.field(name).type)
                    for name in self.kept
                ),
                pa.repeat(RowKind.DELETE.symbol, len(at)),
            ],
            schema=schema,
        )
        order = np.argsort(np.concatenate([2 * at, 2 * np.arange(batch.num_rows) + 1]), kind="stable")
        return pa.concat_tables([deletes, rows]).take(pa.array(order))

    def _typed(self, batch: pa.RecordBatch, names: Sequence[str], first_row: int) -> pa.RecordBatch:
        """Columns with partition values, in the table's types."""
        told = zip(names, self.partition, strict=True)
        schema = pa.schema([pa.field(name, field.type) for name, field in told])
        return safe_cast(batch.select(list(names)), schema, first_row)

    def _values(self, batch: pa.RecordBatch, name: str, partition: Sequence[pa.Array]) -> pa.Array:
        return partition[self.now.index(name)] if name in self.now else batch.column(name)
