"""The way of rows from source files to base files, read from the commits of the table.

The events are those of NiFi's provenance that a table can have
(:data:`lakemerge.provenance.lineage_events.KINDS`). Events
stay known after the content that they name is gone. What went to consumers of the change feed is told by their
positions, and by the commits that dropped them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from lakemerge.commits.past import PastCommit, definitions, read_commits
from lakemerge.delta import AddFile, DomainMetadata, RemoveFile
from lakemerge.errors import VersionNotFoundError
from lakemerge.format.base_file import BaseFile, paths_of
from lakemerge.format.block_index import log_paths
from lakemerge.format.consumers import Sent, registrations_of, sent_to
from lakemerge.format.keys import BucketId, Key, Partition, keys_at
from lakemerge.format.minor import Minor
from lakemerge.format.names import EXPIRY_DOMAIN, LOG_DOMAIN_PREFIX, MINOR_DOMAIN_PREFIX, STATE_DOMAIN, WINNER_TAG
from lakemerge.format.operations import CHANGING, WRITING, Operation, parts_of
from lakemerge.format.vectors import list_vector_files
from lakemerge.handle import Handle
from lakemerge.layout.placement import place_rows
from lakemerge.layout.view import TableView
from lakemerge.provenance.explain import explain_key
from lakemerge.provenance.explanation import Step
from lakemerge.provenance.lineage_events import Lineage, LineageEvent
from lakemerge.provenance.notes import keys_of
from lakemerge.provenance.origins import window_files
from lakemerge.provenance.search import Search
from lakemerge.python_values import python_rows
from lakemerge.read.lookup import sorted_keys
from lakemerge.results.display import counted
from mergers.interrupts import is_foreign
from mergers.keys import key_columns

__all__ = ["WITHOUT_EVENT", "Lineage", "LineageEvent", "lineage_of"]

_MERGER = "lakemerge.merger.name"
WITHOUT_EVENT: Final = frozenset(
    {
        Operation.CREATE,
        Operation.UNCONVERT,
        Operation.DROP,
        Operation.RESERVE_ORDINALS,
        Operation.MAINTENANCE,
        Operation.SAVEPOINT,
        Operation.DROP_SAVEPOINT,
        Operation.REGISTER_CONSUMER,
        Operation.DROP_CONSUMER,
        Operation.EXPIRE_CONSUMERS,
    }
)
"""Operations without an event of their own. Their commits change no rows, and no version is dropped."""
_CONSUMERS_GO = (Operation.DROP_CONSUMER, Operation.EXPIRE_CONSUMERS)
REPLAY_APPLICATION = "lakemerge.replay."
"""The beginning of a replay's application id."""


def lineage_of(
    handle: Handle, tip: TableView, version: int | None, key: Mapping[str, object] | None, search: Search
) -> Lineage:
    """See :meth:`lakemerge.LakeTable.lineage`."""
    view = tip if version is None else handle.view_at(version, of=tip.snapshot)
    first = min(entry.version for entry in handle.log.history())
    commits = read_commits(handle, since=first - 1, until=view.version)
    there = {stat.path for folder in ("base", "_lakemerge") for stat in handle.store.list(folder)}
    there |= {stat.path for stat in list_vector_files(handle.store)}
    # The tip knows most, unless the table was replaced since the version.
    teller = _Teller(handle, tip if tip.snapshot.metadata.id == view.snapshot.metadata.id else view, {}, there)
    if key is not None:
        # Where the table was replaced, the files of the other definition cannot be looked at for this key.
        of = definitions(commits)
        commits = tuple(commit for commit in commits if of[commit.version] == of.get(view.version))
    events = [event for commit in commits for event in teller.events(commit)]
    events = sorted([*events, *_sent(handle, teller.tip, commits, view.version)], key=lambda event: event.version)
    if key is not None:
        named = sorted_keys([key], view.config)
        events = list(_of_key(handle, view, named, events, teller))
        (key,) = python_rows(named)
    known = len(events)
    if not search.is_empty:
        events = list(search.among(events))
    notes = [f"{len(events)} of {known} events match the search"] if len(events) < known else []
    if first > 0:
        notes.append(f"the commits before version {first} were cleaned up: what they did is no longer known")
    if any(path in event.gone for event in events for path in event.paths):
        notes.append("files that are marked as gone were vacuumed, but their events are kept")
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
    merger: str | None = None
    """The merger before the commit, if it is known."""
    bases: dict[str, BaseFile] = field(default_factory=dict)
    minors: dict[str, Minor] = field(default_factory=dict)

    def events(self, commit: PastCommit) -> Iterator[LineageEvent]:
        made = tuple(self._made(commit))
        taken = tuple(self._taken(commit))
        about = {**commit.parameters}
        for event in self._told(commit, made, taken, about):
            gone = frozenset(path for path in event.paths if path not in self.there and not event.is_outside(path))
            yield replace(event, timestamp_ms=commit.timestamp_ms, gone=gone)
        if commit.metadata is not None:
            self.merger = commit.metadata.configuration.get(_MERGER, self.merger)

    def _told(
        self, commit: PastCommit, made: tuple[str, ...], taken: tuple[str, ...], about: Mapping[str, Any]
    ) -> Iterator[LineageEvent]:
        version, operation = commit.version, commit.operation
        if commit.restored is not None:
            said = f"version {commit.restored} was restored"
            yield LineageEvent("RESTORE", version, operation, inputs=taken, outputs=made, words=said, details=about)
        elif commit.replaces:
            if version > 0:
                said = f"the table was {commit.replacement}, with another definition"
                yield LineageEvent("DROP", version, operation, inputs=taken, words=said, details=about)
            yield from self._written(commit, made, about)
        elif (served := self._served(commit, made, taken, about)) is not None:
            yield served
        elif not CHANGING.isdisjoint(parts_of(operation)):
            yield LineageEvent("CHANGE", version, operation, words=self._change(commit, about), details=about)
        elif commit.overwrites or operation == Operation.OVERWRITE:
            yield self._overwritten(commit, made, taken, about)
        elif operation == Operation.CONVERT:
            said = f"{counted(len(taken), 'file')} of a plain Delta table became {len(made)}"
            yield LineageEvent("CREATE", version, operation, inputs=taken, outputs=made, words=said, details=about)
        elif made or operation in WRITING:
            yield from self._written(commit, made, about)

    def _served(
        self, commit: PastCommit, made: tuple[str, ...], taken: tuple[str, ...], about: Mapping[str, Any]
    ) -> LineageEvent | None:
        """The event of a service or a note; ``None`` if the commit is none."""
        version, operation = commit.version, commit.operation
        if operation in (Operation.COMPACT, Operation.COMPACT_LOGS) or (
            operation == Operation.RESCALE and (made or taken)
        ):
            return self._rewritten(commit, made, taken, about)
        if operation == Operation.RESCALE:
            said = f"the table has {about.get('buckets')} buckets instead of {about.get('before')}"
            return LineageEvent("FORK", version, operation, words=said, details=about)
        if operation == Operation.EXPIRE_TOMBSTONES or self._expires(commit):
            said = f"deletes of versions up to {about.get('horizon')} are forgotten"
            return LineageEvent("EXPIRE", version, operation, words=said, details=about)
        if operation == Operation.VACUUM_FENCE:
            said = f"versions before {about.get('oldestVersion')} are dropped, with the files that only they need"
            return LineageEvent("DROP", version, operation, words=said, details=about)
        if operation == Operation.FORGET:
            return self._forgotten(commit, about)
        return self._noted(commit, about) if operation in (Operation.SEND, Operation.ADD_INFO) else None

    @staticmethod
    def _noted(commit: PastCommit, about: Mapping[str, Any]) -> LineageEvent:
        details = {**commit.info, **about}
        named = keys_of(about)
        of = "all rows" if named is None else "one key" if len(named) == 1 else f"{len(named)} keys"
        if commit.operation == Operation.ADD_INFO:
            uri = str(about.get("uri"))
            of = "the table" if named is None and "version" not in about else of
            at = f" of version {about['version']}" if "version" in about else ""
            words = f"{of}{at} belong to {uri}" if named is None or len(named) > 1 else f"{of}{at} belongs to {uri}"
            return LineageEvent(
                "ADDINFO", commit.version, commit.operation, outputs=(uri,), words=words, details=details
            )
        since = about.get("since")
        last, to = about.get("version"), str(about.get("to"))
        what = f"version {last}" if since is None else f"the changes after {since} up to {last}"
        said = f"{of} of {what} {'was' if of == 'one key' else 'were'} sent to {to}"
        return LineageEvent("SEND", commit.version, commit.operation, outputs=(to,), words=said, details=details)

    def _change(self, commit: PastCommit, about: Mapping[str, Any]) -> str:
        """The change of the definition in words."""
        before = f" instead of {self.merger}" if self.merger not in (None, about.get("merger")) else ""
        changed = [f"{name} {about[name]}" for name in ("nullable", "comments", "widen", "order") if name in about]

        def named(name: str) -> object:
            return about.get(name, dict(about))  # of a plain table, whose commits name it otherwise

        words = {
            Operation.ADD_COLUMNS: f"columns were added: {named('columns')}",
            Operation.CHANGE_COLUMNS: f"columns were changed: {', '.join(changed) or dict(about)}",
            Operation.RENAME_COLUMN: f"columns were renamed: {named('renamed')}",
            Operation.DROP_COLUMNS: f"columns were dropped: {named('dropped')}",
            Operation.CHANGE_MERGER: (
                f"the merger is {about.get('merger')}{before}, with options {about.get('mergerOptions')}"
            ),
            Operation.ADD_CONSTRAINT: f"constraints were added: {named('addConstraints')}",
            Operation.DROP_CONSTRAINT: f"constraints were dropped: {named('dropConstraints')}",
            Operation.SET_PROPERTIES: f"properties were set: {named('properties')}",
            Operation.SET_DESCRIPTION: f"the description is {about.get('description')!r}",
        }
        return "; ".join(words[Operation(part)] for part in parts_of(commit.operation) if part in CHANGING)

    @staticmethod
    def _forgotten(commit: PastCommit, about: Mapping[str, Any]) -> LineageEvent:
        states = [a for a in commit.actions if isinstance(a, DomainMetadata) and a.domain == STATE_DOMAIN]
        ended = f": versions before {commit.version} are dropped, with the files that only they need" if states else ""
        said = f"{_keys(about.get('keys'))} forgotten{ended}"
        return LineageEvent("DROP", commit.version, commit.operation, words=said, details=about)

    def _written(self, commit: PastCommit, made: tuple[str, ...], about: Mapping[str, Any]) -> Iterator[LineageEvent]:
        version, operation = commit.version, commit.operation
        told = commit.fields.get("ingest")
        if isinstance(told, dict) and ("files" in told or made):
            files, note = window_files(self.handle, self.tip.snapshot, told)
            paths = tuple(file["path"] for file in files)
            window = f"window {told.get('window')} of job {told.get('name')}"
            why = f", closed because {told['reason']}" if "reason" in told else ""
            count = told.get("files", len(files))
            said = f"{window} took up {count} {_of(count, 'file')}{why}" + (f"; {note}" if note else "")
            yield LineageEvent("RECEIVE", version, operation, inputs=paths, outputs=(window,), words=said, details=told)
            inputs: tuple[str, ...] = (window,)
        else:
            inputs = ()
        if not made:
            return
        txn = commit.txn
        kind = "REPLAY" if txn is not None and txn.app_id.startswith(REPLAY_APPLICATION) else "CREATE"
        by = "" if txn is None else f" by {txn.app_id}, number {txn.version}"
        rows = commit.metrics.get("numSourceRows")
        what = _of(rows, "delete" if operation in (Operation.DELETE, Operation.ERASE) else "record")
        were = "was" if _is_one(rows) else "were"
        said = f"{'' if rows is None else f'{rows} '}{what} {were} committed{by}"
        details = {**about, **commit.info}
        if kind == "REPLAY" and isinstance(before := commit.info.get("replay"), dict) and "table" in before:
            inputs = (f"{before['table']} version {before.get('version')}",)
            said = (
                f"{'' if rows is None else f'{rows} '}{_of(rows, 'record')} of version {before.get('version')}"
                f" of {before['table']} {were} committed again"
            )
        yield LineageEvent(kind, version, operation, inputs=inputs, outputs=made, words=said, details=details)

    def _overwritten(
        self, commit: PastCommit, made: tuple[str, ...], taken: tuple[str, ...], about: Mapping[str, Any]
    ) -> LineageEvent:
        partitions = [reset.partition for reset in commit.overwrites]
        whole = None in partitions
        txn = commit.txn
        by = "" if txn is None else f" by {txn.app_id}, number {txn.version}"
        replayed = txn is not None and txn.app_id.startswith(REPLAY_APPLICATION)
        kind = "DROP" if not made else "REPLAY" if replayed else "CREATE"
        said = f"{commit.metrics.get('numSourceRows', 0)} rows were put in the place of {commit.overwritten}{by}"
        details = {**about, **commit.info, "partitions": None if whole else [list(part or ()) for part in partitions]}
        return LineageEvent(
            kind, commit.version, commit.operation, inputs=taken, outputs=made, words=said, details=details
        )

    def _rewritten(
        self, commit: PastCommit, made: tuple[str, ...], taken: tuple[str, ...], about: Mapping[str, Any]
    ) -> LineageEvent:
        why = f"; reason: {about['why']}" if about.get("why") else ""
        what: dict[str, str] = {
            Operation.COMPACT: f"{about.get('mode', 'full')} compaction",
            Operation.COMPACT_LOGS: "log compaction",
        }
        name = what.get(commit.operation, "rescale")
        kind = "FORK" if commit.operation == Operation.RESCALE and len(made) > len(taken) else "JOIN"
        said = f"{name}: {counted(len(taken), 'file')} became {len(made)}{why}"
        return LineageEvent(
            kind, commit.version, commit.operation, inputs=taken, outputs=made, words=said, details=about
        )

    def _made(self, commit: PastCommit) -> Iterator[str]:
        for action in commit.actions:
            if isinstance(action, AddFile) and WINNER_TAG in action.tags:
                yield from paths_of(action)
            elif isinstance(action, AddFile):
                try:
                    self.bases[action.path] = BaseFile.of(action, self.tip.config.stored_partition_by)
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
    handle: Handle, view: TableView, keys: pa.Table, events: Sequence[LineageEvent], teller: _Teller
) -> Iterator[LineageEvent]:
    """The events that concern a key: the commits of its records, and rewrites of files that may hold the key."""
    (named,) = python_rows(keys)
    try:
        steps: Sequence[Step] = explain_key(handle, view, named, 0).steps
    except VersionNotFoundError:
        steps = ()
    kinds: dict[int, list[str]] = {}
    for step in steps:
        kinds.setdefault(step.version, []).extend([] if step.kind is None else [step.kind])
    files = {step.file for step in steps if step.file}
    mine = _Mine(view, keys, teller.bases)
    for event in events:
        if event.kind in ("SEND", "ADDINFO"):
            if mine.is_told_by(event, kinds.keys()):
                yield event
            continue
        own = event.version in kinds or event.kind in ("RESTORE", "EXPIRE", "DROP", "CHANGE")
        if event.kind == "DROP" and event.details.get("partitions") is not None:
            own = list(mine.partition) in event.details["partitions"]
        if own or any(path in files or mine.may_hold(path) for path in event.paths):
            made = kinds.get(event.version) if event.kind in ("CREATE", "REPLAY") else None
            yield replace(event, words=f"{event.words}; of this key: {', '.join(made)}") if made else event


def _sent(handle: Handle, tip: TableView, commits: Sequence[PastCommit], until: int) -> Iterator[LineageEvent]:
    """What went to consumers of the change feed, up to a version."""
    parts = [
        (name, sent) for name, known in registrations_of(tip.snapshot).items() for sent in sent_to(handle.store, known)
    ]
    for commit in commits:
        told = commit.info.get("sent") if commit.operation in _CONSUMERS_GO else None
        for name, body in told.items() if isinstance(told, dict) else ():
            parts += [(name, Sent.of(part)) for part in body]
    for name, sent in parts:
        if sent.first > until:
            continue
        what = f"the changes of versions {sent.first} to {sent.last}"
        if sent.of_rows:
            more = f", and the changes up to version {sent.last}" if sent.last > sent.first else ""
            what = f"the rows of version {sent.first}{more}"
        elif sent.first == sent.last:
            what = f"the changes of version {sent.last}"
        details = {
            "consumer": name,
            "since": -1 if sent.of_rows else sent.first - 1,
            "version": sent.last,
            "begin": sent.begin_ms,
            "end": sent.end_ms,
        }
        said = f"{what} went to consumer {name}"
        outputs = (f"consumer {name}",)
        yield LineageEvent(
            "SEND", sent.last, "FOLLOW", outputs=outputs, words=said, details=details, timestamp_ms=sent.end_ms
        )


class _Mine:
    """The base files that may hold a key."""

    def __init__(self, view: TableView, keys: pa.Table, bases: Mapping[str, BaseFile]) -> None:
        self._view, self._keys, self._bases = view, keys, bases
        (self._key,) = keys_at(key_columns(keys, view.config.key), [0])
        self._ranges: dict[tuple[BucketId, int, str], list[Key]] = {}

    @property
    def partition(self) -> Partition:
        """The key's partition."""
        return self._bucket(1).partition

    def is_told_by(self, event: LineageEvent, versions: Collection[int]) -> bool:
        """Whether a note, or what was sent, is about the key.

        :param versions: those that have records of the key.
        """
        named = keys_of(event.details)
        if named is not None:
            return self._key in named
        if "version" not in event.details:
            return True
        last = int(event.details["version"])
        since = int(event.details.get("since", -1))
        if event.kind == "ADDINFO":
            return last in versions
        return any(since < version <= last for version in versions)

    def may_hold(self, path: str) -> bool:
        base = self._bases.get(path)
        if base is None:
            return False
        if self._bucket(base.buckets) != base.bucket_id or (base.lower is not None and self._key < base.lower):
            return False
        return all(
            other.lower is None or self._key < other.lower or other.lower <= (base.lower or ())
            for other in self._siblings(base)
        )

    def _bucket(self, buckets: int) -> BucketId:
        placed = place_rows(self._keys, self._view.config, buckets)
        return placed.bucket(int(placed.slots[0]))

    def _siblings(self, base: BaseFile) -> Iterable[BaseFile]:
        """The other files of the bucket that were written in the same commit."""
        folder = base.add.path.rpartition("/")[0]
        for other in self._bases.values():
            same = other.bucket_id == base.bucket_id and other.buckets == base.buckets and other is not base
            if same and other.add.path.rpartition("/")[0] == folder:
                yield other


def _keys(count: object) -> str:
    return f"{count} {'key was' if _is_one(count) else 'keys were'}"


def _of(count: object, noun: str) -> str:
    """The noun for so many. Counts are from the log, whose numbers may be texts."""
    return noun if _is_one(count) else f"{noun}s"


def _is_one(count: object) -> bool:
    return str(count) == "1"
