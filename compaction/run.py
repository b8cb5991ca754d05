"""Full compaction: merge the live logs of every dirty tile into new base files, in one commit.

Writers are never blocked: appends that land meanwhile are newer than the version read and stay
live. Of two compactions of one tile the later to commit discards its files and nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from lakemerge.errors import OutcomeUnknownError
from lakemerge.handle import Handle
from lakemerge.log import AddFile
from lakemerge.read.merge import MergeSpec, merge_tile
from lakemerge.read.parquet import ParquetFiles
from lakemerge.results import CompactionResult
from lakemerge.slices.model import BaseFile
from lakemerge.slices.view import TableView, Tile
from lakemerge.write.base_file import BaseWriteSpec, discard_base_files, ordinals_needed, write_base_files
from lakemerge.write.commits import Provenance, commit_compaction, reserve_ordinals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TileJob", "compact", "compact_tile"]


@dataclass(frozen=True, slots=True)
class TileJob:
    """One tile to compact. Picklable."""

    tile: Tile
    first_ordinal: int
    ordinals: int


def compact(handle: Handle, read: TableView, *, spark: SparkSession | None) -> CompactionResult:
    """Compact every tile that has live logs at the version read; see :meth:`lakemerge.LakeTable.compact`."""
    started = time.monotonic()
    merger = handle.merger(read)
    dirty = [tile for tile in read.tiles if not tile.is_clean]
    if not dirty:
        return CompactionResult(
            version=read.version,
            tiles=0,
            rows=0,
            files=0,
            bytes=0,
            replaced_files=0,
            seconds=time.monotonic() - started,
        )
    counts = [ordinals_needed(tile.stored_bytes, handle.settings) for tile in dirty]
    first = reserve_ordinals(handle, read, sum(counts))
    jobs = [TileJob(*job) for job in zip(dirty, accumulate(counts[:-1], initial=first), counts, strict=True)]
    txn_id = handle.new_txn_id()
    merge = MergeSpec(handle.store, read.config, merger, handle.settings)
    write = BaseWriteSpec(
        store=handle.store,
        config=read.config,
        settings=handle.settings,
        name=handle.write_name(read, txn_id),
        merged_through=read.version,
        buckets=read.config.buckets or 1,
    )
    try:
        adds = _run(handle, jobs, merge, write, spark)
        bases = [BaseFile.of(add, read.config.partition_by) for add in adds]
        rows, size = sum(base.rows for base in bases), sum(add.size_bytes for add in adds)
        replaced = sum(tile.base is not None for tile in dirty)
        metrics = {
            "numAddedFiles": len(adds),
            "numRemovedFiles": replaced,
            "numOutputRows": rows,
            "numOutputBytes": size,
            "numLogBlocks": sum(len(tile.blocks) for tile in dirty),
        }
        provenance = Provenance("COMPACT", {"readVersion": read.version, "tiles": len(dirty)}, txn_id)
        committed = commit_compaction(handle, read, dirty, adds, provenance, metrics)
    except OutcomeUnknownError:
        raise
    except Exception:
        discard_base_files(handle.store, write.name)
        raise
    return CompactionResult(
        version=committed.version,
        tiles=len(dirty),
        rows=rows,
        files=len(adds),
        bytes=size,
        replaced_files=replaced,
        seconds=time.monotonic() - started,
    )


def compact_tile(job: TileJob, merge: MergeSpec, write: BaseWriteSpec) -> list[AddFile]:
    """Merge one tile and write its base files; rows stream through in key ranges."""
    with ParquetFiles(merge.store) as files:
        return write_base_files(
            merge_tile(merge, job.tile, columns=merge.config.schema.names, sort=True, files=files),
            write,
            job.tile.slice,
            lower=job.tile.lower,
            ordinals=range(job.first_ordinal, job.first_ordinal + job.ordinals),
            now_ms=Handle.now_ms(),
        )


def _run(
    handle: Handle, jobs: Sequence[TileJob], merge: MergeSpec, write: BaseWriteSpec, spark: SparkSession | None
) -> list[AddFile]:
    work = partial(compact_tile, merge=merge, write=write)
    if spark is not None:
        from lakemerge.spark.jobs import map_evenly

        parts = map_evenly(
            spark,
            work,
            jobs,
            sizes=[job.tile.stored_bytes for job in jobs],
            target_bytes=handle.settings.target_task_bytes,
        )
    else:
        with ThreadPoolExecutor(handle.settings.threads) as pool:
            parts = list(pool.map(work, jobs))
    return [add for part in parts for add in part]
