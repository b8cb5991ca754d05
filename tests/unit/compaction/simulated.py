"""A table that exists in numbers alone: what writes, reads and services of it cost by the model of costs.

It follows rows, not files: a file slice has so many rows, and each commit changes, adds or deletes some of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from compaction.plan import auto as planner
from compaction.plan import costs
from compaction.plan.loads import FileSliceLoad
from lakemerge.format.keys import BucketId
from lakemerge.format.schedule import Auto

MIB = 2**20
ROW = 100
"""Bytes of a row, uncompressed."""


@dataclass
class Slice:
    """One file slice. ``changed`` are the rows of its base file that winner files replace."""

    rows: float
    changed: float = 0.0
    added: float = 0.0
    deleted: float = 0.0
    winners: list[float] = field(default_factory=list)
    logs: list[tuple[int, float]] = field(default_factory=list)
    """Version and records."""
    pending: list[tuple[float, float, float]] = field(default_factory=list)
    """What each log will do: rows changed, added, deleted."""
    since: int = 0
    """The version after that of the base file."""

    def load(self, number: int) -> FileSliceLoad:
        records = sum(rows for _, rows in self.logs)
        oldest = [version for version, _ in self.logs] + ([self.since] if self.winners or self.deleted else [])
        return FileSliceLoad(
            bucket_id=BucketId((), number),
            file=f"{number}",
            base_bytes=round(self.rows * ROW * costs.LOG_TO_FILE),
            base_rows=round(self.rows),
            winner_bytes=round(sum(self.winners) * ROW * costs.LOG_TO_FILE),
            winner_files=len(self.winners),
            new_tombstone_bytes=round(self.deleted * costs.TOMBSTONE_BYTES),
            log_blocks=len(self.logs),
            log_commits=len(self.logs),
            log_rows=round(records),
            log_bytes=round(records * ROW),
            oldest_version=min(oldest, default=None),
            oldest_live=min((version for version, _ in self.logs), default=None),
        )

    def take(self) -> float:
        """Fold the logs; how many rows they change or add."""
        fresh = 0.0
        for changed, added, deleted in self.pending:
            # Changed keys are drawn from all rows: some have changed before.
            new = changed * max(0.0, 1 - self.changed / max(self.rows, 1))
            self.changed += new
            self.added += added
            self.deleted += deleted
            fresh += new + added
        self.logs, self.pending = [], []
        return fresh

    def minor(self) -> None:
        newer = self.take()
        joined = 0.0
        left = []
        for rows in reversed(self.winners):
            if rows <= 1.25 * (newer + joined) and rows * 8 <= self.rows:
                joined += rows
            else:
                left.append(rows)
        self.winners = [*reversed(left), newer + joined] if newer + joined else list(reversed(left))

    def full(self, version: int) -> None:
        self.take()
        self.rows = max(1.0, self.rows + self.added - self.deleted)
        self.changed = self.added = self.deleted = 0.0
        self.winners, self.since = [], version + 1


Change = Callable[[random.Random, list[Slice]], list[tuple[int, float, float, float]]]
"""A commit: for each file slice that it reaches, the rows it changes, adds and deletes."""
Policy = Callable[["Simulated", int], None]


@dataclass
class Simulated:
    slices: list[Slice]
    version: int = 0
    seconds: float = 0.0
    """Seconds of writes, reads and services together."""
    serviced: float = 0.0
    """Seconds of services."""
    services: list[str] = field(default_factory=list)
    on_spark: bool = False

    def loads(self) -> list[FileSliceLoad]:
        return [part.load(number) for number, part in enumerate(self.slices)]

    def commit(self, changes: list[tuple[int, float, float, float]]) -> None:
        self.version += 1
        size = sum(sum(rows) for _, *rows in changes) * ROW / MIB
        self.seconds += costs.write_seconds(commits=1, log_mib=size, log_blocks=len(changes))
        for number, changed, added, deleted in changes:
            self.slices[number].logs.append((self.version, changed + added + deleted))
            self.slices[number].pending.append((changed, added, deleted))

    def read(self, times: float) -> None:
        if self.on_spark and self.live:
            self.seconds += times * costs.SPARK_LOGS
        for load in self.loads():
            size = costs.SliceSize.of(load)
            once, each = costs.log_penalty(size)
            stored = costs.stored_penalty(size)
            self.seconds += times * (size.base_mib * costs.SCAN + once + each + stored)

    @property
    def live(self) -> int:
        return len({version for part in self.slices for version, _ in part.logs})

    def compact(self, numbers: list[int], *, minor: bool) -> float:
        """Returns what it costs."""
        sizes = [costs.SliceSize.of(self.slices[number].load(number)) for number in numbers]
        seconds = costs.COMMIT + sum(costs.merge_cost(s) if minor else costs.rewrite_cost(s) for s in sizes)
        for number in numbers:
            self.slices[number].minor() if minor else self.slices[number].full(self.version)
        self.version += 2
        self.seconds += seconds
        self.serviced += seconds
        self.services.append("minor" if minor else "full")
        return seconds

    def dirty(self, *, minor: bool) -> list[int]:
        loads = self.loads()
        return [n for n, load in enumerate(loads) if not (load.is_merged if minor else load.is_clean)]

    def automatic(self, auto: Auto, chance: Callable[[], float]) -> planner.Decision | None:
        """What the writer of the last commit does."""
        if not planner.is_turn(auto, self.live, chance):
            return None
        decision = planner.decide(auto, self.loads(), version=self.version, commits=self.live)
        numbers = [part.bucket for part, _ in decision.parts]
        if decision.service.endswith("or compaction"):
            self.compact(numbers, minor=True)
        elif decision.service == "full compaction":
            self.compact(numbers, minor=False)
        return decision
