"""Premerge: logs of file slices are merged before a read, and then Spark's own reader reads the stored rows.

The open table keeps the result for later reads of the same version. So the first read after a commit costs a minor
compaction more than the next. If the merged rows are records of the logs, Spark reads these from the logs, too, and the
result is their places, for any columns. Otherwise the result is rows of the requested columns, which a Python task of
each later read passes on.
"""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.merge import MergeSpec
from lakemerge.read.premerge import Premerged, can_scan_logs, premerge
from lakemerge.schema.schema import to_ddl
from lakemerge.spark.scans import scan_records, scan_without, selected_kept
from lakemerge.spark.sessions import prepare_workers, session_id
from lakemerge.spark.transport.jobs import bins, limited, map_evenly
from lakemerge.spark.transport.sending import pickled
from mergers.contract import Bools, Ints

__all__ = ["is_kept", "scan_premerging"]

_TASK_BYTES = 8 * 2**20
"""About how many bytes of compressed rows a Python task has. To start a task costs as much as some rows."""
_BATCH_ROWS = 64 * 1024


def scan_premerging(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    spec: MergeSpec,
    file_slices: Sequence[FileSlice],
    columns: Sequence[str],
    condition: str | None,
) -> list[DataFrame]:
    """The file slices' stored rows that are not superseded, and the rows that the logs bring. The frames are kept, so
    two reads get the same columns.

    :param file slices: see :func:`lakemerge.read.premerge.may_premerge`.
    :param condition: a condition on stored rows, see :func:`lakemerge.spark.scans.scan_minor`.
    """
    merged = _merged(spark, handle, view, spec, file_slices, columns)
    parts = [scan_without(spark, handle, view, file_slices, columns, merged.positions, merged.key, condition)]
    kept = ((("rows", place, *merged.key), rows) for place, rows in enumerate(merged.rows))
    return [*parts, *(selected_kept(spark, handle, key, rows, columns) for key, rows in kept)]


def is_kept(
    spark: SparkSession, handle: Handle, view: TableView, file_slices: Sequence[FileSlice], columns: Sequence[str]
) -> bool:
    """Whether the table keeps the merge of an earlier read."""
    return any(handle.scans.get(key) is not None for key in _keys(spark, view, file_slices, columns))


def _keys(
    spark: SparkSession, view: TableView, file_slices: Sequence[FileSlice], columns: Sequence[str]
) -> tuple[tuple[Hashable, ...], tuple[Hashable, ...]]:
    """The cache keys for merges of file slices: for any columns, and for these columns."""
    bases = [file_slice.base.add.path for file_slice in file_slices if file_slice.base is not None]
    of_any = ("merged", session_id(spark), view.version, *bases)
    return of_any, (*of_any, tuple(columns))


@dataclass(frozen=True, slots=True)
class _Merged:
    """The result of merging file slices."""

    positions: pa.Table
    """Superseded positions, with the columns of :data:`lakemerge.format.minor.POSITIONS_SCHEMA`."""
    rows: list[DataFrame]
    """The rows that replace them, and new rows."""
    key: tuple[Hashable, ...]
    """The cache key."""


def _merged(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    spec: MergeSpec,
    file_slices: Sequence[FileSlice],
    columns: Sequence[str],
) -> _Merged:
    """The kept result of an earlier read, or else a new one."""
    of_any, of_these = _keys(spark, view, file_slices, columns)
    known = handle.scans.get(of_any) or handle.scans.get(of_these)
    if known is not None:
        return cast("_Merged", known)
    found = map_evenly(
        spark,
        partial(_premerged, spec=spec, columns=columns, pick=can_scan_logs(file_slices, spec.settings.reads)),
        [pickled(file_slice) for file_slice in file_slices],
        sizes=[file_slice.stored_bytes for file_slice in file_slices],
        settings=spec.settings,
    )
    positions = pa.concat_tables(part.positions for part in found)
    rows, held = [], positions.nbytes
    records = _records(found)
    if records:
        rows.append(scan_records(spark, handle, view, records))
        held += sum(len(bits) // 8 for bits in records.values())
    streams = [part.rows for part in found if part.rows]
    if streams:
        schema = pa.schema([view.config.schema.field(name).with_nullable(True) for name in columns])
        rows.append(_sent(spark, streams, schema))
        held += sum(map(len, streams))
    merged = _Merged(positions, rows, of_any if all(part.picked for part in found) else of_these)
    handle.scans.keep(merged.key, merged, held)
    return merged


def _premerged(file_slice: bytes, spec: MergeSpec, columns: Sequence[str], *, pick: bool) -> Premerged:
    return premerge(pickle.loads(file_slice), spec, columns, pick=pick)  # noqa: S301 - our own driver's bytes


def _records(found: Sequence[Premerged]) -> dict[str, Bools]:
    """Log file -> a bit for each record, up to the last wanted record."""
    places: dict[str, list[Ints]] = {}
    for part in found:
        for path, rows in part.records.items():
            places.setdefault(path, []).append(rows)
    records = {}
    for path, parts in places.items():
        rows = np.concatenate(parts)
        records[path] = np.zeros(int(rows.max()) + 1, dtype=np.bool_)
        records[path][rows] = True
    return records


def _sent(spark: SparkSession, streams: Sequence[bytes], schema: pa.Schema) -> DataFrame:
    """Rows that are sent to Spark's tasks with the query."""
    prepare_workers(spark)
    groups = bins([len(stream) for stream in streams], target_bytes=_TASK_BYTES, at_least=1)
    tasks = [[streams[index] for index in group] for group in groups]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for stream in tasks[number]:
                    with pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(use_threads=False)) as rows:
                        yield from rows.read_all().to_batches(max_chunksize=_BATCH_ROWS)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(limited(run), to_ddl(schema))
