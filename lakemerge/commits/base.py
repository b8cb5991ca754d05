"""The one way to commit, and the checks of every commit.

Each attempt is checked anew against the tip (docs/table-format.md, section 4). The log retries. A commit of this
package only says whether an attempt is still valid, and which actions it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from lakemerge.commits.provenance import Provenance
from lakemerge.delta import (
    Action,
    AlreadyDone,
    Attempt,
    Committed,
    DomainMetadata,
    Metadata,
    Snapshot,
    Transaction,
    check_same_table,
)
from lakemerge.errors import CommitConflictError, VersionNotFoundError
from lakemerge.format.block_index import log_version
from lakemerge.format.config import TableConfig
from lakemerge.format.names import LOG_DOMAIN_PREFIX
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.schema.evolution import carries

__all__ = [
    "FileSlicesChangedError",
    "check_fence",
    "check_not_overtaken",
    "check_same_meaning",
    "commit_records",
    "commit_to",
    "landed",
    "rows_changed",
    "with_buckets",
]


class FileSlicesChangedError(CommitConflictError):
    """Another compaction merged one of the file slices first, so this one has read old files."""

    code = "file-slices-changed"


def commit_to(
    handle: Handle,
    begin: TableView,
    build: Callable[[TableView], Attempt | AlreadyDone],
    *,
    operation: str,
    parameters: Mapping[str, object],
    info: Mapping[str, object] = MappingProxyType({}),
    transaction: Transaction | None = None,
) -> Committed | AlreadyDone:
    """Commit the actions that ``build`` gives for the table's tip. ``build`` is called for every attempt. It raises an
    error if the work that began at ``begin`` is no longer valid at the tip. For other errors see
    :meth:`lakemerge.delta.DeltaLog.commit`.

    Raises :class:`lakemerge.TableReplacedError` if the table was replaced since ``begin``: nothing that began before
    may land, whatever it is."""

    def built(tip: Snapshot | None) -> Attempt | AlreadyDone:
        if tip is None:
            raise AssertionError("the table exists: the commit began from a snapshot")
        check_same_table(handle.store, begin.snapshot, tip)
        return build(handle.view(tip))

    outcome = handle.log.commit(
        begin.snapshot, built, operation=operation, parameters=parameters, info=info, transaction=transaction
    )
    if isinstance(outcome, Committed):
        handle.landed.snapshot = outcome.snapshot
    return outcome


def landed(outcome: Committed | AlreadyDone) -> Committed:
    """The outcome of a build that always makes an attempt."""
    if isinstance(outcome, AlreadyDone):
        raise AssertionError("what has no application transaction cannot have been done before")
    return outcome


def commit_records(
    handle: Handle, begin: TableView, build: Callable[[TableView], Attempt | AlreadyDone], provenance: Provenance
) -> Committed | AlreadyDone:
    """As :func:`commit_to`, with the provenance of a write."""
    return commit_to(
        handle,
        begin,
        build,
        operation=provenance.operation,
        parameters=provenance.parameters,
        info=provenance.info,
        transaction=provenance.transaction,
    )


def check_same_meaning(begin: TableView, tip: TableView) -> None:
    """Raise :class:`CommitConflictError` if work prepared at ``begin`` would not mean the same at ``tip``."""
    if begin.snapshot is tip.snapshot:
        return
    if begin.state.restore_epoch != tip.state.restore_epoch:
        raise CommitConflictError("the table was restored to an earlier version meanwhile; open it again and retry")
    if begin.state.merger_epoch != tip.state.merger_epoch or begin.config.merger_id != tip.config.merger_id:
        raise CommitConflictError("the table's merger or its options changed meanwhile; open the table again and retry")
    if dict(begin.config.constraints) != dict(tip.config.constraints):
        raise CommitConflictError("the table's constraints changed meanwhile; open the table again and retry")
    check_fence(begin, tip)
    stored = tip.config.names
    now = {stored.of(field.name): field for field in tip.config.schema}
    for before in begin.config.schema:
        after = now.get(begin.config.names.of(before.name))
        # What is written of a column that was dropped is left out by readers.
        gone = after is None and stored.is_on
        if not gone and (after is None or not carries(after.type, before.type)):
            raise CommitConflictError(f"column {before.name!r} changed meanwhile; open the table again and retry")


def check_fence(begin: TableView, tip: TableView) -> None:
    """Raise :class:`CommitConflictError` if a vacuum has since taken files that work prepared at ``begin`` may have
    written, or if another LakeMerge table was here at ``begin``."""
    if tip.state.fence_begin_version > begin.version:
        raise CommitConflictError(
            f"this began at version {begin.version}, before the vacuum fence {tip.state.fence_begin_version}; "
            "its files may be gone. Open the table again and retry."
        )


def check_not_overtaken(handle: Handle, begin: TableView) -> None:
    """Raise :class:`CommitConflictError` if work prepared at ``begin`` can no longer land."""
    check_same_meaning(begin, handle.latest(begin))


def rows_changed(handle: Handle, begin: TableView, tip: TableView) -> bool:
    """Whether rows were committed between the two versions. No restore may lie between them."""
    if begin.state.overwrite_epoch != tip.state.overwrite_epoch:
        return True
    if any(commit.version > begin.version for commit in tip.log_commits) or (begin.is_empty and not tip.is_empty):
        return True
    merged = [*(base.merged_through for base in tip.base_files), *(minor.through for minor in tip.minors.values())]
    if max(merged, default=-1) <= begin.version:
        return False
    # A compaction merges through the version that it read, so only the commits say whether there were new records.
    try:
        commits = handle.log.commits(since=begin.version, until=tip.version)
    except VersionNotFoundError:
        return True  # some commits were cleaned up, so it is not known
    return any(_brings_records(actions, begin.version) for _, actions in commits)


def _brings_records(actions: Iterable[Action], after: int) -> bool:
    logs = (a for a in actions if isinstance(a, DomainMetadata) and a.domain.startswith(LOG_DOMAIN_PREFIX))
    return any(not log.removed and log_version(log) > after for log in logs)


def with_buckets(metadata: Metadata, config: TableConfig, buckets: int) -> Metadata:
    chosen = replace(config, buckets=buckets).configuration()
    return replace(metadata, configuration={**metadata.configuration, **chosen})
