"""A Delta table at one version, and the replay that makes one (protocol, "Action Reconciliation")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
from lakemerge.delta.protocol import in_commit_timestamps
from lakemerge.errors import TableDamagedError

__all__ = ["Replay", "Snapshot"]


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
    """Live data files by path."""
    tombstones: Mapping[str, RemoveFile]
    """Removed files by path. Checkpoints forget those older than ``delta.deletedFileRetentionDuration``."""
    txns: Mapping[str, Txn]
    domains: Mapping[str, DomainMetadata]
    """Live domains by name."""
    checkpoint_version: int | None
    """The newest checkpoint at or below ``version`` that this snapshot knows. There may be newer ones."""
    fingerprint: Fingerprint | None = field(default=None, compare=False)
    """The commit file of ``version``; ``None`` if only a checkpoint is left."""

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


class Replay:
    """Folds actions, oldest first, onto a base snapshot or onto nothing. The base is not changed."""

    def __init__(self, base: Snapshot | None = None) -> None:
        self.protocol: Protocol | None = None if base is None else base.protocol
        self.metadata: Metadata | None = None if base is None else base.metadata
        self.files: dict[str, AddFile] = {} if base is None else dict(base.files)
        self.tombstones: dict[str, RemoveFile] = {} if base is None else dict(base.tombstones)
        self.txns: dict[str, Txn] = {} if base is None else dict(base.txns)
        self.domains: dict[str, DomainMetadata] = {} if base is None else dict(base.domains)

    def apply(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case AddFile():
                    self.tombstones.pop(action.path, None)
                    self.files[action.path] = action
                case RemoveFile():
                    self.files.pop(action.path, None)
                    self.tombstones[action.path] = action
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
                case CommitInfo():
                    pass

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
        )
