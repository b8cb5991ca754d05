"""Checks a frame's rows against the table, batch by batch: values, row kinds, nulls, keys of maps.

The frame's schema was checked when the write started (:func:`lakemerge.write.start.plan_frame`). Both happen before
anything is committed. Source: docs/merge-semantics.md, sections 2 to 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FrameError
from lakemerge.format.names import KIND_COLUMN
from lakemerge.frames import check_sound
from lakemerge.schema.lengths import with_lengths
from lakemerge.schema.schema import safe_cast
from lakemerge.schema.soundness import first_bad_row
from lakemerge.write.carried import CARRIED, Sets, sets_in
from lakemerge.write.checks import Check
from mergers import Merger, RowKind
from mergers.builtin.functions.equal import equality_codes
from mergers.contract import Bools, Ints, Kinds, TableShape
from mergers.portions import VALUE_BYTES, is_large, row_bytes
from mergers.restart import CLEAR, SET
from mergers.wording import in_python

__all__ = ["KIND_WORDS", "SYMBOLS", "FramePlan", "check_map_keys"]

SYMBOLS = tuple(kind.symbol for kind in RowKind)
"""The names of the kinds."""
KIND_WORDS = ("insert", "update_preimage", "update_postimage", "delete")
"""The names of the kinds in Delta's and Spark's change feeds."""
_SHORT_MAP = 16
"""Maps of up to this many keys are compared key by key, without a sort."""


@dataclass(frozen=True, slots=True)
class FramePlan:
    """How the batches of one frame become records. Picklable. :func:`lakemerge.write.start.plan_frame` makes it."""

    sources: tuple[str, ...]
    """Names of the frame's columns, one per field of ``schema``."""
    types: tuple[pa.DataType, ...]
    """Types of the frame's columns, one per field of ``schema``."""
    schema: pa.Schema
    """The table's fields that the frame carries, in the table's order."""
    kind_column: str | None
    default_kind: RowKind
    shape: TableShape
    """The table's, with the columns that this write adds."""
    full: bool
    """Whether every record carries every column of the table. If records differ, it is taken that some do not."""
    lacking: str | None
    """If the frame may hold no upserts, the reason. Else ``None``."""
    missing: str | None
    """If the frame may hold no upserts except those that the merger takes for deletes, the reason. Else ``None``."""
    states: bool = False
    """Whether the records are sets and clears, as the column ``KIND_COLUMN`` says."""
    checks: Sequence[Check] = ()
    """The table's constraints."""
    differs: bool = False
    """Whether :data:`lakemerge.write.carried.CARRIED` of the frame says which columns each record carries."""

    def convert(
        self, batch: pa.RecordBatch, merger: Merger, *, first_row: int = 0
    ) -> tuple[pa.RecordBatch, Kinds | None]:
        """The records of one batch in the table's types, and their kinds (``None``: all upserts).

        Raises :class:`FrameError` for damaged columns, null keys, unknown kinds, nulls in NOT NULL columns, and
        upserts in a frame that lacks columns which upserts need. The merger raises :class:`RecordRefusedError`.

        :param first_row: the number of the batch's first row, for error messages.
        """
        kind = [] if self.kind_column is None else [self.kind_column]
        check_sound(batch.select([*self.sources, *kind]), first_row)
        _check_lengths(batch.select(list(self.sources)), first_row)
        given = batch.select(list(self.sources)).rename_columns(self.schema.names)
        rows = with_lengths(safe_cast(given, self.schema, first_row), first_row)
        check_map_keys(rows, first_row)
        for name in self.shape.key:
            if nulls := rows.column(name).null_count:
                raise FrameError(
                    f"key column {name!r} is null in {nulls} row(s); keys must not be null: leave such rows "
                    "out, or give them a key",
                    column=name,
                )
        if self.states:
            return rows, self._checked_states(rows, batch, merger)
        kinds = self._kinds(batch)
        upserts = None if kinds is None else (kinds == RowKind.INSERT) | (kinds == RowKind.UPDATE_AFTER)
        if rows.num_rows and self.lacking is not None and (upserts is None or upserts.any()):
            raise FrameError(self.lacking)
        self._check_required(rows, upserts, merger)
        present = [RowKind.UPDATE_AFTER] if kinds is None else [RowKind(k) for k in np.unique(kinds).tolist()]
        if rows.num_rows:
            merger.check_kinds(self.shape, frozenset(present))
            for part, own in self._alike(batch, rows, kinds):
                merger.check_records(self.shape, part, own)
        if upserts is not None and upserts.all():
            kinds = None
        return rows, kinds

    def carried(self, batch: pa.RecordBatch) -> Sets:
        """The columns that the records of a batch of the frame carry, by their names in the table. Only if these
        differ."""
        target = dict(zip(self.sources, self.schema.names, strict=True))
        found = sets_in(batch.column(CARRIED.name), batch.schema.names)
        return found._replace(
            columns=[frozenset(target[name] for name in names if name in target) for names in found.columns]
        )

    def _alike(
        self, batch: pa.RecordBatch, rows: pa.RecordBatch, kinds: Kinds | None
    ) -> Iterator[tuple[pa.RecordBatch, Kinds | None]]:
        """The records of each set of columns, with these."""
        if not self.differs:
            yield rows, kinds
            return
        codes, sets = self.carried(batch)
        for number, names in enumerate(sets):
            mask = codes == number
            part = rows.select([name for name in rows.schema.names if name in names])
            if mask.all():
                yield part, kinds
                return
            yield part.filter(pa.array(mask)), None if kinds is None else kinds[mask]

    def _check_required(self, rows: pa.RecordBatch, upserts: Bools | None, merger: Merger) -> None:
        """Raise :class:`FrameError` if a row that is not a delete has no value for a NOT NULL column."""
        gaps = [f.name for f in self.schema if not f.nullable and rows.column(f.name).null_count]
        if not gaps and self.missing is None and not self.checks:
            return
        kept = np.ones(rows.num_rows, dtype=np.bool_) if upserts is None else upserts
        if (marked := merger.marks(self.shape, rows)) is not None:
            kept = kept & ~marked
        if self.missing is not None and kept.any():
            raise FrameError(self.missing)
        for check in self.checks:
            check.apply(rows, kept)
        for name in gaps:
            bad = int((rows.column(name).is_null().to_numpy(zero_copy_only=False) & kept).sum())
            if bad:
                raise FrameError(_is_null(name, bad, "upsert"), column=name)

    def _checked_states(self, rows: pa.RecordBatch, batch: pa.RecordBatch, merger: Merger) -> Kinds:
        """The kinds of sets and clears. A set is checked as an upsert of all columns, without the exemption of upserts
        that the merger takes for deletes."""
        kinds: Kinds = batch.column(KIND_COLUMN).to_numpy(zero_copy_only=False).astype(np.int8)
        is_set = kinds == SET
        if not (is_set | (kinds == CLEAR)).all() or (is_set.any() and not self.full):
            raise AssertionError("a transaction writes sets of all columns, and clears")
        sets = rows.filter(pa.array(is_set))
        for field in self.schema:
            if not field.nullable and (bad := sets.column(field.name).null_count):
                raise FrameError(_is_null(field.name, bad, "row"), column=field.name)
        for check in self.checks:
            check.apply(sets, None)
        if sets.num_rows:
            merger.check_records(self.shape, sets, None)
        return kinds

    def _kinds(self, batch: pa.RecordBatch) -> Kinds | None:
        if self.kind_column is None:
            if self.default_kind is RowKind.UPDATE_AFTER:
                return None
            return np.full(batch.num_rows, self.default_kind, dtype=np.int8)
        symbols = batch.column(self.kind_column)
        if pa.types.is_dictionary(symbols.type):
            symbols = symbols.dictionary.cast(pa.string()).take(symbols.indices)
        symbols = symbols.cast(pa.string())
        codes = pc.index_in(symbols, value_set=pa.array(SYMBOLS + KIND_WORDS))
        if codes.null_count:
            bad = pc.unique(symbols.filter(codes.is_null())).to_pylist()[:5]
            raise FrameError(
                f"kind column {self.kind_column!r} holds {bad}; row kinds are {', '.join(SYMBOLS)}, or "
                f"{', '.join(KIND_WORDS)}",
                values=tuple(bad),
            )
        kinds: Kinds = (codes.to_numpy(zero_copy_only=False) % len(SYMBOLS)).astype(np.int8)
        return kinds


def _is_null(name: str, count: int, noun: str) -> str:
    remedy = in_python(f" (table.alter(nullable=[{name!r}]))")
    return f"column {name!r} is NOT NULL and null in {count} {noun}(s): fill it, or let it be null{remedy}"


def _check_lengths(batch: pa.RecordBatch, first_row: int) -> None:
    """Raise :class:`FrameError` for a value that is too large to be merged with another one."""
    for name in batch.schema.names:
        column = batch.select([name])
        if is_large(column, than=VALUE_BYTES) and (sizes := row_bytes(column)).max() > VALUE_BYTES:
            row = int(sizes.argmax())
            raise FrameError(
                f"column {name!r} holds a value of {int(sizes[row]):,} bytes in row {first_row + row}; a value has at "
                f"most {VALUE_BYTES:,} bytes: divide it, or store it as a file",
                column=name,
            )


def check_map_keys(rows: pa.RecordBatch, first_row: int) -> None:
    """Raise :class:`FrameError` for a map that has a key twice, at any depth of a column.

    :param rows: rows in the table's types.
    :param first_row: the number of the first row, for the error message.
    """
    for field, column in zip(rows.schema, rows.columns, strict=True):
        try:
            _check_maps(column)
        except pa.ArrowInvalid as error:
            row = first_bad_row(column, _check_maps)
            at = None if row is None else first_row + row
            raise FrameError(
                f"column {field.name!r} has a map with {error} in row {at}; keep one of the values",
                column=field.name,
                row=at,
            ) from error


def _check_maps(array: pa.Array) -> None:
    """Raise :class:`pyarrow.ArrowInvalid`, which names a repeated key."""
    kind = array.type
    if pa.types.is_struct(kind) and _has_map(kind):
        for child in array.flatten():
            _check_maps(child)
    elif pa.types.is_list(kind) and _has_map(kind):
        _check_maps(array.flatten())
    elif pa.types.is_map(kind) and len(array):
        _check_keys_of(array)


def _check_keys_of(maps: pa.MapArray) -> None:
    offsets = maps.offsets.to_numpy()
    keys, items = (child.slice(offsets[0], offsets[-1] - offsets[0]) for child in (maps.keys, maps.items))
    sizes = np.diff(offsets)
    if maps.null_count:
        valid = maps.is_valid().to_numpy(zero_copy_only=False)
        kept = pa.array(np.repeat(valid, sizes))
        keys, items, sizes = keys.filter(kept), items.filter(kept), sizes[valid]
    again = _repeated_key(keys, np.repeat(np.arange(len(sizes)), sizes), int(sizes.max(initial=0)))
    if again is not None:
        raise pa.ArrowInvalid(f"the key {keys[again].as_py()!r} twice")
    for child in (keys, items):
        _check_maps(child)


def _repeated_key(keys: pa.Array, maps: Ints, longest: int) -> int | None:
    """The position of a key that occurs earlier in the same map.

    :param maps: for each key, the number of its map. The numbers ascend.
    :param longest: a map has at most this many keys.
    """
    if pa.types.is_nested(keys.type) or pa.types.is_floating(keys.type):
        keys = pa.array(equality_codes(keys))
    if longest > _SHORT_MAP:
        entries = equality_codes(keys) + maps * len(keys)
        order = np.argsort(entries, kind="stable")
        equal = np.flatnonzero(np.diff(entries[order]) == 0)
        return int(order[equal[0] + 1]) if len(equal) else None
    for distance in range(1, longest):
        equal = pc.equal(keys[distance:], keys[:-distance]).to_numpy(zero_copy_only=False)
        equal &= maps[distance:] == maps[:-distance]
        if equal.any():
            return int(np.argmax(equal)) + distance
    return None


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))
