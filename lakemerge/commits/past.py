"""The commits that make up a table's present history. A restore removes those after its version from it, and it begins
anew where the table was replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lakemerge.delta import LOG_INFO, Action, AddFile, CommitInfo, DomainMetadata, Metadata, Txn
from lakemerge.errors import VersionNotFoundError
from lakemerge.format.names import LOG_DOMAIN_PREFIX, RESET_DOMAIN
from lakemerge.format.operations import REPLACING, Operation
from lakemerge.format.reset import Reset, Resets
from lakemerge.handle import Handle

__all__ = ["Past", "PastCommit", "definitions", "read_commits", "standing"]

_NOT_SHOWN: Final = LOG_INFO | {"ingest", "isBlindAppend", "isolationLevel"}
"""Entries of ``commitInfo`` that say nothing to a user, or are shown in another place."""
_OF_QUERY: Final = frozenset({Operation.CREATE_AS_SELECT, Operation.REPLACE_AS_SELECT})


@dataclass(frozen=True, slots=True)
class PastCommit:
    """One commit of the log."""

    version: int
    actions: tuple[Action, ...]

    @property
    def fields(self) -> Mapping[str, Any]:
        return next((action.fields for action in self.actions if isinstance(action, CommitInfo)), {})

    @property
    def operation(self) -> str:
        return str(self.fields.get("operation", ""))

    @property
    def parameters(self) -> Mapping[str, Any]:
        found = self.fields.get("operationParameters")
        return found if isinstance(found, dict) else {}

    @property
    def metrics(self) -> Mapping[str, Any]:
        found = self.fields.get("operationMetrics")
        return found if isinstance(found, dict) else {}

    @property
    def info(self) -> dict[str, Any]:
        """What callers and operations say of the commit."""
        return {name: value for name, value in self.fields.items() if name not in _NOT_SHOWN}

    @property
    def timestamp_ms(self) -> int | None:
        for name in ("inCommitTimestamp", "timestamp"):
            if isinstance(found := self.fields.get(name), int):
                return found
        return None

    @property
    def restored(self) -> int | None:
        """The version that the commit restored; ``None`` if it is no restore."""
        version = self.parameters.get("version") if self.operation == Operation.RESTORE else None
        return None if version is None else int(version)

    @property
    def replaces(self) -> bool:
        """Whether another table was there after the commit, with the rows that came with it or none."""
        return self.operation in REPLACING

    @property
    def replacement(self) -> str:
        """What happened to the table before, in words, if the commit replaced it."""
        made = any(isinstance(action, AddFile) for action in self.actions)
        return f"replaced by {'the rows of a query' if made else 'an empty one'}"

    @property
    def is_load(self) -> bool:
        """Whether the commit wrote its records as base files, as the first write of a table does, and a query whose
        rows a table is made of."""
        loads = self.parameters.get("mode") == "load" or self.operation in _OF_QUERY
        return loads and any(isinstance(action, AddFile) for action in self.actions)

    @property
    def overwrites(self) -> tuple[Reset, ...]:
        """What the commit overwrote, without what earlier ones did; nothing if it is no overwrite."""
        for action in self.actions:
            if isinstance(action, DomainMetadata) and action.domain == RESET_DOMAIN and not action.removed:
                entries = Resets.of({RESET_DOMAIN: action}).entries
                return tuple(entry for entry in entries if entry.version == self.version)
        return ()

    @property
    def overwritten(self) -> str:
        """What the commit overwrote, in words."""
        entries = self.overwrites
        if any(entry.partition is None for entry in entries):
            return "all rows"
        return f"the rows of {len(entries)} {'partition' if len(entries) == 1 else 'partitions'}"

    @property
    def metadata(self) -> Metadata | None:
        return next((action for action in self.actions if isinstance(action, Metadata)), None)

    @property
    def txn(self) -> Txn | None:
        return next((action for action in self.actions if isinstance(action, Txn)), None)

    @property
    def new_logs(self) -> Iterator[DomainMetadata]:
        """The logs of records that this commit brought, without those that a restore or a log compaction names."""
        for action in self.actions:
            if isinstance(action, DomainMetadata) and action.domain.startswith(LOG_DOMAIN_PREFIX):
                body = {} if action.removed else orjson.loads(action.configuration)
                if body.get("version") == self.version and "from" not in body:
                    yield action


@dataclass(frozen=True, slots=True)
class Past:
    """The history between two versions, without what was restored away."""

    start: int
    """The version before the commits: the one asked for or, if a restore went below it, the restored one. If the table
    was replaced, the version that replaced it."""
    commits: tuple[PastCommit, ...]
    """The commits after ``start`` that count, oldest first."""


def read_commits(handle: Handle, *, since: int, until: int) -> tuple[PastCommit, ...]:
    """The commits after ``since`` up to ``until``. Raises :class:`VersionNotFoundError` if some were cleaned up."""
    if since >= until:
        return ()
    found = tuple(PastCommit(version, actions) for version, actions in handle.log.commits(since=since, until=until))
    if len(found) != until - since:
        raise VersionNotFoundError(
            f"the log ends before version {until}; open the table again", version=until, earliest=since
        )
    return found


def standing(commits: Sequence[PastCommit], since: int) -> Past:
    """Those of ``commits``, which follow ``since``, that the table's last version is made of."""
    by_version = {commit.version: commit for commit in commits}
    at = commits[-1].version if commits else since
    kept: list[PastCommit] = []
    while at > since:
        commit = by_version[at]
        if commit.replaces:
            return Past(at, tuple(reversed(kept)))
        target = commit.restored
        if target is not None and target < since:
            return Past(at, tuple(reversed(kept)))
        kept.append(commit)
        at = at - 1 if target is None else target
    return Past(since, tuple(reversed(kept)))


def definitions(commits: Sequence[PastCommit]) -> dict[int, int | None]:
    """For each version, the version that last replaced the table before it, or that a restore went back to; ``None``
    if none of the commits did. Versions with equal ones are of one table, with one key."""
    found: dict[int, int | None] = {}
    now: int | None = None
    for commit in commits:
        if commit.replaces:
            now = commit.version
        elif commit.restored is not None:
            now = found.get(commit.restored)
        found[commit.version] = now
    return found
