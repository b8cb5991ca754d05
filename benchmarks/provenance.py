"""What provenance costs, without Spark: ``explain`` of a key, ``what_if`` beside a merged read, ``replay``.

The table has 10 M rows and 20 pending commits. ``explain`` is held against a bound in milliseconds, and its store
requests are counted. The floor of ``what_if`` is the table's own read. The floor of ``replay`` reads the same log files
with pyarrow and upserts them, commit by commit. Each answer is compared with what it must be.

    python -m benchmarks.provenance --rows 1000000 --records 200000
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.measure import Contender, Line, Report, interleave
from benchmarks.services_logs import SCHEMA, random_rows
from lakemerge import LakeTable
from lakemerge.storage import LocalStore
from lakemerge.testing.counting import CountingStore

__all__ = ["main", "measure"]

_CHUNK_ROWS = 500_000
_COMMITS = 20
_EXPLAIN_MS = 150.0
_WHAT_IF = 1.3
_REPLAY = 1.5
_REQUESTS = ("list", "get", "stat", "read")


def measure(report: Report, folder: Path, *, rows: int, records: int, keys: int, rounds: int) -> None:
    """:param records: in the pending commits, together."""
    path = folder / "table"
    sought = _write(path, rows=rows, records=records, keys=keys)
    _explain(report, path, sought)
    _what_if(report, path, rounds)
    _replay(report, path, folder, records, rounds)


def _explain(report: Report, path: Path, keys: Sequence[int]) -> None:
    table = LakeTable.open(path)
    table.explain({"k": keys[0]})
    times, wrong = [], []
    for key in keys:
        started = time.perf_counter()
        found = table.explain({"k": key})
        times.append((time.perf_counter() - started) * 1000)
        if found.row != table.get({"k": key}) or not found.steps:
            wrong.append(key)
    report.check("explain", [f"{len(wrong)} keys end in another row, such as {wrong[0]}"] if wrong else [])
    what = f"a key with {_COMMITS} commits pending"
    value = statistics.median(times)
    report.add(Line(case="explain", what=what, unit="ms", value=value, samples=times, target=_EXPLAIN_MS))
    counted = _requests(path, keys)
    report.add(Line(case="explain", what=what, unit="requests", value=statistics.median(counted), samples=counted))
    # A listing, and for the base file and each commit: a footer, a row group, a commit file.
    report.add(Line(case="explain", what="most of them", unit="requests", value=max(counted), target=1 + 3 * 21))


def _requests(path: Path, keys: Sequence[int]) -> list[int]:
    opened, store = LakeTable.open(path), CountingStore(LocalStore(path))
    handle = replace(opened.handle, store=store, log=type(opened.handle.log)(store))
    counted = []
    for key in keys:
        table = LakeTable(handle, opened.view.snapshot, pinned=False, spark=None)
        store.reset()
        table.explain({"k": key})
        counts = store.counts()
        counted.append(sum(counts.calls[name] for name in _REQUESTS))
    return counted


def _what_if(report: Report, path: Path, rounds: int) -> None:
    table = LakeTable.open(path)
    times = interleave(
        [
            Contender("read", table.to_arrow),
            Contender("same", lambda: table.what_if().to_arrow()),
            Contender("other", lambda: table.what_if("commit-time").to_arrow()),
        ],
        rounds=rounds,
    )
    same = _sorted(table.what_if().to_arrow()).equals(_sorted(table.to_arrow()))
    report.check("what_if", [] if same else ["the table's own merger gives other rows than the table has"])
    for name, what in (("same", "the table's own merger"), ("other", "commit-time")):
        report.add(Line.timed("what_if", f"{what} / a merged read", times[name], times["read"], target=_WHAT_IF))


def _replay(report: Report, path: Path, folder: Path, records: int, rounds: int) -> None:
    table = LakeTable.open(path)
    begin = table.version - _COMMITS
    logs = [[path / name for name in sorted(log.paths)] for log in table.view.log_commits]
    empty = partial(shutil.rmtree, folder / "again", ignore_errors=True)

    def by_hand() -> None:
        other = LakeTable.create(folder / "again", SCHEMA, key=["k"], ordering=["ts"], buckets=table.detail().buckets)
        other.upsert(LakeTable.open(path, version=begin).scan())
        for files in logs:
            other.upsert(pa.concat_tables([pq.read_table(file) for file in files]))

    times = interleave(
        [
            Contender("by hand", by_hand, before=empty),
            Contender("replay", lambda: table.replay(folder / "again", since=begin), before=empty),
        ],
        rounds=rounds,
    )
    empty()
    done = table.replay(folder / "again", since=begin)
    same = _sorted(LakeTable.open(folder / "again").to_arrow()).equals(_sorted(table.to_arrow()))
    problems = [] if same else ["the other table has other rows"]
    report.check(
        "replay", problems if done.records == records else [*problems, f"{done.records} records were replayed"]
    )
    what = f"{records:,} records onto the rows before / reading and upserting them"
    report.add(Line.timed("replay", what, times["replay"], times["by hand"], target=_REPLAY))


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.sort_by("k").combine_chunks()


def _write(path: Path, *, rows: int, records: int, keys: int) -> list[int]:
    """A base of ``rows`` keys and pending commits of random ones; keys that are in some of these."""
    rng = np.random.default_rng(1)
    table = LakeTable.create(path, SCHEMA, key=["k"], ordering=["ts"], properties={"lakemerge.maintenance": "off"})

    def base() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, _CHUNK_ROWS):
            yield from random_rows(rng, np.arange(first, min(rows, first + _CHUNK_ROWS)), 0).to_batches()

    changes = [
        random_rows(rng, rng.choice(rows, records // _COMMITS, replace=False), number)
        for number in range(1, _COMMITS + 1)
    ]
    table.upsert(pa.RecordBatchReader.from_batches(changes[0].schema, base()))
    for change in changes:
        table.upsert(change)
    found: list[int] = rng.choice(pa.concat_tables(changes).column("k").to_numpy(), keys, replace=False).tolist()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    report = Report(Console())
    with tempfile.TemporaryDirectory() as folder:
        measure(report, Path(folder), rows=given.rows, records=given.records, keys=given.keys, rounds=given.rounds)
    report.end()
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
