"""Decides what ``lakemerge.maintenance = auto`` does after a write.

The rule is that of renting or buying skis: a service runs once reads have paid, since it last ran, as much as it costs.
The total cost is then at most about twice that of the best moment, although the future is not known. Writers cannot see
reads, so the table property ``lakemerge.maintenance.readsPerWrite`` says how many full reads follow each write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from compaction.plan.costs import (
    COMMIT,
    LOG_TO_FILE,
    SPARK_LOGS,
    SPARK_WRITE,
    WRITES,
    SliceSize,
    log_penalty,
    merge_cost,
    rewrite_cost,
    stored_penalty,
    write_seconds,
)
from compaction.plan.loads import FileSliceLoad
from lakemerge.format.keys import BucketId
from lakemerge.format.schedule import Auto
from lakemerge.results.display import counted

__all__ = ["EVERY", "MOST_PUBLISHED", "Decision", "FileSliceKey", "decide", "is_turn"]

EVERY: Final = 8
"""If there is one read for each write, a writer decides after this many commits with live logs."""
MOST_PUBLISHED: Final = 256
"""Base files above which writers of a table that publishes decide after more commits, in proportion: each publication
writes some kilobytes of log for each base file that changed."""
_LIMIT_COMMITS: Final = 2

FileSliceKey = tuple[BucketId, str | None]
"""A file slice: its bucket and the path of its base file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now, and why."""

    service: Literal["nothing", "minor compaction", "log compaction", "full compaction"]
    parts: frozenset[FileSliceKey] = frozenset()
    """The file slices to compact."""
    paid: float = 0.0
    """Seconds that reads have paid because these file slices have something to compact."""
    cost: float = 0.0
    """Seconds that the service takes."""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.service}: {self.why}"


def every(auto: Auto) -> int:
    """The number of commits after which a writer decides."""
    count = EVERY if auto.reads_per_write <= 1 else max(1, round(EVERY / auto.reads_per_write))
    return count * max(1, auto.published_files // MOST_PUBLISHED)


def is_turn(auto: Auto, live: int, chance: Callable[[], float]) -> bool:
    """Whether the writer of a commit decides.

    Several writers see the same debt. So only one decides: the one whose commit's number is a multiple of
    :func:`every`. If that led to nothing, others decide later, at random.

    :param live: how many commits up to this one have live logs.
    """
    count = every(auto)
    return live > 0 and (live % count == 0 or (live >= _LIMIT_COMMITS * count and chance() < 1 / count))


def decide(auto: Auto, loads: Sequence[FileSliceLoad], *, version: int, commits: int) -> Decision:
    """The service that is worth its cost at a version.

    :param commits: how many commits have live logs.
    """
    dirty = [load for load in loads if not load.is_clean]
    found = [_Judged(auto, load, version, share=1 / len(dirty)) for load in dirty]
    told = []
    if auto.full:
        full = _chosen(found, "full compaction", lambda one: one.full, auto)
        if full.service != "nothing":
            return full
        told.append(full.why)
    if auto.minor:
        minor = _chosen(found, "minor compaction", lambda one: one.minor, auto)
        if minor.service != "nothing":
            return minor
        told.append(minor.why)
    if auto.logs_after_commits is not None and commits >= auto.logs_after_commits:
        return Decision(
            service="log compaction", why=f"{counted(commits, 'commit')} {'has' if commits == 1 else 'have'} live logs"
        )
    return Decision(service="nothing", why="; ".join(told) or "the table sets its own thresholds for compactions")


@dataclass(frozen=True, slots=True)
class _Sum:
    """The sums for one file slice and service, in seconds."""

    paid: float
    """What reads have paid since the service last ran there."""
    cost: float
    written: float
    """What writes have taken since then."""


class _Judged:
    """A file slice, and what a minor and a full compaction of it would be worth.

    :param share: the file slice's share in what a read on Spark costs more if anything has to be merged or left out.
    """

    def __init__(self, auto: Auto, load: FileSliceLoad, version: int, *, share: float) -> None:
        size, reads = SliceSize.of(load), auto.reads_per_write
        self.part: FileSliceKey = (load.bucket_id, load.file)
        commits = load.log_commits
        once, each = log_penalty(size)
        if auto.on_spark:
            once += SPARK_LOGS * share
        written = write_seconds(commits=0, log_mib=size.log_mib, log_blocks=size.log_blocks)
        # Reads after the first commit paid for one log. Reads after the last commit paid for all logs.
        paid = reads * (commits * once + (commits + 1) / 2 * each)
        self.minor = _Sum(paid, merge_cost(size), written) if commits else None
        since = 0 if load.oldest_version is None else version - load.oldest_version + 1
        # A service takes two versions. This is how many of the versions since the base file are writes.
        writes = max(commits, since * every(auto) / (every(auto) + 2))
        before = size.winner_mib / LOG_TO_FILE
        earlier = write_seconds(commits=0, log_mib=before, log_blocks=max(0.0, writes - commits))
        stored = stored_penalty(size.merged())
        self.full = _Sum(reads * writes * stored / 2, rewrite_cost(size), written + earlier)
        self.commits = max(float(commits), writes)


def _chosen(
    found: Iterable[_Judged],
    service: Literal["minor compaction", "full compaction"],
    of: Callable[[_Judged], _Sum | None],
    auto: Auto,
) -> Decision:
    """The file slices that are worth the service, if together they are also worth a commit, and cost no more than
    writers may spend."""
    pairs = [(one, total) for one in found if (total := of(one)) is not None]
    worth = [(one, total) for one, total in pairs if total.paid >= total.cost]
    paid, cost = sum(total.paid for _, total in worth), COMMIT + sum(total.cost for _, total in worth)
    if not worth or paid < cost:
        paid, cost = sum(total.paid for _, total in pairs), COMMIT + sum(total.cost for _, total in pairs)
        return Decision(service="nothing", why=f"a {service} would take {cost:.2f} s, reads have paid {paid:.2f} s")
    commit = COMMIT + (SPARK_WRITE if auto.on_spark else 0.0)
    writes = max((one.commits for one, _ in worth), default=0.0) * commit + sum(total.written for _, total in pairs)
    most = WRITES * max(1.0, auto.reads_per_write) * writes
    if cost > most:
        return Decision(service="nothing", why=f"a {service} would take {cost:.2f} s, writers may spend {most:.2f} s")
    why = f"it takes {cost:.2f} s, reads have paid {paid:.2f} s for {counted(len(worth), 'file slice')}"
    return Decision(service=service, parts=frozenset(one.part for one, _ in worth), paid=paid, cost=cost, why=why)
