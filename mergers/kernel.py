"""The merge kernel: the one place where records of a key become its state.

Writers (to pre-combine), compaction and readers all call it. It takes and gives Arrow data, without Python for each
row. Source: docs/merge-semantics.md, section 1; docs/architecture.md, "The merge kernel".

A caller gives the stored state of a key range (base rows and tombstones, sorted by key), and the log records of the
same range in commit order. :func:`fold` says what changes: the base positions that are superseded, the rows that
replace them, and the tombstones. Base rows whose key is in no log are searched, but never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mergers.contract import Bools, Groups, Ints, Kinds, Merged, Merger, RowKind, Status, TableShape, is_builtin
from mergers.errors import LakeMergeError, MergeOverflowError, MergerContractError, MergeValueError
from mergers.interrupts import is_interrupt
from mergers.keys import group_starts, key_columns, locate, sort_order
from mergers.portions import ARRAY_BYTES, gather, is_large, is_overflow, portion_bytes, row_bytes, spans
from mergers.restart import combine_restarted, has_restarts, merge_restarted
from mergers.type_names import type_name

__all__ = [
    "VERSION_COLUMN",
    "Folded",
    "Frame",
    "United",
    "combine",
    "fold",
    "overlay_rows",
    "tombstone_schema",
    "unite",
]

Combining = Callable[[Groups], Bools | None]
"""``Merger.combine``, or the like."""
VERSION_COLUMN = "_lm_version"
"""Column of tombstone tables: the version of the record that set the tombstone."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Records with one set of columns. The records of a key are in commit order."""

    rows: pa.Table
    """Key columns and any of the table's other columns. Missing columns are unset."""
    kinds: Kinds | None
    """The :class:`RowKind` value of each row, or ``SET`` or ``CLEAR`` of :mod:`mergers.restart`; ``None`` if all are
    upserts."""
    version: int | Ints
    """The version that committed the records, or the version of each row."""
    columns: frozenset[str] | None = None
    """The columns that the records carry, if ``rows`` was read with a projection; ``None``: those of ``rows``."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What log records change in the stored state of a key range."""

    superseded: Ints
    """Positions of base rows that are no longer the row of their key, ascending."""
    rows: pa.Table
    """The rows that log records made or changed, sorted by key, with the requested columns."""
    insert_at: Ints
    """For each row of ``rows``, the position of the first base row whose key is not below its key."""
    records: Ints | None
    """For each row of ``rows``, the number of its record, counted through all frames; ``None`` if the merger made
    columns itself."""
    tombstones: pa.Table
    """All tombstones of the range after the fold, sorted by key; see :func:`tombstone_schema`."""


def tombstone_schema(shape: TableShape) -> pa.Schema:
    """Key columns, ordering columns, remembered columns, and the version of the record that set the tombstone.

    All but the key may be null even if the table's may not, because deletes are not checked for nulls.
    """
    key = [shape.schema.field(name) for name in shape.key]
    others = [shape.schema.field(name).with_nullable(True) for name in (*shape.ordering, *shape.remembers)]
    return pa.schema([*key, *others, pa.field(VERSION_COLUMN, pa.int64())])


def fold(
    merger: Merger,
    shape: TableShape,
    *,
    base: pa.Table,
    tombstones: pa.Table,
    frames: Sequence[Frame],
    columns: Collection[str],
) -> Folded:
    """Fold log records onto stored state.

    :param base: rows sorted by key, with unique keys. They have at least the columns that the merger needs for
        ``columns``, including key and ordering. If the merger gives back one of its inputs whole
        (:class:`mergers.Laws`, ``selective``), the columns that it needs to decide are enough.
    :param tombstones: see :func:`tombstone_schema`; sorted by key. None of their keys is in ``base``.
    :param frames: the frames in commit order. In a frame with a version for each row, the version of each record gives
        its place; those of one version are in the order of the frames.
    :param columns: the columns of the result's rows. The result has them in the schema's order.

    Large records (:func:`mergers.portions.is_large`) are folded in portions of keys. If the records of one key are
    large, its state after some of them is what the next ones are folded onto. That is right because a state is a left
    fold.

    Raises :class:`MergeValueError` if a merged row has null in a NOT NULL column, and :class:`MergeOverflowError` if a
    value does not fit its column.
    """
    limit = portion_bytes()
    if not frames or not is_large(base, tombstones, *(frame.rows for frame in frames)):
        try:
            return _fold(merger, shape, base=base, tombstones=tombstones, frames=frames, columns=columns)
        except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
            # What some functions make is larger than what they are given.
            if not is_overflow(error):
                raise
            limit = sum(frame.rows.nbytes for frame in frames) // 2
    return _fold_portions(merger, shape, base=base, tombstones=tombstones, frames=frames, columns=columns, limit=limit)


def _fold(
    merger: Merger,
    shape: TableShape,
    *,
    base: pa.Table,
    tombstones: pa.Table,
    frames: Sequence[Frame],
    columns: Collection[str],
    check_nulls: bool = True,
) -> Folded:
    """The same as :func:`fold`, at once.

    :param check_nulls: whether null in a NOT NULL column is an error. It is none between two portions of a key.
    """
    there = frozenset(base.column_names)
    needed = [name for name in shape.schema.names if name in there or name in columns]
    lacking = [name for name in needed if name not in there]
    log, kinds, sources, versions, presence = _concatenate(frames, shape, needed)
    log_keys = key_columns(log, shape.key)
    order = sort_order(log_keys)
    sorted_keys = tuple(column.take(pa.array(order)) for column in log_keys)
    starts = group_starts(sorted_keys)
    touched = tuple(column.take(pa.array(starts)) for column in sorted_keys)

    at, in_base = locate(key_columns(base, shape.key), touched)
    tomb_at, in_tombs = locate(key_columns(tombstones, shape.key), touched)
    base_rows = base.select([name for name in needed if name not in lacking]).take(pa.array(at[in_base]))
    tomb_rows = tombstones.take(pa.array(tomb_at[in_tombs]))
    stored = [part for part in (base_rows, tomb_rows) if part.num_rows]
    # Chunks without rows would make this a copy of the log.
    rows = pa.concat_tables([*stored, log], promote_options="default").combine_chunks()

    n_base, n_tombs = base_rows.num_rows, tomb_rows.num_rows
    log_groups = np.repeat(np.arange(len(starts), dtype=np.int64), np.diff(np.append(starts, len(order))))
    if len(frames) > 1 and any(isinstance(frame.version, np.ndarray) for frame in frames):
        order = order[np.lexsort((versions[order], log_groups))]
    group = np.concatenate([np.flatnonzero(in_base), np.flatnonzero(in_tombs), log_groups])
    position = np.concatenate([np.arange(n_base + n_tombs, dtype=np.int64), order + n_base + n_tombs])
    by_group = np.argsort(group, kind="stable")
    position, group = position[by_group], group[by_group]
    stored_kinds = np.repeat(np.array([RowKind.UPDATE_AFTER, RowKind.DELETE], dtype=np.int8), [n_base, n_tombs])
    stored_sources = np.repeat(np.array([0, 1], dtype=np.int32), [n_base, n_tombs])
    all_versions = np.concatenate([np.zeros(n_base, dtype=np.int64), _versions(tomb_rows), versions])
    full = frozenset(shape.schema.names)
    # If no tombstone takes part and all records carry all columns, presence says so. Then mergers skip the question.
    of_tombstones = frozenset(shape.standing) if n_tombs else full
    groups = Groups(
        shape=shape,
        offsets=np.append(np.searchsorted(group, np.arange(len(starts))), len(group)).astype(np.int64),
        kinds=np.concatenate([stored_kinds, kinds])[position],
        stored=position < n_base + n_tombs,
        sources=np.concatenate([stored_sources, sources + 2])[position],
        presence=[full, of_tombstones, *presence],
        rows=rows,
        order=position,
        versions=all_versions[position],
    )
    merged = merge_restarted(merger, groups, lambda cut: _checked(_merged(merger, cut), cut, merger))
    if lacking and merged.columns:
        raise MergerContractError(
            f"merger {merger.name!r} declares that it is selective, but made the column(s) "
            f"{', '.join(sorted(merged.columns))} itself",
            merger=merger.name,
        )

    is_row = merged.status == Status.ROW
    unchanged = np.zeros_like(is_row)
    if not merged.columns:
        unchanged[is_row] = groups.stored[merged.winner[is_row]]
    written = np.flatnonzero(is_row & ~unchanged)
    out_columns = [name for name in shape.schema.names if name in columns]
    return Folded(
        superseded=at[in_base & ~unchanged],
        rows=_rows(groups, merged, written, out_columns, check_nulls=check_nulls),
        insert_at=at[written],
        records=None if merged.columns else groups.order[merged.winner[written]] - n_base - n_tombs,
        tombstones=_tombstones(groups, merged, tombstones, tomb_at[in_tombs], all_versions),
    )


def overlay_rows(base: pa.Table, folded: Folded, columns: Sequence[str], *, sort: bool) -> pa.Table:
    """``base`` without its superseded rows, plus the folded rows; sorted by key if asked for."""
    kept = base.select(columns)
    if len(folded.superseded) == 0 and folded.rows.num_rows == 0:
        return kept
    rows = folded.rows.select(columns)
    keep = np.ones(base.num_rows, dtype=np.bool_)
    keep[folded.superseded] = False
    if not sort or rows.num_rows == 0:
        return pa.concat_tables([kept.filter(pa.array(keep)), rows])
    positions = np.flatnonzero(keep)
    # Merges two sorted runs: a folded row goes before the base row at its insertion point.
    order = np.argsort(np.concatenate([2 * positions + 1, 2 * folded.insert_at]), kind="stable")
    places = np.concatenate([positions, base.num_rows + np.arange(rows.num_rows)])[order]
    return gather(pa.concat_tables([kept, rows]), places)


def combine(merger: Merger, shape: TableShape, frame: Frame, *, full: bool) -> Bools | None:
    """Which rows of a frame sorted by key to keep, if the merger's laws allow the writer to pre-combine; ``None`` keeps
    all. Nothing that precedes a set or clear of its key is kept, whatever the laws.

    :param full: whether the frame carries every column of the table."""
    associative = merger.laws(shape, full_frames=full).associative
    if not associative and not has_restarts(frame.kinds):
        return None
    rows = frame.rows
    starts = group_starts(key_columns(rows, shape.key))
    if len(starts) == rows.num_rows:
        return None
    combining = merger.combine if associative else None
    return (_combine_portions if is_large(rows) else _combine)(combining, shape, frame, starts)


def _combine(combining: Combining | None, shape: TableShape, frame: Frame, starts: Ints) -> Bools | None:
    rows, kinds = frame.rows, frame.kinds
    groups = Groups(
        shape=shape,
        offsets=np.append(starts, rows.num_rows),
        kinds=np.full(rows.num_rows, RowKind.UPDATE_AFTER, dtype=np.int8) if kinds is None else kinds,
        stored=np.zeros(rows.num_rows, dtype=np.bool_),
        sources=np.zeros(rows.num_rows, dtype=np.int32),
        presence=[frozenset(rows.column_names)],
        rows=_completed(rows, shape.schema),
        order=np.arange(rows.num_rows, dtype=np.int64),
        versions=_versions_of(frame),
    )
    return combine_restarted(groups, combining)


def unite(merger: Merger, shape: TableShape, frame: Frame) -> United | None:
    """The frame with one record in the place of neighbours that its merger unites; ``None`` if there are none.
    Neighbours whose one record cannot be made, because a total does not fit its column, stay apart.

    :param frame: records of one commit, sorted by key; those of a key are in their order.
    """
    rows, kinds = frame.rows, frame.kinds
    if not rows.num_rows or is_large(rows) or has_restarts(kinds) or not merger.unites(shape, rows.column_names):
        return None
    if not merger.laws(shape, full_frames=rows.num_columns == len(shape.schema)).associative:
        return None
    starts = group_starts(key_columns(rows, shape.key))
    if len(starts) == rows.num_rows:
        return None
    first = np.zeros(rows.num_rows, dtype=np.bool_)
    first[starts] = True
    if kinds is not None:
        others = ~np.isin(kinds, (RowKind.INSERT, RowKind.UPDATE_AFTER))
        first |= others
        first[1:] |= others[:-1]
    begin = np.flatnonzero(first)
    sizes = np.diff(np.append(begin, rows.num_rows))
    runs = np.flatnonzero(sizes > 1)
    made, ranges, splits = [rows.slice(0, 0)], [(0, len(runs))] if len(runs) else [], 0
    united = np.zeros(len(begin), dtype=np.bool_)
    while ranges:
        low, high = ranges.pop()
        own = runs[low:high]
        try:
            made.append(_united(merger, shape, rows, begin[own], sizes[own]))
            united[own] = True
        except MergeOverflowError:
            splits += 1
            if high - low > 1 and splits <= _MOST_SPLITS:
                ranges += [((low + high) // 2, high), (low, (low + high) // 2)]
        except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
            if not is_overflow(error):
                raise
    if not united.any():
        return None
    merged = np.repeat(united, sizes)
    apart = np.flatnonzero(~merged)
    both = pa.concat_tables([rows, *(table.select(rows.column_names).cast(rows.schema) for table in made)])
    # The made rows stand in the order of their runs: ranges are taken from low to high.
    places = np.concatenate([apart, begin[united]])
    picks = np.concatenate([apart, rows.num_rows + np.arange(int(united.sum()))])
    order = np.argsort(places, kind="stable")
    counts = np.concatenate([np.ones(len(apart), dtype=np.int32), sizes[united].astype(np.int32)])[order]
    return United(gather(both, picks[order]), places[order], counts)


@dataclass(frozen=True, slots=True)
class United:
    """A frame whose neighbours were united. Arrays have one entry for each record."""

    rows: pa.Table
    places: Ints
    """The number of the record in the frame, or of the first one that it stands for."""
    counts: npt.NDArray[np.int32]
    """How many records it stands for."""


_MOST_SPLITS = 100
"""So often the records are divided to find those whose total does not fit. What is left then stays apart."""


def _united(merger: Merger, shape: TableShape, rows: pa.Table, begin: Ints, sizes: Ints) -> pa.Table:
    """The row that each run of records makes where there is none."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    records = np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], sizes)
    groups = Groups(
        shape=shape,
        offsets=offsets,
        kinds=np.full(len(records), RowKind.UPDATE_AFTER, dtype=np.int8),
        stored=np.zeros(len(records), dtype=np.bool_),
        sources=np.zeros(len(records), dtype=np.int32),
        presence=[frozenset(rows.column_names)],
        rows=_completed(rows, shape.schema),
        order=records,
        versions=np.full(len(records), -1, dtype=np.int64),
    )
    merged = _checked(_merged(merger, groups), groups, merger)
    if (merged.status != Status.ROW).any():
        raise MergerContractError(
            f"merger {merger.name!r} unites records, and upserts of it made no row", merger=merger.name
        )
    return _rows(groups, merged, np.arange(len(sizes)), rows.column_names, check_nulls=False)


def _combine_portions(combining: Combining | None, shape: TableShape, frame: Frame, starts: Ints) -> Bools:
    """Which rows of a large frame to keep. A key that is large itself is combined portion by portion, and then what is
    left of it, as long as there is less each time."""
    keep = np.ones(frame.rows.num_rows, dtype=np.bool_)
    sizes = row_bytes(frame.rows)
    offsets = np.append(starts, len(sizes))
    for first, last in spans(np.add.reduceat(sizes, starts), portion_bytes()):
        left = np.arange(offsets[first], offsets[last])
        inner = offsets[first:last] - offsets[first]
        while True:
            before = len(left)
            cuts = list(spans(sizes[left], portion_bytes())) if last - first == 1 else [(0, before)]
            kept = []
            for start, end in cuts:
                (part,), _ = _chosen([frame], left[start:end])
                own = _combine(combining, shape, part, inner if last - first > 1 else np.zeros(1, dtype=np.int64))
                kept.append(left[start:end] if own is None else left[start:end][own])
            left = np.concatenate(kept)
            if len(cuts) == 1 or len(left) == before:
                break
        keep[offsets[first] : offsets[last]] = False
        keep[left] = True
    return keep


def _fold_portions(
    merger: Merger,
    shape: TableShape,
    *,
    base: pa.Table,
    tombstones: pa.Table,
    frames: Sequence[Frame],
    columns: Collection[str],
    limit: int,
) -> Folded:
    """Fold some keys at a time: with at most ``limit`` bytes, or one key."""
    keys = pa.concat_tables([frame.rows.select(shape.key) for frame in frames], promote_options="permissive")
    log_keys = key_columns(keys, shape.key)
    order = sort_order(log_keys)
    log_keys = tuple(column.take(pa.array(order)) for column in log_keys)
    starts = group_starts(log_keys)
    touched = tuple(column.take(pa.array(starts)) for column in log_keys)
    at, in_base = locate(key_columns(base, shape.key), touched)
    tomb_at, in_tombs = locate(key_columns(tombstones, shape.key), touched)
    if any(isinstance(frame.version, np.ndarray) for frame in frames):
        versions = np.concatenate([_versions_of(frame) for frame in frames])
        groups = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
        order = order[np.lexsort((versions[order], groups))]
    sizes = np.concatenate([row_bytes(frame.rows) for frame in frames])[order]
    group_sizes = np.add.reduceat(sizes, starts) if len(starts) else np.empty(0, dtype=np.int64)
    group_sizes[in_base] += row_bytes(base)[at[in_base]]
    offsets = np.append(starts, len(order))
    keyed = [*dict.fromkeys([*shape.key, *columns])]
    parts: list[Folded] = []
    superseded = [np.empty(0, dtype=np.int64)]
    for first, last in spans(group_sizes, limit):
        own = at[first:last][in_base[first:last]]
        held = gather(base, own)
        kept = gather(tombstones, tomb_at[first:last][in_tombs[first:last]])
        records = order[offsets[first] : offsets[last]]
        if last - first == 1:
            own_sizes = sizes[offsets[first] : offsets[last]]
            part = _fold_key(merger, shape, held, kept, frames, records, own_sizes, keyed)
        else:
            half = int(group_sizes[first:last].sum()) // 2
            part = _fold_keys(merger, shape, held, kept, frames, records, half, keyed)
        superseded.append(own[part.superseded])
        parts.append(part)
    untouched = np.ones(tombstones.num_rows, dtype=np.bool_)
    untouched[tomb_at[in_tombs]] = False
    rows = pa.concat_tables([_none(shape, keyed), *(part.rows for part in parts)])
    left = pa.concat_tables([tombstones.filter(pa.array(untouched)), *(part.tombstones for part in parts)])
    known = [part.records for part in parts if part.records is not None]
    return Folded(
        superseded=np.concatenate(superseded),
        rows=rows.select([name for name in shape.schema.names if name in columns]),
        insert_at=locate(key_columns(base, shape.key), key_columns(rows, shape.key))[0],
        records=np.concatenate([np.empty(0, dtype=np.int64), *known]) if len(known) == len(parts) else None,
        tombstones=_by_key(left, shape),
    )


def _fold_keys(
    merger: Merger,
    shape: TableShape,
    base: pa.Table,
    tombstones: pa.Table,
    frames: Sequence[Frame],
    records: Ints,
    limit: int,
    columns: Sequence[str],
) -> Folded:
    """Fold the records of some keys at once or, if the result does not fit, with ``limit`` bytes at a time.

    :param records: the numbers of the records, counted through all frames. The result has these numbers, too.
    """
    some, found = _chosen(frames, records)
    try:
        folded = _fold(merger, shape, base=base, tombstones=tombstones, frames=some, columns=columns)
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        if not is_overflow(error):
            raise
        folded = _fold_portions(
            merger, shape, base=base, tombstones=tombstones, frames=some, columns=columns, limit=limit
        )
    return replace(folded, records=None if folded.records is None else found[folded.records])


def _fold_key(
    merger: Merger,
    shape: TableShape,
    base: pa.Table,
    tombstones: pa.Table,
    frames: Sequence[Frame],
    records: Ints,
    sizes: Ints,
    columns: Sequence[str],
) -> Folded:
    """Fold the records of one key: at once or, if they are large, some at a time.

    A total may leave the range of its column and come back. So the columns of fixed width are folded at once, without
    the others, if the merger can do that.

    :param base: the row of the key, if it has one. Likewise ``tombstones``.
    :param records: the numbers of the records, counted through all frames, in fold order. The result has the number of
        one of them.
    :param sizes: the bytes of each of them.
    """
    narrow = _narrow_columns(merger, shape, columns)
    if (
        len(list(spans(sizes, portion_bytes()))) == 1
        or not narrow
        or not frozenset(columns) <= frozenset(base.column_names)
    ):
        return _fold_run(merger, shape, base, tombstones, frames, records, sizes, columns)
    rest = [name for name in columns if name not in narrow]
    parts: list[Folded] = []
    for names, own_sizes in ((narrow, np.zeros_like(sizes)), (rest, sizes)):
        needed = merger.needs(shape, names) | frozenset(shape.standing)
        held = base.select([name for name in base.column_names if name in needed])
        told = [_projected(frame, needed) for frame in frames]
        parts.append(_fold_run(merger, shape, held, tombstones, told, records, own_sizes, names))
    made = [part for part in parts if part.rows.num_rows]
    if not made:
        return replace(parts[1], rows=_none(shape, columns))
    # A part without a row changed nothing.
    sources = {name: parts[name in rest].rows for name in columns}
    values = {name: (rows if rows.num_rows else base).column(name) for name, rows in sources.items()}
    fields = [field.with_nullable(True) for field in shape.schema if field.name in values]
    return Folded(
        superseded=np.arange(base.num_rows, dtype=np.int64),
        rows=pa.table([values[field.name] for field in fields], schema=pa.schema(fields)),
        insert_at=made[-1].insert_at,
        records=None if any(part.records is None for part in made) else made[-1].records,
        tombstones=parts[1].tombstones,
    )


def _narrow_columns(merger: Merger, shape: TableShape, columns: Sequence[str]) -> list[str]:
    """Those of the columns that are of fixed width, and that the merger makes from such columns alone."""
    bare = frozenset(shape.standing)
    wide = frozenset(field.name for field in shape.schema if not _is_narrow(field.type)) - bare
    narrow = [name for name in columns if name not in wide and name not in bare]
    return narrow if wide.isdisjoint(merger.needs(shape, narrow)) else []


def _is_narrow(kind: pa.DataType) -> bool:
    return pa.types.is_primitive(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind)


def _projected(frame: Frame, names: Collection[str]) -> Frame:
    columns = frozenset(frame.rows.column_names) if frame.columns is None else frame.columns
    return replace(frame, rows=frame.rows.select([n for n in frame.rows.column_names if n in names]), columns=columns)


def _fold_run(
    merger: Merger,
    shape: TableShape,
    base: pa.Table,
    tombstones: pa.Table,
    frames: Sequence[Frame],
    records: Ints,
    sizes: Ints,
    columns: Sequence[str],
) -> Folded:
    """Fold the records of one key, some at a time. Each time the state so far is what they are folded onto."""
    stored = [name for name in shape.schema.names if name in base.column_names]
    # A state has what is requested, and what the merger needs to go on.
    made = [name for name in shape.schema.names if name in stored or name in columns]
    row, made_row = base.select(stored), _none(shape, made)
    numbers: Ints | None = np.empty(0, dtype=np.int64)
    is_stored, start = True, 0
    while start < len(records):
        limit = min(portion_bytes(), ARRAY_BYTES - row.nbytes)
        end = start
        while True:
            end += next(spans(sizes[end:], limit))[1]
            if end < len(records):
                _check_needs(merger, shape, stored)
            some, found = _chosen(frames, records[start:end])
            try:
                folded = _fold(
                    merger, shape, base=row, tombstones=tombstones, frames=some, columns=made, check_nulls=False
                )
                break
            except (MergeOverflowError, MergeValueError):
                # A later record may remove what fails, so such records are folded together with those after them.
                if end == len(records):
                    raise
            except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
                if not is_overflow(error):
                    raise
                raise _too_large(shape, row, some) from error
        if len(folded.superseded) or folded.rows.num_rows:
            is_stored = False
            made_row, row = folded.rows, folded.rows.select(stored)
            numbers = None if folded.records is None else found[folded.records]
        tombstones, start = folded.tombstones, end
    for field in shape.schema:
        if not field.nullable and field.name in columns and made_row.column(field.name).null_count:
            raise _null_refused(_key_of(shape, made_row), field.name, 1)
    return Folded(
        superseded=np.arange(base.num_rows if not is_stored else 0, dtype=np.int64),
        rows=made_row.select([name for name in made if name in columns]),
        insert_at=np.zeros(made_row.num_rows, dtype=np.int64),
        records=numbers,
        tombstones=tombstones,
    )


def _check_needs(merger: Merger, shape: TableShape, stored: Sequence[str]) -> None:
    """A state with the columns ``stored`` must be enough to fold records onto it."""
    if lacking := merger.needs(shape, stored) - frozenset(stored):
        raise MergerContractError(
            f"merger {merger.name!r} needs column(s) {', '.join(sorted(lacking))} for columns that it needs itself; "
            "its needs() must name them, too",
            merger=merger.name,
        )


def _too_large(shape: TableShape, row: pa.Table, frames: Sequence[Frame]) -> MergeOverflowError:
    """The error for a state that has a value that is too large for any array."""
    key = _key_of(shape, frames[0].rows)
    sizes = dict.fromkeys(shape.values, 0)
    for rows in (row, *(frame.rows for frame in frames)):
        for name in shape.values:
            sizes[name] += rows.column(name).nbytes if name in rows.column_names else 0
    column = max(sizes, key=lambda name: sizes[name])
    return MergeOverflowError(
        f"the merge makes a value of more than 2 GiB in column {column!r} for key {key}, which no file can hold, so "
        "the row cannot be read or compacted. Nothing is lost: a record that deletes or shortens it makes it readable.",
        key=key,
        column=column,
        keys=1,
    )


def _key_of(shape: TableShape, rows: pa.Table) -> dict[str, object]:
    return {name: rows.column(name)[0].as_py() for name in shape.key}


def _none(shape: TableShape, columns: Collection[str]) -> pa.Table:
    fields = [field.with_nullable(True) for field in shape.schema if field.name in columns]
    return pa.schema(fields).empty_table()


def _chosen(frames: Sequence[Frame], positions: Ints) -> tuple[list[Frame], Ints]:
    """The records of these numbers, counted through all frames, and their numbers, ascending."""
    wanted = np.sort(positions)
    first, found = 0, []
    for frame in frames:
        end = first + frame.rows.num_rows
        own = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, end)] - first
        if len(own):
            kinds = None if frame.kinds is None else frame.kinds[own]
            version = frame.version if isinstance(frame.version, int) else frame.version[own]
            columns = frozenset(frame.rows.column_names) if frame.columns is None else frame.columns
            found.append(Frame(gather(frame.rows, own), kinds, version, columns))
        first = end
    return found, wanted


def _completed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with every column of the schema, null if the rows lack the column."""
    there = frozenset(rows.column_names)
    for field in schema:
        if field.name not in there:
            rows = rows.append_column(field.with_nullable(True), pa.nulls(rows.num_rows, field.type))
    return rows


def _concatenate(
    frames: Sequence[Frame], shape: TableShape, needed: Sequence[str]
) -> tuple[pa.Table, Kinds, npt.NDArray[np.int32], Ints, list[frozenset[str]]]:
    """All frames as one table of the needed columns, with nulls for unset ones, and for each row its kind, source and
    version."""
    schema = pa.schema([shape.schema.field(name).with_nullable(True) for name in needed])
    names = [set(frame.rows.column_names) for frame in frames]
    tables = [frame.rows.select([n for n in needed if n in has]) for frame, has in zip(frames, names, strict=True)]
    sizes = [frame.rows.num_rows for frame in frames]
    if not tables:
        none = np.empty(0, dtype=np.int64)
        return schema.empty_table(), none.astype(np.int8), none.astype(np.int32), none, []
    kinds = [
        np.full(frame.rows.num_rows, RowKind.UPDATE_AFTER, dtype=np.int8) if frame.kinds is None else frame.kinds
        for frame in frames
    ]
    # Frames of the same columns share a source, so that presence stays small over many commits.
    carried = [frozenset(frame.rows.column_names) if frame.columns is None else frame.columns for frame in frames]
    presence = list(dict.fromkeys(carried))
    source_of = {columns: i for i, columns in enumerate(presence)}
    whole = len(tables) == 1 and tables[0].schema.equals(schema)
    return (
        tables[0] if whole else pa.concat_tables([schema.empty_table(), *tables], promote_options="default"),
        np.concatenate(kinds),
        np.repeat(np.array([source_of[columns] for columns in carried], dtype=np.int32), sizes),
        np.concatenate([_versions_of(frame) for frame in frames]),
        presence,
    )


def _versions_of(frame: Frame) -> Ints:
    return np.broadcast_to(np.asarray(frame.version, dtype=np.int64), (frame.rows.num_rows,))


def _versions(tombstones: pa.Table) -> Ints:
    return tombstones.column(VERSION_COLUMN).to_numpy().astype(np.int64)


def _merged(merger: Merger, groups: Groups) -> object:
    """What the merger makes of the groups. An exception of a class that is not the library's own says whose it is."""
    try:
        return merger.merge_groups(groups)
    except LakeMergeError:
        raise
    except Exception as error:
        too_large = isinstance(error, pa.ArrowInvalid | pa.ArrowCapacityError) and is_overflow(error)
        if is_builtin(merger) or too_large or is_interrupt(error):
            raise
        raise MergerContractError(
            f"merger {merger.name!r}: merge_groups() raised {error!r}", merger=merger.name, problems=(repr(error),)
        ) from error


def _checked(merged: object, groups: Groups, merger: Merger) -> Merged:
    if not isinstance(merged, Merged):
        raise MergerContractError(
            f"merger {merger.name!r}: merge_groups() must return a Merged, not {merged!r}", merger=merger.name
        )
    arrays: dict[str, Any] = {"status": merged.status, "winner": merged.winner}
    if merged.setters is not None:
        arrays["setters"] = merged.setters
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
            raise MergerContractError(
                f"merger {merger.name!r}: {name} must be a numpy array of integers, not {array!r}", merger=merger.name
            )
    given: dict[str, Any] = dict(merged.columns)
    for name, values in given.items():
        if not isinstance(values, pa.Array):
            raise MergerContractError(
                f"merger {merger.name!r}: column {name!r} must be an Arrow array, not {type(values).__name__}",
                merger=merger.name,
            )
    n = len(groups.offsets) - 1
    lengths = {len(array) for array in (*arrays.values(), *merged.columns.values())}
    if lengths - {n}:
        raise MergerContractError(
            f"merger {merger.name!r} returned arrays of {sorted(lengths)} entries for {n} groups", merger=merger.name
        )
    if not np.isin(merged.status, list(Status)).all():
        raise MergerContractError(f"merger {merger.name!r} returned an unknown status", merger=merger.name)
    for name, column in merged.columns.items():
        # Compared by id, not by equality, because the table's schema decides whether elements may be null.
        if name not in groups.shape.values or column.type.id != groups.shape.schema.field(name).type.id:
            raise MergerContractError(
                f"merger {merger.name!r} returned a column {name!r} of {type_name(column.type)}; it may return the "
                "table's columns outside the key, in their types",
                merger=merger.name,
            )
    used = merged.status != Status.ABSENT
    winners = merged.winner[used]
    if np.any(winners < groups.offsets[:-1][used]) or np.any(winners >= groups.offsets[1:][used]):
        raise MergerContractError(f"merger {merger.name!r} chose a winner outside its group", merger=merger.name)
    return merged


def _rows(groups: Groups, merged: Merged, written: Ints, columns: Sequence[str], *, check_nulls: bool) -> pa.Table:
    gather = pa.array(groups.order[merged.winner[written]])
    plain = [name for name in columns if name not in merged.columns]
    taken = groups.rows.select(plain).take(gather)
    picked = pa.array(written)
    arrays = [merged.columns[n].take(picked) if n in merged.columns else taken.column(n) for n in columns]
    fields = [groups.shape.schema.field(name) for name in columns]
    rows = pa.table(arrays, schema=pa.schema([f.with_nullable(True) for f in fields]))
    for field in fields:
        missing = rows.column(field.name).null_count
        if check_nulls and missing and not field.nullable:
            at = int(groups.order[merged.winner[written[rows.column(field.name).is_null().to_numpy().argmax()]]])
            raise _null_refused(_key_of(groups.shape, groups.rows.slice(at, 1)), field.name, missing)
    return rows


def _null_refused(key: dict[str, object], name: str, count: int) -> MergeValueError:
    return MergeValueError(
        f"column {name!r} is NOT NULL, and the merge leaves null in it for key {key}, so the row cannot be read or "
        "compacted. Nothing is lost: a record that sets the column makes it readable.",
        key=key,
        column=name,
        keys=count,
    )


def _tombstones(groups: Groups, merged: Merged, before: pa.Table, touched: Ints, versions: Ints) -> pa.Table:
    """Tombstones of untouched keys and those the fold left, sorted by key."""
    dead = merged.status == Status.TOMBSTONE
    winners = groups.order[merged.winner[dead]]
    setters = winners if merged.setters is None else groups.order[merged.setters[dead]]
    schema = tombstone_schema(groups.shape)
    fresh = groups.rows.select(schema.names[:-1]).take(pa.array(winners))
    for name in groups.shape.remembers:
        if name in merged.columns:
            place = fresh.column_names.index(name)
            fresh = fresh.set_column(place, name, merged.columns[name].filter(pa.array(dead)))
    fresh = fresh.append_column(VERSION_COLUMN, pa.array(versions[setters])).cast(schema)
    if before.num_rows == 0:
        return fresh
    keep = np.ones(before.num_rows, dtype=np.bool_)
    keep[touched] = False
    return _by_key(pa.concat_tables([before.filter(pa.array(keep)), fresh]), groups.shape)


def _by_key(rows: pa.Table, shape: TableShape) -> pa.Table:
    return gather(rows, sort_order(key_columns(rows, shape.key)))
