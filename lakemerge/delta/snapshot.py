"""A Delta table at one version, and the replay that makes one (protocol, "Action Reconciliation")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from lakemerge.delta.actions import (
    Action,
    AddFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from lakemerge.delta.fingerprint import Fingerprint
from lakemerge.delta.protocol import duration_ms, in_commit_timestamps, parse_duration_ms
from lakemerge.errors import TableDamagedError

__all__ = ["TXN_RETENTION", "Snapshot", "SnapshotBuilder", "can_expire"]

TXN_RETENTION: Final = "delta.setTransactionRetentionDuration"

_WEEK_MS: Final = 7 * 86_400_000
_OF_THE_LIBRARY: Final = "lakemerge."
_OF_STREAMS: Final = "lakemerge.stream."
_OF_MERGE_SOURCES: Final = frozenset({"merge-source", "merge-source-next-id"})


def can_expire(app_id: str) -> bool:
    """Whether the ``txn`` of an application can expire: those of callers and of streams, which are ever new ones. The
    library's other ids say how far its own work has come. They are few, and without them it would be done again."""
    if app_id.startswith(_OF_STREAMS):
        return True
    return app_id not in _OF_MERGE_SOURCES and not app_id.startswith(_OF_THE_LIBRARY)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a table after commit ``version``. A value: its mappings are never changed."""

    version: int
    timestamp_ms: int
    """The in-commit timestamp if the table has them, else the time of the commit file by the store's clock (for a
    commit that was just made: by the writer's clock)."""
    protocol: Protocol
    metadata: Metadata
    files: Mapping[str, AddFile]
    """Live data files by path. A data file is live under one vector at a time."""
    tombstones: Mapping[str, RemoveFile]
    """Removed files by path, each as it was last. Commits and checkpoints forget those older than
    ``delta.deletedFileRetentionDuration``. A data file that is live under another vector than the one that was removed
    has none: a tombstone keeps a data file from those who clean up, and it is kept anyway. Its earlier vectors are kept
    by LakeMerge's own vacuum, which reads the commits, and nobody else may clean up the table."""
    txns: Mapping[str, Txn]
    """The last transaction of each application, without those that expired (``delta.setTransactionRetentionDuration``)
    by the time of this version's commit or of an earlier one."""
    domains: Mapping[str, DomainMetadata]
    """Live domains by name."""
    checkpoint_version: int | None
    """The newest checkpoint at or below ``version`` that this snapshot knows. There may be newer ones."""
    fingerprint: Fingerprint | None = field(default=None, compare=False)
    """The commit file of ``version``; ``None`` if only a checkpoint is left."""
    digest: str | None = field(default=None, compare=False)
    """That of the commit file, see :mod:`lakemerge.delta.chain`; ``None`` if it is not known."""

    @property
    def commits_since_checkpoint(self) -> int:
        return self.version - (-1 if self.checkpoint_version is None else self.checkpoint_version)

    @property
    def in_commit_timestamps(self) -> bool:
        return in_commit_timestamps(self.metadata)

    def __repr__(self) -> str:
        return (
            f"Snapshot(version={self.version}, files={len(self.files)}, domains={len(self.domains)}, "
            f"commits_since_checkpoint={self.commits_since_checkpoint})"
        )


class SnapshotBuilder:
    """Folds actions, oldest first, onto a base snapshot or onto nothing. The base is not changed."""

    def __init__(self, base: Snapshot | None = None) -> None:
        self.protocol: Protocol | None = None if base is None else base.protocol
        self.metadata: Metadata | None = None if base is None else base.metadata
        self.files: dict[str, AddFile] = {} if base is None else dict(base.files)
        self.tombstones: dict[str, RemoveFile] = {} if base is None else dict(base.tombstones)
        self.txns: dict[str, Txn] = {} if base is None else dict(base.txns)
        self.domains: dict[str, DomainMetadata] = {} if base is None else dict(base.domains)
        self.digest: str | None = None if base is None else base.digest
        """That of the last commit, as far as it is known."""

    def apply(self, actions: Iterable[Action]) -> None:
        """Fold the actions of one commit, or of a part of a checkpoint. Their order means nothing: a file that comes
        under another vector may be added before it is removed.

        Raises :class:`TableDamagedError` if a data file would be live under two vectors.
        """
        info: CommitInfo | None = None
        adds: list[AddFile] = []
        for action in actions:
            match action:
                case AddFile():
                    adds.append(action)
                case RemoveFile():
                    self._remove(action)
                case CommitInfo():
                    info = action
                case _:
                    self._define(action)
        for add in adds:
            self._add(add)
        if info is not None:
            self.forget(info.txns_until_ms)

    def _define(self, action: Protocol | Metadata | Txn | DomainMetadata) -> None:
        match action:
            case DomainMetadata():
                if action.removed:
                    self.domains.pop(action.domain, None)
                else:
                    self.domains[action.domain] = action
            case Txn():
                if action.version == Txn.FORGOTTEN:
                    self.txns.pop(action.app_id, None)
                else:
                    self.txns[action.app_id] = action
            case Metadata():
                self.metadata = action
            case Protocol():
                self.protocol = action

    def _add(self, action: AddFile) -> None:
        known = self.files.get(action.path)
        if known is not None and known.identity != action.identity:
            raise TableDamagedError(
                f"file {action.path!r} is in the table under two deletion vectors at once ({known.identity[1]} and "
                f"{action.identity[1]})",
                path=action.path,
            )
        self.tombstones.pop(action.path, None)
        self.files[action.path] = action

    def _remove(self, action: RemoveFile) -> None:
        known = self.files.get(action.path)
        if known is not None and known.identity != action.identity:
            return  # an earlier vector of a file that is there
        self.files.pop(action.path, None)
        self.tombstones.pop(action.path, None)  # so that the new one comes last
        if action.deletion_time_ms is not None:  # else it counts as made in 1970, and has expired
            self.tombstones[action.path] = action

    def forget(self, txns_until_ms: int | None) -> None:
        """Forget what has expired with a commit, which is applied already: transactions that were last updated at or
        before the time that the commit says, and tombstones. So a version has the same ones for every reader, whether
        it begins at a checkpoint or at version 0."""
        for app in [] if txns_until_ms is None else self._last_updated(txns_until_ms):
            del self.txns[app]
        kept_ms = None
        if self.metadata is not None and self.tombstones:
            kept_ms = duration_ms(self.metadata, "delta.deletedFileRetentionDuration", default=_WEEK_MS)
        if kept_ms is not None:
            # They stand in the order of their commits, so the oldest come first. Their times are by the store's clock,
            # and so is the latest of them, which is the least that it may show by now. A commit's own time is not.
            times = {path: remove.deletion_time_ms or 0 for path, remove in self.tombstones.items()}
            latest_ms = max(times.values())
            for path, _ in list(takewhile(lambda pair: pair[1] <= latest_ms - kept_ms, times.items())):
                del self.tombstones[path]

    def txns_until(self, now_ms: int, store_ms: Callable[[], int]) -> int | None:
        """The time up to which a commit at ``now_ms`` forgets transactions; ``None`` if there are none to forget.

        :param store_ms: gives the time by the store's clock. It is asked only if there seem to be some: a host whose
            clock is ahead must not forget transactions early.
        """
        told = None if self.metadata is None else self.metadata.configuration.get(TXN_RETENTION)
        retention_ms = None if told is None else parse_duration_ms(told)
        if retention_ms is None or not self._last_updated(now_ms - retention_ms):
            return None
        until_ms = min(now_ms, store_ms()) - retention_ms
        return until_ms if self._last_updated(until_ms) else None

    def _last_updated(self, until_ms: int) -> list[str]:
        """The applications whose transaction can expire and was last updated at or before a time."""
        return [
            app
            for app, txn in self.txns.items()
            if txn.last_updated_ms is not None and txn.last_updated_ms <= until_ms and can_expire(app)
        ]

    def finish(self, version: int, timestamp_ms: int, checkpoint_version: int | None) -> Snapshot:
        """The state as a value. Raises :class:`TableDamagedError` without protocol or metadata."""
        if self.protocol is None or self.metadata is None:
            missing = "protocol" if self.protocol is None else "metaData"
            raise TableDamagedError(f"the log up to version {version} has no {missing} action", version=version)
        return Snapshot(
            version=version,
            timestamp_ms=timestamp_ms,
            protocol=self.protocol,
            metadata=self.metadata,
            files=self.files,
            tombstones=self.tombstones,
            txns=self.txns,
            domains=self.domains,
            checkpoint_version=checkpoint_version,
            digest=self.digest,
        )
