"""The parts of the foundation benchmark without Spark: opening a long log, and counting requests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq

from benchmarks.foundation_data import Inputs, merged_sql
from benchmarks.measure import Contender, Report, interleave
from benchmarks.tables import OFF, add_file, commit, counted
from benchmarks.tpch import LINEITEM, compare, connect
from lakemerge import LakeTable, Settings
from lakemerge.format.block_index import LogCommit
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.testing.counting import Counts
from lakemerge.write.parquet.stats import file_statistics

__all__ = ["count_requests", "long_log", "metadata", "requests"]

_BUCKETS = 16
_LOCAL_ONLY = frozenset({"open_input", "write"})
"""Calls of a store that cost no request by themselves: opening a file of known size, filling a buffer."""
_T = TypeVar("_T")


def metadata(inputs: Inputs, scratch: Path, report: Report, *, rounds: int, files: int, commits: int) -> None:
    """Opening a table of many files and commits: right after a checkpoint, then with as many log
    appends after it. The floor is reading the same files of the log without understanding them."""
    path = scratch / "metadata"
    grow = long_log(path, pq.read_metadata(inputs.initial), files=files, commits=commits)
    for what in (f"{files:,} files, {commits:,} commits, checkpointed", f"the same and {commits:,} log appends since"):
        version, live = next(grow)
        times = interleave(
            [
                Contender("bytes", partial(_read_log, path)),
                Contender("open", partial(LakeTable.open, path)),
                Contender("plan", lambda: len(LakeTable.open(path).opened.view.file_slices)),
            ],
            rounds=rounds,
        )
        report.timed("metadata", f"open: {what}", times["open"], target=1.0)
        report.timed("metadata", f"open: {what} / its bytes", times["open"], times["bytes"])
        report.timed("metadata", f"open and plan all buckets: {what}", times["plan"])
        view = LakeTable.open(path).opened.view
        found = (view.version, len(view.file_slices), sum(len(file_slice.blocks) for file_slice in view.file_slices))
        expected = (version, files, live)
        problem = f"version, file slices, live blocks are {found}, expected {expected}"
        report.check(f"metadata: {what}", [] if found == expected else [problem])
    shutil.rmtree(path)


def long_log(path: Path, footer: pq.FileMetaData, *, files: int, commits: int) -> Iterator[tuple[int, int]]:
    """Make a table whose log is real and whose data files do not exist, in two steps: ``files`` base
    files in ``commits`` commits and a checkpoint; then as many log appends, one block a bucket.

    Gives after each step the version, and how often a log block is live in a file slice.
    """
    table = _table(path, properties={**OFF, "delta.checkpointInterval": "1000000"})
    handle, snapshot, config, state = (
        table.opened.handle,
        table.opened.view.snapshot,
        table.opened.view.config,
        table.opened.view.state,
    )
    stats = file_statistics(footer, table.schema) or ""
    for number in range(commits):
        adds = [
            add_file(
                f"base/synthetic/{ordinal:010d}.parquet", ordinal, bucket=ordinal % _BUCKETS, buckets=_BUCKETS,
                # The files of a bucket divide its keys.
                lower=(ordinal // _BUCKETS * 1000, 1) if ordinal >= _BUCKETS else None, rows=100_000,
                size_bytes=2**24, stats=stats,
            )
            for ordinal in range(files * number // commits, files * (number + 1) // commits)
        ]  # fmt: skip
        snapshot = commit(handle, snapshot, adds)
    handle.log.checkpoint(snapshot)
    yield snapshot.version, 0
    columns = tuple(LINEITEM.names)
    for number in range(commits):
        file = LogFile(f"_lakemerge/log/{number:010d}.parquet", 2**20, columns)
        blocks = tuple(
            LogBlock(file, bucket, 1, BucketId((), bucket), _BUCKETS, 1000, 2**16, (0, 1), (2**40, 7))
            for bucket in range(_BUCKETS)
        )
        logs = LogCommit(f"synthetic-{number}", -1, state.merger_epoch, columns, blocks, None)
        snapshot = commit(handle, snapshot, [logs.domain(config=config, state=state, version=snapshot.version + 1)])
    yield snapshot.version, commits * files


def _table(path: Path, properties: Mapping[str, str]) -> LakeTable:
    return LakeTable.create(
        path, LINEITEM.ddl, key=list(LINEITEM.key), ordering=[LINEITEM.ordering], buckets=_BUCKETS,
        properties=properties,
    )  # fmt: skip


def _read_log(table: Path) -> None:
    log = table / "_delta_log"
    checkpoint = max(log.glob("*.checkpoint.parquet"))
    pq.read_table(checkpoint)
    for path in log.glob("*.json"):
        if path.name > checkpoint.name:
            path.read_bytes()


def requests(inputs: Inputs, scratch: Path, report: Report) -> None:
    """Store requests and bytes of each step, exactly: two runs must agree."""
    rows = inputs.frame_rows("small")
    base = scratch / "requests.parquet"
    with connect(scratch) as db:
        db.execute(f"COPY (SELECT * FROM read_parquet('{inputs.third}') LIMIT {rows * 5}) TO '{base}' (FORMAT parquet)")
    runs = [count_requests(inputs, base, scratch / f"requests-{number}", report) for number in (1, 2)]
    first, second = ({step: dict(counts.calls) for step, counts in run.items()} for run in runs)
    report.check("requests", [] if first == second else [f"{first}, then {second}"])
    for step, counts in runs[0].items():
        objects = sum(counts.calls[name] for name in ("open_output", "put", "put_if_absent"))
        calls = sum(number for name, number in counts.calls.items() if name not in _LOCAL_ONLY)
        target = 3 if step == "append of one task" else None  # write tasks + 2
        report.value("requests", step, "requests", calls, detail={"calls": dict(counts.calls)})
        report.value("requests", f"{step}: objects written", "objects", objects, target=target)
        report.value("requests", f"{step}: bytes written", "bytes", counts.bytes_written)
        report.value("requests", f"{step}: bytes read", "bytes", counts.bytes_read)


def count_requests(inputs: Inputs, base: Path, path: Path, report: Report) -> dict[str, Counts]:
    """What a store is asked at each step in the life of a small table, without Spark."""
    _table(path, properties={})
    table, store = counted(path, Settings(threads=1))
    loaded, frame = pq.read_table(base), pq.read_table(inputs.frame("small"))
    key = " AND ".join(f"{name} = {frame.column(name)[0].as_py()}" for name in LINEITEM.key)
    counts: dict[str, Counts] = {}

    def step(name: str, action: Callable[[], _T]) -> _T:
        store.reset()
        result = action()
        counts[name] = store.counts()
        return result

    step("first load", lambda: table.upsert(loaded))
    step("append of one task", lambda: table.upsert(frame))
    fresh = LakeTable(table.opened.handle, table.opened.handle.log.snapshot(), pinned=False, spark=None)
    step("open", table.opened.handle.log.snapshot)
    found = {"dirty": step("read of all rows, dirty", fresh.to_arrow)}
    step("key look-up, dirty", lambda: fresh.to_arrow(filter=key))
    step("compaction", fresh.compact)
    found["clean"] = step("read of all rows, clean", fresh.to_arrow)
    step("key look-up, clean", lambda: fresh.to_arrow(filter=key))
    with connect(path.parent) as db:
        db.execute(f"CREATE TEMP TABLE expected AS {merged_sql(base, [inputs.frame('small')])}")
        for name, rows in found.items():
            db.register("found", rows)
            report.check(f"requests: {name} read", compare(db, LINEITEM, "found", "expected").problems)
    return counts
