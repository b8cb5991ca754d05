"""What a report says, gathered from the table by its public calls and its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakemerge.commits.past import PastCommit, read_commits
from lakemerge.delta import AddFile, DomainMetadata, HistoryEntry, RemoveFile
from lakemerge.errors import LakeMergeError
from lakemerge.format.ingests import ingests_of
from lakemerge.format.names import LOG_DOMAIN_PREFIX
from lakemerge.format.operations import Operation
from lakemerge.format.schedule import Schedule
from lakemerge.results.compactions import CompactionPlan, CompactionStrategy, threshold_words
from lakemerge.results.display import counted, readable_bytes

if TYPE_CHECKING:
    from lakemerge.table.table import LakeTable

__all__ = [
    "Growth",
    "due",
    "failures",
    "growth_of",
    "reasons_of",
    "replaced_by",
    "service_of",
    "windows_of",
    "written_by",
]


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes of the table after each commit."""

    times_ms: tuple[int, ...]
    base: tuple[int, ...]
    """Bytes of base files."""
    logs: tuple[int, ...]
    """Bytes of logs that are not compacted, as written."""


def written_by(entry: HistoryEntry) -> int:
    """Bytes of the data files that a commit brought."""
    return _whole(entry.metrics.get("numOutputBytes", 0))


def _whole(found: object) -> int:
    try:
        return int(found)  # type: ignore[call-overload] # of Delta's metrics, which are texts
    except (TypeError, ValueError):
        return 0


def growth_of(table: LakeTable, history: Sequence[HistoryEntry]) -> Growth:
    """Computed from the latest version backwards, so that it is right even if a part of the log was cleaned up."""
    if not history:
        return Growth((), (), ())
    view, oldest = table.opened.view, min(entry.version for entry in history)
    commits = read_commits(table.opened.handle, since=oldest - 1, until=view.version)
    sizes = {name: _log_bytes(commit) for commit in commits for name in _logs(commit, removed=False)}
    base = sum(add.size_bytes for add in view.snapshot.files.values())
    live = {name for name in view.snapshot.domains if name.startswith(LOG_DOMAIN_PREFIX)}
    found: list[tuple[int, int, int]] = []
    for commit in reversed(commits):
        found.append((commit.timestamp_ms or 0, base, sum(sizes.get(name, 0) for name in live)))
        for action in commit.actions:
            if isinstance(action, AddFile):
                base -= action.size_bytes
            elif isinstance(action, RemoveFile):
                base += action.size_bytes or 0
        live = live.difference(_logs(commit, removed=False)).union(_logs(commit, removed=True))
    times, bases, logs = zip(*reversed(found), strict=True)
    return Growth(times, tuple(max(0, size) for size in bases), logs)


def reasons_of(entry: HistoryEntry) -> str:
    """Why a compaction ran."""
    about = entry.parameters
    why = [str(about["why"])] if about.get("why") else []
    if "commits" in about:
        why.append(f"{about['commits']} commits had live logs")
    if entry.operation == Operation.RESCALE and "buckets" in about:
        before = f"from {about['before']} " if "before" in about else ""
        why.append(f"{before}to {about['buckets']} buckets")
    return "; ".join(why) or "a caller started it"


def service_of(entry: HistoryEntry) -> str:
    """The service that made a commit of a compaction."""
    if entry.operation == Operation.COMPACT:
        return f"{entry.parameters.get('mode', 'full')} compaction"
    return "log compaction" if entry.operation == Operation.COMPACT_LOGS else (entry.operation or "").lower()


def replaced_by(entry: HistoryEntry) -> str:
    """What a compaction put other files in the place of. Empty if its commit does not say so."""
    if "numLogCommits" in entry.metrics:
        return counted(_whole(entry.metrics["numLogCommits"]), "log")
    found = [
        counted(count, noun)
        for name, noun in (("numRemovedFiles", "base file"), ("numLogBlocks", "log block"))
        if (count := _whole(entry.metrics.get(name, 0)))
    ]
    return ", ".join(found)


def windows_of(history: Sequence[HistoryEntry]) -> list[tuple[HistoryEntry, dict[str, Any]]]:
    """The commits of ingest windows, each with its ``commitInfo.ingest``. Commits that only note states of files are
    left out."""
    told = [(entry, entry.info.get("ingest")) for entry in history]
    return [(entry, about) for entry, about in told if isinstance(about, dict) and "files" in about]


def failures(table: LakeTable) -> list[tuple[str, str, str, str]]:
    """Job, file, state and reason of the files that were not taken up."""
    return [
        (name, file.path, str(file.state), file.reason or "")
        for name in ingests_of(table.opened.view.snapshot)
        for file in table.ingest(name).files(state=["failed", "changed", "gone"])
    ]


def due(table: LakeTable) -> list[tuple[str, str, str]]:
    """For each service, whether it would run now, and why."""
    schedule = Schedule.of(table.opened.view.snapshot.metadata.configuration)
    policy, _, why = table.detail().maintenance.partition(": ")
    would, _, reason = why.partition(": ")
    rows = [
        ("automatic, after a write", would, f"{policy}: {reason}")
        if reason
        else ("automatic, after a write", policy, why)
    ]
    for name, strategy, minor in (
        ("full compaction", schedule.compaction, False),
        ("minor compaction", schedule.minor, True),
    ):
        if strategy is None:
            rows.append((name, "nothing", _SWITCHED_OFF))
            continue
        plan = table.compact(minor=minor, strategy=strategy, dry_run=True)
        would = f"merge {counted(plan.buckets, 'bucket')}" if plan.groups else "nothing"
        rows.append((name, would, _compaction(plan) if plan.groups else f"No file slice has {_least(strategy)}."))
    commits = sum(name.startswith(LOG_DOMAIN_PREFIX) for name in table.opened.view.snapshot.domains)
    after = schedule.logs_after_commits
    if after is None:
        rows.append(("log compaction", "nothing", _SWITCHED_OFF))
    else:
        least = max(after, 2)
        would = f"merge the logs of {counted(commits, 'commit')}" if commits >= least else "nothing"
        have = f"{counted(commits, 'commit')} {'has' if commits == 1 else 'have'} live logs"
        rows.append(("log compaction", would, f"{have}. It starts at {counted(least, 'commit')}."))
    rows.append(_vacuum(table))
    return rows


_SWITCHED_OFF: Final = "Table properties switch it off."


def _compaction(plan: CompactionPlan) -> str:
    reasons = "; ".join(plan.reasons)
    before, after = f"{plan.amplification_before:.2f}", f"{plan.amplification_after:.2f}"
    gain = "stays at" if before == after else f"falls from {before} to"
    read = readable_bytes(plan.bytes_read)
    return f"{reasons[:1].upper()}{reasons[1:]}. It would read {read}; read amplification {gain} {after}."


def _least(strategy: CompactionStrategy) -> str:
    return " or ".join(threshold_words(name, value) for name, value in strategy.thresholds) or "anything to merge"


def _vacuum(table: LakeTable) -> tuple[str, str, str]:
    try:
        found = table.vacuum(dry_run=True)
    except LakeMergeError as error:
        return "vacuum", "cannot run", error.message
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.files.items())
    oldest = found.oldest_version
    said = (
        f"Versions before {oldest} are older than the retention."
        if oldest
        else "Every version is within the retention."
    )
    would = f"delete {counted(len(found.paths), 'file')}, {readable_bytes(found.bytes)}" if found.paths else "nothing"
    return "vacuum", would, f"{said}{f' By kind: {kinds}.' if kinds else ''}"


def _logs(commit: PastCommit, *, removed: bool) -> list[str]:
    return [
        action.domain
        for action in commit.actions
        if isinstance(action, DomainMetadata)
        and action.domain.startswith(LOG_DOMAIN_PREFIX)
        and action.removed == removed
    ]


def _log_bytes(commit: PastCommit) -> int:
    """The size of one log of the commit."""
    found = commit.metrics.get("numOutputBytes", 0)
    return int(found) // max(1, len(_logs(commit, removed=False)))
