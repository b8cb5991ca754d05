"""By how many records a table is short: those that a writer or a log compaction combined away or united, as mergers
allow.

Under the table's own merger they decide nothing. Another merger, or a condition on records, might have seen them.
Source: docs/guides/provenance.md, "What if".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakemerge.commits.past import PastCommit
from lakemerge.delta import AddFile
from lakemerge.format.base_file import rows_of
from lakemerge.format.block_index import LogCommit
from lakemerge.handle import Handle
from lakemerge.provenance.origins import find_commits
from lakemerge.provenance.retained import Retained

__all__ = ["Short", "in_words", "of_load", "short_notes", "shorts"]

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Short:
    """Records of one or several versions that are not there by themselves."""

    first: int
    last: int
    records: int
    united: int = 0
    """How many of them are in other records, which stand for several."""
    is_load: bool = False
    """Whether the first write of the table merged them into its rows."""


def shorts(handle: Handle, logs: Sequence[LogCommit], known: Iterable[PastCommit] = ()) -> list[Short]:
    """What these logs lack of the records that their commits brought, oldest first. What cannot be told, because a
    commit was cleaned up, is left out.

    :param known: commits that were read already. All others cost a request.
    """
    spans = _spans(logs)
    commits = {commit.version: commit for commit in known}
    wanted = {version for first, last, _ in spans for version in range(first, last + 1)} - commits.keys()
    commits |= find_commits(handle, wanted)
    found = []
    for first, last, rows in spans:
        own = [commits.get(version) for version in range(first, last + 1)]
        given = [_given(commit) for commit in own if commit is not None]
        if any(commit is None for commit in own) or any(count is None for count in given):
            continue
        lacking = sum(count or 0 for count in given) - rows
        if lacking > 0:
            united = sum(_number(commit, _UNITED) or 0 for commit in own if commit is not None)
            found.append(Short(first, last, lacking, min(united, lacking)))
    return found


def _spans(logs: Sequence[LogCommit]) -> list[tuple[int, int, int]]:
    """The versions that logs stand for, and how many records they have. Consolidated logs may interleave."""
    spans: list[tuple[int, int, int]] = []
    for log in sorted(logs, key=lambda log: log.packed_from or log.version):
        first, rows = log.version if log.packed_from is None else log.packed_from, sum(b.rows for b in log.blocks)
        if spans and first <= spans[-1][1]:
            begin, end, before = spans.pop()
            spans.append((begin, max(end, log.version), before + rows))
        else:
            spans.append((first, log.version, rows))
    return spans


def _given(commit: PastCommit) -> int | None:
    """How many records a commit brought into logs; ``None`` if it does not say."""
    if not any(True for _ in commit.new_logs):
        return 0
    return _count(commit)


def _count(commit: PastCommit) -> int | None:
    return _number(commit, "numSourceRows")


_UNITED = "numUnitedRecords"


def _number(commit: PastCommit, metric: str) -> int | None:
    told = commit.metrics.get(metric)
    try:
        return None if told is None else int(told)
    except ValueError:
        return None


def of_load(commit: PastCommit | None) -> Short | None:
    """What the first write of a table merged away; ``None`` if it is none, or merged nothing."""
    if commit is None or not commit.is_load or (given := _count(commit)) is None:
        return None
    lacking = given - rows_of(action for action in commit.actions if isinstance(action, AddFile))
    return Short(commit.version, commit.version, lacking, is_load=True) if lacking > 0 else None


def short_notes(handle: Handle, known: Retained) -> list[str]:
    """Sentences on the records that a fold of ``known`` under another merger does not see."""
    found = shorts(handle, known.view.log_commits, known.commits)
    version = known.start.version
    loaded = of_load(find_commits(handle, [version]).get(version)) if known.is_loaded else None
    notes = [in_words(short) for short in ([loaded] if loaded is not None else []) + found[:_NAMED]]
    if later := found[_NAMED:]:
        count = sum(short.records for short in later)
        notes.append(f"{count:,} more records of {len(later)} later versions are not written down either")
    return notes


def in_words(short: Short) -> str:
    is_one = short.records == 1
    where = f"version {short.first}" if short.first == short.last else f"versions {short.first} to {short.last}"
    what = (
        f"{short.records:,} {'record' if is_one else 'records'} of {where} {'is' if is_one else 'are'} not written down"
    )
    if short.is_load:
        return f"{what}: the first write of a table merges its records into rows"
    others = "others of their commits, which stand for several, as the merger at that time allows"
    if short.united == short.records:
        return f"{what}: they are in {others}"
    if short.united:
        return f"{what}: {short.united:,} are in {others}, and of the rest only the deciding ones were kept"
    return f"{what}: only the deciding records of each key were kept, as the laws of the merger at that time allow"
