"""The cases of the foundation benchmark without Spark: opening a long log, and counting requests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.foundation_data import Inputs, merged_sql
from benchmarks.measure import Contender, Line, Report, interleave
from benchmarks.tpch import LINEITEM, compare, connect
from lakemerge import LakeTable, Settings
from lakemerge.delta import Action, AddFile, AlreadyDone, Attempt, DeltaLog, Snapshot
from lakemerge.format.base_file import BaseFile
from lakemerge.format.block_index import LogCommit
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.format.names import SLICE_TAG
from lakemerge.handle import Handle
from lakemerge.storage import LocalStore
from lakemerge.testing.counting import CountingStore, Counts
from lakemerge.write.parquet.stats import file_statistics
from mergers import default_registry

__all__ = ["count_requests", "long_log", "metadata", "requests"]

_BUCKETS = 16
_LOCAL_ONLY = frozenset({"open_input", "write"})
"""Calls of a store that cost no request by themselves: opening a file of known size, filling a buffer."""


def metadata(
    inputs: Inputs, scratch: Path, report: Report, *, rounds: int, files: int = 10_000, commits: int = 1_000
) -> None:
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
                Contender("tiles", partial(_open_and_plan, path)),
            ],
            rounds=rounds,
        )
        report.add(Line.timed("metadata", f"open: {what}", times["open"], target=1.0))
        report.add(Line.timed("metadata", f"open: {what} / its bytes", times["open"], times["bytes"]))
        report.add(Line.timed("metadata", f"open and plan all buckets: {what}", times["tiles"]))
        view = LakeTable.open(path).view
        found = (view.version, len(view.file_slices), sum(len(file_slice.blocks) for file_slice in view.file_slices))
        if found != (version, files, live):
            report.check(
                f"metadata: {what}",
                [f"version, file slices, live blocks are {found}, expected {(version, files, live)}"],
            )
    shutil.rmtree(path)


def long_log(path: Path, footer: pq.FileMetaData, *, files: int, commits: int) -> Iterator[tuple[int, int]]:
    """Make a table whose log is real and whose data files do not exist, in two steps: ``files`` base
    files in ``commits`` commits and a checkpoint; then as many log appends, one block a bucket.

    Gives after each step the version, and how often a log block is live in a file slice.
    """
    table = LakeTable.create(
        path,
        LINEITEM.ddl,
        key=list(LINEITEM.key),
        ordering=[LINEITEM.ordering],
        buckets=_BUCKETS,
        properties={"delta.checkpointInterval": "1000000", "lakemerge.maintenance": "off"},
    )
    handle, snapshot, config, state = table.handle, table.view.snapshot, table.view.config, table.view.state
    stats = file_statistics(footer, table.schema) or ""
    for number in range(commits):
        adds = [_add(i, stats) for i in range(files * number // commits, files * (number + 1) // commits)]
        snapshot = _commit(handle, snapshot, adds)
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
        snapshot = _commit(handle, snapshot, [logs.domain(config=config, state=state, version=snapshot.version + 1)])
    yield snapshot.version, commits * files


def _add(number: int, stats: str) -> AddFile:
    """Base file ``number``; the files of a bucket divide its keys."""
    bucket, place = number % _BUCKETS, number // _BUCKETS
    tag = BaseFile.tag(
        bucket=bucket,
        buckets=_BUCKETS,
        lower=None if place == 0 else (place * 1000, 1),
        through=0,
        ordinal=number,
        rows=100_000,
        tombstones=None,
    )
    return AddFile(f"base/synthetic/{number:010d}.parquet", {}, 2**24, 0, True, stats, {SLICE_TAG: tag})


def _commit(handle: Handle, tip: Snapshot, actions: Sequence[Action]) -> Snapshot:
    def build(_tip: Snapshot | None) -> Attempt:
        return Attempt(actions)

    outcome = handle.log.commit(tip, build, operation="SYNTHETIC", parameters={})
    if isinstance(outcome, AlreadyDone):
        raise AssertionError("a commit with a new id is never done already")
    return outcome.snapshot


def _open_and_plan(path: Path) -> int:
    return len(LakeTable.open(path).view.file_slices)


def _read_log(path: Path) -> None:
    log = path / "_delta_log"
    checkpoint = max(log.glob("*.checkpoint.parquet"))
    pq.read_table(checkpoint)
    for commit in log.glob("*.json"):
        if commit.name > checkpoint.name:
            commit.read_bytes()


def requests(inputs: Inputs, scratch: Path, report: Report) -> None:
    """Store requests and bytes of each step, exactly: two runs must agree."""
    rows = inputs.frame_rows("small")
    base = scratch / "requests.parquet"
    with connect(scratch) as db:
        db.execute(f"COPY (SELECT * FROM read_parquet('{inputs.third}') LIMIT {rows * 5}) TO '{base}' (FORMAT parquet)")
    runs = [count_requests(inputs, base, scratch / f"requests-{number}", report) for number in (1, 2)]
    if [_exact(run) for run in runs[:1]] != [_exact(run) for run in runs[1:]]:
        report.check("requests", [f"{_exact(runs[0])}, then {_exact(runs[1])}"])
    for step, counts in runs[0].items():
        objects = sum(counts.calls[name] for name in ("open_output", "put", "put_if_absent"))
        calls = sum(number for name, number in counts.calls.items() if name not in _LOCAL_ONLY)
        detail = {
            "calls": dict(counts.calls),
            "objects_written": objects,
            "bytes_read": counts.bytes_read,
            "bytes_written": counts.bytes_written,
        }
        target = 3 if step == "append of one task" else None  # write tasks + 2
        report.add(Line(case="requests", what=step, unit="requests", value=calls, detail=detail))
        report.add(Line(case="requests", what=f"{step}: objects written", unit="objects", value=objects, target=target))
        for what, size in (("bytes written", counts.bytes_written), ("bytes read", counts.bytes_read)):
            report.add(Line(case="requests", what=f"{step}: {what}", unit="bytes", value=size))


def count_requests(inputs: Inputs, base: Path, path: Path, report: Report) -> dict[str, Counts]:
    """What a store is asked at each step in the life of a small table, without Spark."""
    store = CountingStore(LocalStore(str(path)))
    handle = Handle(store, DeltaLog(store), default_registry(), Settings(threads=1))
    LakeTable.create(path, LINEITEM.ddl, key=list(LINEITEM.key), ordering=[LINEITEM.ordering], buckets=_BUCKETS)
    frame = pq.read_table(inputs.frame("small"))
    key = " AND ".join(f"{name} = {frame.column(name)[0].as_py()}" for name in LINEITEM.key)
    counts: dict[str, Counts] = {}

    def counted(step: str, action: Callable[[], object]) -> object:
        store.reset()
        result = action()
        counts[step] = store.counts()
        return result

    table = LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None)
    loaded = pq.read_table(base)
    counted("first load", lambda: table.upsert(loaded))
    counted("append of one task", lambda: table.upsert(frame))
    fresh = LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None)
    counted("open", handle.log.snapshot)
    dirty = counted("read of all rows, dirty", fresh.to_arrow)
    counted("key look-up, dirty", lambda: fresh.to_arrow(filter=key))
    counted("compaction", fresh.compact)
    clean = counted("read of all rows, clean", fresh.to_arrow)
    counted("key look-up, clean", lambda: fresh.to_arrow(filter=key))
    with connect(path.parent) as db:
        db.execute(f"CREATE TEMP TABLE expected AS {merged_sql(base, [inputs.frame('small')])}")
        for name, rows in (("dirty", dirty), ("clean", clean)):
            if not isinstance(rows, pa.Table):
                raise AssertionError("to_arrow gives a table")
            db.register("found", rows)
            report.check(f"requests: {name} read", compare(db, LINEITEM, "found", "expected").problems)
    return counts


def _exact(run: dict[str, Counts]) -> dict[str, dict[str, int]]:
    """Calls of every step; bytes of log files differ by the digits of timestamps."""
    return {step: dict(counts.calls) for step, counts in run.items()}
