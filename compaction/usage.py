"""Retention by usage: how much history has to go, so that the files that only history needs stay within a bound.

The oldest history goes first, as in NiFi's archive of content. Records that are kept longer than versions go before
versions that can be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from compaction.retention import FILE_RETENTION, MAX_BYTES
from lakemerge.commits.past import PastCommit, read_commits
from lakemerge.delta import Action, AddFile, DomainMetadata, RemoveFile, Snapshot
from lakemerge.format.block_index import log_paths
from lakemerge.handle import Handle
from lakemerge.layout.references import references
from lakemerge.results.display import readable_bytes
from mergers.contract import Ints

__all__ = ["KeptHistory", "record_paths", "within_bytes"]


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """How much history is kept."""

    oldest: int
    """The oldest version that can be read."""
    records: int
    """The version from which on records are kept. It is not above ``oldest``."""
    reasons: tuple[str, ...] = ()


def record_paths(handle: Handle, *, since: int, until: int) -> set[str]:
    """The files of the records that were committed after one version, up to another."""
    return {path for commit in read_commits(handle, since=since, until=until) for path in _records(handle, commit)}


def within_bytes(
    handle: Handle,
    tip: Snapshot,
    kept: KeptHistory,
    saved: set[str],
    *,
    bound: int,
    newest: int,
    sizes: Mapping[str, int],
) -> KeptHistory:
    """Reduce ``kept`` as little as possible, so that history takes ``bound`` bytes at most.

    :param saved: files that savepoints need. They do not count.
    :param newest: versions from this one on are never given up.
    :param sizes: path -> size of the table's files.
    """
    spans = _spans(handle, tip, kept.records)
    history = _History.of(spans, saved, sizes)
    before = history.bytes(kept.records, kept.oldest)
    if before <= bound:
        return kept
    steps = [(records, kept.oldest) for records in range(kept.records + 1, kept.oldest + 1)]
    steps += [(version, version) for version in range(kept.oldest + 1, newest + 1)]
    records, oldest = kept.records, kept.oldest
    for step in steps:
        records, oldest = step
        if history.bytes(records, oldest) <= bound:
            break
    after = history.bytes(records, oldest)
    takes = f"history takes {readable_bytes(before)}, and {MAX_BYTES} allows {readable_bytes(bound)}"
    reasons = [*kept.reasons]
    if (records, oldest) != (kept.records, kept.oldest):
        what = f"versions before {oldest}" if oldest > kept.oldest else f"records before version {records}"
        reasons.append(f"{takes}: {what} go, too")
    if after > bound:
        reasons.append(
            f"{MAX_BYTES} cannot be reached: {readable_bytes(after)} are of versions from {oldest} on, which are "
            f"younger than {FILE_RETENTION} or stay readable; {readable_bytes(bound)} are allowed"
        )
    return KeptHistory(oldest, records, tuple(reasons))


@dataclass(slots=True)
class _Span:
    """The first and the last version that have a file."""

    first: int
    last: int
    record: int = -1
    """The version whose records it holds, if it holds records as they were committed."""


@dataclass(frozen=True, slots=True)
class _History:
    """Files that only history needs, as columns."""

    first: Ints
    last: Ints
    record: Ints
    size: Ints

    @staticmethod
    def of(spans: Mapping[str, _Span], saved: set[str], sizes: Mapping[str, int]) -> _History:
        rows = [
            (span.first, span.last, span.record, sizes.get(path, 0))
            for path, span in spans.items()
            if span.last >= 0 and path not in saved
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return _History(*(np.ascontiguousarray(table[:, place]) for place in range(4)))

    def bytes(self, records: int, oldest: int) -> int:
        """How many bytes are left if records are kept from one version on, and versions from another."""
        kept = self.last >= oldest
        if records < oldest:
            kept |= (self.first <= records) & (self.last >= records)
            kept |= self.record > records
        return int(self.size[kept].sum())


@dataclass(slots=True)
class _Replay:
    """Follows the commits that add and remove files."""

    handle: Handle
    spans: dict[str, _Span] = field(default_factory=dict)
    named: dict[str, frozenset[str]] = field(default_factory=dict)
    """Path of a base file, or name of a domain -> the files that it names."""
    times: Counter[str] = field(default_factory=Counter)
    """How many base files and domains name a file."""

    def take(self, version: int, actions: Sequence[Action]) -> None:
        # A data file that comes under another vector is added and removed, in any order.
        added = {action.path for action in actions if isinstance(action, AddFile)}
        for action in actions:
            if isinstance(action, RemoveFile) and action.path not in added:
                self._end(action.path, version)
            elif isinstance(action, AddFile):
                self._begin(action.path, action, version)
            elif isinstance(action, DomainMetadata):
                if action.removed:
                    self._end(action.domain, version)
                else:
                    self._begin(action.domain, action, version)

    def _begin(self, name: str, action: Action, version: int) -> None:
        paths = frozenset(references([action], self.handle.store))
        self.times.update(paths)
        for path in paths:
            self.spans.setdefault(path, _Span(version, -1)).last = -1
        self._end(name, version)
        self.named[name] = paths

    def _end(self, name: str, version: int) -> None:
        for path in self.named.pop(name, ()):
            self.times[path] -= 1
            if not self.times[path]:
                self.spans[path].last = version - 1


def _spans(handle: Handle, tip: Snapshot, since: int) -> dict[str, _Span]:
    """The span of each file that some version from ``since`` on has. ``last`` is -1 for files that the tip has."""
    first = handle.log.snapshot(version=since)
    replay = _Replay(handle)
    replay.take(since, [*first.files.values(), *first.domains.values()])
    for commit in read_commits(handle, since=since, until=tip.version):
        replay.take(commit.version, commit.actions)
        for path in _records(handle, commit):
            replay.spans[path].record = commit.version
    return replay.spans


def _records(handle: Handle, commit: PastCommit) -> Iterator[str]:
    """The logs of a commit. For the first load of a table and for an overwrite, the base files with its records."""
    for log in commit.new_logs:
        yield from log_paths(log, handle.store)
    if commit.is_load or commit.overwrites:
        yield from references((action for action in commit.actions if isinstance(action, AddFile)), handle.store)
