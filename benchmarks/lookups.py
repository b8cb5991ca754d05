"""Look-ups of single keys, without Spark, in a table of 10 M rows with pending logs: milliseconds and store requests.

The same keys are looked up as written, and after each kind of compaction. Beside it, for comparison, DuckDB asks the
base files alone, without a merge. Rows are compared with those that the frames told.

    python -m benchmarks.lookups --rows 10000000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from benchmarks.measure import Line, Report
from benchmarks.services_logs import SCHEMA, random_rows
from lakemerge import LakeTable
from lakemerge.storage import LocalStore
from lakemerge.testing.counting import CountingStore, Counts

__all__ = ["asked", "counted", "main", "measure"]

_CHUNK_ROWS = 500_000
_WARM_UP = 5
_REQUESTS = ("list", "get", "stat", "read")
"""What an object store is asked in a read; opening a file of known size asks nothing."""

_Row = dict[str, Any]


@dataclass
class _Sampled:
    """Keys, and the newest row of each so far; of equal orderings that of the later frame."""

    keys: Sequence[int]
    rows: dict[int, _Row] = field(default_factory=dict)

    def seen(self, frame: pa.Table) -> pa.Table:
        for row in frame.filter(pc.is_in(frame.column("k"), pa.array(self.keys))).to_pylist():
            if row["k"] not in self.rows or row["ts"] >= self.rows[row["k"]]["ts"]:
                self.rows[row["k"]] = row
        return frame


def measure(report: Report, folder: Path, *, rows: int, commits: int, commit_rows: int, keys: int) -> None:
    """Time look-ups of ``keys`` keys: of rows in the base, rows in logs, and keys that nobody has."""
    path = folder / "table"
    sampled = _write(path, rows=rows, commits=commits, commit_rows=commit_rows, keys=keys)
    _compare(report, path, sampled)
    steps: Mapping[str, Callable[[LakeTable], object] | None] = {
        f"{commits} commits pending": None,
        "logs compacted": LakeTable.compact_logs,
        "minor compaction": lambda table: table.compact(minor=True),
        "full compaction": LakeTable.compact,
    }
    for what, step in steps.items():
        if step is not None:
            step(LakeTable.open(path))
        _measure(report, path, what, sampled)


def _measure(report: Report, path: Path, what: str, sampled: _Sampled) -> None:
    table = LakeTable.open(path)
    for key in sampled.keys[:_WARM_UP]:
        table.get({"k": key})
    found, times = {}, []
    for key in sampled.keys:
        started = time.perf_counter()
        found[key] = table.get({"k": key})
        times.append((time.perf_counter() - started) * 1000)
    report.check(what, _problems(found, sampled))
    report.add(Line(case="get", what=what, unit="ms", value=statistics.median(times), samples=times))
    counted, bytes_read = _requests(path, sampled.keys)
    report.add(Line(case="get", what=what, unit="requests", value=statistics.median(counted), samples=counted))
    report.add(Line(case="get", what=f"{what}: most", unit="requests", value=max(counted)))
    report.add(Line(case="get", what=f"{what}: read", unit="bytes", value=statistics.median(bytes_read)))


def _requests(path: Path, keys: Sequence[int]) -> tuple[list[int], list[int]]:
    """Store requests and bytes of each look-up, in a table that is open."""
    table, store = counted(path)
    table.get({"k": keys[0]})
    requests, sizes = [], []
    for key in keys:
        store.reset()
        table.get({"k": key})
        counts = store.counts()
        requests.append(asked(counts))
        sizes.append(counts.bytes_read)
    return requests, sizes


def counted(path: Path) -> tuple[LakeTable, CountingStore]:
    """An open table, and the store that counts what it asks for."""
    store = CountingStore(LocalStore(path))
    opened = LakeTable.open(path)
    handle = replace(opened.handle, store=store, log=type(opened.handle.log)(store))
    return LakeTable(handle, opened.view.snapshot, pinned=False, spark=None), store


def asked(counts: Counts) -> int:
    """Requests of an object store that reads made."""
    return sum(counts.calls[name] for name in _REQUESTS)


def _compare(report: Report, path: Path, sampled: _Sampled) -> None:
    """DuckDB's time for the same keys in the base files, which it finds by row-group statistics too."""
    files = [str(path / name) for name in LakeTable.open(path).view.snapshot.files]
    with duckdb.connect() as db:
        times = []
        for key in sampled.keys[:50]:
            started = time.perf_counter()
            db.execute("SELECT * FROM read_parquet(?) WHERE k = ?", [files, key]).fetchall()
            times.append((time.perf_counter() - started) * 1000)
    value = statistics.median(times)
    report.add(Line(case="DuckDB", what="base files alone, no logs", unit="ms", value=value, samples=times))


def _problems(found: Mapping[int, _Row | None], sampled: _Sampled) -> list[str]:
    wrong = [key for key in sampled.keys if found[key] != sampled.rows.get(key)]
    return [f"{len(wrong)} of {len(found)} keys have another row, such as {wrong[0]}"] if wrong else []


def _write(path: Path, *, rows: int, commits: int, commit_rows: int, keys: int) -> _Sampled:
    """A base of the keys 0 to ``rows`` - 1, and commits of random ones, a fifth of them new."""
    rng = np.random.default_rng(1)
    changes = [
        random_rows(rng, rng.integers(0, rows * 5 // 4, commit_rows), number) for number in range(1, commits + 1)
    ]
    changed = rng.choice(pa.concat_tables(changes).column("k").to_numpy(), keys // 2)
    sampled = _Sampled([*changed.tolist(), *rng.integers(0, rows * 5 // 4, keys - len(changed)).tolist()])
    table = LakeTable.create(path, SCHEMA, key=["k"], ordering=["ts"], properties={"lakemerge.maintenance": "off"})

    def base() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, _CHUNK_ROWS):
            keys_here = np.arange(first, min(rows, first + _CHUNK_ROWS))
            yield from sampled.seen(random_rows(rng, keys_here, 0)).combine_chunks().to_batches()

    table.upsert(pa.RecordBatchReader.from_batches(changes[0].schema, base()))
    for change in changes:
        table.upsert(sampled.seen(change))
    return sampled


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--commit-rows", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=200)
    given = parser.parse_args()
    report = Report(Console())
    with tempfile.TemporaryDirectory() as folder:
        measure(
            report, Path(folder), rows=given.rows, commits=given.commits, commit_rows=given.commit_rows, keys=given.keys
        )
    report.end()
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
