"""Log compaction of 100 small commits: at most 1.5x the time of rewriting their rows once, and reads before and after.

The floor reads all log files with pyarrow, sorts the rows by key and writes one file, as the log compaction does
but for buckets, commit order and bookkeeping.

    python -m benchmarks.services_logs
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.measure import Contender, Line, Report, interleave
from lakemerge import LakeTable
from lakemerge.storage import LocalStore
from lakemerge.testing.counting import CountingStore

__all__ = ["SCHEMA", "main", "measure", "random_rows", "rewrite_once"]

SCHEMA = "k BIGINT, ts BIGINT, i0 BIGINT, i1 BIGINT, i2 BIGINT, f0 DOUBLE, f1 DOUBLE, d0 DATE, s0 STRING, s1 STRING"
_BUCKETS = 16
_KEPT = {"event-time": "only deciding records are kept", "aggregate": "all records are kept"}


def measure(report: Report, folder: Path, *, commits: int, rows: int, rounds: int) -> None:
    """Time log compaction and reads for a merger that lets records go, and one that does not."""
    for merger, kept in _KEPT.items():
        original = folder / merger
        _write(original, merger, commits=commits, rows=rows)
        _measure(report, original, folder / f"{merger} at work", kept, rounds=rounds)


def rewrite_once(path: Path, target: Path) -> int:
    """The floor: every log row of a table in one file, sorted by key; how many there are."""
    logs = sorted(str(file) for file in (path / "_lakemerge" / "log").glob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(file) for file in logs]).combine_chunks()
    pq.write_table(
        rows.take(pc.sort_indices(rows, sort_keys=[("k", "ascending")])),
        target,
        compression="zstd",
        compression_level=1,
        store_decimal_as_integer=True,
    )
    return rows.num_rows


def _measure(report: Report, original: Path, work: Path, kept: str, *, rounds: int) -> None:
    def fresh() -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(original, work)

    def compact() -> None:
        LakeTable.open(work).compact_logs()

    expected = _rows(original)
    times = interleave(
        [
            Contender("compact", compact, before=fresh),
            Contender("rewrite", partial(rewrite_once, original, original.parent / "floor.parquet")),
        ],
        rounds=rounds,
    )
    report.add(Line.timed("logs", f"log compaction, {kept}", times["compact"], times["rewrite"], target=1.5))
    fresh()
    done = LakeTable.open(work).compact_logs()
    given = rewrite_once(original, original.parent / "floor.parquet")
    report.check(f"log compaction, {kept}", _problems(expected, _rows(work), done.records, given))
    _reads(report, original, work, kept, rounds=rounds)


def _reads(report: Report, original: Path, work: Path, kept: str, *, rounds: int) -> None:
    """Reads of the compacted table, as ratios to those of the original."""
    reads: Sequence[tuple[str, Callable[[LakeTable], object]]] = (
        ("full read", LakeTable.to_arrow),
        ("look-up of a key", lambda table: table.get({"k": 7})),
    )
    for what, read in reads:
        tables = [LakeTable.open(path) for path in (work, original)]
        after, before = (Contender(name, partial(read, t)) for name, t in zip(("after", "before"), tables, strict=True))
        times = interleave([after, before], rounds=rounds)
        report.add(Line.timed("reads", f"{what} after / before, {kept}", times["after"], times["before"]))
        opened, once = (_opened(table, read) for table in tables)
        report.add(
            Line(
                case="reads", what=f"{what}: files opened, {kept}", unit="requests", value=opened, floor=once, target=1
            )
        )


def _opened(table: LakeTable, read: Callable[[LakeTable], object]) -> int:
    """Files that a read opens."""
    store = CountingStore(LocalStore(Path(table.url.removeprefix("file://"))))
    read(LakeTable(replace(table.handle, store=store), table.view.snapshot, pinned=True, spark=None))
    return store.counts().calls["open_input"]


def _problems(expected: pa.Table, found: pa.Table, records: int, given: int) -> list[str]:
    problems = [] if expected.equals(found) else ["the rows are not what they were"]
    return problems if records == given else [*problems, f"{records} records were merged, there are {given}"]


def _rows(path: Path) -> pa.Table:
    return LakeTable.open(path).to_arrow().sort_by("k").combine_chunks()


def _write(path: Path, merger: str, *, commits: int, rows: int) -> None:
    """A base of as many rows as all commits bring, and then the commits: four in five records update a key."""
    table = LakeTable.create(
        path,
        SCHEMA,
        key=["k"],
        ordering=["ts"],
        merger=merger,
        buckets=_BUCKETS,
        properties={"lakemerge.maintenance": "off"},
    )
    rng = np.random.default_rng(1)
    table.upsert(random_rows(rng, np.arange(commits * rows), 0))
    for number in range(1, commits + 1):
        table.upsert(random_rows(rng, rng.integers(0, commits * rows * 5 // 4, rows), number))


def random_rows(rng: np.random.Generator, keys: np.ndarray[tuple[int], np.dtype[np.int64]], number: int) -> pa.Table:
    """Rows of these keys, of :data:`SCHEMA`, with orderings from ``number`` on."""
    count = len(keys)
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "ts": pa.array(rng.integers(number, number + 20, count)),
            **{f"i{i}": pa.array(rng.integers(0, 10 ** (3 * i + 2), count)) for i in range(3)},
            **{f"f{i}": pa.array(rng.random(count) * 100) for i in range(2)},
            "d0": pa.array(rng.integers(0, 20_000, count).astype(np.int32)).cast(pa.date32()),
            "s0": pc.binary_join_element_wise(
                "customer", pc.cast(pa.array(rng.integers(0, 5000, count)), pa.string()), " "
            ),
            "s1": pc.binary_join_element_wise(
                "note", pc.cast(pa.array(rng.integers(0, 10**9, count)), pa.string()), " "
            ),
        }
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--rows", type=int, default=10_000, help="of a commit")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report = Report(Console())
    with tempfile.TemporaryDirectory() as folder:
        measure(report, Path(folder), commits=arguments.commits, rows=arguments.rows, rounds=arguments.rounds)
    report.end()
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
