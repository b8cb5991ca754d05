"""Compacts one commit group: merges its file slices, and commits them together.

The group is committed whole or not at all. If its commit does not land, its files are deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

from compaction.run.file_slice import FileSliceJob, Rewritten, WrittenBeside, find_failing, run_job
from compaction.run.jobs import run_jobs
from lakemerge.commits.compaction import commit_compaction
from lakemerge.commits.provenance import Provenance
from lakemerge.commits.rescale import reserve_ordinals
from lakemerge.delta import AddFile, Transaction, write_vectors
from lakemerge.format.base_file import paths_of, rows_of
from lakemerge.format.operations import Operation
from lakemerge.format.vectors import vector_place, vectors_of
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.merge import MergeSpec
from lakemerge.results.compactions import SkippedFileSlice
from lakemerge.write.base_file import BaseWriteSpec, ordinals_needed
from lakemerge.write.discard import ROWS_FOLDERS, discard
from mergers.logs import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["GroupOutcome", "GroupRun", "compact_group"]

MOST_APART: Final = 16
"""A file slice with more keys whose merge fails is left as it is: each of them would need a file."""

_logger = logger(__name__)


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A file slice that is left as it is, because nothing else in it could be merged."""

    apart: tuple[SkippedFileSlice, ...]


Outcome: TypeAlias = Rewritten | WrittenBeside | SkippedFileSlice | LeftAlone


@dataclass(frozen=True, slots=True)
class GroupRun:
    """Settings that all groups of one compaction share."""

    handle: Handle
    read: TableView
    merge: MergeSpec
    minor: bool
    spark: SparkSession | None
    publish: bool
    """Whether minor compactions are published."""
    parameters: Mapping[str, object]
    """The operation parameters of the run's commits."""
    metrics: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The result for a group's file slices."""

    jobs: Sequence[FileSliceJob]
    outcomes: Sequence[Outcome]
    """The results in the order of the jobs."""
    merge_seconds: float
    version: int | None = None
    """The version of the commit; ``None`` if every file slice was skipped."""
    commit_seconds: float = 0.0

    @property
    def done(self) -> list[FileSlice]:
        return [
            file_slice
            for job, what in self._pairs
            if not isinstance(what, SkippedFileSlice | LeftAlone)
            for file_slice in job.file_slices
        ]

    @property
    def replaced(self) -> list[FileSlice]:
        return [
            file_slice for job, what in self._pairs if isinstance(what, Rewritten) for file_slice in job.file_slices
        ]

    @property
    def merged(self) -> list[FileSlice]:
        return [
            file_slice for job, what in self._pairs if isinstance(what, WrittenBeside) for file_slice in job.file_slices
        ]

    @property
    def skipped(self) -> list[SkippedFileSlice]:
        found: list[SkippedFileSlice] = []
        for what in self.outcomes:
            if isinstance(what, SkippedFileSlice):
                found.append(what)
            elif isinstance(what, Rewritten | LeftAlone):
                found += what.apart
        return found

    @property
    def adds(self) -> list[AddFile]:
        return [add for what in self.outcomes if isinstance(what, Rewritten) for add in what.adds]

    @property
    def beside(self) -> list[WrittenBeside]:
        return [what for what in self.outcomes if isinstance(what, WrittenBeside)]

    @property
    def rows(self) -> int:
        return rows_of(self.adds) + sum(part.rows for part in self.beside)

    @property
    def files(self) -> int:
        return len(self.adds) + sum(part.rows > 0 for part in self.beside)

    @property
    def bytes(self) -> int:
        return sum(add.size_bytes for add in self.adds) + sum(part.bytes for part in self.beside)

    @property
    def bytes_read(self) -> int:
        return sum(job.bytes for job in self.jobs)

    @property
    def replaced_files(self) -> int:
        return sum(file_slice.base is not None for file_slice in self.replaced)

    @property
    def log_blocks(self) -> int:
        return sum(len(file_slice.blocks) for file_slice in self.done)

    @property
    def _pairs(self) -> list[tuple[FileSliceJob, Outcome]]:
        return list(zip(self.jobs, self.outcomes, strict=True))


def compact_group(run: GroupRun, jobs: Sequence[FileSliceJob], *, number: int, of: int) -> GroupOutcome:
    """Merge the file slices and commit them.

    :param number: the number of the group, from 1 on; ``of``: how many groups there are.
    :raises FileSlicesChangedError: another compaction changed one of the file slices. Like any other error, it leaves
        no file behind, unless the commit may land.
    """
    started = time.monotonic()
    handle, read = run.handle, run.read
    transaction = handle.new_transaction()
    write = BaseWriteSpec.of(handle, read, transaction, buckets=read.config.buckets or 1)
    try:
        name = f"group {number} of {of}"
        outcome = GroupOutcome(*_merge_apart(run, jobs, write, name), time.monotonic() - started)
        if outcome.skipped:
            _warn(handle, outcome.skipped)
            # Earlier ranges of the file slice may be in files already.
            discard(handle.store, transaction, write.name, folders=ROWS_FOLDERS, keep=_written(outcome))
        if not outcome.done:
            return outcome
        outcome = _with_vectors(handle, write.name, outcome)
        version = _commit(run, outcome, transaction, number=number, of=of)
    except BaseException:
        vectors = [vectors_of(write.name)] if run.publish else []
        others = [path for path in vectors if path is not None]
        discard(handle.store, transaction, write.name, folders=ROWS_FOLDERS, others=others)
        raise
    return replace(outcome, version=version, commit_seconds=time.monotonic() - started - outcome.merge_seconds)


def _with_vectors(handle: Handle, name: str, outcome: GroupOutcome) -> GroupOutcome:
    """The outcome with its new deletion vectors in place. All of them are in one file."""
    new = [vector for part in outcome.beside for _, vector in part.vectors]
    if not new:
        return outcome
    places = iter(write_vectors(handle.store, *vector_place(name), new))

    def placed(part: Outcome) -> Outcome:
        if not isinstance(part, WrittenBeside) or not part.vectors:
            return part
        own = tuple((ordinal, next(places)) for ordinal, _ in part.vectors)
        return replace(part, minor=replace(part.minor, vectors=part.minor.vectors + own), vectors=())

    return replace(outcome, outcomes=[placed(part) for part in outcome.outcomes])


def _merge(
    run: GroupRun, jobs: Sequence[FileSliceJob], write: BaseWriteSpec, name: str
) -> list[Rewritten | WrittenBeside | SkippedFileSlice]:
    """The result of each job, in their order."""
    work, sizes = partial(run_job, merge=run.merge, write=write), [job.bytes for job in jobs]
    return run_jobs(run.handle, work, jobs, sizes=sizes, name=f"compaction, {name},", spark=run.spark)


def _merge_apart(
    run: GroupRun, jobs: Sequence[FileSliceJob], write: BaseWriteSpec, name: str
) -> tuple[list[FileSliceJob], list[Outcome]]:
    """The jobs with their results. In file slices with keys whose merge fails, these are set apart, and the others are
    merged."""
    outcomes = _merge(run, jobs, write, name)
    pairs = list(zip(jobs, outcomes, strict=True))
    failed = [job for job, what in pairs if isinstance(what, SkippedFileSlice)]
    done: list[tuple[FileSliceJob, Outcome]] = [pair for pair in pairs if not isinstance(pair[1], SkippedFileSlice)]
    if not failed:
        return list(jobs), [what for _, what in done]
    look, sizes = partial(find_failing, merge=run.merge), [job.bytes for job in failed]
    found = run_jobs(run.handle, look, failed, sizes=sizes, name=f"compaction, {name}, failing keys", spark=run.spark)
    again: list[tuple[FileSlice, tuple[SkippedFileSlice, ...], int]] = []
    for job, slices in zip(failed, found, strict=True):
        if isinstance(slices, SkippedFileSlice):
            done.append((job, slices))
            continue
        for part in slices:
            if part.file_slice.is_clean:
                continue  # it would have been joined with its neighbour
            if part.keys and (not part.others or len(part.keys) > MOST_APART):
                done.append((replace(job, file_slices=(part.file_slice,)), LeftAlone(part.keys)))
            else:
                needed = ordinals_needed(part.file_slice.stored_bytes, run.handle.settings)
                again.append((part.file_slice, part.keys, needed + 2 * len(part.keys)))
    if again:
        first = reserve_ordinals(run.handle, run.read, sum(count for _, _, count in again))
        firsts = accumulate((count for _, _, count in again), initial=first)
        second = [
            FileSliceJob((file_slice,), minor=False, first_ordinal=begin, ordinals=count, apart=keys)
            for begin, (file_slice, keys, count) in zip(firsts, again, strict=False)
        ]
        done += zip(second, _merge(run, second, write, name), strict=True)
    return [job for job, _ in done], [what for _, what in done]


def _commit(run: GroupRun, outcome: GroupOutcome, transaction: Transaction, *, number: int, of: int) -> int:
    parameters = {
        "readVersion": run.read.version,
        "mode": "minor" if run.minor else "full",
        "fileSlices": len(outcome.done),
        "group": f"{number} of {of}",
        **run.parameters,
    }
    metrics = {
        "numAddedFiles": outcome.files,
        "numRemovedFiles": outcome.replaced_files,
        "numOutputRows": outcome.rows,
        "numOutputBytes": outcome.bytes,
        "numInputBytes": outcome.bytes_read,
        "numLogBlocks": outcome.log_blocks,
        "numSkippedFileSlices": len(outcome.skipped),
        "mergeTimeMs": round(outcome.merge_seconds * 1000),
        **run.metrics,
    }
    committed = commit_compaction(
        run.handle,
        run.read,
        Provenance(Operation.COMPACT, parameters, transaction),
        metrics,
        replaced=outcome.replaced,
        adds=outcome.adds,
        merged=outcome.merged,
        minors=[part.minor for part in outcome.beside],
        winners={part.minor.base: part.winner for part in outcome.beside if part.winner is not None},
    )
    return committed.version


def _written(outcome: GroupOutcome) -> Iterator[str]:
    """Paths of the files that go into the commit."""
    for add in outcome.adds:
        yield from paths_of(add)
    for part in outcome.beside:
        yield from part.minor.paths


def _warn(handle: Handle, skipped: Sequence[SkippedFileSlice]) -> None:
    for file_slice in skipped:
        where = (
            f"partition {file_slice.partition}, bucket {file_slice.bucket}"
            if file_slice.partition
            else f"bucket {file_slice.bucket}"
        )
        key = dict(file_slice.key)
        _logger.warning(
            "compaction of %s left key %s of %s as it is: %s", handle.store.url, key, where, file_slice.reason
        )
