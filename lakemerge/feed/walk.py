"""Walks from version to version: finds the commits that changed rows, and the versions before and after each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lakemerge.delta import Action, AddFile, CommitInfo, DomainMetadata, Metadata, Snapshot
from lakemerge.delta.snapshot import SnapshotBuilder
from lakemerge.errors import SchemaError, TableReplacedError
from lakemerge.format.block_index import log_version
from lakemerge.format.config import TableConfig
from lakemerge.format.log_block import LogBlock
from lakemerge.format.names import LOG_DOMAIN_PREFIX, STATE_DOMAIN
from lakemerge.format.state import State
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.schema.names import NAMES
from mergers.wording import argument

__all__ = ["blocks_of", "changing_commits", "check_not_replaced"]


def changing_commits(handle: Handle, begin: Snapshot, until: int) -> Iterator[tuple[TableView, TableView]]:
    """The versions after ``begin``, up to ``until``, that may have changed rows, each with the version before it.
    Compactions, savepoints and the like are skipped after a look at their commits.

    Raises :class:`TableReplacedError` at a commit that replaced the table: its rows have another key."""
    view, replay, replayed = handle.view(begin), SnapshotBuilder(begin), begin.version
    if until <= begin.version:
        return
    moment = begin.timestamp_ms
    for version, actions in handle.log.commits(since=begin.version, until=until):
        _check_same(handle, begin, version, actions)
        told = _committed_ms(handle, version, actions)
        before = view if view.version == replayed else handle.view(_snapshot(replay, begin, replayed, moment))
        if _changes_rows(before, version, actions):
            replay = SnapshotBuilder(before.snapshot)
            replay.apply(actions)
            view = handle.view(_snapshot(replay, begin, version, told))
            yield before, view
            replay = SnapshotBuilder(view.snapshot)
        else:
            view = before
            replay.apply(actions)
        replayed, moment = version, told


def check_not_replaced(handle: Handle, begin: Snapshot, until: Snapshot) -> None:
    """Raise :class:`TableReplacedError` if the table was replaced between two versions, and :class:`SchemaError` if
    columns were renamed or dropped."""
    same = _epoch(handle, begin.metadata) == _epoch(handle, until.metadata)
    if State.of(begin).restore_epoch == State.of(until).restore_epoch and same:
        return
    for version, actions in handle.log.commits(since=begin.version, until=until.version):
        _check_same(handle, begin, version, actions)


def _check_same(handle: Handle, begin: Snapshot, version: int, actions: Iterable[Action]) -> None:
    if any(isinstance(action, Metadata) and action.id != begin.metadata.id for action in actions):
        raise TableReplacedError(
            f"the table at {handle.store.url} was replaced at version {version}, by one with another definition. "
            f"Changes up to version {version - 1} can be read ({argument('until', version - 1)}), and changes from "
            f"version {version} on; there are none between the two tables. A follower starts again, with an "
            f"empty copy, after version {version}",
            version=version,
        )
    for action in actions:
        if isinstance(action, Metadata) and _epoch(handle, action) != _epoch(handle, begin.metadata):
            raise SchemaError(
                f"columns of the table were renamed or dropped in version {version}: changes up to version "
                f"{version - 1} can be read ({argument('until', version - 1)}), with the names before, and changes "
                f"from version {version} on, with the names since. Nothing is lost: start again after version "
                f"{version}",
                version=version,
            )


def _epoch(handle: Handle, metadata: Metadata) -> int:
    """How often columns were renamed or dropped."""
    if NAMES not in metadata.configuration:
        return 0
    return TableConfig.of(metadata, url=handle.store.url).names.epoch


def blocks_of(view: TableView) -> list[LogBlock]:
    """The blocks of the version's own commit."""
    commits = [commit for commit in view.log_commits if commit.version == view.version]
    return [block for commit in commits for block in commit.blocks if block.packed_from is None]


def _snapshot(replay: SnapshotBuilder, begin: Snapshot, version: int, timestamp_ms: int) -> Snapshot:
    """A snapshot of its own, because the replay goes on."""
    taken = replay.finish(version, timestamp_ms, begin.checkpoint_version)
    return replace(
        taken,
        files=dict(taken.files),
        tombstones=dict(taken.tombstones),
        txns=dict(taken.txns),
        domains=dict(taken.domains),
    )


def _changes_rows(before: TableView, version: int, actions: Iterable[Action]) -> bool:
    loads = before.is_empty
    for action in actions:
        if isinstance(action, AddFile) and loads:
            return True
        if isinstance(action, DomainMetadata) and not action.removed:
            if action.domain.startswith(LOG_DOMAIN_PREFIX) and log_version(action) == version:
                return True
            if action.domain == STATE_DOMAIN and _rewrites(before, action):
                return True
    return False


def _rewrites(before: TableView, domain: DomainMetadata) -> bool:
    """Whether the state says that the commit is a restore or an overwrite."""
    after, then = State.of(replace(before.snapshot, domains={STATE_DOMAIN: domain})), before.state
    return (after.restore_epoch, after.overwrite_epoch) != (then.restore_epoch, then.overwrite_epoch)


def _committed_ms(handle: Handle, version: int, actions: Iterable[Action]) -> int:
    for action in actions:
        if isinstance(action, CommitInfo) and action.in_commit_timestamp_ms is not None:
            return action.in_commit_timestamp_ms
    return handle.log.snapshot(version=version).timestamp_ms
