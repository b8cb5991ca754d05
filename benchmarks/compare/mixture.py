"""What a day of writes and reads takes in total, from the times of its commits and of queries after them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.compare.engine import Upkeep

__all__ = ["READS", "Day"]

READS = (0.1, 1.0, 10.0, 100.0)
"""Queries for each commit."""


@dataclass(frozen=True, slots=True)
class Day:
    """Commits and the maintenance that belongs to them, with queries between them. Queries change no table, so one day
    tells the total for any number of queries."""

    upkeep: Upkeep
    commits: int
    writing: float
    """Seconds of all commits, with the maintenance."""
    first: Sequence[Sequence[float]]
    """For each stop, the seconds of each query, asked for the first time after a commit."""
    later: Sequence[Sequence[float]]
    """The same, asked again."""
    written_bytes: int

    def total(self, reads: float) -> float:
        """Seconds of the day with so many queries for each commit, all kinds of queries in turn."""
        fresh = min(reads, float(len(self.first[0])))
        return self.writing + self.commits * (fresh * _mean(self.first) + (reads - fresh) * _mean(self.later))

    def suits(self, reads: float) -> bool:
        """Whether the upkeep is meant for this mix."""
        return self.upkeep.reads_per_write in (None, reads)


def _mean(stops: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(seconds for stop in stops for seconds in stop)
