"""Log compaction: the logs of many commits become a few consolidated logs. Base files stay as they are.

For each bucket a consolidated log holds the records of all blocks that it replaces as one sorted run. The records of a
key are in commit order, and each has the version that committed it. So liveness, ties and tombstones are decided record
by record, as before, whatever is merged meanwhile. Appends and compactions of base files do not wait for a log
compaction, and its commit removes the domains of the original logs. If the merger's laws allow it, only the records
that decide are kept. Source: docs/table-format.md, sections 3 and 4.

Records of different sets of columns are in different files of one log. Logs are chosen as in size-tiered LSM trees: an
older log joins the newer ones unless it is more than twice as large as they are together. So a record is rewritten only
a logarithmic number of times.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from compaction.logs.packing import BucketLogs, PackedLogs, PackJob, PackLogsSpec, pack_logs
from compaction.run.jobs import run_jobs
from lakemerge.bins import BinItem, BinLimits, fill
from lakemerge.commits.compaction import commit_packed_logs
from lakemerge.commits.provenance import Provenance
from lakemerge.errors import InputError
from lakemerge.format.block_index import LogCommit, write_block_index
from lakemerge.format.expiries import expiries_of
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock
from lakemerge.format.names import LOG_FOLDER
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle
from lakemerge.layout.bucket_counts import slices_of
from lakemerge.layout.view import TableView
from lakemerge.options import Settings
from lakemerge.read.merge import MergeSpec
from lakemerge.results.compactions import LogCompactionResult
from lakemerge.write.carried import MOST_TURNS
from lakemerge.write.discard import discard
from mergers.logs import logger
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["choose_runs", "compact_logs"]

_MIB = 1024 * 1024
_MIN_JOB_BYTES = 8 * _MIB
"""Fewer bytes than this are not worth a task or a file of their own."""

_logger = logger(__name__)


def compact_logs(
    handle: Handle, read: TableView, *, size_ratio: float = 2.0, spark: SparkSession | None = None
) -> LogCompactionResult:
    """Merge logs with logs; see :meth:`lakemerge.LakeTable.compact_logs`."""
    started = time.monotonic()
    _check_ratio(size_ratio)
    merger = handle.merger(read)
    live = _live_blocks(read)
    sizes = {version: sum(block.data_bytes for block in blocks) for version, blocks in live.items()}
    runs = [
        run
        for part in _between_expiries(read, [commit for commit in read.log_commits if commit.version in live])
        for commits in _with_few_turns(part)
        for run in choose_runs(commits, sizes, size_ratio)
    ]
    planned = time.monotonic()
    if not runs:
        return _result(read.version, [], [], [], {"plan": planned - started})
    transaction = handle.new_transaction()
    spec = PackLogsSpec(
        MergeSpec(handle.store, read.config, merger, handle.settings), handle.write_name(read, transaction)
    )
    blocks = [block for run in runs for commit in run for block in live[commit.version]]
    try:
        logs = _packed(handle, read, runs, live, spec, spark)
        merged = time.monotonic()
        phases = {"plan": planned - started, "merge": merged - planned}
        result = _result(read.version, runs, blocks, logs, phases)
        provenance = Provenance(
            Operation.COMPACT_LOGS, {"readVersion": read.version, "commits": result.commits}, transaction
        )
        replaced = [commit for run in runs for commit in run]
        committed = commit_packed_logs(handle, read, provenance, _metrics(result), replaced=replaced, packed=logs)
    except BaseException:
        discard(handle.store, transaction, spec.name, folders=(LOG_FOLDER,))
        raise
    ended = time.monotonic()
    phases = {**phases, "commit": ended - merged}
    return replace(result, version=committed.version, seconds=ended - started, phases=phases)


def _check_ratio(size_ratio: Any) -> None:
    if isinstance(size_ratio, bool) or not isinstance(size_ratio, int | float) or not size_ratio >= 0:
        raise InputError(f"{argument('size_ratio')} must be a number from 0 on, not {size_ratio!r}")


def choose_runs(
    commits: Sequence[LogCommit], sizes: Mapping[int, int], size_ratio: float = 2.0
) -> list[list[LogCommit]]:
    """Choose which log commits to merge with each other: groups of neighbours, newest first.

    An older commit joins the newer ones of its group if it is not larger than ``size_ratio`` times all of them
    together. Otherwise it begins the next group. A group has at least two commits.

    :param commits: log commits in version order.
    :param sizes: version -> bytes.
    """
    runs: list[list[LogCommit]] = []
    held = 0
    for commit in reversed(commits):
        size = sizes[commit.version]
        if runs and size <= size_ratio * held:
            runs[-1].append(commit)
            held += size
        else:
            runs.append([commit])
            held = size
    return [run[::-1] for run in runs if len(run) > 1]


def _between_expiries(view: TableView, commits: Sequence[LogCommit]) -> list[list[LogCommit]]:
    """The commits, cut at tombstone expiries. Commits of one part have no expiry between them, so they may be
    combined."""
    expired = [expiry.version for expiry in expiries_of(view.snapshot)]
    parts: list[list[LogCommit]] = [[] for _ in range(len(expired) + 1)]
    for commit in commits:
        parts[bisect_left(expired, commit.version)].append(commit)
    return parts


def _with_few_turns(commits: Sequence[LogCommit]) -> list[list[LogCommit]]:
    """The commits, cut at those that are left out: their files have so many different columns, or so many turns, that
    a task might need more files at a time than a process may open."""
    parts: list[list[LogCommit]] = [[]]
    for commit in commits:
        if len({block.file for block in commit.blocks if block.file.columns != commit.columns}) > MOST_TURNS:
            parts.append([])
        else:
            parts[-1].append(commit)
    return parts


def _live_blocks(view: TableView) -> dict[int, list[LogBlock]]:
    """Version of a commit -> its blocks that are live in some file slice, in commit order."""

    def place(block: LogBlock) -> tuple[int, str, int]:
        return block.version, block.file.path, block.first_row_group

    live = {place(block) for file_slice in view.file_slices for block in file_slice.blocks}
    found = {c.version: [block for block in c.blocks if place(block) in live] for c in view.log_commits}
    return {version: blocks for version, blocks in found.items() if blocks}


def _jobs(read: TableView, blocks: Sequence[LogBlock], settings: Settings) -> list[PackJob]:
    """The buckets of one group of commits in even parts. Each part is a task, which writes one file, or a file for each
    set of columns and turn.

    :param blocks: blocks in commit order.
    """
    buckets = read.config.buckets or 1
    by_bucket: dict[BucketId, list[LogBlock]] = defaultdict(list)
    for block in blocks:
        for bucket_id in slices_of(block, buckets):
            by_bucket[bucket_id].append(block)
    slices = [BucketLogs(bucket_id, buckets, tuple(found)) for bucket_id, found in by_bucket.items()]
    slices.sort(key=lambda part: ([value or "" for value in part.bucket_id.partition], part.bucket_id.bucket))
    total = sum(part.bytes for part in slices)
    parallel = min(settings.threads, total // _MIN_JOB_BYTES)
    # As many even parts as the largest allowed size needs, or as can run at a time.
    count = max(-(-total // settings.target_task_bytes), parallel, 1)
    items = [BinItem(value=part, records=0, bytes=part.bytes, at_ms=rank) for rank, part in enumerate(slices)]
    limits = BinLimits(min_records=0, max_bytes=max(1, -(-total // count)))
    return [PackJob(part.values) for part in fill(items, limits, now_ms=0, force=True).closed]


def _packed(
    handle: Handle,
    read: TableView,
    runs: Sequence[Sequence[LogCommit]],
    live: Mapping[int, Sequence[LogBlock]],
    spec: PackLogsSpec,
    spark: SparkSession | None,
) -> list[LogCommit]:
    """The consolidated logs of each group of commits."""
    parts = [_jobs(read, [block for commit in run for block in live[commit.version]], handle.settings) for run in runs]
    numbered = list(enumerate(job for jobs in parts for job in jobs))
    sizes = [job.bytes for _, job in numbered]
    work = partial(pack_logs, spec=spec)
    done = iter(run_jobs(handle, work, numbered, sizes=sizes, name="log compaction", spark=spark))
    logs: list[LogCommit] = []
    for run, jobs in zip(runs, parts, strict=True):
        log = _log_commit(handle, read, run, [next(done) for _ in jobs], f"{spec.name}-{len(logs)}")
        logs += () if log is None else (log,)
    return logs


def _log_commit(
    handle: Handle, read: TableView, run: Sequence[LogCommit], packed: Sequence[PackedLogs], name: str
) -> LogCommit | None:
    """The consolidated log of a group of commits; ``None`` if the merger keeps none of their records.

    :param name: unique to the group.
    """
    versions = [version for c in run for version in (c.version, c.packed_from) if version is not None]
    first, through = min(versions), max(versions)
    blocks = tuple(replace(block, version=through, packed_from=first) for part in packed for block in part)
    if not blocks:
        return None  # a merger that ignores deletes keeps none of them
    carried = frozenset[str]().union(*(block.file.columns for block in blocks))
    columns = tuple(name for name in read.config.names.all_of(read.config.schema.names) if name in carried)
    index = None
    if len(blocks) > handle.settings.inline_blocks:
        index = f"{LOG_FOLDER}/{name}-index.parquet"
        write_block_index(handle.store, index, blocks, columns)
    return LogCommit(name, through, read.state.merger_epoch, columns, blocks, index, first)


def _result(
    version: int,
    runs: Sequence[Sequence[LogCommit]],
    before: Sequence[LogBlock],
    logs: Sequence[LogCommit],
    phases: Mapping[str, float],
) -> LogCompactionResult:
    files = {block.file for log in logs for block in log.blocks}
    return LogCompactionResult(
        version=version,
        commits=sum(len(run) for run in runs),
        records=sum(block.rows for block in before),
        rows=sum(block.rows for log in logs for block in log.blocks),
        blocks=sum(len(log.blocks) for log in logs),
        files=len(files) + sum(log.index is not None for log in logs),
        bytes=sum(file.size_bytes for file in files),
        bytes_read=sum(block.data_bytes for block in before),
        replaced_files=len({block.file.path for block in before}),
        seconds=sum(phases.values()),
        phases=phases,
    )


def _metrics(result: LogCompactionResult) -> dict[str, object]:
    return {
        "numLogCommits": result.commits,
        "numSourceRows": result.records,
        "numOutputRows": result.rows,
        "numLogBlocks": result.blocks,
        "numLogFiles": result.files,
        "numInputBytes": result.bytes_read,
        "numOutputBytes": result.bytes,
        "mergeTimeMs": round(result.phases["merge"] * 1000),
    }
