"""What compactions should do, what they would do, and what they did. A rescale is one, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from lakemerge._internal.arguments import number, shown, whole
from lakemerge.errors import InputError
from lakemerge.results.display import Shown, counted, counts, readable_bytes
from lakemerge.results.findings import FailedRecord
from mergers.wording import argument

__all__ = [
    "CompactionGroup",
    "CompactionPlan",
    "CompactionResult",
    "CompactionStrategy",
    "LogCompactionResult",
    "LostGroup",
    "Order",
    "PlannedBucket",
    "RescaleResult",
    "SkippedFileSlice",
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
_LONGER: Final = ((1440, "day"), (60, "hour"))
"""Units of time in minutes, beside the minute."""


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
    """Since the oldest commit that is not in it, for a minor compaction since its oldest live log, by the store's times
    of the commits."""
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
    """The oldest of the commits that are taken up: a full compaction takes up those that are not in the base files."""
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
class SkippedFileSlice:
    """A key whose merge fails, for example because its total does not fit its column. A compaction leaves its stored
    row and its records as they are. Once a later record makes the merge succeed, the next compaction takes them up."""

    partition: tuple[str | None, ...]
    """Values of the partition columns, as Delta writes them."""
    bucket: int
    key: Mapping[str, object]
    """The key. Of a part of a bucket that was left as a whole, it is one of those that fail."""
    column: str
    reason: str
    records: tuple[FailedRecord, ...] = ()
    """The first of its records in the logs, in the order of their commits."""
    more: int = 0
    """How many further records there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostGroup:
    """A group of buckets that a compaction did not commit, because another compaction had changed one of its buckets
    meanwhile. Its files were discarded. The next run plans the rest again."""

    buckets: int
    bytes_read: int
    """How many bytes were read in vain."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult(Shown):
    """What a compaction did; with nothing to do, no version was made."""

    plan: CompactionPlan
    """The plan: what had to be done, and why."""
    version: int
    """The version of its last commit; the version read if it made none."""
    commits: int
    """How many commits it made: one for each group of buckets."""
    file_slices: int
    """File slices whose logs were merged."""
    rows: int
    """Rows in the files written."""
    files: int
    """Base files written; by a minor compaction, files of changed rows."""
    bytes: int
    """Bytes of those files."""
    bytes_read: int
    """Bytes of the base and winner files that were merged, and of the logs, uncompressed."""
    replaced_files: int
    """Base files that left the table."""
    log_blocks: int
    """How many log blocks were merged."""
    seconds: float
    phases: Mapping[str, float]
    """Seconds by what was done: ``plan``, ``merge`` (reading, merging, writing) and ``commit``."""
    skipped: tuple[SkippedFileSlice, ...] = ()
    """Keys that could not be merged. Reads of them fail, unless they skip such keys; writes do not."""
    lost: tuple[LostGroup, ...] = ()
    """Groups that another compaction merged first."""
    stopped: bool = False
    """Whether it ended before all groups were done, because its caller asked it to."""

    def __repr__(self) -> str:
        rest = {"skipped": len(self.skipped), "lost": len(self.lost), "stopped": self.stopped}
        text = "".join(f", {name}={value}" for name, value in rest.items() if value)
        return (
            f"CompactionResult(version={self.version}, file_slices={self.file_slices}, rows={self.rows:,}, "
            f"files={self.files}, bytes={self.bytes:,}, replaced_files={self.replaced_files}, commits={self.commits}, "
            f"seconds={self.seconds:.2f}{text})"
        )

    def report(self) -> tuple[tuple[str, str], ...]:
        """What to show to people: names and values, one a line."""
        written = f"{counts(file=self.files, row=self.rows)}, {readable_bytes(self.bytes)}"
        lines = [
            ("service", f"{self.plan.mode} compaction"),
            ("due", "; ".join(self.plan.reasons) or "nothing"),
            ("merged", counts(base_file=self.file_slices, log_block=self.log_blocks)),
            ("read", readable_bytes(self.bytes_read)),
            ("written", written),
            ("replaced", counted(self.replaced_files, "file")),
            ("commits", f"{self.commits}, the table is at version {self.version}"),
            ("seconds", _seconds(self.seconds, self.phases)),
        ]
        lines += [("skipped", part.reason) for part in self.skipped]
        lines += [("lost", f"{counted(group.buckets, 'bucket')}: {group.reason}") for group in self.lost]
        if self.stopped:
            lines.append(("stopped", "before everything was done; the rest is still due"))
        return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionResult(Shown):
    """What a log compaction did; with nothing to do, no version was made."""

    version: int
    commits: int
    """Log commits that were merged into others."""
    records: int
    """Records in them."""
    rows: int
    """How many records were written. There are fewer if the merger allows to drop records that do not decide."""
    blocks: int
    """Log blocks written, one per bucket, or a few."""
    files: int
    """How many objects were written, without the commit."""
    bytes: int
    """Bytes of the log files written."""
    bytes_read: int
    """Bytes of logs, uncompressed."""
    replaced_files: int
    """Log files that reads of the new version do not need any more. Earlier versions need them."""
    seconds: float
    phases: Mapping[str, float]
    """Seconds by what was done: ``plan``, ``merge`` (reading, sorting, writing) and ``commit``."""

    def __repr__(self) -> str:
        return (
            f"LogCompactionResult(version={self.version}, commits={self.commits}, records={self.records:,}, "
            f"rows={self.rows:,}, blocks={self.blocks}, files={self.files}, bytes={self.bytes:,}, "
            f"replaced_files={self.replaced_files}, seconds={self.seconds:.2f})"
        )

    def report(self) -> tuple[tuple[str, str], ...]:
        """What to show to people: names and values, one a line."""
        return (
            ("service", "log compaction"),
            ("merged", counts(commit=self.commits, file=self.replaced_files, record=self.records)),
            ("read", readable_bytes(self.bytes_read)),
            ("written", f"{counts(file=self.files, record=self.rows)}, {readable_bytes(self.bytes)}"),
            ("version", str(self.version)),
            ("seconds", _seconds(self.seconds, self.phases)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleResult(Shown):
    """What a rescale did; with nothing to do, no version was made."""

    version: int
    before: int | None
    """The bucket count when it began; ``None``: not chosen yet."""
    buckets: int
    """The bucket count now."""
    commits: int
    written_buckets: int
    """Buckets written."""
    rows: int
    """Rows in the files written."""
    files: int
    """Base files written."""
    bytes: int
    """Bytes of those files."""
    bytes_read: int
    """Bytes of the base and winner files that were merged, and of the logs, uncompressed; once for each bucket that
    was made of them."""
    replaced_files: int
    """Base files that left the table."""
    seconds: float
    phases: Mapping[str, float]
    """Seconds by what was done: ``plan``, ``merge`` (reading, merging, writing) and ``commit``."""
    skipped: tuple[SkippedFileSlice, ...] = ()
    """Buckets that stay as they were, because a total in them does not fit its column. If buckets should be joined, the
    table then keeps its bucket count. Once the total is back in range, call rescale again."""

    def __repr__(self) -> str:
        skipped = f", skipped={len(self.skipped)}" if self.skipped else ""
        return (
            f"RescaleResult(version={self.version}, buckets={self.buckets}, before={self.before}, "
            f"commits={self.commits}, written_buckets={self.written_buckets}, rows={self.rows:,}, files={self.files}, "
            f"bytes={self.bytes:,}, replaced_files={self.replaced_files}, seconds={self.seconds:.2f}{skipped})"
        )

    def report(self) -> tuple[tuple[str, str], ...]:
        """What to show to people: names and values, one a line."""
        written = counts(bucket=self.written_buckets, file=self.files, row=self.rows)
        lines = [
            ("service", "rescale"),
            ("buckets", f"{self.before} before, {self.buckets} now"),
            ("read", readable_bytes(self.bytes_read)),
            ("written", f"{written}, {readable_bytes(self.bytes)}"),
            ("replaced", counted(self.replaced_files, "file")),
            ("commits", f"{self.commits}, the table is at version {self.version}"),
            ("seconds", _seconds(self.seconds, self.phases)),
        ]
        return (*lines, *(("skipped", part.reason) for part in self.skipped))


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


def _amplification(base_bytes: int, extra_bytes: int) -> float:
    return 1 + extra_bytes / base_bytes if base_bytes else float(1 + bool(extra_bytes))


def _seconds(total: float, phases: Mapping[str, float]) -> str:
    return f"{total:.2f} ({', '.join(f'{name} {seconds:.2f}' for name, seconds in phases.items())})"
