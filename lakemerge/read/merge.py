"""Merging one file slice: stored rows plus live log blocks through the kernel, in key ranges.

Readers and compaction both use this module. The kernel does not know which of them called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge.errors import MergerContractError, TableDamagedError
from lakemerge.format.keys import KeySpan
from lakemerge.format.log_block import LogBlock
from lakemerge.format.names import KIND_COLUMN
from lakemerge.layout.view import FileSlice
from lakemerge.read.expiry import expire
from lakemerge.read.failures import MOST_FAILING, listed
from lakemerge.read.filter.filter import Filter
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.read.parquet.row_groups import key_bounds, matching
from lakemerge.read.runs import Run, block_budgets, block_run, each_file, key_ranges
from lakemerge.read.sources import PLACE, MergeSpec, block_schema, block_stream, stored_streams, tombstone_stream
from lakemerge.read.spill import Spill, needs_spill
from lakemerge.results.findings import FailedKey
from lakemerge.schema.names import ColumnNames
from lakemerge.schema.nested import settled
from mergers import Frame, RowKind, fold
from mergers.failing import FAILURES, find_failing, has_keys, with_key, without_keys
from mergers.kernel import VERSION_COLUMN, Folded, overlay_rows, tombstone_schema
from mergers.keys import key_columns, sort_order
from mergers.portions import gather
from mergers.restart import CLEAR

__all__ = [
    "ChangedRange",
    "MergeSpec",
    "MergedRange",
    "PickedRange",
    "changed_ranges",
    "check_keys",
    "deciding_columns",
    "failing_keys",
    "fold_live",
    "frame_of",
    "may_pick_records",
    "merge_file_slice",
    "picked_ranges",
    "picks_records",
]


@dataclass(frozen=True, slots=True)
class MergedRange:
    """A key range of a file slice after the merge."""

    rows: pa.Table
    """The requested columns in the schema's order. All fields are nullable."""
    tombstones: pa.Table
    """See :func:`mergers.kernel.tombstone_schema`."""


def merge_file_slice(
    spec: MergeSpec,
    file_slice: FileSlice,
    *,
    columns: Collection[str],
    sort: bool,
    files: ParquetFiles,
    condition: Filter | None = None,
) -> Iterator[MergedRange]:
    """The rows of a file slice, range by range in key order.

    :param columns: the columns of the result, at least one.
    :param condition: the caller's condition on rows. Rows that do not meet it may be left out, but need not be.
    :param sort: whether rows are sorted by key within a range. Else only the ranges are in order, and in a file slice
        without logs not even the ranges.
    """
    shape = spec.config.shape
    names = [name for name in shape.schema.names if name in columns]
    if file_slice.is_merged and not sort:
        # There is nothing to merge, and there are no tombstones to keep. So the ordering is not read, and the key is
        # read only to tell which rows are wanted.
        schema = _nullable(shape.schema, names if file_slice.wanted is None else {*names, *shape.key})
        final = None if condition is None else matching(condition, spec.config.names)
        for _, stream in stored_streams(spec, file_slice, schema, files, spec.settings.merge_budget_bytes, final=final):
            for table, _ in stream:
                yield MergedRange(table.select(names), tombstone_schema(shape).empty_table())
        return
    needed = spec.merger.needs(shape, names) | set(shape.standing)
    schema = _nullable(shape.schema, needed)
    for part in _fold_ranges(spec, file_slice, schema, schema, names, files):
        yield MergedRange(settled(overlay_rows(part.base, part.folded, names, sort=sort)), part.folded.tombstones)


def failing_keys(spec: MergeSpec, file_slice: FileSlice, files: ParquetFiles) -> tuple[list[FailedKey], int]:
    """The keys of a file slice whose merge fails, in key order, and how many live records other keys have."""
    found: list[FailedKey] = []
    told = replace(spec, leave_out=found.extend)
    schema, others = _nullable(spec.config.schema, spec.config.schema.names), 0
    for part in _fold_ranges(told, file_slice, schema, schema, schema.names, files):
        others += sum(frame.rows.num_rows for frame in part.frames)
    return found, others


@dataclass(frozen=True, slots=True)
class ChangedRange:
    """What the live logs of a file slice change in a key range."""

    superseded: pa.Table
    """Stored rows that are no longer the row of their key, as :data:`lakemerge.read.sources.PLACE`."""
    rows: pa.Table
    """The rows that replace them, new rows and carried rows, sorted by key. Has the requested columns, as nullable
    ones."""
    tombstones: pa.Table
    """All tombstones of the range after the fold; see :func:`mergers.kernel.tombstone_schema`."""


def changed_ranges(
    spec: MergeSpec,
    file_slice: FileSlice,
    *,
    columns: Collection[str],
    files: ParquetFiles,
    carried: Collection[int] = (),
) -> Iterator[ChangedRange]:
    """What the live logs change in a file slice, range by range in key order.

    If the merger returns one of its inputs whole, only the columns that decide are read of stored rows: a stored row
    that wins stays where it is. Stored rows outside the keys of the logs are not read.

    :param carried: ordinals of winner files whose rows come along, unless the logs supersede them.
    """
    shape = spec.config.shape
    names = [name for name in shape.schema.names if name in columns]
    decided_by = () if picks_records(spec, file_slice, files) else names
    always = set(shape.standing)
    stored = _nullable(shape.schema, spec.merger.needs(shape, decided_by) | always)
    logs = _nullable(shape.schema, spec.merger.needs(shape, names) | always)
    placed = pa.schema([*stored, *PLACE])
    probed = _logged_keys(file_slice)
    whole = {ordinal: pa.schema([*_nullable(shape.schema, {*stored.names, *names}), *PLACE]) for ordinal in carried}
    for part in _fold_ranges(spec, file_slice, placed, logs, names, files, probed=probed, whole=whole):
        superseded = part.base.select(PLACE.names).take(pa.array(part.folded.superseded))
        rows = settled(part.folded.rows)
        if part.whole.num_rows:
            left = part.whole.filter(pa.array(~np.isin(_codes(part.whole), _codes(superseded)))).select(
                rows.column_names
            )
            rows = _interleaved([rows, left], rows.schema, shape.key)
        yield ChangedRange(superseded, rows, part.folded.tombstones)


def _logged_keys(file_slice: FileSlice) -> KeySpan | None:
    """From the smallest to the largest key of the live logs. ``None`` if these are not known."""
    least = [block.key_min for block in file_slice.blocks if block.key_min is not None]
    greatest = [block.key_max for block in file_slice.blocks if block.key_max is not None]
    if file_slice.wanted is not None or not 0 < len(file_slice.blocks) == len(least) == len(greatest):
        return file_slice.wanted
    return KeySpan.closed(min(least), max(greatest))


def _codes(places: pa.Table) -> npt.NDArray[np.int64]:
    """A number for each place."""
    ordinals, rows = (column.to_numpy().astype(np.int64) for column in places.select(PLACE.names).columns)
    return (ordinals << 32) | rows


@dataclass(frozen=True, slots=True)
class PickedRange:
    """What the live logs of a file slice change in a key range, as places only. Places have the columns of
    :data:`lakemerge.read.sources.PLACE`."""

    superseded: pa.Table
    """Stored rows that are no longer the row of their key."""
    records: pa.Table
    """The log records that replace them, and those that are new rows, sorted by key."""


def picked_ranges(spec: MergeSpec, file_slice: FileSlice, *, files: ParquetFiles) -> Iterator[PickedRange]:
    """The same as :func:`changed_ranges`, for a file slice for which :func:`picks_records` is true. Only the columns
    that decide are read, of log records too."""
    shape = spec.config.shape
    placed = pa.schema([*_nullable(shape.schema, deciding_columns(spec)), *PLACE])
    for part in _fold_ranges(spec, file_slice, placed, placed, shape.key, files, probed=_logged_keys(file_slice)):
        folded = part.folded
        if folded.records is None:
            name = spec.merger.name
            raise MergerContractError(
                f"merger {name!r} declares that it is selective, but made columns itself", merger=name
            )
        superseded = part.base.select(PLACE.names).take(pa.array(folded.superseded))
        places = pa.concat_tables([PLACE.empty_table(), *(frame.rows.select(PLACE.names) for frame in part.frames)])
        yield PickedRange(superseded, places.take(pa.array(folded.records)))


def deciding_columns(spec: MergeSpec) -> frozenset[str]:
    """The columns that say which record of a key stays, if the merger returns one of its inputs."""
    shape = spec.config.shape
    return spec.merger.needs(shape, ()) | set(shape.standing)


def picks_records(spec: MergeSpec, file_slice: FileSlice, files: ParquetFiles) -> bool:
    """Whether every row that a file slice's live logs add is one whole record of theirs: the merger returns one of its
    inputs, and each upsert carries all columns. A block that lacks columns may hold only deletes and clears. Its
    statistics have to say so."""
    if not may_pick_records(spec)(file_slice):
        return False

    def only_removes(block: LogBlock) -> bool:
        footer = files.column_footer(StoredFile(block.file.path, block.file.size_bytes), block.groups)
        removes = ((int(RowKind.DELETE),), (CLEAR,))
        bounds = key_bounds(footer, block.groups, [pa.field(KIND_COLUMN, pa.int8())])
        return all(least == greatest and least in removes for least, greatest in bounds)

    bare = [(block.file.path, block) for block in _partial(spec, file_slice)]
    return all(each_file(bare, only_removes, spec.store.reads_at_once))


def may_pick_records(spec: MergeSpec) -> Callable[[FileSlice], bool]:
    """Returns a check of a file slice: the same as :func:`picks_records`, as far as the table's metadata say. It is
    quick enough for very many file slices."""
    shape = spec.config.shape
    bare = set(shape.standing)
    selective = spec.merger.laws(shape, full_frames=True).selective
    carried = spec.config.names.carried
    return lambda file_slice: (
        selective and all(bare.issuperset(carried(block.file.columns)) for block in _partial(spec, file_slice))
    )


def _partial(spec: MergeSpec, file_slice: FileSlice) -> list[LogBlock]:
    """Live blocks that lack columns."""
    return [
        block
        for block in file_slice.blocks
        if len(spec.config.names.carried(block.file.columns)) != len(spec.config.schema)
    ]


@dataclass(frozen=True, slots=True)
class _FoldedRange:
    """A key range of a file slice: its rows, and what the live logs change in them."""

    base: pa.Table
    """Stored rows, sorted by key."""
    whole: pa.Table
    """The stored rows of files that are read whole, with all columns that were requested of these files."""
    frames: Sequence[Frame]
    """Live log records."""
    folded: Folded


def _fold_ranges(
    spec: MergeSpec,
    file_slice: FileSlice,
    stored: pa.Schema,
    logged: pa.Schema,
    columns: Sequence[str],
    files: ParquetFiles,
    *,
    probed: KeySpan | None = None,
    whole: Mapping[int, pa.Schema] = MappingProxyType({}),
) -> Iterator[_FoldedRange]:
    """A file slice's key ranges.

    :param stored: the columns to read of stored rows, with :data:`lakemerge.read.sources.PLACE` if places are needed.
    :param logged: the columns to read of log records, likewise.
    :param probed: see :func:`lakemerge.read.sources.stored_streams`, also for ``whole``.
    """
    config, shape = spec.config, spec.config.shape
    budget = max(1, spec.settings.merge_budget_bytes // 3)
    per_block, per_step = block_budgets(file_slice.blocks, spec.settings.merge_budget_bytes, len(logged))
    schemas = [whole.get(file.ordinal) for file in file_slice.row_files if file.rows]
    streams = stored_streams(spec, file_slice, stored, files, budget, probed=probed, whole=whole)
    runs = [
        Run(stream, schema or stored, shape.key, path=path)
        for (path, stream), schema in zip(streams, schemas, strict=True)
    ]
    count = len(runs)
    remembered = tombstone_stream(spec, file_slice, files)
    runs.append(Run(remembered, tombstone_schema(shape), shape.key, path=file_slice.tombstones))
    with Spill(is_needed=needs_spill(file_slice.blocks, spec.settings.merge_budget_bytes)) as spill:
        for number, block in enumerate(file_slice.blocks):
            schema = block_schema(logged, block, spec.config.names)
            stream = block_stream(block, schema, file_slice, config, files, per_block, number=number)
            runs.append(block_run(spill.through(stream, files, block.file.path), schema, shape.key, block, per_block))
        for parts in key_ranges(runs, at_once=spec.store.reads_at_once, budget_bytes=per_step):
            base = _interleaved([part.select(stored.names) for part in parts[:count]], stored, shape.key)
            kept = [part for part, schema in zip(parts[:count], schemas, strict=True) if schema is not None]
            tombstones, logs = parts[count], parts[count + 1 :]
            check_keys(file_slice, shape.key, (base, tombstones, *logs))
            frames = [
                frame_of(rows, block, spec.config.names)
                for rows, block in zip(logs, file_slice.blocks, strict=True)
                if rows.num_rows
            ]
            live, folded = fold_live(spec, file_slice, base=base, tombstones=tombstones, frames=frames, columns=columns)
            yield _FoldedRange(base, _interleaved(kept, stored, shape.key), live, folded)


def fold_live(
    spec: MergeSpec,
    file_slice: FileSlice,
    *,
    base: pa.Table,
    tombstones: pa.Table,
    frames: Sequence[Frame],
    columns: Sequence[str],
) -> tuple[Sequence[Frame], Folded]:
    """What live records change in stored rows. Tombstones that the table has forgotten are left out first.

    Keys whose merge fails are left out, if the caller says so: their stored rows count as superseded, and their
    tombstones are not among those of the result. Otherwise the error names the first of them.

    :param base: stored rows, sorted by key.
    :param frames: the records, in commit order.
    :returns: the records that were folded, and the result.
    """
    shape = spec.config.shape

    def folded(some: Sequence[Frame]) -> tuple[Sequence[Frame], Folded]:
        return _fold_live(spec, file_slice, base=base, tombstones=tombstones, frames=some, columns=columns)

    try:
        return folded(frames)
    except FAILURES as error:
        if spec.leave_out is None and "key" in error.facts:
            raise
        first = spec.leave_out is None
        most = 1 if first else MOST_FAILING
        failing = find_failing(frames, shape, folded, error, at_most=most, first=first)
        if spec.leave_out is None:
            raise with_key(failing.errors[0], failing.keys.to_pylist()[0]) from error
    spec.leave_out(listed(failing, frames, shape))
    live, left = folded(without_keys(frames, shape, failing.keys))
    hidden = np.flatnonzero(has_keys(base, shape, failing.keys))
    return live, replace(
        left,
        superseded=np.union1d(left.superseded, hidden),
        tombstones=left.tombstones.filter(pa.array(~has_keys(left.tombstones, shape, failing.keys))),
    )


def _fold_live(
    spec: MergeSpec,
    file_slice: FileSlice,
    *,
    base: pa.Table,
    tombstones: pa.Table,
    frames: Sequence[Frame],
    columns: Sequence[str],
) -> tuple[Sequence[Frame], Folded]:
    shape = spec.config.shape
    if file_slice.expiries and tombstones.num_rows:
        tombstones, frames = expire(
            spec.merger, shape, file_slice.expiries, tombstones=tombstones, frames=frames, stored=base.schema
        )
    return frames, fold(spec.merger, shape, base=base, tombstones=tombstones, frames=frames, columns=columns)


def _nullable(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema if field.name in names])


def _interleaved(parts: Sequence[pa.Table], schema: pa.Schema, key: Sequence[str]) -> pa.Table:
    """Merge sorted tables that have no key in common into one sorted table."""
    filled = [part for part in parts if part.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else schema.empty_table()
    both = pa.concat_tables(filled)
    return gather(both, sort_order(key_columns(both, key)))


def check_keys(file_slice: FileSlice, key: Sequence[str], tables: Iterable[pa.Table]) -> None:
    """Raise :class:`TableDamagedError` for rows without a key."""
    for table in tables:
        for name in key:
            if table.column(name).null_count:
                raise TableDamagedError(
                    f"a file of bucket {file_slice.bucket_id} holds rows without a key: column {name!r} is null or "
                    "missing; `lakemerge check` says which file",
                    column=name,
                )


def frame_of(rows: pa.Table, block: LogBlock, names: ColumnNames) -> Frame:
    """The records of a block, as the kernel takes them.

    :param rows: rows with the columns of :func:`lakemerge.read.sources.block_schema`.
    :param names: those that the table's columns have in files.
    """
    kinds = rows.column(KIND_COLUMN)
    packed = block.packed_from is not None
    return Frame(
        rows.drop_columns([KIND_COLUMN, VERSION_COLUMN] if packed else [KIND_COLUMN]),
        None if kinds.null_count == len(kinds) else kinds.to_numpy().astype(np.int8),
        rows.column(VERSION_COLUMN).to_numpy() if packed else block.version,
        names.carried(block.file.columns),
    )
