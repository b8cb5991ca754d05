"""Planning compactions and reads of large tables. Their logs are real. Their data files do not exist, or are links."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import pyarrow.parquet as pq

import lakemerge
from benchmarks.harness import Rounds, Run, session
from benchmarks.measure import Contender, interleave
from benchmarks.tables import OFF, add_file, commit, counted
from lakemerge import LakeTable, Settings
from lakemerge.format.block_index import LogCommit, write_block_index
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.read.filter.prune import prune_file_slices
from lakemerge.read.splits import split_file_slices
from lakemerge.results.compactions import CompactionPlan

if TYPE_CHECKING:
    from pyspark.sql import Row

__all__ = ["compaction_plan", "large_table", "plan_time"]

_BUCKETS = 16
_BASE_BYTES, _BLOCK_BYTES = 100_000_000, 50_000
_COLUMNS = ("day", "k", "v")
_COMPACTION_S, _PLAN_S, _TASK_S = 2.0, 2.0, 5.0
_LINKS = 1_000
"""At most so many links to one file: file systems allow no more than 1,023 (NTFS) or 65,000 (ext4)."""
_ROWS = [{"day": "day 0", "k": 1, "v": "x"}]


def compaction_plan(
    run: Run,
    *,
    slices: Annotated[int, "buckets with data"] = 10_000,
    commits: Annotated[int, "each with a log block in every bucket"] = 100,
    rounds: Rounds = 3,
) -> None:
    """Planning a compaction of 10,000 buckets with 1,000,000 live log blocks: under 2 s."""
    for files in (1, 4):
        path = run.folder / f"{files}"
        table = large_table(path, slices=slices, commits=commits, table_files=files)
        contenders = [
            Contender("full", partial(table.compact, dry_run=True)),
            Contender("open", partial(LakeTable.open, path)),
            Contender("some", partial(table.compact, dry_run=True, max_bytes=_BASE_BYTES, strategy="log-bytes")),
        ]
        times = interleave(contenders, rounds=rounds)
        what = f"{slices:,} buckets of {files} base files, {slices * commits:,} log blocks"
        target = _COMPACTION_S if files == 1 else None
        run.report.timed("plan", what, times["full"], target=target)
        run.report.timed("plan", "the same, one bucket of it taken", times["some"], target=target)
        run.report.timed("plan", "for comparison: opening the table", times["open"])
        plan = table.compact(dry_run=True)
        run.report.check(what, _plan_problems(plan, slices=slices, commits=commits))


def _plan_problems(plan: CompactionPlan, *, slices: int, commits: int) -> list[str]:
    """How the plan differs from the expected one, in which only the last base file of each bucket has logs."""
    blocks = sum(part.log_blocks for group in plan.groups for part in group.buckets)
    found = (plan.buckets, plan.file_slices, blocks, plan.bytes_read)
    expected = (slices, slices, slices * commits, slices * (_BASE_BYTES + commits * _BLOCK_BYTES))
    return [] if found == expected else [f"buckets, file slices, blocks and bytes are {found}, expected {expected}"]


def large_table(
    path: Path, *, slices: int, commits: int, table_files: int = 1, touched: int | None = None, one_row: bool = False
) -> LakeTable:
    """A table of so many buckets. Each has ``table_files`` base files, and one live block from each commit.

    Keys of a block lie in the last base file of its bucket.

    :param touched: how many buckets each commit touches, taking turns; by default all.
    :param one_row: whether each file and block has one row, as the log says; else many.
    """
    file_rows, block_rows = (1, 1) if one_row else (1_000_000, 500)
    table = LakeTable.create(
        path, "day STRING, k BIGINT, v STRING", key=["day", "k"], partition_by=["day"], buckets=_BUCKETS,
        properties={**OFF, "delta.checkpointInterval": "1000000"},
    )  # fmt: skip
    parts = [BucketId((f"day {number // _BUCKETS}",), number % _BUCKETS) for number in range(slices)]
    handle, config, state = table.opened.handle, table.opened.view.config, table.opened.view.state
    adds = [
        add_file(
            f"base/0/{ordinal}.parquet", ordinal, bucket=part.bucket, buckets=_BUCKETS, rows=file_rows,
            lower=(part.partition[0] or "", place * 1000) if place else None, size_bytes=_BASE_BYTES,
            partition={"day": part.partition[0]},
        )
        for number, part in enumerate(parts)
        for place in range(table_files)
        for ordinal in [number * table_files + place]
    ]  # fmt: skip
    tip = commit(handle, table.opened.view.snapshot, adds)
    for number in range(commits):
        first = 0 if touched is None else number * touched % slices
        chosen = parts if touched is None else [*parts[first:], *parts[:first]][:touched]
        blocks = [_block(part, place, number, block_rows) for place, part in enumerate(chosen)]
        index = f"_lakemerge/log/{number}-index.parquet"
        write_block_index(handle.store, index, blocks, _COLUMNS)
        logs = LogCommit(str(number), -1, 0, _COLUMNS, tuple(blocks), index)
        tip = commit(handle, tip, [logs.domain(config=config, state=state, version=tip.version + 1)])
    return LakeTable.open(path)


def _block(part: BucketId, place: int, number: int, rows: int) -> LogBlock:
    day = part.partition[0] or ""
    return LogBlock(
        file=LogFile(f"_lakemerge/log/{number}-{place // 64}.parquet", 1_000_000, _COLUMNS),
        first_row_group=place % 64, row_groups=1, bucket_id=part, buckets=_BUCKETS, rows=rows,
        data_bytes=_BLOCK_BYTES, key_min=(day, 100_000), key_max=(day, 900_000),
    )  # fmt: skip


def plan_time(
    run: Run,
    *,
    files: Annotated[int, "base files, one a bucket"] = 100_000,
    commits: Annotated[int, "that are pending"] = 100,
    touched: Annotated[int, "buckets that a commit has blocks of"] = 500,
    rounds: Rounds = 3,
    spark: Annotated[bool, "also time the first row of a DataFrame"] = True,
) -> None:
    """Planning a read of 100,000 files with 100 pending commits: under 2 s, and Spark's first row in under 5 s."""
    path = run.folder / "table"
    opened = large_table(path, slices=files, commits=commits, touched=touched, one_row=True)
    what = f"{files:,} files, {commits} commits of {touched:,} blocks"
    contenders = [Contender("plan", partial(_plan, opened)), Contender("open", partial(LakeTable.open, path))]
    times = interleave(contenders, rounds=rounds)
    run.report.timed("plan", f"{what}: planning", times["plan"], target=_PLAN_S)
    run.report.timed("plan", f"{what}: opening", times["open"])
    requests = _requests(path)
    run.report.value("plan", "store requests of open and plan", "requests", sum(requests.values()))
    file_slices = prune_file_slices(opened.opened.view, None)
    found = (len(file_slices), sum(len(file_slice.blocks) for file_slice in file_slices))
    expected = (files, commits * touched)
    run.report.check(what, [] if found == expected else [f"file slices and blocks are {found}, expected {expected}"])
    # Commit files, a block index for each log commit, and a few listings: nothing for a file of the table.
    bound, asked = 2 * (commits + 2) + 8, sum(requests.values())
    problem = f"{asked} store requests, expected at most {bound}: {requests}"
    run.report.check(what, [] if asked <= bound else [problem])
    if spark:
        _first_row(run, path, what, rounds)


def _plan(table: LakeTable) -> int:
    """What a read does before its first task: of a version that nobody looked at yet, file slices and their parts."""
    view = table.opened.handle.view(table.opened.view.snapshot)
    return len(split_file_slices(prune_file_slices(view, None), Settings().target_task_bytes))


def _requests(path: Path) -> Mapping[str, int]:
    """What opening the table and planning a read asks of the store, by kind."""
    table, store = counted(path)
    _plan(table)
    return {name: count for name, count in store.counts().calls.items() if name in ("get", "list", "read", "stat")}


def _first_row(run: Run, path: Path, what: str, rounds: int) -> None:
    _link_files(path)
    with session(run.folder, {"spark.master": "local[*]"}) as spark:

        def first_row() -> Sequence[Row]:
            return LakeTable.open(path, spark=spark).to_df().take(1)

        lakemerge.catalog(spark, "bench_plan", warehouse=run.folder)

        def planned() -> int:
            # Spark asks the scan for its tasks, and runs none.
            return spark.sql(f"SELECT k, v FROM lakemerge.`{path}`").rdd.getNumPartitions()

        def in_sql() -> Sequence[Row]:
            return spark.sql(f"SELECT k, v FROM lakemerge.`{path}` LIMIT 1").collect()

        rows = pa.Table.from_pylist(_ROWS, schema=LakeTable.open(path).schema)
        contenders = [
            Contender("first", first_row),
            Contender("plan", planned, lambda: LakeTable.open(path).upsert(rows)),
            Contender("again", planned),
            Contender("sql", in_sql),
        ]
        times = interleave(contenders, rounds=rounds)
        found = [(row["k"], row["v"]) for row in (*first_row(), *in_sql())]
    run.report.check("spark", [] if found == [(1, "x")] * 2 else [f"the first rows are {found}"])
    run.report.timed("spark", f"{what}: opening to first row", times["first"], target=_TASK_S)
    run.report.timed("sql", f"{what}: planning a query in SQL after a commit", times["plan"], target=_PLAN_S)
    run.report.timed("sql", f"{what}: planning a query in SQL", times["again"], target=_PLAN_S)
    run.report.timed("sql", f"{what}: a query in SQL to its first row", times["sql"])


def _link_files(path: Path) -> None:
    """Put a file of one row wherever the log names a base or a log file."""
    view = LakeTable.open(path).opened.view
    rows = pa.Table.from_pylist(_ROWS, schema=view.config.schema)
    pq.write_table(rows, path / "one.parquet")
    pq.write_table(pa.concat_tables([rows] * 64), path / "many.parquet", row_group_size=1)
    logs = {block.file.path for pending in view.log_commits for block in pending.blocks}
    for source, names in (("one", view.snapshot.files), ("many", logs)):
        for number, name in enumerate(names):
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if number % _LINKS == 0:
                linked = shutil.copyfile(path / f"{source}.parquet", target)
            else:
                os.link(linked, target)
