"""Many writers on one table: the product's own code in threads, over a store in memory, on a clock that is simulated.

Each call of the store takes the time that such a call takes on an object store. The clock goes on when all writers wait
for it, so what the simulation itself takes on this machine does not show.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Annotated

import pyarrow as pa

from benchmarks.cases.scale_log import memory_table
from benchmarks.harness import Run, Seed
from benchmarks.tables import OFF
from lakemerge import LakeTable
from lakemerge._internal.pools import inline_pools
from lakemerge.delta import DeltaLog
from lakemerge.storage.base import FileStat, Put
from lakemerge.testing.memory import Bucket, MemoryStore

__all__ = ["Clock", "scale_writers"]

_AT_ONCE = 8
"""So many commits are fetched at the same time (lakemerge.delta.listing)."""


def scale_writers(
    run: Run,
    *,
    writers: Annotated[tuple[int, ...], "that begin at the same time; the smallest number first"] = (10, 30, 100),
    upserts: Annotated[int, "of each writer"] = 1,
    get_ms: Annotated[float, "that a GET takes"] = 20.0,
    put_ms: Annotated[float, "that a PUT takes"] = 40.0,
    list_ms: Annotated[float, "that a listing takes"] = 40.0,
    spread: Annotated[float, "of these times: the most is so much more than the least"] = 1.0,
    seed: Seed = 1,
) -> None:
    """Writers that upsert to one table at the same time: simulated seconds, lost races, requests of a commit.

    Each commit is one put-if-absent, and all but one of those that are under way lose and try again. The times are
    inputs: measure them at your store.
    """
    for count in writers:
        times = {"get": get_ms, "put": put_ms, "list": list_ms}
        seconds, lost, calls, problems = _simulated(count, upserts, times, spread, seed)
        case, commits = f"{count:,}", count * upserts
        run.report.value(case, "all have committed (simulated)", "s", seconds)
        run.report.value(case, "a commit (simulated)", "s", seconds / commits)
        run.report.value(case, "lost races of a writer, at most", "requests", max(lost.values(), default=0))
        run.report.value(case, "lost races of all", "requests", sum(lost.values()))
        run.report.value(case, "requests of a commit", "requests", sum(calls.values()) / commits)
        run.report.check(f"{case} writers", problems)


def _simulated(
    count: int, upserts: int, times: dict[str, float], spread: float, seed: int
) -> tuple[float, Counter[int], Counter[str], list[str]]:
    clock, bucket = Clock(), Bucket(f"writers-{count}")
    plain = MemoryStore(bucket)
    handle, _ = memory_table(plain, DeltaLog(plain), buckets=1, properties=OFF)
    opened = LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None).opened
    calls, lost, errors = Counter[str](), Counter[int](), list[str]()

    def write(number: int) -> None:
        rng = random.Random(seed * 1_000_003 + number)  # noqa: S311 - latencies, no secrets
        store = _SlowStore(bucket, clock, times, spread, rng, calls, lost, number)
        log = DeltaLog(store, clock_ms=clock.ms, running_ms=clock.ms, sleep=clock.sleep)
        table = LakeTable(type(handle)(store, log, handle.registry, handle.settings), opened.standing.snapshot,
                          pinned=False, spark=None)  # fmt: skip
        try:
            for turn in range(upserts):
                table.upsert(pa.table({"k": [number * upserts + turn], "v": [str(number)]}))
        except Exception as error:  # noqa: BLE001 - reported as a wrong result
            errors.append(f"writer {number}: {error!r}")

    with inline_pools():
        clock.run([partial(write, number) for number in range(count)])
    table = LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None)
    rows = sorted((row["k"], row["v"]) for row in table.to_arrow().to_pylist())
    expected = [(key, str(key // upserts)) for key in range(count * upserts)]
    problems = errors + ([] if rows == expected else [f"{len(rows)} rows, not those of {count * upserts} upserts"])
    problems += [] if table.version >= count * upserts else [f"version {table.version} after {count * upserts} upserts"]
    return clock.seconds, lost, calls, problems


class Clock:
    """Simulated time for threads. It goes on to the next moment that a thread waits for, when all of them wait."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._lock = threading.Lock()
        self._busy = 0

    def ms(self) -> int:
        return 1_700_000_000_000 + int(self.seconds * 1000)

    def sleep(self, seconds: float) -> None:
        """For the threads of :meth:`run`."""
        woken = threading.Event()
        with self._lock:
            heapq.heappush(self._waiting, (self.seconds + seconds, next(self._numbers), woken))
            self._rest()
        woken.wait()

    def run(self, works: list[Callable[[], None]]) -> None:
        """Run each work in a thread. All begin at the same moment, in their order."""
        threads = [threading.Thread(target=self._begin, args=(work,)) for work in works]
        self._busy = len(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _begin(self, work: Callable[[], None]) -> None:
        try:
            self.sleep(0)
            work()
        finally:
            with self._lock:
                self._rest()

    def _rest(self) -> None:
        """One thread less is busy. If it was the last one, wake the one that waits for the next moment."""
        self._busy -= 1
        if not self._busy and self._waiting:
            self.seconds, _, woken = heapq.heappop(self._waiting)
            self._busy = 1
            woken.set()


class _SlowStore(MemoryStore):
    """The store of one writer, whose calls take time."""

    def __init__(
        self,
        bucket: Bucket,
        clock: Clock,
        times: dict[str, float],
        spread: float,
        rng: random.Random,
        calls: Counter[str],
        lost: Counter[int],
        number: int,
    ) -> None:
        super().__init__(bucket)
        self._clock, self._times, self._spread, self._rng = clock, times, spread, rng
        self._calls, self._lost, self._number, self._gets = calls, lost, number, 0

    def _take(self, call: str) -> None:
        self._calls[call] += 1
        self._gets = self._gets + 1 if call == "get" else 0
        if self._gets % _AT_ONCE != 1 and call == "get":
            return  # beside the one before
        self._clock.sleep(self._times[call] / 1000 * (1 + self._spread * self._rng.random()))

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._take("put")
        found = super().put_if_absent(path, data)
        self._lost[self._number] += found is Put.EXISTS
        return found

    def put(self, path: str, data: bytes) -> None:
        self._take("put")
        super().put(path, data)

    def get(self, path: str) -> bytes:
        self._take("get")
        return super().get(path)

    def stat(self, path: str) -> FileStat | None:
        self._take("get")
        return super().stat(path)

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        self._take("list")
        return super().list(folder, start_after=start_after)

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        self._take("put")
        return super().open_output(path)
