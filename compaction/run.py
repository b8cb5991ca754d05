"""Compaction: merge live logs into base files, or beside them, in one commit.

*Full* compaction rewrites the base file of every tile that has logs. *Minor* compaction leaves base
files as they are and writes the changed rows beside them, with the positions they supersede: cheap
to write, and read without a merge (docs/table-format.md, section 8).

Writers are never blocked: appends that land meanwhile are newer than the version read and stay
live. Of two compactions of one tile the later to commit discards its files and nothing is lost. A tile
with a total that does not fit its column is skipped and reported; its logs stay live.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from compaction.tile import Merged, Rewritten, TileJob, run_job
from lakemerge.errors import OutcomeUnknownError
from lakemerge.handle import Handle
from lakemerge.read.merge import MergeSpec
from lakemerge.results import CompactionResult, SkippedTile
from lakemerge.slices.model import BaseFile
from lakemerge.slices.view import TableView, Tile
from lakemerge.write.base_file import BaseWriteSpec, discard_base_files, ordinals_needed
from lakemerge.write.commits import Provenance, commit_compaction, reserve_ordinals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["compact"]

_Outcome = Rewritten | Merged | SkippedTile

_logger = logging.getLogger(__name__)


def compact(
    handle: Handle, read: TableView, *, minor: bool = False, spark: SparkSession | None = None
) -> CompactionResult:
    """Compact every tile that has live logs at the version read; see :meth:`lakemerge.LakeTable.compact`.

    A full compaction takes up what minor ones merged. A minor one writes base files where a slice has
    none yet.
    """
    started = time.monotonic()
    merger = handle.merger(read)
    tiles = [tile for tile in read.tiles if not (tile.is_merged if minor else tile.is_clean)]
    if not tiles:
        return _result(read.version, started, [], [])
    jobs = _jobs(handle, read, tiles, minor=minor)
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
        outcomes = _run(handle, jobs, merge, write, spark)
        if any(isinstance(outcome, SkippedTile) for outcome in outcomes):
            _warn(handle, outcomes)
            # The ranges of a tile before the one that does not fit may be in files already.
            discard_base_files(handle.store, write.name, keep=_written(outcomes))
        if all(isinstance(outcome, SkippedTile) for outcome in outcomes):
            return _result(read.version, started, tiles, outcomes)
        result = _result(read.version, started, tiles, outcomes)
        version = _commit(handle, read, tiles, outcomes, result, txn_id, minor=minor)
    except OutcomeUnknownError:
        raise
    except Exception:
        discard_base_files(handle.store, write.name)
        raise
    return replace(result, version=version, seconds=time.monotonic() - started)


def _jobs(handle: Handle, read: TableView, tiles: Sequence[Tile], *, minor: bool) -> list[TileJob]:
    beside = [minor and tile.base is not None for tile in tiles]
    counts = [
        1 if stays else ordinals_needed(tile.stored_bytes, handle.settings)
        for tile, stays in zip(tiles, beside, strict=True)
    ]
    first = reserve_ordinals(handle, read, sum(counts))
    firsts = accumulate(counts[:-1], initial=first)
    return [TileJob(*job) for job in zip(tiles, beside, firsts, counts, strict=True)]


def _run(
    handle: Handle, jobs: Sequence[TileJob], merge: MergeSpec, write: BaseWriteSpec, spark: SparkSession | None
) -> list[_Outcome]:
    """What became of each job, in their order."""
    work = partial(run_job, merge=merge, write=write)
    if spark is not None:
        from lakemerge.spark.jobs import map_evenly

        return map_evenly(
            spark,
            work,
            jobs,
            sizes=[job.tile.stored_bytes for job in jobs],
            target_bytes=handle.settings.target_task_bytes,
        )
    with ThreadPoolExecutor(handle.settings.threads) as pool:
        running = [pool.submit(work, job) for job in jobs]
        for done, _ in enumerate(as_completed(running), start=1):
            _logger.info("compaction of %s: %d of %d tiles", handle.store.url, done, len(jobs))
        return [job.result() for job in running]


def _commit(
    handle: Handle,
    read: TableView,
    tiles: Sequence[Tile],
    outcomes: Sequence[_Outcome],
    done: CompactionResult,
    txn_id: str,
    *,
    minor: bool,
) -> int:
    pairs = list(zip(tiles, outcomes, strict=True))
    replaced = [tile for tile, outcome in pairs if isinstance(outcome, Rewritten)]
    merged = [tile for tile, outcome in pairs if isinstance(outcome, Merged)]
    metrics = {
        "numAddedFiles": done.files,
        "numRemovedFiles": done.replaced_files,
        "numOutputRows": done.rows,
        "numOutputBytes": done.bytes,
        "numLogBlocks": sum(len(tile.blocks) for tile in (*replaced, *merged)),
        "numSkippedTiles": len(done.skipped),
    }
    parameters = {"readVersion": read.version, "tiles": done.tiles, "mode": "minor" if minor else "full"}
    committed = commit_compaction(
        handle,
        read,
        Provenance("COMPACT", parameters, txn_id),
        metrics,
        replaced=replaced,
        adds=[add for outcome in outcomes if isinstance(outcome, Rewritten) for add in outcome.adds],
        merged=merged,
        minors=[outcome.minor for outcome in outcomes if isinstance(outcome, Merged)],
    )
    return committed.version


def _written(outcomes: Sequence[_Outcome]) -> Iterator[str]:
    """Paths of the files that go into the commit."""
    for outcome in outcomes:
        if isinstance(outcome, Rewritten):
            for add in outcome.adds:
                tombstones = BaseFile.of(add, ()).tombstones
                yield from (add.path,) if tombstones is None else (add.path, tombstones)
        elif isinstance(outcome, Merged):
            yield from outcome.minor.paths


def _warn(handle: Handle, outcomes: Sequence[_Outcome]) -> None:
    for tile in (outcome for outcome in outcomes if isinstance(outcome, SkippedTile)):
        where = f"partition {tile.partition}, bucket {tile.bucket}" if tile.partition else f"bucket {tile.bucket}"
        _logger.warning("compaction of %s skipped a tile of %s: %s", handle.store.url, where, tile.reason)


def _result(version: int, started: float, tiles: Sequence[Tile], outcomes: Sequence[_Outcome]) -> CompactionResult:
    pairs = list(zip(tiles, outcomes, strict=True))
    adds = [add for outcome in outcomes if isinstance(outcome, Rewritten) for add in outcome.adds]
    beside = [outcome for outcome in outcomes if isinstance(outcome, Merged)]
    rows = sum(BaseFile.of(add, ()).rows for add in adds)
    return CompactionResult(
        version=version,
        tiles=sum(not isinstance(outcome, SkippedTile) for outcome in outcomes),
        rows=rows + sum(outcome.rows for outcome in beside),
        files=len(adds) + sum(outcome.rows > 0 for outcome in beside),
        bytes=sum(add.size_bytes for add in adds) + sum(outcome.bytes for outcome in beside),
        replaced_files=sum(isinstance(o, Rewritten) and tile.base is not None for tile, o in pairs),
        seconds=time.monotonic() - started,
        skipped=tuple(outcome for outcome in outcomes if isinstance(outcome, SkippedTile)),
    )
