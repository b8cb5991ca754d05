"""One task of a log compaction, on Spark or in a thread: it packs the logs of many commits.

If all blocks of some buckets fit the budget, each log file is read once, and every bucket is sorted once. A bucket that
does not fit is merged in key ranges.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.format.keys import BucketId, Key, keys_at
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.format.names import KIND_COLUMN, LOG_FOLDER, RECORDS_COLUMN
from lakemerge.layout.view import FileSlice
from lakemerge.read.merge import MergeSpec
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.read.runs import block_budgets, block_run, key_ranges
from lakemerge.read.sources import block_schema, block_stream, check_keys
from lakemerge.read.spill import Spill, needs_spill
from lakemerge.schema.names import ColumnNames
from lakemerge.write.carried import turns_of
from lakemerge.write.pack import stored_bound
from lakemerge.write.parquet.output import ParquetOutput
from mergers import Frame, RowKind
from mergers.contract import Ints
from mergers.kernel import VERSION_COLUMN, combine
from mergers.keys import KeyColumns, key_columns, sort_order
from mergers.portions import gather, together

__all__ = ["BucketLogs", "PackJob", "PackLogsSpec", "PackedLogs", "pack_logs"]

Columns = frozenset[str]
"""The table columns that records carry."""

PackedLogs = Sequence[LogBlock]
"""The blocks of consolidated log files, in the order in which the records of a key in them fold."""

_Turn = tuple[int, int]
"""A turn, and the number of a set of columns: each is a file. See :func:`lakemerge.write.carried.turns_of`."""


@dataclass(frozen=True, slots=True)
class BucketLogs:
    """The blocks of one bucket to merge. They may hold keys of other buckets, too."""

    bucket_id: BucketId
    buckets: int
    blocks: tuple[LogBlock, ...]
    """In commit order."""

    @property
    def bytes(self) -> int:
        """The uncompressed size."""
        return sum(block.data_bytes for block in self.blocks)


@dataclass(frozen=True, slots=True)
class PackJob:
    """Buckets whose packed blocks share files. Picklable."""

    slices: tuple[BucketLogs, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.slices)


@dataclass(frozen=True, slots=True)
class PackLogsSpec:
    """Settings for every task of one log compaction. Picklable."""

    merge: MergeSpec
    name: str
    """Begin version and transaction id, which are part of file names."""


def pack_logs(item: tuple[int, PackJob], spec: PackLogsSpec) -> PackedLogs:
    """Write the consolidated log files of one job.

    :param item: the job, and its number in the log compaction.
    """
    number, job = item
    attempt = uuid.uuid4().hex[:8]
    carried = spec.merge.config.names.carried
    sets = list(dict.fromkeys(carried(block.file.columns) for part in job.slices for block in part.blocks))
    logs: dict[_Turn, _PackedFile] = {}
    with contextlib.ExitStack() as on_error:
        for portion in _portions(job.slices, spec.merge.settings.merge_budget_bytes // 2):
            with _source(portion, spec.merge) as files:
                for part in portion:
                    for turn, rows in _merged(part, sets, spec.merge, files):
                        if turn not in logs:
                            path = f"{LOG_FOLDER}/{spec.name}-{number:05d}-{len(logs):05d}-{attempt}.parquet"
                            logs[turn] = _PackedFile(path, sets[turn[1]], spec.merge)
                            on_error.callback(logs[turn].abandon)
                        logs[turn].add(part, rows)
        packed = [block for _, log in sorted(logs.items(), key=itemgetter(0)) for block in log.close()]
        on_error.pop_all()
    return packed


def _portions(slices: Iterable[BucketLogs], budget_bytes: int) -> Iterator[list[BucketLogs]]:
    """Buckets that are read together: as many as fit the budget, or one."""
    portion: list[BucketLogs] = []
    size = 0
    for part in slices:
        if portion and size + part.bytes > budget_bytes:
            yield portion
            portion, size = [], 0
        portion.append(part)
        size += part.bytes
    if portion:
        yield portion


def _source(portion: Sequence[BucketLogs], merge: MergeSpec) -> ParquetFiles:
    budget = merge.settings.merge_budget_bytes // 2
    fits = sum(part.bytes for part in portion) <= budget
    return _Loaded(portion, merge) if fits else ParquetFiles(merge.store, merge.footers)


class _Loaded(ParquetFiles):
    """Log files with the blocks of some buckets in memory. Hundreds of small blocks of a file are read at once."""

    def __init__(self, portion: Sequence[BucketLogs], merge: MergeSpec) -> None:
        super().__init__(merge.store)
        blocks: dict[LogFile, dict[int, LogBlock]] = {}
        for part in portion:
            for block in part.blocks:
                blocks.setdefault(block.file, {})[block.first_row_group] = block
        self._tables: dict[tuple[str, int], pa.Table] = {}
        with ParquetFiles(merge.store, merge.footers) as files:
            for file, found in blocks.items():
                ordered = [found[first] for first in sorted(found)]
                stored = StoredFile(file.path, file.size_bytes)
                for block in ordered:
                    files.footer(stored, block.groups)  # raises if the file lacks some of them
                groups = [group for block in ordered for group in block.groups]
                names = merge.config.names
                schema = _block_schema(merge, ordered[0])
                budget = merge.settings.merge_budget_bytes
                row_bytes = sum(block.data_bytes for block in ordered) / max(1, sum(block.rows for block in ordered))
                streamed = files.stream(
                    stored, schema=schema, names=names, budget_bytes=budget, row_groups=groups, row_bytes=row_bytes
                )
                table = together(pa.concat_tables([table for table, _, _ in streamed]))
                check_keys(table, merge.config.key, file.path)
                at = 0
                for block in ordered:
                    self._tables[file.path, block.first_row_group] = table.slice(at, block.rows)
                    at += block.rows

    def stream(
        self,
        stored: StoredFile,
        *,
        schema: pa.Schema,
        names: ColumnNames,
        budget_bytes: int,
        row_groups: Sequence[int] | None = None,
        row_bytes: float = 0.0,
    ) -> Iterator[tuple[pa.Table, int, bool]]:
        """A block as :meth:`ParquetFiles.stream` gives it, whole."""
        if not row_groups:
            raise AssertionError("a block has row groups")
        yield self._tables[stored.path, row_groups[0]].select(schema.names), 0, True


def _merged(
    part: BucketLogs, sets: Sequence[Columns], merge: MergeSpec, files: ParquetFiles
) -> Iterator[tuple[_Turn, pa.Table]]:
    """The records of a bucket to keep, for each file, with their kinds and versions. They are sorted by key; the
    records of a key are in commit order. They come range by range in key order.

    Readers put the records of all files in the order of their versions, so a key needs turns only for records of one
    version.
    """
    config = merge.config
    # All keys of the bucket, even if some are merged already: the records' versions decide which are live.
    file_slice = FileSlice(part.bucket_id, part.buckets, blocks=part.blocks)
    per_block, per_step = block_budgets(part.blocks, merge.settings.merge_budget_bytes, len(config.schema))
    schemas = [_block_schema(merge, block) for block in part.blocks]
    numbers = [sets.index(config.names.carried(block.file.columns)) for block in part.blocks]
    alone = len(set(numbers)) == 1
    with Spill(is_needed=needs_spill(part.blocks, merge.settings.merge_budget_bytes)) as spill:
        runs = []
        for block, schema in zip(part.blocks, schemas, strict=True):
            stream = block_stream(block, schema, file_slice, config, files, per_block)
            runs.append(block_run(spill.through(stream, files, block.file.path), schema, config.key, block, per_block))
        for tables in key_ranges(runs, at_once=merge.store.reads_at_once, budget_bytes=per_step):
            by_set: dict[int, list[tuple[int, pa.Table]]] = {}
            for place, (block, table) in enumerate(zip(part.blocks, tables, strict=True)):
                if table.num_rows:
                    by_set.setdefault(numbers[place], []).append((place, _told(table, block)))
            turns = _turns(by_set, config.key)
            for number, found in by_set.items():
                rows = pa.concat_tables([table for _, table in found])
                # Blocks are in commit order, but the versions of two files of one log compaction interleave.
                order = np.argsort(rows.column(VERSION_COLUMN).to_numpy(), kind="stable")
                order = order[sort_order(_taken(key_columns(rows, config.key), order))]
                for turn in np.unique(turns[number]).tolist():
                    own = gather(rows, order[turns[number][order] == turn])
                    kept = _deciding(own, sets[number], merge) if alone else own
                    if kept.num_rows:
                        yield (turn, number), kept


def _turns(by_set: Mapping[int, Sequence[tuple[int, pa.Table]]], key: Sequence[str]) -> Mapping[int, Ints]:
    """The turns of the records of each set of columns. Within a version, the records of a key are in the order of their
    blocks.

    :param by_set: number of the set -> the places of blocks in commit order, and their records.
    """
    parts = [(number, place, table) for number, found in by_set.items() for place, table in found]
    sizes = [table.num_rows for _, _, table in parts]
    if len(by_set) < 2:
        return {number: np.zeros(sum(sizes), np.int64) for number in by_set}
    names = [*key, VERSION_COLUMN]
    both = pa.concat_tables([table.select(names) for _, _, table in parts], promote_options="permissive")
    versions = both.column(VERSION_COLUMN).to_numpy()
    order = np.lexsort((np.repeat([place for _, place, _ in parts], sizes), versions))
    codes = np.repeat([number for number, _, _ in parts], sizes)
    turns = np.empty(len(order), np.int64)
    keys = _taken(key_columns(both, key), order)
    turns[order] = turns_of(keys, codes[order], within=versions[order])
    return {number: turns[codes == number] for number in by_set}


def _taken(keys: KeyColumns, order: Ints) -> KeyColumns:
    return tuple(column.take(pa.array(order)) for column in keys)


def _told(rows: pa.Table, block: LogBlock) -> pa.Table:
    """The rows with the kind and the version of every record."""
    kinds = pc.fill_null(rows.column(KIND_COLUMN), pa.scalar(int(RowKind.UPDATE_AFTER), pa.int8()))
    rows = rows.set_column(rows.column_names.index(KIND_COLUMN), KIND_COLUMN, kinds)
    if block.packed_from is not None:
        return rows
    place = len(rows.column_names) - (RECORDS_COLUMN in rows.column_names)
    return rows.add_column(place, VERSION_COLUMN, pa.array(np.full(rows.num_rows, block.version, dtype=np.int64)))


def _deciding(rows: pa.Table, columns: Columns, merge: MergeSpec) -> pa.Table:
    """The rows without the records that the merger's laws allow to drop. It may be used only if all records of the
    bucket have the same columns: others between the records of a key could matter."""
    shape = merge.config.shape
    kinds = rows.column(KIND_COLUMN).to_numpy()
    versions = rows.column(VERSION_COLUMN).to_numpy()
    own = [name for name in rows.column_names if name in columns]
    frame = Frame(rows.select(own), kinds, versions, columns)
    keep = combine(merge.merger, shape, frame, full=len(columns) == len(shape.schema))
    return rows if keep is None or keep.all() else rows.filter(pa.array(keep))


def _block_schema(merge: MergeSpec, block: LogBlock) -> pa.Schema:
    """The columns of a block; also for how many records each stands, if the merger unites records."""
    names = merge.config.names
    schema = block_schema(_nullable(merge.config.schema), block, names)
    unites = merge.merger.unites(merge.config.shape, names.carried(block.file.columns))
    return schema.append(pa.field(RECORDS_COLUMN, pa.int32())) if unites else schema


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


@dataclass
class _OpenBlock:
    """A block being written."""

    part: BucketLogs
    first_row_group: int
    rows: int
    data_bytes: int
    key_min: Key
    key_max: Key


class _PackedFile:
    """A consolidated log file being written: blocks one after the other, in row groups of bounded size."""

    def __init__(self, path: str, columns: Columns, merge: MergeSpec) -> None:
        self._names = merge.config.names
        self._carried = [name for name in merge.config.schema.names if name in columns]
        self._key = merge.config.key
        self._settings = merge.settings
        limit = merge.settings.row_group_rows
        bounded = (*self._names.all_of(self._key), KIND_COLUMN)
        self._output = ParquetOutput(merge.store, path, group_rows=limit, bounded=bounded)
        self._held: list[pa.Table] = []
        self._blocks: list[_OpenBlock] = []

    def add(self, part: BucketLogs, rows: pa.Table) -> None:
        """Append records of a bucket. Buckets come one after the other, and their rows in key order."""
        keys = key_columns(rows, self._key)
        low, high = keys_at(keys, [0, rows.num_rows - 1])
        if not self._blocks or self._blocks[-1].part is not part:
            self._flush()
            self._blocks.append(_OpenBlock(part, self._output.row_groups, 0, 0, low, high))
        block = self._blocks[-1]
        block.rows += rows.num_rows
        block.data_bytes += rows.nbytes
        block.key_max = high
        self._held.append(rows)
        held_rows = sum(table.num_rows for table in self._held)
        held_bytes = sum(table.nbytes for table in self._held)
        if held_rows >= self._settings.row_group_rows or held_bytes >= self._settings.merge_budget_bytes // 2:
            self._flush()

    def close(self) -> list[LogBlock]:
        """Finish the file. Returns its blocks; the commit sets their versions."""
        self._flush()
        self._output.close()
        columns = self._names.all_of(self._carried)
        file = LogFile(self._output.path, self._output.size_bytes, columns)
        ends = [*(block.first_row_group for block in self._blocks[1:]), self._output.row_groups]
        return [
            LogBlock(
                file=file,
                first_row_group=block.first_row_group,
                row_groups=end - block.first_row_group,
                bucket_id=block.part.bucket_id,
                buckets=block.part.buckets,
                rows=block.rows,
                data_bytes=block.data_bytes,
                key_min=stored_bound(block.key_min),
                key_max=stored_bound(block.key_max),
            )
            for block, end in zip(self._blocks, ends, strict=True)
        ]

    def abandon(self) -> None:
        """Give the file up. It does not become visible in the store."""
        self._output.abandon()

    def _flush(self) -> None:
        if not self._held:
            return
        rows = pa.concat_tables(self._held)
        self._held = []
        own = [RECORDS_COLUMN] if RECORDS_COLUMN in rows.column_names else []
        written = rows.select([*self._carried, KIND_COLUMN, VERSION_COLUMN, *own])
        self._output.write(written.rename_columns(self._names.all_of(written.column_names)))
