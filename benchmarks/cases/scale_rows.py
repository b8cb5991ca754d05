"""One table of many rows: what a step takes, and whether its memory stays flat."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from benchmarks.elsewhere import elsewhere, peak_bytes
from benchmarks.harness import Run
from benchmarks.tables import loaded, random_rows
from lakemerge import LakeTable

__all__ = ["buckets_of", "scale_rows", "step"]

_BUCKET_ROWS = 1_562_500
"""A 64th of 100,000,000. A table has a power of two of buckets, so sizes that are a power of two apart compare best."""
_LOOK_UPS = 20
_STEPS = ("load", "upsert", "look-ups", "scan", "compaction of a bucket", "minor compaction", "scan again")
_FLAT = 1.3
"""A step may have so many times the memory that it has in the smallest table."""


def scale_rows(
    run: Run,
    *,
    rows: Annotated[tuple[int, ...], "of each table, the smallest first"] = (12_500_000, 100_000_000),
    commit_rows: Annotated[int, "of each of three upserts, with keys all over the table"] = 100_000,
) -> None:
    """Tables of many rows without Spark: load, upserts, look-ups, scans, compactions, each in a process of its own.

    The peak of each process stands beside that of the same step in the smallest table.
    """
    smallest: dict[str, int] = {}
    for size in rows:
        case, path, peaks = f"{size:,}", run.folder / str(size), dict[str, int]()
        for name in _STEPS:
            found: dict[str, Any] = elsewhere(
                __name__, "step", name=name, path=str(path), rows=size, commit_rows=commit_rows
            )
            peaks[name] = found["peak"]
            run.report.value(case, name, "s", found["seconds"])
            floor = smallest.get(name)
            target = None if floor is None else _FLAT
            run.report.value(case, f"{name}: memory", "bytes", found["peak"], floor, target=target)
            run.report.check(f"{case} rows, {name}", found["problems"])
        smallest = smallest or peaks


def step(name: str, path: str, rows: int, commit_rows: int) -> dict[str, Any]:
    """One step in this process: its seconds, its peak, and what is wrong."""
    began = time.perf_counter()
    problems = _done(name, Path(path), rows, commit_rows)
    return {"seconds": time.perf_counter() - began, "peak": peak_bytes(), "problems": problems}


def _done(name: str, path: Path, rows: int, commit_rows: int) -> list[str]:
    if name == "load":
        table = loaded(path, rows, np.random.default_rng(0), buckets=buckets_of(rows))
        return [] if table.detail().base_rows == rows else [f"{table.detail().base_rows} rows were loaded"]
    table = LakeTable.open(path)
    if name == "upsert":
        for number in (1, 2, 3):
            table.upsert(_frame(rows, commit_rows, number))
        return [] if table.detail().log_commits == 3 else [f"{table.detail().log_commits} commits are pending"]
    if name == "look-ups":
        frame = _frame(rows, commit_rows, 3).slice(0, _LOOK_UPS)
        return [f"key {row['k']} is wrong" for row in frame.to_pylist() if table.get({"k": row["k"]}) != row]
    if name.startswith("scan"):
        count, newest = 0, 0
        for batch in table.scan(columns=["k", "ts"]):
            count += batch.num_rows
            newest += int(np.count_nonzero(batch.column("ts").to_numpy() >= 300))
        expected = (rows, commit_rows)
        return [] if (count, newest) == expected else [f"{count} rows, {newest} of the last upsert, not {expected}"]
    if name == "compaction of a bucket":
        table.compact(max_bytes=1)
        left = sum(not each.is_clean for each in table.opened.view.file_slices)
        return [] if left == len(table.opened.view.file_slices) - 1 else [f"{left} file slices have logs after it"]
    result = table.compact(minor=True)
    return [] if result.file_slices and not table.opened.view.log_commits else ["logs are left"]


def buckets_of(rows: int) -> int:
    """The bucket count of a table of so many rows, which has to be a power of two."""
    return 1 << max(2, round(math.log2(rows / _BUCKET_ROWS)))


def _frame(rows: int, commit_rows: int, number: int) -> pa.Table:
    """The rows of an upsert, with keys all over the table. Of a later one all orderings are higher."""
    rng = np.random.default_rng(number)
    keys = np.sort(rng.choice(rows, commit_rows, replace=False, shuffle=False))
    return random_rows(rng, keys, number * 100)
