"""Look-ups of single keys, and what grows with a table, both without Spark."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Run
from benchmarks.measure import Report
from benchmarks.tables import counted, loaded, milliseconds, random_rows, requests_of
from lakemerge import LakeTable
from lakemerge.testing.counting import CountingStore

__all__ = ["growth", "lookups"]

_WARM_UP, _OF_DUCKDB, _LOOK_UPS = 5, 50, 10
_BUCKET_ROWS = 350_000
"""About, since buckets are a power of two: 4, 32 and 64 buckets for 1, 10 and 30 M rows."""
_STEP = 100
"""By so much orderings rise from commit to commit; more than rows of one commit differ by."""
_FLAT, _RECENT = 1.5, 2.0
"""How much longer a step may take in any table than in the smallest: one that reads nothing, or one bucket; and a minor
compaction of recent keys, which reads the end of every bucket."""
_TARGETS = {
    "upsert of recent keys": _FLAT,
    "upsert of uniform keys": _FLAT,
    "look-up after recent keys": _FLAT,
    "look-up after uniform keys": _FLAT,
    "minor compaction of recent keys": _RECENT,
}
_Row = dict[str, Any]
_Found = TypeVar("_Found")


def lookups(
    run: Run,
    *,
    rows: Annotated[int, "of the table"] = 10_000_000,
    commits: Annotated[int, "that are pending"] = 20,
    commit_rows: Annotated[int, "of each commit, a fifth of them new"] = 10_000,
    keys: Annotated[int, "that are looked up: half of them in logs, and some of them nowhere"] = 200,
) -> None:
    """Look-ups of single keys: milliseconds, requests and bytes, as written and after each compaction."""
    path, report = run.folder / "table", run.report
    newest = _write(path, rows=rows, commits=commits, commit_rows=commit_rows, keys=keys)
    sought = list(newest)
    with duckdb.connect() as db:  # finds keys by row-group statistics, too, and merges nothing
        files = [str(path / name) for name in LakeTable.open(path).opened.view.snapshot.files]
        query = "SELECT * FROM read_parquet(?) WHERE k = ?"
        times, _ = milliseconds(lambda key: db.execute(query, [files, key]).fetchall(), sought[:_OF_DUCKDB])
    report.value("DuckDB", "base files alone, no logs", "ms", statistics.median(times), samples=times)
    steps: Mapping[str, Callable[[LakeTable], object]] = {
        f"{commits} commits pending": lambda table: table,
        "logs compacted": LakeTable.compact_logs,
        "minor compaction": lambda table: table.compact(minor=True),
        "full compaction": LakeTable.compact,
    }
    for what, step in steps.items():
        step(LakeTable.open(path))
        _look_up(report, path, what, newest)


def _look_up(report: Report, path: Path, what: str, newest: Mapping[int, _Row | None]) -> None:
    table, sought = LakeTable.open(path), list(newest)
    milliseconds(lambda key: table.get({"k": key}), sought[:_WARM_UP])
    times, found = milliseconds(lambda key: table.get({"k": key}), sought)
    wrong = [key for key in sought if found[key] != newest[key]]
    report.check(what, [f"{len(wrong)} of {len(sought)} keys have another row, such as {wrong[0]}"] if wrong else [])
    report.value("get", what, "ms", statistics.median(times), samples=times)
    table, store = counted(path)
    table.get({"k": sought[0]})
    requests, sizes = [], []
    for key in sought:
        store.reset()
        table.get({"k": key})
        requests.append(requests_of(store.counts()))
        sizes.append(store.counts().bytes_read)
    report.value("get", what, "requests", statistics.median(requests), samples=requests)
    report.value("get", f"{what}: most", "requests", max(requests))
    report.value("get", f"{what}: read", "bytes", statistics.median(sizes))


def _write(path: Path, *, rows: int, commits: int, commit_rows: int, keys: int) -> dict[int, _Row | None]:
    """A base of the keys 0 to ``rows`` - 1, and commits of random ones. Gives keys, and the newest row of each: of
    equal orderings that of the later commit."""
    rng = np.random.default_rng(1)
    changes = [
        random_rows(rng, rng.integers(0, rows * 5 // 4, commit_rows), number) for number in range(1, commits + 1)
    ]
    changed = rng.choice(pa.concat_tables(changes).column("k").to_numpy(), keys // 2)
    others = rng.integers(0, rows * 5 // 4, keys - len(changed))
    newest: dict[int, _Row | None] = dict.fromkeys([*changed.tolist(), *others.tolist()])

    def see(frame: pa.Table) -> None:
        for row in frame.filter(pc.is_in(frame.column("k"), pa.array(list(newest), pa.int64()))).to_pylist():
            known = newest[row["k"]]
            if known is None or row["ts"] >= known["ts"]:
                newest[row["k"]] = row

    table = loaded(path, rows, rng, each=see)
    for change in changes:
        table.upsert(change)
        see(change)
    return newest


@dataclass
class _Samples:
    """Seconds of a step in one table, and the most that one of its runs asked the store for."""

    seconds: list[float] = field(default_factory=list)
    requests: int = 0
    bytes_read: int = 0

    def take(self, call: Callable[[], _Found], store: CountingStore | None = None) -> _Found:
        if store is not None:
            store.reset()
        started = time.perf_counter()
        found = call()
        self.seconds.append(time.perf_counter() - started)
        if store is not None:
            self.requests = max(self.requests, requests_of(store.counts()))
            self.bytes_read = max(self.bytes_read, store.counts().bytes_read)
        return found


def growth(
    run: Run,
    *,
    rows: Annotated[tuple[int, ...], "of each table, the smallest first"] = (1_000_000, 10_000_000, 30_000_000),
    commits: Annotated[int, "of recent keys, and as many of uniform keys"] = 5,
    commit_rows: Annotated[int, "of each commit"] = 10_000,
) -> None:
    """What grows with the table and what does not: the same commits into tables of several sizes.

    Buckets are added with the rows, as the documentation advises. Recent keys are the largest, a tenth as many as the
    smallest table has. After each commit come look-ups and a minor compaction.
    """
    smallest: dict[str, _Samples] = {}
    for size in rows:
        path, seen = run.folder / str(size), defaultdict[str, _Samples](_Samples)
        loaded(path, size, np.random.default_rng(0), buckets=1 << max(0, round(math.log2(size / _BUCKET_ROWS))))
        for number in range(1, 2 * commits + 1):
            keys, low = ("recent", size - rows[0] // 10) if number <= commits else ("uniform", 0)
            rng = np.random.default_rng(number)
            frame = random_rows(rng, low + rng.choice(size - low, commit_rows, replace=False), number * _STEP)
            run.report.check(f"{size:,} rows, {keys} keys", _commit(path, frame, keys, seen))
        table = LakeTable.open(path)
        scanned = seen["full scan"].take(partial(_rows_of, table))
        run.report.check(f"{size:,} rows", [] if scanned == size else [f"a full scan gives {scanned} rows"])
        seen["full compaction"].take(table.compact)
        smallest = smallest or seen
        for step, found in seen.items():
            floor, what = smallest[step], f"{step}: asks"
            run.report.timed(f"{size:,}", step, found.seconds, floor.seconds, target=_TARGETS.get(step))
            if found.requests:
                run.report.value(f"{size:,}", what, "requests", found.requests, floor.requests)
                run.report.value(f"{size:,}", what, "bytes", found.bytes_read, floor.bytes_read)


def _rows_of(table: LakeTable) -> int:
    return sum(batch.num_rows for batch in table.scan())


def _commit(path: Path, frame: pa.Table, keys: str, seen: Mapping[str, _Samples]) -> Sequence[str]:
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
