"""The way of rows from source files to base files, read from the commits of the table.

The events are those of NiFi's provenance that a table can have: RECEIVE, CREATE, JOIN, FORK, DROP, EXPIRE, RESTORE and
REPLAY. Events stay known after the content that they name is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lakemerge.delta import AddFile, DomainMetadata, RemoveFile
from lakemerge.errors import VersionNotFoundError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.block_index import log_paths
from lakemerge.format.keys import BucketId, Key, keys_at
from lakemerge.format.minor import Minor
from lakemerge.format.names import EXPIRY_DOMAIN, LOG_DOMAIN_PREFIX, MINOR_DOMAIN_PREFIX
from lakemerge.handle import Handle
from lakemerge.layout.placement import place_rows
from lakemerge.layout.view import TableView
from lakemerge.provenance.events import Event, Lineage
from lakemerge.provenance.explain import explain_key
from lakemerge.provenance.origins import window_files
from lakemerge.provenance.past import PastCommit, definitions, read_commits
from lakemerge.python_values import python_rows
from lakemerge.read.lookup import sorted_keys
from mergers.interrupts import is_foreign
from mergers.keys import key_columns

__all__ = ["Event", "Lineage", "lineage_of"]

REPLAY_APPLICATION = "lakemerge.replay."
"""The beginning of a replay's application id."""


def lineage_of(handle: Handle, tip: TableView, version: int | None, key: Mapping[str, object] | None) -> Lineage:
    """See :meth:`lakemerge.LakeTable.lineage`."""
    view = tip if version is None else handle.view_at(version, of=tip.snapshot)
    first = min(entry.version for entry in handle.log.history())
    commits = read_commits(handle, since=first - 1, until=view.version)
    there = {stat.path for folder in ("base", "_lakemerge") for stat in handle.store.list(folder)}
    # The tip knows most, unless the table was replaced since the version.
    teller = _Teller(handle, tip if tip.snapshot.metadata.id == view.snapshot.metadata.id else view, {}, there)
    if key is not None:
        # Where the table was replaced, the files of the other definition cannot be looked at for this key.
        of = definitions(commits)
        commits = tuple(commit for commit in commits if of[commit.version] == of.get(view.version))
    events = [event for commit in commits for event in teller.events(commit)]
    if key is not None:
        named = sorted_keys([key], view.config)
        events = list(_of_key(handle, view, named, events, teller))
        (key,) = python_rows(named)
    notes = []
    if first > 0:
        notes.append(f"the commits before version {first} were cleaned up: what they did is not known any more")
    if any(path in event.gone for event in events for path in event.paths):
        notes.append("files that are marked as gone were vacuumed: the events outlive them")
    return Lineage(version=view.version, begins=first, key=key, events=tuple(events), notes=tuple(notes))


@dataclass(slots=True)
class _Teller:
    """What each commit did, in the order of the commits."""

    handle: Handle
    tip: TableView
    logs: dict[str, tuple[str, ...]]
    """Log domain -> its files, so far."""
    there: set[str]
    """The files that are in the store."""
    bases: dict[str, BaseFile] = field(default_factory=dict)
    minors: dict[str, Minor] = field(default_factory=dict)

    def events(self, commit: PastCommit) -> Iterator[Event]:
        made = tuple(self._made(commit))
        taken = tuple(self._taken(commit))
        about = {**commit.parameters}
        for event in self._told(commit, made, taken, about):
            gone = frozenset(path for path in event.paths if path not in self.there and not event.is_outside(path))
            yield replace(event, timestamp_ms=commit.timestamp_ms, gone=gone)

    def _told(
        self, commit: PastCommit, made: tuple[str, ...], taken: tuple[str, ...], about: Mapping[str, Any]
    ) -> Iterator[Event]:
        version, operation = commit.version, commit.operation
        if commit.restored is not None:
            said = f"version {commit.restored} is the present one again"
            yield Event("RESTORE", version, operation, inputs=taken, outputs=made, words=said, details=about)
        elif commit.replaces:
            if version > 0:
                said = "the table was replaced by an empty one with a definition of its own"
                yield Event("DROP", version, operation, inputs=taken, words=said, details=about)
        elif operation in ("COMPACT", "COMPACT LOGS") or (operation == "RESCALE" and (made or taken)):
            yield self._rewritten(commit, made, taken, about)
        elif operation == "RESCALE":
            said = f"the table has {about.get('buckets')} buckets instead of {about.get('before')}"
            yield Event("FORK", version, operation, words=said, details=about)
        elif operation == "EXPIRE TOMBSTONES" or self._expires(commit):
            said = f"deletes of versions up to {about.get('horizon')} are forgotten"
            yield Event("EXPIRE", version, operation, words=said, details=about)
        elif operation == "VACUUM FENCE":
            said = f"versions before {about.get('oldestVersion')} are dropped, with the files that only they need"
            yield Event("DROP", version, operation, words=said, details=about)
        elif made or operation in ("UPSERT", "DELETE", "INGEST"):
            yield from self._written(commit, made, about)

    def _written(self, commit: PastCommit, made: tuple[str, ...], about: Mapping[str, Any]) -> Iterator[Event]:
        version, operation = commit.version, commit.operation
        told = commit.fields.get("ingest")
        if isinstance(told, dict) and ("files" in told or made):
            files, note = window_files(self.handle, self.tip.snapshot, told)
            paths = tuple(file["path"] for file in files)
            window = f"window {told.get('window')} of job {told.get('name')}"
            why = f", closed because {told['reason']}" if "reason" in told else ""
            said = f"{window} took up {told.get('files', len(files))} files{why}" + (f"; {note}" if note else "")
            yield Event("RECEIVE", version, operation, inputs=paths, outputs=(window,), words=said, details=told)
            inputs: tuple[str, ...] = (window,)
        else:
            inputs = ()
        if not made:
            return
        txn = commit.txn
        kind = "REPLAY" if txn is not None and txn.app_id.startswith(REPLAY_APPLICATION) else "CREATE"
        by = "" if txn is None else f" by {txn.app_id}, number {txn.version}"
        rows = commit.metrics.get("numSourceRows")
        said = f"{'' if rows is None else f'{rows} '}records were committed{by}"
        details = {**about, **commit.info}
        yield Event(kind, version, operation, inputs=inputs, outputs=made, words=said, details=details)

    def _rewritten(
        self, commit: PastCommit, made: tuple[str, ...], taken: tuple[str, ...], about: Mapping[str, Any]
    ) -> Event:
        why = f", because {about['why']}" if about.get("why") else ""
        what = {"COMPACT": f"{about.get('mode', 'full')} compaction", "COMPACT LOGS": "log compaction"}
        name = what.get(commit.operation, "rescale")
        kind = "FORK" if commit.operation == "RESCALE" and len(made) > len(taken) else "JOIN"
        said = f"{name}: {len(taken)} files became {len(made)}{why}"
        return Event(kind, commit.version, commit.operation, inputs=taken, outputs=made, words=said, details=about)

    def _made(self, commit: PastCommit) -> Iterator[str]:
        for action in commit.actions:
            if isinstance(action, AddFile):
                try:
                    self.bases[action.path] = BaseFile.of(action, self.tip.config.partition_by)
                except Exception as error:  # a file of another writer is shown all the same
                    if is_foreign(error):
                        raise
                    yield action.path
                    continue
                yield from self.bases[action.path].paths
            elif isinstance(action, DomainMetadata) and not action.removed:
                if action.domain.startswith(LOG_DOMAIN_PREFIX):
                    self.logs[action.domain] = self._log_files(action)
                    yield from self.logs[action.domain]
                elif action.domain.startswith(MINOR_DOMAIN_PREFIX):
                    minor = Minor.of(action)
                    self.minors[action.domain] = minor
                    yield from minor.paths

    def _taken(self, commit: PastCommit) -> Iterator[str]:
        for action in commit.actions:
            if isinstance(action, RemoveFile):
                yield action.path
            elif isinstance(action, DomainMetadata) and action.removed:
                yield from self.logs.get(action.domain, ())
                minor = self.minors.get(action.domain)
                yield from () if minor is None else minor.paths

    def _log_files(self, domain: DomainMetadata) -> tuple[str, ...]:
        try:
            return tuple(sorted(log_paths(domain, self.handle.store)))
        except Exception as error:  # a block index that was vacuumed; the log is known by its domain
            if is_foreign(error):
                raise
            return (domain.domain,)

    @staticmethod
    def _expires(commit: PastCommit) -> bool:
        return any(isinstance(a, DomainMetadata) and a.domain == EXPIRY_DOMAIN for a in commit.actions) and (
            commit.restored is None
        )


def _of_key(
    handle: Handle, view: TableView, keys: pa.Table, events: Sequence[Event], teller: _Teller
) -> Iterator[Event]:
    """The events that concern a key: the commits of its records, and rewrites of files that may hold the key."""
    (named,) = python_rows(keys)
    try:
        told = explain_key(handle, view, named, 0)
        versions = {step.version for step in told.steps}
    except VersionNotFoundError:
        versions = set()
    files = {step.file for step in told.steps if step.file} if versions else set()
    mine = _Mine(view, keys, teller.bases)
    for event in events:
        own = event.version in versions or event.kind in ("RESTORE", "EXPIRE", "DROP")
        if own or any(path in files or mine.may_hold(path) for path in event.paths):
            yield event


class _Mine:
    """The base files that may hold a key."""

    def __init__(self, view: TableView, keys: pa.Table, bases: Mapping[str, BaseFile]) -> None:
        self._view, self._keys, self._bases = view, keys, bases
        (self._key,) = keys_at(key_columns(keys, view.config.key), [0])
        self._ranges: dict[tuple[BucketId, int, str], list[Key]] = {}

    def may_hold(self, path: str) -> bool:
        base = self._bases.get(path)
        if base is None:
            return False
        slots, partitions = place_rows(self._keys, self._view.config, base.buckets)
        slot = int(slots[0])
        own = BucketId(partitions[slot // base.buckets], slot % base.buckets)
        if own != base.bucket_id or (base.lower is not None and self._key < base.lower):
            return False
        return all(
            other.lower is None or self._key < other.lower or other.lower <= (base.lower or ())
            for other in self._siblings(base)
        )

    def _siblings(self, base: BaseFile) -> Iterable[BaseFile]:
        """The other files of the bucket that were written in the same commit."""
        folder = base.add.path.rpartition("/")[0]
        for other in self._bases.values():
            same = other.bucket_id == base.bucket_id and other.buckets == base.buckets and other is not base
            if same and other.add.path.rpartition("/")[0] == folder:
                yield other
