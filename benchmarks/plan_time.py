"""Planning a read of 100,000 files with 100 pending commits: under 2 s, and Spark's first task in under 5 s.

The table's log is real. Its base files are links to copies of one file and its log files to those of another, so that
a task finds something to read; planning opens none of them.

    python -m benchmarks.plan_time
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.measure import Contender, Line, Report, interleave
from benchmarks.services_plan import large_table
from lakemerge import LakeTable, Settings
from lakemerge.delta import DeltaLog
from lakemerge.read.filter.prune import prune_file_slices
from lakemerge.read.splits import split_file_slices
from lakemerge.storage import LocalStore
from lakemerge.testing.counting import CountingStore

__all__ = ["main", "measure"]

_PLAN_SECONDS = 2.0
_TASK_SECONDS = 5.0
_LINKS = 1_000
"""At most so many links to one file: file systems allow no more than 1,023 (NTFS) or 65,000 (ext4)."""
_ROWS = [{"day": "day 0", "k": 1, "v": "x"}]


def measure(report: Report, folder: Path, *, files: int, commits: int, touched: int, rounds: int, spark: bool) -> None:
    """Time the plan of a full read, and check what it holds; with Spark, also the first row of the DataFrame."""
    path = folder / "table"
    large_table(path, slices=files, commits=commits, touched=touched)
    what = f"{files:,} files, {commits} commits of {touched:,} blocks"
    opened = LakeTable.open(path)
    run = [Contender("plan", partial(_plan, opened)), Contender("open", partial(LakeTable.open, path))]
    times = interleave(run, rounds=rounds)
    report.add(Line.timed("plan", f"{what}: planning", times["plan"], target=_PLAN_SECONDS))
    report.add(Line.timed("plan", f"{what}: opening", times["open"]))
    counted = _requests(path)
    report.add(Line(case="plan", what="store requests of open and plan", unit="requests", value=sum(counted.values())))
    report.check(what, _problems(opened, counted, files=files, commits=commits, touched=touched))
    if spark:
        _on_spark(report, path, what, rounds=rounds)


def _plan(table: LakeTable) -> int:
    """What a read does before its first task: of a version that nobody looked at yet, file slices and their parts."""
    view = table.handle.view(table.view.snapshot)
    return len(split_file_slices(prune_file_slices(view, None), Settings().target_task_bytes))


def _requests(path: Path) -> Mapping[str, int]:
    """What opening the table and planning a read asks of the store, by kind."""
    store = CountingStore(LocalStore(path))
    handle = replace(LakeTable.open(path).handle, store=store, log=DeltaLog(store))
    table = LakeTable(handle, handle.log.snapshot(), pinned=True, spark=None)
    _plan(table)
    return {name: count for name, count in store.counts().calls.items() if name in ("get", "list", "read", "stat")}


def _problems(table: LakeTable, counted: Mapping[str, int], *, files: int, commits: int, touched: int) -> list[str]:
    file_slices = prune_file_slices(table.view, None)
    found = (len(file_slices), sum(len(file_slice.blocks) for file_slice in file_slices))
    expected = (files, commits * touched)
    problems = [] if found == expected else [f"file slices and blocks are {found}, expected {expected}"]
    # Commit files, a block index for each log commit, and a few listings: nothing for a file of the table.
    bound = 2 * (commits + 2) + 8
    asked = sum(counted.values())
    return problems if asked <= bound else [*problems, f"{asked} store requests, expected at most {bound}: {counted}"]


def _on_spark(report: Report, path: Path, what: str, *, rounds: int) -> None:
    from pyspark.sql import SparkSession

    _link_files(path)
    builder = SparkSession.builder.appName("lakemerge-plan").master("local[*]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "4g").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")

    def first_row() -> None:
        rows = LakeTable.open(path, spark=session).to_df().take(1)
        if len(rows) != 1:
            raise AssertionError("there are rows")

    times = interleave([Contender("first", first_row)], rounds=rounds)
    report.add(Line.timed("spark", f"{what}: opening to first row", times["first"], target=_TASK_SECONDS))
    session.stop()


def _link_files(path: Path) -> None:
    """Put a file of one row wherever the log names a base or a log file."""
    view = LakeTable.open(path).view
    rows = pa.Table.from_pylist(_ROWS, schema=view.config.schema)
    pq.write_table(rows, path / "one.parquet")
    pq.write_table(pa.concat_tables([rows] * 64), path / "many.parquet", row_group_size=1)
    logs = {block.file.path for commit in view.log_commits for block in commit.blocks}
    for source, names in (("one", view.snapshot.files), ("many", logs)):
        for number, name in enumerate(names):
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if number % _LINKS == 0:
                linked = shutil.copyfile(path / f"{source}.parquet", target)
            else:
                os.link(linked, target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--touched", type=int, default=500, help="buckets that a commit has blocks of")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-spark", action="store_true")
    given = parser.parse_args()
    report = Report(Console())
    with tempfile.TemporaryDirectory() as folder:
        measure(
            report, Path(folder), files=given.files, commits=given.commits, touched=given.touched,
            rounds=given.rounds, spark=not given.no_spark,
        )  # fmt: skip
    report.end()
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
