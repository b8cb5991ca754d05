"""Tables of many files and of many commits. Their logs are real, in memory; their data files do not exist."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, TypeVar

import pyarrow as pa

from benchmarks.harness import Run
from benchmarks.tables import OFF, add_file, commit
from lakemerge import LakeTable, Settings
from lakemerge.delta import AddFile, DeltaLog, Snapshot
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.filter.prune import file_slices_of_keys
from lakemerge.read.lookup import sorted_keys
from lakemerge.storage import Store
from lakemerge.table.create import create_table
from lakemerge.testing.counting import CountingStore
from lakemerge.testing.memory import Bucket, MemoryStore
from mergers import default_registry

__all__ = ["memory_table", "scale_commits", "scale_files"]

_BUCKETS = 1024
_FILES_IN_COMMIT = 50_000
_SPAN = 1_000
"""Keys of a base file, which owns a range of them."""
_T = TypeVar("_T")


def scale_files(
    run: Run,
    *,
    files: Annotated[tuple[int, ...], "base files of each table, the smallest first"] = (10_000, 100_000, 1_000_000),
) -> None:
    """Tables of many files: what it takes to open one, to find a key's file, to commit, to write a checkpoint.

    The sizes at which a step first takes a second are where its time, which grows with the files, would reach it.
    """
    for count in files:
        case = f"{count:,}"
        tip, handle, store = _table(f"files-{count}", count)
        timed(run, case, "write a checkpoint", partial(handle.log.checkpoint, tip))
        run.report.value(case, "checkpoint", "bytes", store.counts().bytes_written)
        store.reset()
        opened = timed(run, case, "open", partial(_opened, handle))
        counts = store.counts()
        run.report.value(case, "open", "requests", sum(counts.calls[name] for name in ("list", "get", "stat")))
        run.report.value(case, "open: read", "bytes", counts.bytes_read)
        problems = [] if len(opened.snapshot.files) == count else [f"{len(opened.snapshot.files)} files"]
        wanted = sorted_keys([{"k": 7}], opened.config)
        found = timed(run, case, "find a key's files", partial(file_slices_of_keys, opened, wanted, exact=True))
        problems += [] if len(found) == 1 else [f"{len(found)} file slices for one key"]
        again = timed(run, case, "find them again", partial(file_slices_of_keys, opened, wanted, exact=True))
        problems += [] if again == found else ["another file the second time"]
        store.reset()
        after = timed(run, case, "commit a file", partial(commit, handle, opened.snapshot, [_file(count)]))
        run.report.value(case, "commit a file", "requests", sum(store.counts().calls.values()))
        problems += [] if len(after.files) == count + 1 else [f"{len(after.files)} files after one more"]
        latest = timed(run, case, "look for a newer commit", partial(handle.log.update, opened.snapshot))
        problems += [] if latest.files == after.files else ["the update differs from what was committed"]
        view = handle.view(latest)
        found = timed(run, case, "find a key's files after it", partial(file_slices_of_keys, view, wanted, exact=True))
        problems += [] if len(found) == 1 else [f"{len(found)} file slices for one key after a commit"]
        run.report.check(f"{case} files", problems)


def scale_commits(
    run: Run,
    *,
    commits: Annotated[tuple[int, ...], "commits of each log, the shortest first"] = (1_000, 10_000, 100_000),
    files: Annotated[int, "base files of each table; each commit replaces one"] = 100,
    interval: Annotated[int, "commits from one checkpoint to the next"] = 100,
) -> None:
    """Logs of many commits: what opening, an older version, the last commits and a clean-up ask for and take."""
    for count in commits:
        case = f"{count:,}"
        tip, handle, store = _table(f"commits-{count}", files, checkpoints=interval)
        first = tip.version
        for number in range(count):
            tip = commit(handle, tip, [_file(number % files)])
        store.reset()
        opened = timed(run, case, "open", handle.log.snapshot)
        problems = [] if (opened.version, len(opened.files)) == (tip.version, files) else ["another version was opened"]
        _asked(run, case, "open", store)
        middle = first + count // 2
        older = timed(run, case, "open the version in the middle", partial(handle.log.snapshot, version=middle))
        problems += [] if (older.version, len(older.files)) == (middle, files) else ["another version than asked for"]
        _asked(run, case, "open the version in the middle", store)
        table = LakeTable(handle, opened, pinned=False, spark=None)
        last = timed(run, case, "the last ten commits", partial(table.history, limit=10))
        problems += [] if [entry.version for entry in last][-1] == tip.version - 9 else ["other commits than the last"]
        _asked(run, case, "the last ten commits", store)
        moment = older.timestamp_ms
        found = timed(run, case, "open by a time", partial(handle.log.snapshot, timestamp_ms=moment))
        problems += [] if found.timestamp_ms <= moment else ["a version after the time"]
        _asked(run, case, "open by a time", store)
        run.report.check(f"{case} commits", problems)


def _opened(handle: Handle) -> TableView:
    return handle.view(handle.log.snapshot())


def timed(run: Run, case: str, what: str, call: Callable[[], _T]) -> _T:
    """Call once, and report the time."""
    began = time.perf_counter()
    found = call()
    run.report.value(case, what, "s", time.perf_counter() - began)
    return found


def _asked(run: Run, case: str, what: str, store: CountingStore) -> None:
    counts = store.counts()
    run.report.value(case, what, "requests", sum(counts.calls[name] for name in ("list", "get", "stat")))
    run.report.value(case, f"{what}: names listed", "objects", counts.files_listed)
    store.reset()


def memory_table(
    store: Store, log: DeltaLog, *, buckets: int, properties: Mapping[str, str]
) -> tuple[Handle, Snapshot]:
    """An empty table with a key ``k`` and a value ``v``."""
    handle = Handle(store, log, default_registry(), Settings(threads=1))
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
    created = create_table(
        handle, schema, key=["k"], ordering=[], merger=None, options=None, partition_by=[], buckets=buckets,
        name=None, description=None, properties=properties,
    )  # fmt: skip
    return handle, created


def _table(name: str, files: int, *, checkpoints: int = 1_000_000) -> tuple[Snapshot, Handle, CountingStore]:
    store = CountingStore(MemoryStore(Bucket(name)))
    properties = {**OFF, "delta.checkpointInterval": str(checkpoints)}
    handle, tip = memory_table(store, DeltaLog(store), buckets=_BUCKETS, properties=properties)
    for begin in range(0, files, _FILES_IN_COMMIT):
        tip = commit(handle, tip, [_file(number) for number in range(begin, min(files, begin + _FILES_IN_COMMIT))])
    store.reset()
    return tip, handle, store


def _file(number: int) -> AddFile:
    """A base file; each bucket's own ranges of keys."""
    bucket, place = number % _BUCKETS, number // _BUCKETS
    return add_file(
        f"base/0/{number}.parquet", number, lower=(place * _SPAN,) if place else None, bucket=bucket, buckets=_BUCKETS,
        rows=_SPAN, size_bytes=1_000_000,
    )  # fmt: skip
