"""Rescale: changes the number of buckets, bucket by bucket, while others read and write.

Logs stay as they are: their blocks have the count under which they were written. Base files of a smaller count than the
table's are buckets of their own (:mod:`lakemerge.layout.bucket_counts`). So every version is correct, and if a rescale
is killed, the next one finishes it:

- more buckets: one commit sets the count, then each bucket of a smaller count is split in a commit that merges its
  logs, replaces its files by those of the new buckets, and leaves the table's rows as they are;
- fewer buckets: buckets are joined first, by commits of the same kind, and the last commit sets the count.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from compaction.run.file_slice import skipped_file_slice
from compaction.run.jobs import run_jobs
from lakemerge.commits.base import FileSlicesChangedError
from lakemerge.commits.compaction import commit_compaction
from lakemerge.commits.provenance import Provenance
from lakemerge.commits.rescale import commit_layout, reserve_ordinals
from lakemerge.delta import AddFile
from lakemerge.errors import CommitConflictError, InputError
from lakemerge.format.base_file import paths_of, rows_of
from lakemerge.format.config import TableConfig, bucket_problems
from lakemerge.format.keys import BucketId
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.layout.xxhash64 import buckets as bucket_numbers
from lakemerge.read.merge import MergedRange, MergeSpec, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.runs import Run, key_ranges
from lakemerge.results.compactions import RescaleResult, SkippedFileSlice
from lakemerge.write.base_file import BaseWriteSpec, ordinals_needed, write_base_files
from lakemerge.write.discard import ROWS_FOLDERS, discard
from mergers.failing import FAILURES
from mergers.kernel import VERSION_COLUMN, tombstone_schema
from mergers.keys import key_columns, sort_order
from mergers.logs import logger
from mergers.portions import gather, together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BucketJob", "RescaledBucket", "rescale", "write_bucket"]


_MAX_ROUNDS = 20
"""A round ends when a compaction was faster. The rescale gives up after so many rounds."""
_BATCH_TASKS = 4
"""A commit has buckets for so many tasks. So a small table needs one commit, and a large one loses little work when
the rescale is killed."""

_logger = logger(__name__)


def rescale(handle: Handle, begin: TableView, buckets: int, *, spark: SparkSession | None = None) -> RescaleResult:
    """Change the bucket count; see :meth:`lakemerge.LakeTable.rescale`."""
    for problem in bucket_problems(buckets):
        raise InputError(problem, buckets=buckets)
    run = _Run(handle, begin, buckets, spark)
    for _ in range(_MAX_ROUNDS):
        try:
            if run.step():
                return run.result()
        except FileSlicesChangedError as error:
            _logger.info("rescale of %s tries again: %s", handle.store.url, error.message)
    raise CommitConflictError(
        f"compactions changed buckets {_MAX_ROUNDS} times while they were rescaled; what was done stays, call rescale "
        "again to finish"
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Buckets that are rewritten together."""

    sources: tuple[tuple[FileSlice, ...], ...]
    """The file slices of each bucket that has any, in key order."""
    vacant: tuple[FileSlice, ...]
    """Buckets without file slices. The commit is valid only if nobody has written base files for them meanwhile."""
    targets: tuple[BucketId, ...]

    @property
    def file_slices(self) -> list[FileSlice]:
        return [file_slice for source in self.sources for file_slice in source]

    @property
    def bytes(self) -> int:
        return sum(file_slice.stored_bytes for file_slice in self.file_slices)


class _Run:
    """One call of rescale. Each step begins at the tip."""

    def __init__(self, handle: Handle, begin: TableView, buckets: int, spark: SparkSession | None) -> None:
        self._handle = handle
        self._view = begin
        self._before = begin.config.buckets
        self._buckets = buckets
        self._spark = spark
        self._started = time.monotonic()
        self._done: list[tuple[_Group, list[AddFile]]] = []
        self._skipped: dict[tuple[BucketId, ...], SkippedFileSlice] = {}
        self._commits = 0
        self._phases = {"merge": 0.0, "commit": 0.0}

    def step(self) -> bool:
        """Set the count, or rewrite buckets that do not have it yet. Returns whether nothing is left to do.

        Raises :class:`FileSlicesChangedError` if a compaction was faster. The next step then sees its result.
        """
        self._view = self._handle.latest(self._view)
        count = self._view.config.buckets
        if count is None or count < self._buckets:
            self._set_count()
            return False
        groups = list(
            _joins(self._view, self._buckets) if count > self._buckets else _splits(self._view, self._buckets)
        )
        left = [group for group in groups if group.targets not in self._skipped]
        if left:
            self._rewrite(left)
            return False
        if count == self._buckets or groups:
            return True
        self._set_count()
        return False

    def result(self) -> RescaleResult:
        adds = [add for _, written in self._done for add in written]
        seconds = time.monotonic() - self._started
        return RescaleResult(
            version=self._view.version,
            before=self._before,
            buckets=self._view.config.buckets or self._buckets,
            commits=self._commits,
            written_buckets=sum(len(group.targets) for group, _ in self._done),
            rows=rows_of(adds),
            files=len(adds),
            bytes=sum(add.size_bytes for add in adds),
            bytes_read=sum(group.bytes * len(group.targets) for group, _ in self._done),
            replaced_files=sum(
                file_slice.base is not None for group, _ in self._done for file_slice in group.file_slices
            ),
            seconds=seconds,
            phases={"plan": seconds - sum(self._phases.values()), **self._phases},
            skipped=tuple(self._skipped.values()),
        )

    def _set_count(self) -> None:
        with self._timed("commit"):
            self._view = self._handle.view(commit_layout(self._handle, self._view, self._buckets))
        self._commits += 1

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._phases[phase] += time.monotonic() - started

    def _rewrite(self, groups: Sequence[_Group]) -> None:
        """Rewrite all groups as of one version. Each commit has some of them."""
        settings = self._handle.settings
        counts = [ordinals_needed(group.bytes, settings) for group in groups for _ in group.targets]
        first = reserve_ordinals(self._handle, self._view, sum(counts))
        jobs: list[tuple[_Group, list[BucketJob]]] = []
        numbers = iter(counts)
        for group in groups:
            own = []
            for target in group.targets:
                count = next(numbers)
                own.append(BucketJob(group.sources, target, self._buckets, first, count))
                first += count
            jobs.append((group, own))
        for number, batch in enumerate(_batches(jobs, _BATCH_TASKS * settings.target_task_bytes), start=1):
            _logger.info("rescale of %s: commit %d, %d groups of buckets", self._handle.store.url, number, len(batch))
            self._commit(batch)

    def _commit(self, batch: Sequence[tuple[_Group, list[BucketJob]]]) -> None:
        handle, view = self._handle, self._view
        transaction = handle.new_transaction()
        write = BaseWriteSpec.of(handle, view, transaction, buckets=self._buckets)
        try:
            with self._timed("merge"):
                outcomes = iter(self._run([job for _, jobs in batch for job in jobs], view.config, write))
            done = self._sorted_out([(group, [next(outcomes) for _ in jobs]) for group, jobs in batch])
            if len(done) < len(batch):
                kept = [path for _, adds in done for add in adds for path in paths_of(add)]
                discard(handle.store, transaction, write.name, folders=ROWS_FOLDERS, keep=kept)
            if not done:
                return
            parameters = {"buckets": self._buckets, "readVersion": view.version, "writtenBuckets": len(done)}
            with self._timed("commit"):
                commit_compaction(
                    handle,
                    view,
                    Provenance(Operation.RESCALE, parameters, transaction),
                    _metrics(done),
                    replaced=[file_slice for group, _ in done for file_slice in (*group.file_slices, *group.vacant)],
                    adds=[add for _, adds in done for add in adds],
                )
        except BaseException:
            discard(handle.store, transaction, write.name, folders=ROWS_FOLDERS)
            raise
        self._commits += 1
        self._done += done

    def _sorted_out(
        self, outcomes: Iterable[tuple[_Group, list[RescaledBucket]]]
    ) -> list[tuple[_Group, list[AddFile]]]:
        """The groups that can be committed. Groups with a total that does not fit are noted, and stay as they are."""
        done = []
        for group, parts in outcomes:
            skipped = next((part for part in parts if isinstance(part, SkippedFileSlice)), None)
            if skipped is None:
                done.append((group, [add for part in parts if not isinstance(part, SkippedFileSlice) for add in part]))
            else:
                self._skipped[group.targets] = skipped
                _logger.warning("rescale of %s skipped a bucket: %s", self._handle.store.url, skipped.reason)
        return done

    def _run(self, jobs: Sequence[BucketJob], config: TableConfig, write: BaseWriteSpec) -> list[RescaledBucket]:
        """The result of each job, in their order."""
        handle = self._handle
        merge = MergeSpec(handle.store, config, config.merger(handle.registry), handle.settings)
        work, sizes = partial(write_bucket, merge=merge, write=write), [job.bytes for job in jobs]
        return run_jobs(handle, work, jobs, sizes=sizes, name="rescale", spark=self._spark)


def _joins(view: TableView, buckets: int) -> Iterator[_Group]:
    """Buckets whose base files have a larger count, each with all buckets that are joined with it."""
    by_target: dict[BucketId, list[tuple[FileSlice, ...]]] = {}
    for part, file_slices in view.file_slices_by_bucket.items():
        if file_slices[0].buckets > buckets:
            target = BucketId(part.partition, part.bucket % buckets)
            by_target.setdefault(target, []).append(tuple(file_slices))
    count = view.layout.buckets
    for target, sources in by_target.items():
        if not any(file_slice.base for source in sources for file_slice in source):
            continue  # buckets without base files follow the table's count
        parts = [BucketId(target.partition, bucket) for bucket in range(target.bucket, count, buckets)]
        vacant = [p for p in parts if view.layout.bucket_of(p.partition, p.bucket) not in view.file_slices_by_bucket]
        yield _Group(tuple(sources), tuple(FileSlice(p, count) for p in vacant), (target,))


def _splits(view: TableView, buckets: int) -> Iterator[_Group]:
    """Buckets whose base files have a smaller count, to be split."""
    for part, count in view.layout.coarse.items():
        targets = tuple(BucketId(part.partition, bucket) for bucket in range(part.bucket, buckets, count))
        yield _Group((tuple(view.file_slices_by_bucket[part]),), (), targets)


def _batches(
    jobs: Sequence[tuple[_Group, list[BucketJob]]], target_bytes: int
) -> Iterator[list[tuple[_Group, list[BucketJob]]]]:
    batch: list[tuple[_Group, list[BucketJob]]] = []
    size = 0
    for group, own in jobs:
        if batch and size + group.bytes > target_bytes:
            yield batch
            batch, size = [], 0
        batch.append((group, own))
        size += group.bytes
    if batch:
        yield batch


def _metrics(done: Sequence[tuple[_Group, list[AddFile]]]) -> dict[str, object]:
    adds = [add for _, written in done for add in written]
    return {
        "numAddedFiles": len(adds),
        "numRemovedFiles": sum(file_slice.base is not None for group, _ in done for file_slice in group.file_slices),
        "numOutputRows": rows_of(adds),
        "numOutputBytes": sum(add.size_bytes for add in adds),
        "numInputBytes": sum(group.bytes * len(group.targets) for group, _ in done),
        "numLogBlocks": sum(len(file_slice.blocks) for group, _ in done for file_slice in group.file_slices),
    }


RescaledBucket: TypeAlias = list[AddFile] | SkippedFileSlice
"""The files that were written, or why there are none."""


@dataclass(frozen=True, slots=True)
class BucketJob:
    """One bucket to write. Picklable."""

    sources: tuple[tuple[FileSlice, ...], ...]
    """The file slices of each bucket that holds its keys, in key order."""
    target: BucketId
    buckets: int
    first_ordinal: int
    ordinals: int

    @property
    def bytes(self) -> int:
        """How many stored bytes it reads."""
        return sum(file_slice.stored_bytes for source in self.sources for file_slice in source)


def write_bucket(job: BucketJob, merge: MergeSpec, write: BaseWriteSpec) -> RescaledBucket:
    """Merge the sources and write the base files of the target."""
    settings = replace(merge.settings, merge_budget_bytes=max(1, merge.settings.merge_budget_bytes // len(job.sources)))
    try:
        with ParquetFiles(merge.store, merge.footers) as files:
            return write_base_files(
                _ranges(job, replace(merge, settings=settings), files),
                write,
                job.target,
                lower=None,
                ordinals=range(job.first_ordinal, job.first_ordinal + job.ordinals),
                now_ms=Handle.now_ms(),
            )
    except FAILURES as error:
        return skipped_file_slice(job.target, error)


def _ranges(job: BucketJob, merge: MergeSpec, files: ParquetFiles) -> Iterator[MergedRange]:
    """The rows and tombstones of the target, range by range in key order."""
    config = merge.config
    schema = pa.schema([*(f.with_nullable(True) for f in config.schema), pa.field(VERSION_COLUMN, pa.int64())])
    streams = [_entries(job, source, schema, merge, files) for source in job.sources]
    if len(streams) == 1:
        steps: Iterator[Sequence[pa.Table]] = ([table] for table, _ in streams[0])
    else:
        budget = merge.settings.merge_budget_bytes * len(streams)
        steps = key_ranges([Run(stream, schema, config.key) for stream in streams], budget_bytes=budget)
    for tables in steps:
        entries = _by_key(pa.concat_tables(tables), config.key) if len(tables) > 1 else tables[0]
        is_row = pc.is_null(entries.column(VERSION_COLUMN))
        tombstones = entries.filter(pc.invert(is_row))
        forgotten = tombstone_schema(config.shape)
        yield MergedRange(
            entries.filter(is_row).drop_columns([VERSION_COLUMN]), tombstones.select(forgotten.names).cast(forgotten)
        )


def _entries(
    job: BucketJob, source: Sequence[FileSlice], schema: pa.Schema, merge: MergeSpec, files: ParquetFiles
) -> Iterator[tuple[pa.Table, bool]]:
    """Rows and, with a version, tombstones of one source that belong to the target, sorted by key."""
    config = merge.config
    for file_slice in source:
        for part in merge_file_slice(merge, file_slice, columns=config.schema.names, sort=True, files=files):
            entries = pa.concat_tables([schema.empty_table(), part.rows, part.tombstones], promote_options="default")
            if part.tombstones.num_rows:
                entries = _by_key(entries, config.key)
            if file_slice.buckets < job.buckets:
                keys = [entries.column(name) for name in config.key]
                entries = entries.filter(pa.array(bucket_numbers(keys, job.buckets) == job.target.bucket))
            yield together(entries), False


def _by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return gather(rows, sort_order(key_columns(rows, key)))
