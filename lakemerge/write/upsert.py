"""Upserts and deletes from Arrow frames without Spark, and the functions that Spark writes share.

An upsert packs log files and commits them. The first write into an empty table does more: it merges the records
through the kernel into base files, and commits those instead. The records are packed first, unless they are in memory
(:mod:`lakemerge.write.first_load`). If another writer was first, log files are committed after all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate

import pyarrow as pa

from lakemerge._internal.pools import thread_pool
from lakemerge.commits.appends import NotEmptyError, commit_load, commit_logs
from lakemerge.commits.base import check_not_overtaken
from lakemerge.delta import AddFile, AlreadyDone
from lakemerge.errors import MergeOverflowError, TableDamagedError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.block_index import LogCommit, write_block_index
from lakemerge.format.log_block import LogBlock
from lakemerge.format.names import LOG_FOLDER
from lakemerge.frames import GivenFrame, given_frame
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView, build_file_slices
from lakemerge.results.writes import UpsertResult
from lakemerge.write.base_file import ordinals_needed
from lakemerge.write.discard import ROWS_FOLDERS, discard_packed
from lakemerge.write.first_load import HeldRecords, hold, load_file_slice, load_held, read_ahead
from lakemerge.write.moves import Moves
from lakemerge.write.pack import Packed, pack
from lakemerge.write.start import Write, WriteRequest

__all__ = [
    "LoadFileSlices",
    "discarding",
    "finish",
    "load_in_process",
    "pack_dry",
    "upsert_arrow",
]

LoadFileSlices = Callable[[Write, Sequence[FileSlice]], list[AddFile]]
"""Merges the file slices of a first load into base files. Ordinals count from :attr:`Write.first_ordinal` on."""


def upsert_arrow(
    handle: Handle,
    begin: TableView,
    frame: object,
    request: WriteRequest,
) -> UpsertResult:
    """Upsert a frame that can be read as Arrow; see :meth:`lakemerge.LakeTable.upsert`."""
    given = given_frame(frame)
    if request.before:
        moves = Moves.of(request.before, given.reader.schema, begin.config, request.kind_column)
        given = GivenFrame(moves.expanded(given.reader), given.size_bytes, is_arrow=False)
        request = request.expanded(moves)
    write = Write.start(handle, begin, given.reader.schema, request, estimated_bytes=given.size_bytes)
    if isinstance(write, UpsertResult):
        return write
    held, whole, batches = None, None, iter(given.reader)
    if write.may_load:
        whole, batches = read_ahead(given.reader, write.pack, is_held=given.is_arrow)
    if whole is not None:
        write = write.sized(sum(part.nbytes for part in whole))
        held = None if write.frame.differs else hold(whole, write.pack)
    loaded = None if held is None else _load_held(write, held)
    if loaded is not None:
        return loaded
    try:
        packed = [pack(batches, write.pack, 0)]
    except BaseException:
        write.discard()
        raise
    return finish(write, packed, load_file_slices=load_in_process if held is None else None)


def pack_dry(handle: Handle, begin: TableView, reader: pa.RecordBatchReader, request: WriteRequest) -> Sequence[Packed]:
    """What a transaction would write, with all the checks of a write; nothing is stored."""
    write = Write.start(handle, begin, reader.schema, request, estimated_bytes=None)
    return [] if isinstance(write, UpsertResult) else [pack(reader, replace(write.pack, dry=True), 0)]


def finish(write: Write, packed: Sequence[Packed], *, load_file_slices: LoadFileSlices | None) -> UpsertResult:
    """Commit what the tasks packed, in the given order. If the table is empty and ``load_file_slices`` can make base
    files, commit base files. Else commit logs."""
    blocks = [block for task in packed for block in task.blocks]
    rows = sum(task.rows for task in packed)
    files = list(dict.fromkeys(block.file for block in blocks))
    metrics: dict[str, object] = {"numSourceRows": rows, "numLogFiles": len(files), "numLogBlocks": len(blocks)}
    if united := sum(task.united for task in packed):
        metrics["numUnitedRecords"] = united
    size = sum(file.size_bytes for file in files)
    with discarding(write):
        if blocks and load_file_slices is not None and write.may_load:
            loaded = _load(write, blocks, rows, load_file_slices)
            if loaded is not None:
                return loaded
        logs = _log_commit(write, blocks)
        provenance = write.provenance
        if write.frame.differs:
            stored = frozenset(() if logs is None else logs.columns)
            carried = write.begin.config.names.carried(stored)
            names = [name for name in write.frame.schema.names if name in carried]
            provenance = provenance.with_parameters(columns=names)
        outcome = commit_logs(write.handle, write.begin, logs, provenance, metrics | {"numOutputBytes": size})
    if isinstance(outcome, AlreadyDone):
        write.discard()
        return write.result(outcome.version, mode="repeated")
    index = 0 if logs is None or logs.index is None else 1
    return write.result(outcome.version, rows=rows, files=len(files) + index + 1, size=size, mode="append")


@contextmanager
def discarding(write: Write) -> Iterator[None]:
    """Deletes the write's files after an error, unless its commit may land."""
    try:
        yield
    except TableDamagedError:
        write.discard()
        # If a first load runs for longer than the retention, a vacuum may have deleted its packed rows.
        check_not_overtaken(write.handle, write.begin)
        raise
    except BaseException:
        write.discard()
        raise


def _load(write: Write, blocks: Sequence[LogBlock], rows: int, load_file_slices: LoadFileSlices) -> UpsertResult | None:
    """Merge packed blocks into base files and commit those. Returns ``None`` if the table is not empty any more, or if
    a total does not fit its column. The base files are then deleted, and the logs still exist."""
    staged = [replace(block, version=write.begin.version + 1) for block in blocks]
    file_slices = list(build_file_slices([], staged, buckets=write.pack.buckets))
    try:
        adds = load_file_slices(write, file_slices)
    except MergeOverflowError:
        # This is no reason to refuse the records: later ones may bring the total back into range.
        write.discard(ROWS_FOLDERS)
        return None
    ordinals = sum(ordinals_needed(file_slice.stored_bytes, write.pack.settings) for file_slice in file_slices)
    loaded = _commit_load(write, adds, rows=rows, ordinals=ordinals)
    if loaded is not None and loaded.mode == "load":
        discard_packed(write.handle.store, write.pack.name)
    return loaded


def _load_held(write: Write, held: HeldRecords) -> UpsertResult | None:
    """Load a frame that is in memory. Returns ``None`` if the table is not empty any more, if a total does not fit its
    column, or if there is nothing to store; then no file is left."""
    with discarding(write):
        try:
            adds = load_held(held, write.pack, write.begin.version, write.first_ordinal)
        except MergeOverflowError:
            # Logs hold the records all the same, see _load.
            write.discard(ROWS_FOLDERS)
            return None
        return _commit_load(write, adds, rows=held.rows, ordinals=len(held.buckets)) if adds else None


def _commit_load(write: Write, adds: Sequence[AddFile], *, rows: int, ordinals: int) -> UpsertResult | None:
    """Commit the base files of a first load. If the table is not empty any more, the files are deleted, and ``None`` is
    returned.

    :param ordinals: how many are taken by the load.
    """
    bases = [BaseFile.of(add, write.begin.config.stored_partition_by) for add in adds]
    files = len(adds) + sum(base.tombstones is not None for base in bases) + 1
    size = sum(add.size_bytes for add in adds)
    provenance = write.provenance.with_parameters(mode="load")
    metrics = {"numSourceRows": rows, "numFiles": len(adds), "numOutputBytes": size}
    try:
        outcome = commit_load(
            write.handle, write.begin, adds, provenance, metrics, buckets=write.pack.buckets, ordinals=ordinals
        )
    except NotEmptyError:
        write.discard(ROWS_FOLDERS)
        return None
    if isinstance(outcome, AlreadyDone):
        write.discard()
        return write.result(outcome.version, mode="repeated")
    return write.result(outcome.version, rows=rows, files=files, size=size, mode="load")


def load_in_process(write: Write, file_slices: Sequence[FileSlice]) -> list[AddFile]:
    """Merge the file slices of a first load in this process, on a few threads."""
    counts = [ordinals_needed(file_slice.stored_bytes, write.pack.settings) for file_slice in file_slices]
    firsts = accumulate(counts[:-1], initial=write.first_ordinal)
    with thread_pool(write.pack.settings.threads) as pool:
        load = partial(load_file_slice, write.pack, write.begin.version)
        loaded = list(pool.map(load, file_slices, firsts))
    return [add for adds in loaded for add in adds]


def _log_commit(write: Write, blocks: Sequence[LogBlock]) -> LogCommit | None:
    if not blocks:
        return None
    carried = frozenset[str]().union(*(block.file.columns for block in blocks))
    stored = write.begin.config.names.all_of(write.frame.schema.names)
    columns = tuple(name for name in stored if name in carried)
    index = None
    if len(blocks) > write.pack.settings.inline_blocks:
        index = f"{LOG_FOLDER}/{write.pack.name}-index.parquet"
        write_block_index(write.handle.store, index, blocks, columns)
    return LogCommit(
        id=write.provenance.transaction.id,
        version=-1,
        merger_epoch=write.begin.state.merger_epoch,
        columns=columns,
        blocks=tuple(blocks),
        index=index,
    )
