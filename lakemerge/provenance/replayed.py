"""The commits that a replay makes in the other table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.commits.provenance import Provenance
from lakemerge.commits.records import commit_load, commit_note
from lakemerge.delta import AlreadyDone
from lakemerge.format.names import KIND_COLUMN
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.provenance.records import nullable
from lakemerge.provenance.retained import Retained
from lakemerge.provenance.streams import KIND
from lakemerge.read.filter.filter import Filter
from lakemerge.read.merge import MergedRange, MergeSpec, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles, shaped
from lakemerge.results.results import UpsertResult
from lakemerge.write.base_file import BaseWriteSpec, ordinals_needed, write_base_files
from lakemerge.write.discard import discard
from lakemerge.write.frame import plan_frame
from lakemerge.write.pack import pack
from lakemerge.write.request import WriteRequest
from lakemerge.write.upsert import Write, finish, load_in_process
from mergers.kernel import VERSION_COLUMN, tombstone_schema
from mergers.restart import CLEAR, SET, RecordKind

if TYPE_CHECKING:
    from lakemerge.delta import AddFile
    from lakemerge.table.open_table import OpenTable

__all__ = ["commit_frame", "commit_number", "load_state"]

_OPERATION = "REPLAY"


def commit_frame(
    table: OpenTable, records: Sequence[pa.RecordBatchReader], txn: tuple[str, int], told: Mapping[str, object]
) -> int:
    """Commit the records of one version of the source, in their order. Returns how many there were.

    :param records: streams one after the other, each with the columns that its records carry.
    :param told: where they came from, see :func:`lakemerge.provenance.origins.custody_of`.
    """
    found = [_with_states(reader) for reader in records]
    # A commit is a transaction's as a whole, or not at all; a reader without records fits both.
    states = any(of_states for _, of_states, _ in found)
    readers = [reader for reader, _, empty in found if not (states and empty)]
    request = WriteRequest(
        kind_column=None if states else KIND, states=states, info={"replay": dict(told)}, merge_schema=True
    )
    schema = pa.unify_schemas([reader.schema for reader in readers])
    write = Write.start(table.handle, table.view, schema, request, estimated_bytes=None)
    if isinstance(write, UpsertResult):
        raise AssertionError("a write without a transaction is never done already")
    provenance = replace(write.provenance, operation=_OPERATION, app_txn=txn)
    write = replace(write, provenance=provenance)
    try:
        packed = []
        for task, reader in enumerate(readers):
            kind_column = request.kind_column
            config, merger = write.begin.config, write.pack.merger
            plan = plan_frame(reader.schema, config, merger, kind_column=kind_column, states=states)
            packed.append(pack(reader, replace(write.pack, frame=plan), task))
    except BaseException:
        write.discard()
        raise
    return finish(write, packed, load_file_slices=load_in_process).rows


def _with_states(records: pa.RecordBatchReader) -> tuple[pa.RecordBatchReader, bool, bool]:
    """The records, whether they are those of a transaction, and whether there are none. The records of a transaction
    have the column of kinds of sets and clears."""
    batches = iter(records)
    first = next((batch for batch in batches if batch.num_rows), None)
    codes = {RecordKind.SET.symbol: SET, RecordKind.CLEAR.symbol: CLEAR}
    if first is None or first.column(KIND)[0].as_py() not in codes:
        both = batches if first is None else chain([first], batches)
        return pa.RecordBatchReader.from_batches(records.schema, both), False, first is None
    place = records.schema.get_field_index(KIND)
    schema = records.schema.set(place, pa.field(KIND_COLUMN, pa.int8()))

    def coded() -> Iterator[pa.RecordBatch]:
        for batch in chain([first], batches):
            kinds = pc.index_in(batch.column(KIND), pa.array(list(codes), pa.string()))
            found = pa.array(list(codes.values()), pa.int8()).take(kinds)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns[:place], found, *batch.columns[place + 1 :]], schema=schema
            )

    return pa.RecordBatchReader.from_batches(schema, coded()), True, False


def commit_number(table: OpenTable, txn: tuple[str, int]) -> None:
    """Note that a version without records is replayed."""
    handle = table.handle
    parameters = {"version": txn[1]}
    commit_note(handle, table.view, Provenance(_OPERATION, parameters, handle.new_transaction(), txn))


def load_state(
    source: Handle,
    known: Retained,
    handle: Handle,
    begin: TableView,
    txn: tuple[str, int],
    where: Filter | None,
    told: Mapping[str, object],
) -> None:
    """Write the rows and remembered deletes of the version that a replay begins with, as a table's first base files.

    No merger is involved, because the rows are merged already.
    """
    start = known.start
    spec = MergeSpec(source.store, start.config, source.merger(start), source.settings)
    transaction = handle.new_transaction()
    write = BaseWriteSpec.of(handle, begin, transaction, buckets=start.config.buckets or 1)
    early = max(
        (e.horizon for e in known.expiries if start.version > e.horizon and e.version > start.version), default=-1
    )
    adds: list[AddFile] = []
    first, ordinals = begin.state.next_ordinal, 0
    try:
        for file_slice in start.file_slices:
            count = ordinals_needed(file_slice.stored_bytes, handle.settings)
            with ParquetFiles(source.store) as files:
                ranges = merge_file_slice(spec, file_slice, columns=start.config.schema.names, sort=True, files=files)
                adds += write_base_files(
                    _moved(ranges, begin, early, where),
                    replace(write, buckets=file_slice.buckets),
                    file_slice.bucket_id,
                    lower=file_slice.lower,
                    ordinals=range(first + ordinals, first + ordinals + count),
                    now_ms=handle.now_ms(),
                )
            ordinals += count
        custody = {**told, "early": early if early >= 0 else None}
        parameters = {"mode": "load", "version": start.version}
        provenance = Provenance(_OPERATION, parameters, transaction, txn, info={"replay": custody})
        outcome = commit_load(
            handle, begin, adds, provenance, {"numFiles": len(adds)}, buckets=write.buckets, ordinals=ordinals
        )
    except BaseException:
        discard(handle.store, transaction, write.name)
        raise
    if isinstance(outcome, AlreadyDone):
        # Another replay was faster, so no version names these files.
        discard(handle.store, transaction, write.name)


def _moved(ranges: Iterator[MergedRange], begin: TableView, early: int, where: Filter | None) -> Iterator[MergedRange]:
    """Ranges with the columns of the other table. Deletes that a later expiry will forget get an early version, below
    its horizon; the horizon lies before everything that is replayed."""
    schema, deleted = nullable(begin.config.schema), tombstone_schema(begin.config.shape)
    for part in ranges:
        rows = part.rows if where is None else where.kept(part.rows)
        tombstones = shaped(part.tombstones, deleted)
        versions = tombstones.column(VERSION_COLUMN).to_numpy()
        moved = np.where(versions <= early, begin.version, begin.version + 1)
        place = deleted.get_field_index(VERSION_COLUMN)
        tombstones = tombstones.set_column(place, deleted.field(place), pa.array(moved, pa.int64()))
        yield MergedRange(shaped(rows, schema), tombstones)
