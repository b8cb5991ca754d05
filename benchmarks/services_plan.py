"""Planning a compaction of a large table: 10,000 buckets with 1,000,000 live log blocks, under 2 s.

The table's log is real and its data files do not exist: planning reads metadata only.

    python -m benchmarks.services_plan
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.measure import Contender, Line, Report, interleave
from lakemerge import LakeTable
from lakemerge.delta import Action, AddFile, AlreadyDone, Attempt
from lakemerge.format.base_file import BaseFile
from lakemerge.format.block_index import LogCommit, write_block_index
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.format.names import SLICE_TAG
from lakemerge.results.plans import CompactionPlan

__all__ = ["large_table", "main", "measure"]

_BUCKETS = 16
_BASE_BYTES = 100_000_000
_BLOCK_BYTES = 50_000
_BLOCK_ROWS = 500
_TARGET_SECONDS = 2.0


def large_table(
    path: Path, *, slices: int, commits: int, table_files: int = 1, touched: int | None = None
) -> LakeTable:
    """A table of so many buckets. Each has ``table_files`` base files, and one live block from each commit.

    Keys of a block lie in the last base file of its bucket.

    :param touched: how many buckets each commit touches, taking turns; by default all.
    """
    table = LakeTable.create(
        path, "day STRING, k BIGINT, v STRING", key=["day", "k"], partition_by=["day"], buckets=_BUCKETS,
        properties={"delta.checkpointInterval": "1000000", "lakemerge.maintenance": "off"},
    )  # fmt: skip
    parts = [BucketId((f"day {number // _BUCKETS}",), number % _BUCKETS) for number in range(slices)]
    _commit(
        table,
        [_add(part, n * table_files + place, place) for n, part in enumerate(parts) for place in range(table_files)],
    )
    view = LakeTable.open(path).view
    for number in range(commits):
        first = 0 if touched is None else number * touched % slices
        chosen = parts if touched is None else [*parts[first:], *parts[:first]][:touched]
        blocks = [_block(part, place, number) for place, part in enumerate(chosen)]
        index = f"_lakemerge/log/{number}-index.parquet"
        write_block_index(table.handle.store, index, blocks, ("day", "k", "v"))
        logs = LogCommit(str(number), -1, 0, ("day", "k", "v"), tuple(blocks), index)
        _commit(table, [logs.domain(config=view.config, state=view.state, version=table.version + 1)])
    return LakeTable.open(path)


def measure(report: Report, folder: Path, *, slices: int, commits: int, rounds: int) -> None:
    """Time the plan of everything and of a few, and check what they hold."""
    for files in (1, 4):
        path = folder / f"{files}"
        table = large_table(path, slices=slices, commits=commits, table_files=files)
        run = [
            Contender("full", partial(table.compact, dry_run=True)),
            Contender("open", partial(LakeTable.open, path)),
            Contender("some", partial(table.compact, dry_run=True, max_bytes=_BASE_BYTES, strategy="log-bytes")),
        ]
        times = interleave(run, rounds=rounds)
        what = f"{slices:,} buckets of {files} base files, {slices * commits:,} log blocks"
        target = _TARGET_SECONDS if files == 1 else None
        report.add(Line.timed("plan", what, times["full"], target=target))
        report.add(Line.timed("plan", "the same, one bucket of it taken", times["some"], target=target))
        report.add(Line.timed("plan", "for comparison: opening the table", times["open"]))
        plan = table.compact(dry_run=True)
        report.check(what, _problems(plan, slices=slices, commits=commits))


def _problems(plan: CompactionPlan, *, slices: int, commits: int) -> list[str]:
    """How the plan differs from the expected one, in which only the last base file of each bucket has logs."""
    found = (plan.buckets, plan.file_slices, sum(part.log_blocks for group in plan.groups for part in group.buckets))
    expected = (slices, slices, slices * commits)
    read = slices * (_BASE_BYTES + commits * _BLOCK_BYTES)
    problems = [] if found == expected else [f"buckets, file slices and blocks are {found}, expected {expected}"]
    return problems if plan.bytes_read == read else [*problems, f"{plan.bytes_read} bytes to read, expected {read}"]


def _add(part: BucketId, ordinal: int, place: int) -> AddFile:
    lower = (part.partition[0] or "", place * 1000) if place else None
    tag = BaseFile.tag(
        bucket=part.bucket, buckets=_BUCKETS, lower=lower, through=0, ordinal=ordinal, rows=1_000_000, tombstones=None
    )
    return AddFile(
        path=f"base/0/{ordinal}.parquet", partition_values={"day": part.partition[0]}, size_bytes=_BASE_BYTES,
        modification_time_ms=0, data_change=True, tags={SLICE_TAG: tag},
    )  # fmt: skip


def _block(part: BucketId, place: int, commit: int) -> LogBlock:
    day = part.partition[0] or ""
    return LogBlock(
        file=LogFile(f"_lakemerge/log/{commit}-{place // 64}.parquet", 1_000_000, ("day", "k", "v")),
        first_row_group=place % 64, row_groups=1, bucket_id=part, buckets=_BUCKETS, rows=_BLOCK_ROWS,
        data_bytes=_BLOCK_BYTES, key_min=(day, 100_000), key_max=(day, 900_000),
    )  # fmt: skip


def _commit(table: LakeTable, actions: Sequence[Action]) -> None:
    attempt = Attempt(list(actions))
    done = table.handle.log.commit(table.view.snapshot, lambda tip: attempt, operation="TEST", parameters={})
    if isinstance(done, AlreadyDone):
        raise AssertionError("an attempt is never done already")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=10_000)
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report = Report(Console())
    with tempfile.TemporaryDirectory() as folder:
        measure(report, Path(folder), slices=arguments.slices, commits=arguments.commits, rounds=arguments.rounds)
    report.end()
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
