"""What a compaction should do, and what it would do: strategies and plans, as values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, get_args

from lakemerge._internal.arguments import number, shown, whole
from lakemerge.errors import InputError
from mergers.wording import argument

__all__ = [
    "CompactionGroup",
    "CompactionPlan",
    "CompactionStrategy",
    "Order",
    "PlannedBucket",
    "TransactionPlan",
    "counted",
    "counts",
    "readable_bytes",
    "threshold_words",
]

_ORDERS: Final = {
    "oldest": "oldest",
    "log-bytes": "most bytes of logs",
    "log-count": "most log blocks",
    "read-amplification": "highest read amplification",
}
Order = Literal["oldest", "log-bytes", "log-count", "read-amplification"]
"""What is compacted first: buckets with the oldest log commit, most log bytes, most log blocks, or most bytes
beside base files per byte in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStrategy:
    """Which parts of a table are due for a compaction, and in which order.

    A base file is due, together with the logs of its key range, as soon as it reaches *any* of the
    thresholds given; with none given, as soon as there is anything to merge. Logs of a bucket without a
    base file count as one.
    """

    after_commits: int | None = None
    """Commits with live logs in it."""
    after_bytes: int | None = None
    """Bytes beside the base file: of live logs, uncompressed, and for a full compaction of winner files."""
    ratio: float | None = None
    """Those bytes per byte of the base file; always reached where there is no base file."""
    after_minutes: float | None = None
    """Since the oldest commit that is not in it, by the times in the commits."""
    order: Order = "oldest"

    def __post_init__(self) -> None:
        order: object = self.order
        if not isinstance(order, str) or order not in get_args(Order):
            known = ", ".join(get_args(Order))
            raise InputError(f"{argument('order')} must be one of {known}, not {shown(self.order)}")
        for name, value in self.thresholds:
            is_count = name in ("after_commits", "after_bytes")
            try:
                found = whole(value, name) if is_count else number(value, name)
            except InputError:
                found = -1
            if found < 0:
                what = "an integer" if is_count else "a number"
                raise InputError(f"{argument(name)} must be {what} from 0 on, not {shown(value)}")
            object.__setattr__(self, name, found)

    @property
    def thresholds(self) -> tuple[tuple[str, float], ...]:
        """Names and values of those that are given."""
        named = (
            ("after_commits", self.after_commits),
            ("after_bytes", self.after_bytes),
            ("ratio", self.ratio),
            ("after_minutes", self.after_minutes),
        )
        return tuple((name, value) for name, value in named if value is not None)

    @staticmethod
    def of(strategy: Order | CompactionStrategy | None) -> CompactionStrategy:
        """From what a caller names: a strategy, or just an order."""
        if strategy is None:
            return CompactionStrategy()
        return strategy if isinstance(strategy, CompactionStrategy) else CompactionStrategy(order=strategy)

    def __str__(self) -> str:
        """What a compaction takes, and in which order: the end of a sentence."""
        due = " or ".join(threshold_words(name, value) for name, value in self.thresholds)
        return f"{f'file slices with {due}' if due else 'everything'}, {_ORDERS[self.order]} first"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBucket:
    """The part of a bucket that is due: base files, and the live logs in their key ranges."""

    partition: tuple[str | None, ...]
    """Values of the partition columns, as Delta writes them."""
    bucket: int
    files: tuple[str | None, ...]
    """Paths of the base files that are due; ``None`` for logs of a bucket without one."""
    base_bytes: int
    winner_bytes: int
    """Bytes of the minor compactions since the last full one."""
    log_blocks: int
    log_rows: int
    """Records; some may lie outside the key ranges."""
    log_bytes: int
    """Uncompressed."""
    oldest_version: int
    """The oldest of the commits that are not in the base files."""
    reasons: tuple[str, ...]
    """Why it is due."""

    @property
    def bytes_read(self) -> int:
        """Estimated, at most: a minor compaction with a selective merger reads less."""
        return self.base_bytes + self.winner_bytes + self.log_bytes

    @property
    def extra_bytes(self) -> int:
        """What reads take up beside base files."""
        return self.winner_bytes + self.log_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionGroup:
    """Buckets that are compacted in one commit."""

    buckets: tuple[PlannedBucket, ...]
    closed: str
    """Why no more buckets are in it; see :class:`lakemerge.bins.Closed`."""
    bytes_read: int
    bytes_written: int
    """Estimated, at most: what is written is compressed and has one row per key."""

    @property
    def file_slices(self) -> int:
        return sum(len(part.files) for part in self.buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What a compaction would do now, at what cost and for what gain. Estimates come from the sizes in
    the table's metadata; no data file is read for them."""

    version: int
    """The version that it is made for."""
    mode: Literal["full", "minor"]
    strategy: CompactionStrategy
    groups: tuple[CompactionGroup, ...]
    """In the order in which they are committed."""
    postponed: int
    """Buckets that are due, but beyond ``max_bytes``: for the next run."""
    base_bytes: int
    """Bytes of the whole table, as the next two."""
    winner_bytes: int
    log_bytes: int

    @property
    def buckets(self) -> int:
        """How many buckets are compacted."""
        return sum(len(group.buckets) for group in self.groups)

    @property
    def file_slices(self) -> int:
        """Base files, or buckets without one."""
        return sum(group.file_slices for group in self.groups)

    @property
    def bytes_read(self) -> int:
        """Estimated, at most, as for each bucket."""
        return sum(group.bytes_read for group in self.groups)

    @property
    def bytes_written(self) -> int:
        """Estimated, at most, as for each group."""
        return sum(group.bytes_written for group in self.groups)

    @property
    def merged_bytes(self) -> int:
        """Bytes of logs that reads need not merge any more."""
        return sum(part.log_bytes for group in self.groups for part in group.buckets)

    @property
    def amplification_before(self) -> float:
        """Bytes that a full read of the table takes up, per byte of base file."""
        return _amplification(self.base_bytes, self.winner_bytes + self.log_bytes)

    @property
    def amplification_after(self) -> float:
        """The same once the plan is done, at most. A minor compaction turns logs into winner files, which
        are read without a merge but are read."""
        planned = [part for group in self.groups for part in group.buckets]
        extra = self.winner_bytes + self.log_bytes
        if self.mode == "minor":
            return _amplification(self.base_bytes, extra)
        new = sum(part.extra_bytes for part in planned if not part.base_bytes)
        return _amplification(self.base_bytes + new, extra - sum(part.extra_bytes for part in planned))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why buckets are due, the most frequent reason first, with how many buckets each holds for."""
        found = Counter(reason for group in self.groups for part in group.buckets for reason in part.reasons)
        return tuple(f"{reason} ({counted(count, 'bucket')})" for reason, count in found.most_common())

    def __str__(self) -> str:
        if not self.groups:
            return f"nothing to compact at version {self.version}: a {self.mode} compaction takes {self.strategy}"
        first = f"{self.mode} compaction of version {self.version}, {_ORDERS[self.strategy.order]} first"
        gain = f"reads no longer merge {readable_bytes(self.merged_bytes)} of logs"
        amplification = f"{self.amplification_before:.2f} -> {self.amplification_after:.2f}"
        lines = [
            (
                f"{first}: {counted(self.buckets, 'bucket')} ({counted(self.file_slices, 'base file')})"
                f" in {counted(len(self.groups), 'commit')}"
            ),
            f"  cost: reads {readable_bytes(self.bytes_read)}, writes at most {readable_bytes(self.bytes_written)}",
            f"  gain: {gain}, read amplification {amplification}",
            f"  why: {'; '.join(self.reasons)}",
        ]
        if self.postponed:
            lines.append(f"  left for the next run, because of max_bytes: {counted(self.postponed, 'bucket')}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPlan:
    """What a transaction would do with the table as it is at one version. Nothing was written, and another writer may
    change the rows meanwhile."""

    operation: str
    """``UPDATE``, ``DELETE`` or ``MERGE``, as in the history."""
    version: int
    """The version that was read."""
    matched: int
    """Rows of the table that meet the condition; of a merge, rows of the table that a source row matches."""
    updated: int
    deleted: int
    inserted: int
    partitions: int
    """Partitions that would get records; 1 for a table without partitions."""
    buckets: int
    """Buckets of all partitions that would get records."""
    files: int
    """Objects that would be written, including the commit."""
    bytes: int
    """Bytes of the data files that would be written."""
    seconds: float
    """How long it took to find this out."""

    @property
    def keys(self) -> int:
        """Keys whose row would be written: a record for each row that is updated, deleted or inserted."""
        return self.updated + self.deleted + self.inserted


def threshold_words(name: str, value: float) -> str:
    """A threshold of a strategy, as what a file slice has that reaches it: ``logs of at least 3 commits``."""
    match name:
        case "after_commits":
            return f"logs of at least {counted(int(value), 'commit')}"
        case "after_bytes":
            return f"changes of at least {readable_bytes(value)}"
        case "ratio":
            return f"changes of at least {value:g} times the size of the base file"
        case _:
            length, unit = next(((size, unit) for size, unit in _LONGER if value and not value % size), (1, "minute"))
            return f"changes that are at least {counted(value / length, unit)} old"


_LONGER: Final = ((1440, "day"), (60, "hour"))
"""Units of time in minutes, beside the minute."""


def counted(count: float, noun: str) -> str:
    """``1 file``, ``1,000 files``."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun}{'' if count == 1 else 's'}"


def counts(**of: int) -> str:
    """``1 file, 1,000 rows``, by noun. A noun of two words has an underscore."""
    return ", ".join(counted(count, noun.replace("_", " ")) for noun, count in of.items())


def readable_bytes(count: float) -> str:
    """A size for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _amplification(base_bytes: int, extra_bytes: int) -> float:
    return 1 + extra_bytes / base_bytes if base_bytes else float(1 + bool(extra_bytes))
