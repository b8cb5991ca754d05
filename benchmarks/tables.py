"""Tables that cases share: random rows, copies, stores that count, and logs whose data files do not exist."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge import LakeTable, Settings
from lakemerge.delta import Action, AddFile, AlreadyDone, Attempt, Snapshot
from lakemerge.format.base_file import BaseFile
from lakemerge.format.names import SLICE_TAG
from lakemerge.handle import Handle
from lakemerge.testing.counting import CountingStore, Counts

__all__ = [
    "OFF",
    "SCHEMA",
    "add_file",
    "commit",
    "copied",
    "counted",
    "loaded",
    "milliseconds",
    "new_table",
    "random_rows",
    "requests_of",
]

SCHEMA = "k BIGINT, ts BIGINT, i0 BIGINT, i1 BIGINT, i2 BIGINT, f0 DOUBLE, f1 DOUBLE, d0 DATE, s0 STRING, s1 STRING"
OFF = {"lakemerge.maintenance": "off"}
_CHUNK_ROWS = 500_000
_REQUESTS = ("list", "get", "stat", "read")
"""What a read asks an object store for. Opening a file of known size asks for nothing."""
_Key = TypeVar("_Key")
_Found = TypeVar("_Found")


def random_rows(rng: np.random.Generator, keys: npt.NDArray[np.int64], number: int) -> pa.Table:
    """Rows of these keys, of :data:`SCHEMA`, with orderings from ``number`` on."""
    count = len(keys)

    def texts(word: str, most: int) -> pa.Array:
        return pc.binary_join_element_wise(word, pc.cast(pa.array(rng.integers(0, most, count)), pa.string()), " ")

    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "ts": pa.array(rng.integers(number, number + 20, count)),
            **{f"i{i}": pa.array(rng.integers(0, 10 ** (3 * i + 2), count)) for i in range(3)},
            **{f"f{i}": pa.array(rng.random(count) * 100) for i in range(2)},
            "d0": pa.array(rng.integers(0, 20_000, count).astype(np.int32)).cast(pa.date32()),
            "s0": texts("customer", 5000),
            "s1": texts("note", 10**9),
        }
    )


def new_table(path: Path, **options: Any) -> LakeTable:
    """An empty table of :data:`SCHEMA`, without maintenance."""
    return LakeTable.create(path, SCHEMA, key=["k"], ordering=["ts"], properties=OFF, **options)


def loaded(
    path: Path, rows: int, rng: np.random.Generator, *, each: Callable[[pa.Table], object] = id, **options: Any
) -> LakeTable:
    """A table with the keys 0 to ``rows`` - 1 in one commit. ``each`` is shown all of its rows."""
    table = new_table(path, **options)

    def chunks() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, _CHUNK_ROWS):
            frame = random_rows(rng, np.arange(first, min(rows, first + _CHUNK_ROWS)), 0)
            each(frame)
            yield from frame.combine_chunks().to_batches()

    table.upsert(pa.RecordBatchReader.from_batches(random_rows(rng, np.arange(0), 0).schema, chunks()))
    return table


def copied(original: Path, work: Path) -> Path:
    """A table of its own with the same files, in place of what was there. Files never change, so links are enough."""
    shutil.rmtree(work, ignore_errors=True)
    return Path(shutil.copytree(original, work, copy_function=os.link))


def counted(path: Path, settings: Settings | None = None) -> tuple[LakeTable, CountingStore]:
    """A table with nothing in memory, and the store that counts what it asked for: the snapshot so far."""
    opened = LakeTable.open(path, settings=settings)
    store = CountingStore(opened.opened.handle.store)
    handle = replace(opened.opened.handle, store=store, log=type(opened.opened.handle.log)(store))
    return LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None), store


def requests_of(counts: Counts) -> int:
    """Requests that reads made of an object store."""
    return sum(counts.calls[name] for name in _REQUESTS)


def milliseconds(call: Callable[[_Key], _Found], keys: Sequence[_Key]) -> tuple[list[float], dict[_Key, _Found]]:
    """How long each call took, and what it gave."""
    times, found = [], {}
    for key in keys:
        started = time.perf_counter()
        found[key] = call(key)
        times.append((time.perf_counter() - started) * 1000)
    return times, found


def add_file(
    path: str,
    ordinal: int,
    *,
    lower: Sequence[Any] | None,
    bucket: int = 0,
    buckets: int = 1,
    rows: int = 0,
    size_bytes: int = 0,
    partition: Mapping[str, str | None] | None = None,
    stats: str | None = None,
) -> AddFile:
    """A base file in a log, of which there may be nothing else."""
    tag = BaseFile.tag(
        bucket=bucket,
        buckets=buckets,
        lower=None if lower is None else tuple(lower),
        through=0,
        ordinal=ordinal,
        rows=rows,
        tombstones=None,
    )
    return AddFile(path, dict(partition or {}), size_bytes, 0, True, stats, {SLICE_TAG: tag})


def commit(handle: Handle, tip: Snapshot, actions: Sequence[Action]) -> Snapshot:
    """The snapshot with these actions in one more commit."""
    done = handle.log.commit(tip, lambda _: Attempt(list(actions)), operation="SYNTHETIC", parameters={})
    if isinstance(done, AlreadyDone):
        raise AssertionError("a commit with a new id is never done already")
    return done.snapshot
