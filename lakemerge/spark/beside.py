"""Tiles whose logs a read merges first: a job merges them, then Spark's own reader reads what is stored.

What was merged is kept by the open table for later reads of the same version and columns. So the first read after
a commit costs a minor compaction more than one after it, and later ones a Python task that passes on merged rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakemerge.handle import Handle
from lakemerge.read.beside import merge_beside
from lakemerge.read.merge import MergeSpec
from lakemerge.schema import to_ddl
from lakemerge.slices.view import TableView, Tile
from lakemerge.spark.files import scan_beside
from lakemerge.spark.jobs import bins, jvm_session, lean, map_evenly

__all__ = ["scan_merging_first"]

_TASK_BYTES = 8 * 2**20
"""Of compressed rows in a Python task, about; to start one costs as much as some of them."""
_BATCH_ROWS = 64 * 1024


def scan_merging_first(
    spark: SparkSession, handle: Handle, view: TableView, spec: MergeSpec, tiles: Sequence[Tile], columns: Sequence[str]
) -> list[DataFrame]:
    """The tiles' stored rows that are not superseded, and the rows that the logs bring in.

    :param tiles: see :func:`lakemerge.read.beside.to_merge_first`.
    """
    positions, rows = _merged(spark, handle, view, spec, tiles, columns)
    stored = scan_beside(spark, handle, view, tiles, columns, positions)
    return [stored] if rows is None else [stored, rows]


def _merged(
    spark: SparkSession, handle: Handle, view: TableView, spec: MergeSpec, tiles: Sequence[Tile], columns: Sequence[str]
) -> tuple[pa.Table, DataFrame | None]:
    """Superseded positions, and the rows in their place; of what is kept, if it is there."""
    bases = [tile.base.add.path for tile in tiles if tile.base is not None]
    key = ("merged", jvm_session(spark).sessionUUID(), view.version, tuple(columns), *bases)
    known = handle.scans.get(key)
    if known is not None:
        return cast("tuple[pa.Table, DataFrame | None]", known)
    found = map_evenly(
        spark,
        partial(merge_beside, spec=spec, columns=columns),
        [lean(tile) for tile in tiles],
        sizes=[tile.stored_bytes for tile in tiles],
        target_bytes=spec.settings.target_task_bytes,
    )
    positions = pa.concat_tables(part.positions for part in found)
    streams = [part.rows for part in found if part.rows]
    schema = pa.schema([view.config.schema.field(name).with_nullable(True) for name in columns])
    merged = (positions, _sent(spark, streams, schema) if streams else None)
    handle.scans.keep(key, merged, positions.nbytes + sum(map(len, streams)))
    return merged


def _sent(spark: SparkSession, streams: Sequence[bytes], schema: pa.Schema) -> DataFrame:
    """Rows that go to Spark's tasks with the query."""
    groups = bins([len(stream) for stream in streams], target_bytes=_TASK_BYTES, at_least=1)
    tasks = [[streams[index] for index in group] for group in groups]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for stream in tasks[number]:
                    with pa.ipc.open_stream(stream) as rows:
                        yield from rows.read_all().to_batches(max_chunksize=_BATCH_ROWS)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, to_ddl(schema))
