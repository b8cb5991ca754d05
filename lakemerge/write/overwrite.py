"""Overwrites: the rows of a frame take the place of everything in some partitions.

The rows are states, as those of sets are: no merger is called. They are packed into log files, unless they are in
memory, and go from there into base files, as at a first load. Source: docs/merge-semantics.md, section 12.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lakemerge._internal.pools import thread_pool
from lakemerge.commits.overwrite import Scope, commit_overwrite
from lakemerge.commits.provenance import Isolation
from lakemerge.commits.rescale import reserve_ordinals
from lakemerge.delta import AddFile, AlreadyDone
from lakemerge.errors import FilterError, FrameError, InputError
from lakemerge.format.base_file import rows_of
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import Partition
from lakemerge.format.log_block import LogBlock
from lakemerge.format.names import KIND_COLUMN
from lakemerge.format.operations import Operation
from lakemerge.frames import given_frame
from lakemerge.handle import Handle
from lakemerge.layout.partition import parse_partition_value
from lakemerge.layout.view import FileSlice, TableView, build_file_slices
from lakemerge.read.filter.filter import Filter, parse_filter
from lakemerge.read.merge import MergeSpec, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.results.writes import UpsertResult
from lakemerge.write.base_file import ordinals_needed
from lakemerge.write.discard import ROWS_FOLDERS, discard_packed
from lakemerge.write.first_load import HeldRecords, hold, load_held, read_ahead
from lakemerge.write.pack import Packed, PackSpec, pack
from lakemerge.write.start import Write, WriteRequest
from lakemerge.write.upsert import LoadFileSlices, discarding, load_in_process
from mergers.keys import group_starts, key_columns, sort_order
from mergers.portions import gather
from mergers.restart import SET
from mergers.wording import argument

__all__ = [
    "AsStates",
    "CheckFileSlices",
    "OverwriteRequest",
    "PartitionMode",
    "check_in_process",
    "check_once",
    "finish_overwrite",
    "overwrite_arrow",
    "repeated_key_of",
    "start_overwrite",
]

PartitionMode = Literal["static", "dynamic"]
"""Which partitions an overwrite without a condition is about: all, or those that the frame has rows of."""
_KIND = pa.field(KIND_COLUMN, pa.int8())
_BUDGET_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OverwriteRequest:
    """The options of an overwrite; see :meth:`lakemerge.LakeTable.overwrite`."""

    where: str | None = None
    partition_mode: PartitionMode = "static"
    merge_schema: bool = False
    txn: tuple[str, int] | None = None
    info: Mapping[str, object] = field(default_factory=dict)
    partitions: frozenset[Partition] | None = None
    """For a replay: the partitions that are overwritten. None of the other two is given then."""
    operation: str = Operation.OVERWRITE
    isolation: Isolation | None = None
    """For an overwrite that read the table: rows that were written since are a conflict."""
    zone: dt.tzinfo | None = dt.UTC
    """That of times in the condition that have none; ``None``: such times are refused. A condition that means another
    time than its author would lose rows."""

    def checked(self, config: TableConfig) -> OverwriteRequest:
        """Raises :class:`InputError` or :class:`FilterError` if it makes no sense for the table."""
        if self.partition_mode not in ("static", "dynamic"):
            raise InputError(f"{argument('partition_mode')} must be 'static' or 'dynamic', not {self.partition_mode!r}")
        if self.where is not None and self.partition_mode == "dynamic":
            raise InputError(
                f"{argument('where')} says which partitions are overwritten, and {argument('partition_mode')} "
                "'dynamic' takes those of the frame: give one of them"
            )
        _ = self._condition(config)
        return self

    @property
    def write(self) -> WriteRequest:
        return WriteRequest(
            txn=self.txn,
            info={**self.info, "isBlindAppend": False},
            states=True,
            merge_schema=self.merge_schema,
            isolation=self.isolation,
            operation=self.operation,
        )

    def scope(self, config: TableConfig, written: Iterable[Partition]) -> Scope:
        """The partitions that are overwritten.

        :param written: those of the frame's rows.
        :raises FrameError: the frame has rows outside of the condition.
        """
        partitions = dict.fromkeys(written)
        condition = self._condition(config)
        if condition is not None:
            among = _Covered(condition, config)
            covered = among(partitions.keys())
            outside = next((partition for partition in partitions if partition not in covered), None)
            if outside is not None:
                named = dict(zip(config.partition_by, outside, strict=True))
                raise FrameError(
                    f"the frame has rows of partition {named}, which the condition {self.where!r} does not hold for: "
                    "leave them out, or overwrite more",
                    partition=outside,
                )
            return Scope(among)
        if self.partitions is not None:
            return Scope(self.partitions.intersection)
        if self.partition_mode == "dynamic" and config.partition_by:
            return Scope(frozenset(partitions).intersection)
        return Scope()

    def _condition(self, config: TableConfig) -> Filter | None:
        """The condition, which reads partition columns alone. Raises :class:`FilterError`."""
        where = self.where
        if where is None:
            return None
        if not where:
            raise FilterError(f"{argument('where')} is a condition on partition columns, as SQL text, not {where!r}")
        found = parse_filter(where, config.schema, zone=self.zone)
        if found is not None and (others := sorted(found.columns - set(config.partition_by))):
            raise FilterError(
                f"{argument('where')} of an overwrite reads partition columns alone "
                f"({', '.join(config.partition_by) or 'the table has none'}), not {', '.join(others)}: for a condition "
                "on rows use delete_where, update_where or merge",
                columns=tuple(others),
            )
        return found


class _Covered:
    """The partitions for which a condition holds. All are judged at once, and each once."""

    def __init__(self, condition: Filter, config: TableConfig) -> None:
        self._condition, self._config = condition, config
        self._known: dict[Partition, bool] = {}

    def __call__(self, partitions: Collection[Partition]) -> Collection[Partition]:
        new = [partition for partition in partitions if partition not in self._known]
        if new:
            self._known |= dict.fromkeys(new, False) | dict.fromkeys(self._judged(new), True)
        return dict.fromkeys(partition for partition in partitions if self._known[partition])

    def _judged(self, partitions: Sequence[Partition]) -> list[Partition]:
        columns = [pa.array(range(len(partitions)), pa.int64())]
        for place, name in enumerate(self._config.partition_by):
            kind = self._config.schema.field(name).type
            texts = (partition[place] for partition in partitions)
            columns.append(pa.array([None if t is None else parse_partition_value(t, kind) for t in texts], kind))
        rows = pa.table(columns, names=[KIND_COLUMN, *self._config.partition_by])
        return [partitions[number] for number in self._condition.kept(rows)[KIND_COLUMN].to_pylist()]


def start_overwrite(
    handle: Handle,
    begin: TableView,
    frame_schema: pa.Schema,
    request: OverwriteRequest,
    *,
    estimated_bytes: int | None,
) -> Write | UpsertResult:
    """Check everything that can be checked before data is read, as :meth:`Write.start` does.

    :param frame_schema: :attr:`AsStates.schema`.
    """
    write = Write.start(handle, begin, frame_schema, request.write, estimated_bytes=estimated_bytes)
    if isinstance(write, UpsertResult):
        return write
    told: dict[str, Any] = {"mode": "Overwrite", "partitionOverwriteMode": request.partition_mode}
    if request.where is not None:
        told["predicate"] = request.where
    return replace(write, pack=replace(write.pack, combines=False), provenance=write.provenance.with_parameters(**told))


def overwrite_arrow(handle: Handle, begin: TableView, frame: object, request: OverwriteRequest) -> UpsertResult:
    """Overwrite with a frame that can be read as Arrow; see :meth:`lakemerge.LakeTable.overwrite`."""
    request.checked(begin.config)
    given = given_frame(frame)
    states = AsStates.of(given.reader.schema, begin.config)
    write = start_overwrite(handle, begin, states.schema, request, estimated_bytes=given.size_bytes)
    if isinstance(write, UpsertResult):
        return write
    whole, batches = read_ahead(states.batches(given.reader), write.pack, is_held=given.is_arrow)
    if whole is not None:
        write = write.sized(sum(part.nbytes for part in whole))
        held = hold(whole, write.pack)
        if held is not None:
            return _finish_held(write, held, request)
    try:
        packed = [pack(batches, write.pack, 0)]
    except BaseException:
        write.discard()
        raise
    return finish_overwrite(write, packed, request, check=check_in_process, load=load_in_process)


@dataclass(frozen=True, slots=True)
class AsStates:
    """How the rows of a frame become sets: with all columns of the table. Picklable."""

    lacking: tuple[pa.Field, ...]
    """The table's columns that the frame lacks, which are null in its rows. Those of the key it has to have."""
    schema: pa.Schema
    """The columns of the frame, those that it lacks, and the kinds."""

    @staticmethod
    def of(frame_schema: pa.Schema, config: TableConfig) -> AsStates:
        """
        :raises FrameError: the frame has a column with a name of the library's.
        """
        there = {name.lower() for name in frame_schema.names}
        if KIND_COLUMN in there:
            raise FrameError(f"unknown column {KIND_COLUMN!r}: the name is the library's own")
        lacks = (f for f in config.schema if f.name.lower() not in there and f.name not in config.key)
        lacking = tuple(f.with_nullable(True) for f in lacks)
        return AsStates(lacking, pa.schema([*(f.with_nullable(True) for f in frame_schema), *lacking, _KIND]))

    def batches(self, given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            count = batch.num_rows
            nulls = [pa.nulls(count, column.type) for column in self.lacking]
            kinds = pa.array(np.full(count, SET, dtype=np.int8))
            yield pa.RecordBatch.from_arrays([*batch.columns, *nulls, kinds], names=self.schema.names)


CheckFileSlices = Callable[[Write, Sequence[FileSlice]], None]
"""Raises :class:`FrameError` if a key is in file slices twice."""


def _finish_held(write: Write, held: HeldRecords, request: OverwriteRequest) -> UpsertResult:
    """Overwrite with a frame that is in memory."""
    config = write.pack.config
    with discarding(write):
        scope = request.scope(config, (bucket.partition for bucket in held.buckets))
        keys = replace(held, batches=[batch.select(config.key) for batch in held.batches])
        check_once(repeated_key(keys.of(number)[0], config.key) for number in range(len(held.buckets)))
        write = _reserving(write, len(held.buckets))
        adds = load_held(held, write.pack, write.begin.version, write.first_ordinal)
        return _committed(write, adds, scope, held.rows)


def finish_overwrite(
    write: Write,
    packed: Sequence[Packed],
    request: OverwriteRequest,
    *,
    check: CheckFileSlices,
    load: LoadFileSlices,
) -> UpsertResult:
    """Merge what the tasks packed into base files, and commit these."""
    blocks = [block for task in packed for block in task.blocks]
    with discarding(write):
        scope = request.scope(write.pack.config, (block.bucket_id.partition for block in blocks))
        staged = [replace(block, version=write.begin.version + 1) for block in blocks]
        file_slices = list(build_file_slices([], staged, buckets=write.pack.buckets))
        adds: list[AddFile] = []
        if file_slices:
            check(write, file_slices)
            counts = (ordinals_needed(file_slice.stored_bytes, write.pack.settings) for file_slice in file_slices)
            write = _reserving(write, sum(counts))
            adds = load(write, file_slices)
        result = _committed(write, adds, scope, sum(task.rows for task in packed))
    discard_packed(write.handle.store, write.pack.name)
    return result


def check_in_process(write: Write, file_slices: Sequence[FileSlice]) -> None:
    """A :data:`CheckFileSlices` of this process."""
    with thread_pool(write.pack.settings.threads) as pool:
        check_once(pool.map(partial(repeated_key_of, write.pack), file_slices))


def check_once(keys: Iterable[Mapping[str, object] | None]) -> None:
    """Raise :class:`FrameError` for the first repeated key. ``None`` stands for a file slice without one."""
    for key in keys:
        if key is not None:
            raise FrameError(
                f"the frame has key {dict(key)} twice, and an overwrite takes one row of each key: decide which one "
                "counts, or upsert the frame, so that the merger decides",
                key=dict(key),
            )


def repeated_key_of(spec: PackSpec, file_slice: FileSlice) -> dict[str, object] | None:
    """A key that the rows of a file slice have twice; ``None`` if each is there once. Each row is a set, so the kernel
    leaves one row of each key."""
    merge = MergeSpec(spec.store, spec.config, spec.merger, spec.settings)
    key = list(spec.config.key)
    with ParquetFiles(spec.store) as files:
        ranges = merge_file_slice(merge, file_slice, columns=key, sort=False, files=files)
        kept = sum(part.rows.num_rows for part in ranges)
        if kept == sum(block.rows for block in file_slice.blocks):
            return None
        keys = pa.concat_tables(_keys_of(block, spec.config, files) for block in file_slice.blocks)
    return repeated_key(keys, key)


def _keys_of(block: LogBlock, config: TableConfig, files: ParquetFiles) -> pa.Table:
    schema = pa.schema([config.schema.field(name).with_nullable(True) for name in config.key])
    stored = StoredFile(block.file.path, block.file.size_bytes)
    stream = files.stream(
        stored, schema=schema, names=config.names, budget_bytes=_BUDGET_BYTES, row_groups=list(block.groups)
    )
    return pa.concat_tables([schema.empty_table(), *(table for table, _, _ in stream)])


def repeated_key(keys: pa.Table, names: Sequence[str]) -> dict[str, object] | None:
    """The first key, by the order of keys, that is in a table of keys twice."""
    ordered = gather(keys, sort_order(key_columns(keys, names)))
    starts = group_starts(key_columns(ordered, names))
    if len(starts) == keys.num_rows:
        return None
    ends = np.append(starts[1:], keys.num_rows)
    place = int(starts[np.argmax(ends - starts > 1)])
    found: dict[str, object] = ordered.slice(place, 1).to_pylist()[0]
    return found


def _reserving(write: Write, count: int) -> Write:
    """The write with so many ordinals reserved, by a commit of its own."""
    # The write's own view may have columns that only its commit brings.
    begin = write.handle.view(write.begin.snapshot)
    return replace(write, reserved=reserve_ordinals(write.handle, begin, count))


def _committed(write: Write, adds: Sequence[AddFile], scope: Scope, rows: int) -> UpsertResult:
    if rows_of(adds) != rows:
        raise AssertionError("each row of an overwrite is in one base file")
    size = sum(add.size_bytes for add in adds)
    metrics = {"numSourceRows": rows, "numFiles": len(adds), "numOutputBytes": size}
    outcome = commit_overwrite(
        write.handle, write.begin, adds, scope, write.provenance, metrics, buckets=write.pack.buckets
    )
    if isinstance(outcome, AlreadyDone):
        write.discard(ROWS_FOLDERS)
        return write.result(outcome.version, mode="repeated")
    return write.result(outcome.version, rows=rows, files=len(adds) + 1, size=size, mode="overwrite")
