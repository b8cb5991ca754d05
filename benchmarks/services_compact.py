"""What a compaction costs for what changed, without Spark, on one thread.

With 15 % of the rows changed all over the table a minor compaction takes at most 0.3x the time of a full
one. With 2 % changed among the newest keys only, a full one takes time in proportion to the files touched.

    python -m benchmarks.services_compact
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console

from benchmarks.measure import Contender, Line, Report, interleave
from benchmarks.services_logs import SCHEMA, random_rows
from lakemerge import CompactionResult, LakeTable, Settings

__all__ = ["main", "measure"]

_BUCKETS = 8
_FILES = 8
"""Base files a bucket, about."""
_ROW_BYTES = 48
"""About the size of a row in a base file."""
_BUDGET_FILES = 4
"""Base files that a merge may hold in memory, where their rows take about as much."""
_COMMITS = 6
_STEP = 100
"""By so much orderings rise from commit to commit; more than rows of one commit differ by."""


@dataclass(frozen=True, slots=True)
class _Changed:
    """A loaded and compacted table with changes in its logs, and the rows that it holds by rights."""

    path: Path
    rows: pa.Table
    settings: Settings

    def fresh(self, work: Path) -> None:
        """A copy: files never change, so that links do."""
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.path, work, copy_function=os.link)

    def compact(self, work: Path, *, minor: bool = False) -> CompactionResult:
        return LakeTable.open(work, settings=self.settings).compact(minor=minor)


def measure(report: Report, folder: Path, *, rows: int, rounds: int) -> None:
    """Time the compactions, and compare the rows of each with what numpy makes of the same changes."""
    target = max(1, rows * _ROW_BYTES // _BUCKETS // _FILES)
    # Files end where key ranges do, and those are as large as the budget allows.
    many_files = Settings(threads=1, target_file_bytes=target, merge_budget_bytes=_BUDGET_FILES * target)
    dirty = _changed(folder / "dirty", rows, Settings(threads=1), share=0.15, newest=1.0)
    plain = _changed(folder / "spread", rows, many_files, share=0.02, newest=1.0)
    recent = _changed(folder / "recent", rows, many_files, share=0.02, newest=0.05)
    runs: dict[str, tuple[_Changed, bool]] = {
        "full": (dirty, False), "minor": (dirty, True), "spread": (plain, False), "recent": (recent, False),
    }  # fmt: skip
    done: dict[str, CompactionResult] = {}

    def run(name: str) -> None:
        table, minor = runs[name]
        done[name] = table.compact(folder / f"{name} at work", minor=minor)

    times = interleave(
        [
            Contender(name, partial(run, name), before=partial(table.fresh, folder / f"{name} at work"))
            for name, (table, _) in runs.items()
        ],
        rounds=rounds,
    )
    for name, (table, _) in runs.items():
        report.check(name, _problems(table.rows, folder / f"{name} at work"))
    if report.problems:
        return
    what = "minor compaction / full compaction, 15 % changed"
    report.add(Line.timed("compact", what, times["minor"], times["full"], target=0.3))
    touched, whole = done["recent"].bytes_read, done["spread"].bytes_read
    floor = [seconds * touched / whole for seconds in times["spread"]]
    what = "full compaction, 2 % changed among the newest / its share of the bytes where all files are touched"
    detail = {
        name: {"files": done[name].replaced_files, "bytes": done[name].bytes_read} for name in ("recent", "spread")
    }
    report.add(Line.timed("compact", what, times["recent"], floor, target=1.5, detail=detail))
    report.add(
        Line(
            case="compact",
            what="base files rewritten for 2 % changed among the newest / all over",
            unit="objects",
            value=done["recent"].replaced_files,
            floor=done["spread"].replaced_files,
            target=0.5,
        )
    )


def _changed(path: Path, rows: int, settings: Settings, *, share: float, newest: float) -> _Changed:
    """:param share: of the rows that all commits together change; ``newest``: of the keys, the highest, that
    they are drawn from."""
    table = LakeTable.create(
        path,
        SCHEMA,
        key=["k"],
        ordering=["ts"],
        buckets=_BUCKETS,
        settings=settings,
        properties={"lakemerge.maintenance": "off"},
    )
    rng = np.random.default_rng(7)
    frames = [random_rows(rng, np.arange(rows), 0)]
    first, count = int(rows * (1 - newest)), int(rows * share / _COMMITS)
    frames += [random_rows(rng, rng.integers(first, rows, count), (i + 1) * _STEP) for i in range(_COMMITS)]
    for frame in frames:
        table.upsert(frame)
    return _Changed(path, _folded(frames), settings)


def _folded(frames: Sequence[pa.Table]) -> pa.Table:
    """The last record of each key with the highest ordering, by key."""
    rows = pa.concat_tables(frames).combine_chunks()
    keys, orderings = (rows.column(name).to_numpy() for name in ("k", "ts"))
    order = np.lexsort((np.arange(len(keys)), orderings, keys))
    last = np.append(np.diff(keys[order]) != 0, True)
    return rows.take(pa.array(order[last]))


def _problems(expected: pa.Table, path: Path) -> list[str]:
    table = LakeTable.open(path)
    problems = [] if not table.view.log_commits else ["logs are left"]
    found = table.to_arrow().sort_by("k").combine_chunks()
    same = found.equals(expected.cast(found.schema))
    return problems if same else [*problems, "the rows are not those of the changes"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    report = Report(Console())
    with tempfile.TemporaryDirectory() as folder:
        measure(report, Path(folder), rows=options.rows, rounds=options.rounds)
    report.end()
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
