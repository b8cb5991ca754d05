"""Packing: one write task's records become log files.

Each file has one block for each bucket that has records in it. The rows of a block are sorted by key, and equal keys
are in arrival order. All records of a key that one task holds at a time are adjacent in one block, unless they carry
different columns: then these are in different files, and the files are in such an order that the records of a key are.
So (version, task, file, row) is the commit position of a record, and no position has to be stored.
Source: docs/table-format.md, section 3.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.errors import FrameError
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import BucketId, Key, keys_at
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.format.names import KIND_COLUMN, LOG_FOLDER, RECORDS_COLUMN
from lakemerge.layout.placement import place_rows
from lakemerge.options import Settings
from lakemerge.schema.nested import settled
from lakemerge.storage.base import Store
from lakemerge.write.carried import MOST_SETS, MOST_TURNS, Sets, turns_of
from lakemerge.write.frame import FramePlan
from lakemerge.write.parquet.encoding import writer_options
from lakemerge.write.parquet.output import write_groups
from mergers import Frame, Merger, RowKind
from mergers.contract import Ints, Kinds
from mergers.kernel import combine, unite
from mergers.keys import key_columns, sort_order
from mergers.portions import gather, plain_bytes, row_bytes, spans, together

__all__ = ["PackSpec", "Packed", "joined", "pack", "stored_bound"]


_MAX_KEY_BYTES = 256


@dataclass(frozen=True, slots=True)
class PackSpec:
    """Settings that all write tasks of one commit share. Picklable."""

    store: Store
    config: TableConfig
    merger: Merger
    frame: FramePlan
    buckets: int
    settings: Settings
    name: str
    """Begin version and transaction id. It is unique to this write, and part of file names."""
    combines: bool = True
    """Whether records may be left out that others of their key make irrelevant."""
    unites: bool = True
    """Whether neighbours may become one record, if the merger unites them."""
    dry: bool = False
    """Whether files are only made to know their sizes, and nothing is stored."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of a task: what it wrote."""

    blocks: tuple[LogBlock, ...]
    rows: int
    """How many records the task was given, before pre-combining."""
    united: int = 0
    """How many of them are in others, which say for how many they stand."""

    @property
    def files(self) -> tuple[LogFile, ...]:
        return tuple(dict.fromkeys(block.file for block in self.blocks))


def pack(batches: Iterable[pa.RecordBatch], spec: PackSpec, task: int) -> Packed:
    """Write the records of one task, into several files if they exceed the budget or carry different columns.

    File names differ from one attempt of a task to the next. So a retried or speculative attempt never overwrites
    files that another attempt reported.

    Raises the errors of :meth:`FramePlan.convert`, and :class:`FrameError` for values that no partition can
    have. Files that were written before the error are then orphans. The caller or vacuum deletes them.
    """
    blocks: list[LogBlock] = []
    rows = united = 0
    attempt = uuid.uuid4().hex[:8]
    number = 0
    for portion in _chunks(batches, spec):
        rows += portion.table.num_rows
        for table, kinds in _of_files(portion, spec.config.key):
            path = f"{LOG_FOLDER}/{spec.name}-{task:05d}-{number:05d}-{attempt}.parquet"
            written, own = _write_file(table, kinds, spec, path)
            blocks.extend(written)
            united += own
            number += 1
    return Packed(tuple(blocks), rows, united)


class _Portion(NamedTuple):
    """Records that are held at one time."""

    table: pa.Table
    kinds: Kinds | None
    sets: Sets | None
    """The columns that each record carries, if these differ."""


def _chunks(batches: Iterable[pa.RecordBatch], spec: PackSpec) -> Iterator[_Portion]:
    """Records in portions of about the write budget, each with a bounded number of sets of columns."""
    held: list[pa.RecordBatch] = []
    kinds: list[Kinds | None] = []
    carried = _Carried()
    size = 0
    first_row = 0
    for batch in _portions(batches, spec.settings.write_budget_bytes):
        records, batch_kinds = spec.frame.convert(batch, spec.merger, first_row=first_row)
        first_row += batch.num_rows
        if not records.num_rows:
            continue
        sets = spec.frame.carried(batch) if spec.frame.differs else None
        is_over = size + records.nbytes > spec.settings.write_budget_bytes
        if held and (is_over or (sets is not None and carried.count_with(sets) > MOST_SETS)):
            yield _Portion(*joined(held, kinds), carried.sets())
            held, kinds, size, carried = [], [], 0, _Carried()
        held.append(records)
        kinds.append(batch_kinds)
        size += records.nbytes
        if sets is not None:
            carried.add(sets)
    if held:
        yield _Portion(*joined(held, kinds), carried.sets())


class _Carried:
    """The sets of columns of the batches of a portion."""

    def __init__(self) -> None:
        self._numbers: dict[frozenset[str], int] = {}
        self._codes: list[Ints] = []

    def count_with(self, sets: Sets) -> int:
        return len(self._numbers.keys() | set(sets.columns))

    def add(self, sets: Sets) -> None:
        own = [self._numbers.setdefault(names, len(self._numbers)) for names in sets.columns]
        self._codes.append(np.array(own, np.int64)[sets.codes])

    def sets(self) -> Sets | None:
        return Sets(np.concatenate(self._codes), list(self._numbers)) if self._codes else None


def _of_files(portion: _Portion, key: Sequence[str]) -> Iterator[tuple[pa.Table, Kinds | None]]:
    """The records of each file of a portion, with the columns that they carry, and their kinds. The records of a key
    stay in their order.

    Raises :class:`FrameError` for a portion that would become too many files.
    """
    table, kinds, sets = portion
    if sets is None:
        yield table, kinds
        return
    wanted = [[name for name in table.column_names if name in names] for names in sets.columns]
    if len(wanted) == 1:
        yield table.select(wanted[0]), kinds
        return
    turns = turns_of(key_columns(table, key), sets.codes)
    files = turns * len(wanted) + sets.codes
    numbers = np.unique(files)
    if len(numbers) > MOST_TURNS:
        worst = table.select(key).slice(int(np.argmax(turns)), 1).to_pylist()[0]
        raise FrameError(
            f"the records of key {worst} carry other columns {int(turns.max()):,} times in turns, and each turn is a "
            f"file; {MOST_TURNS:,} files are written of one portion: divide the records, or let them carry the same "
            "columns",
            key=worst,
        )
    for number in numbers.tolist():
        places = np.flatnonzero(files == number)
        yield gather(table.select(wanted[number % len(wanted)]), places), None if kinds is None else kinds[places]


def _portions(batches: Iterable[pa.RecordBatch], budget_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches not larger than the budget, or of one row. A table in memory may come
    as a single batch."""
    for batch in batches:
        if plain_bytes(batch) <= budget_bytes:
            yield batch
            continue
        for start, end in spans(row_bytes(batch), budget_bytes):
            yield batch.slice(start, end - start)


def joined(held: Sequence[pa.RecordBatch], kinds: Sequence[Kinds | None]) -> tuple[pa.Table, Kinds | None]:
    """Batches of records, with their kinds, as one table; the kinds are ``None`` if all records are upserts."""
    table = settled(together(pa.Table.from_batches(held)))
    # Deletes may hold null where the table's rows may not.
    table = table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))
    if all(part is None for part in kinds):
        return table, None
    parts = [
        np.full(batch.num_rows, RowKind.UPDATE_AFTER, dtype=np.int8) if part is None else part
        for batch, part in zip(held, kinds, strict=True)
    ]
    return table, np.concatenate(parts)


def _write_file(table: pa.Table, kinds: Kinds | None, spec: PackSpec, path: str) -> tuple[list[LogBlock], int]:
    """The blocks of the file, and how many of its records are in others."""
    table, kinds, counts, slices, starts = _arrange(table, kinds, spec)
    if not table.num_rows:
        return [], 0  # all records are deletes, and the merger ignores deletes
    names = spec.config.names
    columns = names.all_of(table.column_names)
    keys = key_columns(table, spec.config.key)
    ends = [*starts[1:].tolist(), table.num_rows]
    bounds = keys_at(keys, [p for start, end in zip(starts.tolist(), ends, strict=True) for p in (start, end - 1)])
    table = table.rename_columns(columns)
    if kinds is not None:
        table = table.append_column(KIND_COLUMN, pa.array(kinds))
    if counts is not None:
        table = table.append_column(RECORDS_COLUMN, pa.array(counts))
    written: list[tuple[int, int]] = []
    groups = 0
    limit = spec.settings.row_group_rows
    bounded = (*names.all_of(spec.config.key), KIND_COLUMN)
    options = writer_options(table, group_rows=min(limit, table.num_rows // len(starts)), bounded=bounded)
    output = pa.MockOutputStream() if spec.dry else spec.store.open_output(path)
    with output as sink, pq.ParquetWriter(sink, table.schema, **options) as writer:
        for start, end in zip(starts.tolist(), ends, strict=True):
            count = write_groups(writer, table.slice(start, end - start), group_rows=limit)
            written.append((groups, count))
            groups += count
        writer.close()
        size = sink.tell()
    file = LogFile(path, size, columns)
    blocks = [
        LogBlock(
            file=file,
            first_row_group=first,
            row_groups=count,
            bucket_id=slices[i],
            buckets=spec.buckets,
            rows=ends[i] - int(starts[i]),
            data_bytes=table.slice(int(starts[i]), ends[i] - int(starts[i])).nbytes,
            key_min=stored_bound(bounds[2 * i]),
            key_max=stored_bound(bounds[2 * i + 1]),
        )
        for i, (first, count) in enumerate(written)
    ]
    return blocks, 0 if counts is None else int(counts.sum()) - len(counts)


def _arrange(
    table: pa.Table, kinds: Kinds | None, spec: PackSpec
) -> tuple[pa.Table, Kinds | None, npt.NDArray[np.int32] | None, list[BucketId], Ints]:
    """The rows sorted by (partition, bucket, key), how many records each stands for, and where each bucket starts. The
    rows are pre-combined, and neighbours united, if the merger allows it."""
    keys = key_columns(table, spec.config.key)
    placed = place_rows(table, spec.config, spec.buckets)
    order = placed.by_bucket(sort_order(keys))
    table = gather(table, order)
    slots = placed.slots[order]
    kinds = None if kinds is None else kinds[order]
    full = table.num_columns == len(spec.config.schema)
    keep = combine(spec.merger, spec.config.shape, Frame(table, kinds, -1), full=full) if spec.combines else None
    if keep is not None and not keep.all():
        table, slots = table.filter(pa.array(keep)), slots[keep]
        kinds = None if kinds is None else kinds[keep]
    united = unite(spec.merger, spec.config.shape, Frame(table, kinds, -1)) if spec.combines and spec.unites else None
    if united is not None:
        table, slots = united.rows, slots[united.places]
        kinds = None if kinds is None else kinds[united.places]
    if kinds is not None and np.isin(kinds, (RowKind.INSERT, RowKind.UPDATE_AFTER)).all():
        kinds = None
    starts = np.flatnonzero(np.diff(slots, prepend=-1))
    counts = None if united is None else united.counts
    return table, kinds, counts, [placed.bucket(slot) for slot in slots[starts].tolist()], starts


def stored_bound(key: Key) -> Key | None:
    """The key, or ``None`` if it is too long for the commit. The block then counts as covering all keys."""
    texts = (value.encode() if isinstance(value, str) else value for value in key)
    size = sum(len(text) for text in texts if isinstance(text, bytes))
    return key if size <= _MAX_KEY_BYTES else None
