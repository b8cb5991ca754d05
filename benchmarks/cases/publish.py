"""What a publication costs, and what a week of them leaves: ``lakemerge.publish = deletionVectors``, without Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import deltalake
import numpy as np

from benchmarks.duckdb_with import duckdb_with
from benchmarks.harness import Rounds, Run, session
from benchmarks.measure import Contender, interleave
from benchmarks.tables import copied, new_table, random_rows
from compaction.publish import FILE_LOG_BYTES, WEEK_LOG_BYTES, is_too_early
from lakemerge import LakeTable

__all__ = ["publish"]

_STEPS = 24 * 12
"""Writes of a day, one each five minutes."""
_STEP_NS = 300 * 10**9
_SECONDS = 2.0


def publish(
    run: Run,
    *,
    buckets: Annotated[int, "of the table, a power of two"] = 1024,
    rows: Annotated[int, "of the table whose publication is timed"] = 10_000_000,
    share: Annotated[float, "of the rows that change between two publications"] = 0.01,
    week_rows: Annotated[int, "of the table that lives through simulated time"] = 50_000,
    days: Annotated[float, "of simulated time; the log is counted up to a week"] = 7.0,
    spark: Annotated[bool, "whether delta-spark opens the table, too"] = True,
    rounds: Rounds = 3,
) -> None:
    """A publication beside a minor compaction that others do not see, and the log after a simulated week.

    A publication takes at most 1.2x the time of a minor compaction. In the simulated week 1 % of the rows change every
    five minutes, all over the table, and the table is published as ``auto`` does. That leaves at most 100 MB of commits
    beside the last checkpoint, and the table opens within two seconds, in LakeMerge, deltalake and delta-spark. The
    published rows are compared with LakeMerge's, by DuckDB.
    """
    _timed_publication(run, buckets, rows, share, rounds)
    week = _week(run, buckets, week_rows, share, days)
    folder = Path(week.table.url)
    report, scale = run.report, 7 / days
    report.value("publish", "publications of a week", "objects", len(week.published) * scale)
    if week.published:
        each = sum(week.published) / week.files
        report.value("publish", "log for each file of a publication", "bytes", each, FILE_LOG_BYTES, target=1.0)
        slices = sum(week.published) / week.file_slices
        report.value("publish", "log for each file slice of a publication", "bytes", slices)
    whole = week.commits * scale
    report.value("publish", "commits of a week, beside the last checkpoint", "bytes", whole, WEEK_LOG_BYTES, target=1.0)
    *earlier, last = sorted(folder.glob("_delta_log/*.checkpoint.parquet"))
    sizes = sum(file.stat().st_size for file in earlier)
    report.value("publish", "earlier checkpoints of a week", "bytes", sizes * scale)
    report.value("publish", "last checkpoint, for each base file", "bytes", last.stat().st_size / buckets)
    openers: dict[str, Callable[[], object]] = {
        "LakeMerge": lambda: LakeTable.open(folder),
        "deltalake": lambda: deltalake.DeltaTable(str(folder)).version(),
    }
    for name, opened in openers.items():
        times = [_timed(opened) for _ in range(rounds)]
        report.timed("publish", f"opening in {name} / two seconds", times, [_SECONDS], target=1.0)
    if spark:
        with session(run.folder, delta=True) as opened_session:
            times = [
                _timed(lambda: opened_session.read.format("delta").load(str(folder)).count()) for _ in range(rounds)
            ]
        report.timed("publish", "opening and counting in delta-spark / two seconds", times, [_SECONDS])
    report.check("published rows", _difference(folder, week.published_version))


def _timed_publication(run: Run, buckets: int, rows: int, share: float, rounds: int) -> None:
    original = run.folder / "original"
    rng = np.random.default_rng(7)
    table = new_table(original, buckets=buckets)
    table.upsert(random_rows(rng, np.arange(rows), 0))
    table.upsert(random_rows(rng, rng.integers(0, rows, max(1, int(rows * share))), 100))
    published = copied(original, run.folder / "published")
    LakeTable.open(published).alter(properties={"lakemerge.publish": "deletionVectors"})
    originals = {"minor": original, "publish": published}

    def compact(name: str) -> None:
        LakeTable.open(run.folder / f"{name} at work").compact(minor=True)

    def copy(name: str) -> Path:
        return copied(originals[name], run.folder / f"{name} at work")

    times = interleave(
        [Contender(name, partial(compact, name), partial(copy, name)) for name in originals], rounds=rounds
    )
    run.report.timed("publish", "publication / minor compaction", times["publish"], times["minor"], target=1.2)


@dataclass
class _Week:
    """A table that lived through simulated time."""

    table: LakeTable
    commits: int = 0
    """Bytes of all commits."""
    published: list[int] = field(default_factory=list)
    """Bytes of each commit that published."""
    files: int = 0
    """How many files the table had before them, and one more for each base file."""
    file_slices: int = 0
    """How many file slices these changed, together."""
    published_version: int = 0


def _week(run: Run, buckets: int, rows: int, share: float, days: float) -> _Week:
    """Write every five minutes, and publish when ``auto`` would. Time passes by the store's clock: the files of commits
    that wait to be published get five minutes older."""
    rng = np.random.default_rng(11)
    folder = run.folder / "week"
    table = new_table(folder, buckets=buckets)
    table.upsert(random_rows(rng, np.arange(rows), 0))
    table.alter(properties={"lakemerge.publish": "deletionVectors"})
    week, first = _Week(table), table.version
    count = max(1, int(rows * share))
    for number in range(max(1, round(days * _STEPS))):
        table.upsert(random_rows(rng, rng.integers(0, rows, count), 100 + 100 * number))
        for version in range(max(first, week.published_version), table.version + 1):
            _age(_commit(folder, version))
        if not is_too_early(table.opened.handle, table.opened.view):
            view = table.opened.view
            week.files += len(view.snapshot.files) + len(view.base_files)
            result = table.compact(minor=True)
            week.published.append(_commit(folder, result.version).stat().st_size)
            week.file_slices += result.file_slices
            week.published_version = result.version
    week.commits = sum(_commit(folder, version).stat().st_size for version in range(first + 1, table.version + 1))
    table.opened.handle.log.checkpoint(table.opened.view.snapshot)
    return week


def _commit(folder: Path, version: int) -> Path:
    return folder / f"_delta_log/{version:020d}.json"


def _age(file: Path) -> None:
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns - _STEP_NS))


def _timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def _difference(folder: Path, version: int) -> list[str]:
    """What DuckDB reads of the table, beside LakeMerge's rows of the version that was published. deltalake 1.6 may wait
    for ever for more than 512 files with deletion vectors."""
    with duckdb_with("delta") as connection:
        theirs = connection.execute(f"SELECT * FROM delta_scan('{folder}') ORDER BY k").to_arrow_table()
    ours = LakeTable.open(folder, version=version or None).to_arrow().sort_by("k")
    shown = theirs.select(ours.column_names).cast(ours.schema)
    return [] if shown.combine_chunks().equals(ours.combine_chunks()) else ["DuckDB reads other rows"]
