"""What grows with the table and what does not: the same commits into tables of 1, 10 and 30 M rows, without Spark.

    python -m benchmarks.growth --rows 1000000,10000000,30000000

Buckets are added with the rows, as the documentation advises. Each commit has the same number of rows: of recent keys,
which are the largest tenth of those of the smallest table in number, and of keys all over the table. After each commit
come look-ups and a minor compaction. Every looked-up row is compared with the frame that wrote it.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from rich.console import Console

from benchmarks.lookups import asked, counted
from benchmarks.measure import Line, Report
from benchmarks.services_logs import SCHEMA, random_rows
from lakemerge import LakeTable
from lakemerge.testing.counting import CountingStore

__all__ = ["main", "measure"]

_CHUNK_ROWS = 500_000
_BUCKET_ROWS = 350_000
"""About, since buckets are a power of two: 4, 32 and 64 buckets for 1, 10 and 30 M rows."""
_FLAT, _RECENT = 1.5, 2.0
"""How much longer a step may take in any table than in the smallest: one that reads nothing, or one bucket; and a minor
compaction of recent keys, which reads the end of every bucket."""
_STEP = 100
"""By so much orderings rise from commit to commit; more than rows of one commit differ by."""


_TARGETS = {
    "upsert of recent keys": _FLAT,
    "upsert of uniform keys": _FLAT,
    "look-up after recent keys": _FLAT,
    "look-up after uniform keys": _FLAT,
    "minor compaction of recent keys": _RECENT,
}
_LOOK_UPS = 10
_T = TypeVar("_T")


@dataclass
class _Samples:
    """Seconds of a step in one table, and the most that one of its runs asked the store for."""

    seconds: list[float] = field(default_factory=list)
    requests: int = 0
    bytes_read: int = 0

    def take(self, run: Callable[[], _T], store: CountingStore | None = None) -> _T:
        if store is not None:
            store.reset()
        started = time.perf_counter()
        found = run()
        self.seconds.append(time.perf_counter() - started)
        if store is not None:
            counts = store.counts()
            self.requests = max(self.requests, asked(counts))
            self.bytes_read = max(self.bytes_read, counts.bytes_read)
        return found


def measure(report: Report, folder: Path, *, sizes: Sequence[int], commits: int, commit_rows: int) -> None:
    """Time the steps in tables of all ``sizes``; ratios are to the first, which is the smallest."""
    smallest: dict[str, _Samples] = {}
    for rows in sizes:
        path = folder / str(rows)
        _load(path, rows)
        seen: dict[str, _Samples] = defaultdict(_Samples)
        for number in range(1, 2 * commits + 1):
            keys, low = ("recent", rows - sizes[0] // 10) if number <= commits else ("uniform", 0)
            rng = np.random.default_rng(number)
            frame = random_rows(rng, low + rng.choice(rows - low, commit_rows, replace=False), number * _STEP)
            report.check(f"{rows:,} rows, {keys} keys", _commit(path, frame, keys, seen))
        table = LakeTable.open(path)
        seen["full scan"].take(lambda: sum(batch.num_rows for batch in table.scan()))  # noqa: B023 - called at once
        seen["full compaction"].take(table.compact)
        smallest = smallest or seen
        for step, found in seen.items():
            _tell(report, f"{rows:,}", step, found, smallest[step])


def _tell(report: Report, case: str, step: str, found: _Samples, smallest: _Samples) -> None:
    report.add(Line.timed(case, step, found.seconds, smallest.seconds, target=_TARGETS.get(step)))
    if found.requests:
        asks = f"{step}: asks"
        report.add(Line(case=case, what=asks, unit="requests", value=found.requests, floor=smallest.requests))
        report.add(Line(case=case, what=asks, unit="bytes", value=found.bytes_read, floor=smallest.bytes_read))


def _commit(path: Path, frame: pa.Table, keys: str, seen: Mapping[str, _Samples]) -> list[str]:
    """Upsert a frame, look up ten of its rows and compact; what is wrong with the rows."""
    seen[f"upsert of {keys} keys"].take(partial(LakeTable.open(path).upsert, frame))
    expected = frame.slice(0, _LOOK_UPS).to_pylist()
    table, store = counted(path)
    table.get({"k": expected[0]["k"]})  # opens the table's log, once
    looked_up, problems = seen[f"look-up after {keys} keys"], []
    for row in expected:
        found = looked_up.take(partial(table.get, {"k": row["k"]}), store)
        problems += [] if found == row else [f"key {row['k']} has {found}, not {row}"]
    table, store = counted(path)
    seen[f"minor compaction of {keys} keys"].take(partial(table.compact, minor=True), store)
    return problems


def _load(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)

    def base() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, _CHUNK_ROWS):
            yield from (
                random_rows(rng, np.arange(first, min(rows, first + _CHUNK_ROWS)), 0).combine_chunks().to_batches()
            )

    buckets = 1 << max(0, round(math.log2(rows / _BUCKET_ROWS)))
    properties = {"lakemerge.maintenance": "off"}
    table = LakeTable.create(path, SCHEMA, key=["k"], ordering=["ts"], buckets=buckets, properties=properties)
    table.upsert(pa.RecordBatchReader.from_batches(random_rows(rng, np.arange(0), 0).schema, base()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", default="1000000,10000000,30000000", help="of each table, the smallest first")
    parser.add_argument("--commits", type=int, default=5, help="of recent keys, and as many of uniform keys")
    parser.add_argument("--commit-rows", type=int, default=10_000)
    given = parser.parse_args()
    report = Report(Console())
    sizes = [int(rows) for rows in given.rows.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        measure(report, Path(folder), sizes=sizes, commits=given.commits, commit_rows=given.commit_rows)
    report.end()
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
