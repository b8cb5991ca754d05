"""The one way to a table's Delta log: read it, follow it, commit to it."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

from lakemerge.delta.actions import Action, CommitInfo, decode, decode_commit_info
from lakemerge.delta.chain import Chain, previous_of
from lakemerge.delta.checkpoint import write_checkpoint
from lakemerge.delta.cleanup import TRUSTED_AGE_MS
from lakemerge.delta.commit import AlreadyDone, Attempt, CommitFields, Committed, Prepared, land, prepare
from lakemerge.delta.fingerprint import Fingerprint
from lakemerge.delta.history import HistoryEntry, read_history
from lakemerge.delta.identity import check_same_table, holds, replaced_error
from lakemerge.delta.listing import commit_path, fetch, list_log, log_exists, no_log, read_hint
from lakemerge.delta.log_replay import gap_error, is_linked, load, timestamp_of, version_at, version_near
from lakemerge.delta.protocol import WRITER_FEATURES, check_readable, check_writable, parse_checkpoint_interval
from lakemerge.delta.snapshot import Snapshot, SnapshotBuilder
from lakemerge.delta.transaction import Transaction
from lakemerge.errors import (
    CommitConflictError,
    InputError,
    NotATableError,
    OutcomeUnknownError,
    TableDamagedError,
    TableReplacedError,
    VersionNotFoundError,
)
from lakemerge.storage.base import FileStat, Store, is_own_failure
from lakemerge.storage.clock import store_time_ms
from mergers.logs import logger

__all__ = ["ClockReading", "DeltaLog", "HistoryEntry"]


_Commits: TypeAlias = tuple[tuple[int, tuple[Action, ...]], ...]
"""Consecutive commits, oldest first: version and actions in the order of the file."""

_logger = logger(__name__)

_MAX_LOST_RACES: Final = 1000
_MAX_RELOADS: Final = 3
_DEFAULT_CHECKPOINT_INTERVAL: Final = 10
_FIRST_WINDOW: Final = 32
_WIDER: Final = 8
"""To find an earlier version's checkpoint, so many versions before it are listed, and then so many times as many."""
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Advanced:
    tip: Snapshot
    landed: _Commits
    is_held: bool
    """Whether the log still has the commit before these. This proves that they are of the same table."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _running_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _new_id() -> str:
    return str(uuid.uuid4())


class DeltaLog:
    """The ``_delta_log`` of the table at the root of ``store``. Holds no state; picklable.

    ``clock_ms`` gives UTC epoch milliseconds, ``running_ms`` those of a clock that nobody sets,
    ``sleep`` takes seconds, ``new_id`` gives unique strings. ``required_domain`` is the domain
    that every version of a table with the ``lakemerge`` writer feature has: a checkpoint without
    it is not trusted (``None``: no such check). ``writer_features`` are the features that the
    callers of :meth:`commit` honour. ``drop_operation`` is what the last commit of a dropped table calls itself.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock_ms: Callable[[], int] = _now_ms,
        running_ms: Callable[[], int] = _running_ms,
        sleep: Callable[[float], None] = time.sleep,
        new_id: Callable[[], str] = _new_id,
        required_domain: str | None = "lakemerge.state",
        writer_features: frozenset[str] = WRITER_FEATURES,
        drop_operation: str = "DROP TABLE",
    ) -> None:
        self.store = store
        self._clock_ms = clock_ms
        self._running_ms = running_ms
        self._sleep = sleep
        self._new_id = new_id
        self._required_domain = required_domain
        self._writer_features = writer_features
        self._drop_operation = drop_operation

    def exists(self) -> bool:
        """Whether there is a Delta log, readable or not."""
        return log_exists(self.store)

    def snapshot(self, *, version: int | None = None, timestamp_ms: int | None = None) -> Snapshot:
        """The table at ``version``, or at the last version committed at or before ``timestamp_ms``, or by default at
        its latest version. ``timestamp_ms`` may not be after the last commit.

        The latest version costs one small file, one listing, one checkpoint and the commits after it.
        Raises :class:`NotATableError`, :class:`VersionNotFoundError` (naming the range there is),
        :class:`TableDamagedError`, :class:`UnsupportedFeatureError`.
        """
        if version is not None and timestamp_ms is not None:
            raise InputError("ask for a version or for a timestamp, not for both")
        try:
            return self._found(version, timestamp_ms)
        except TableDamagedError as error:
            raise self._dropped() or error from error

    def _found(self, version: int | None, timestamp_ms: int | None) -> Snapshot:
        for _ in range(_MAX_RELOADS):
            try:
                if timestamp_ms is not None:
                    return self._at_time(timestamp_ms)
                return self._load(version)
            except FileNotFoundError as error:
                # A clean-up ran between listing and reading, so the log is listed anew.
                vanished = error
        raise TableDamagedError(
            f"files of the log at {self.store.url} are listed, but not there: {vanished}", url=self.store.url
        ) from vanished

    def _dropped(self) -> NotATableError | None:
        """The error of a table that was dropped while it was read, or whose drop is under way or was interrupted: the
        beginning of its log is gone already. ``None`` for any other."""
        if not self.exists():
            return no_log(self.store)
        newest = self.history(limit=1)
        if not newest or newest[0].operation != self._drop_operation:
            return None
        return NotATableError(
            f"the table at {self.store.url} was dropped in version {newest[0].version}, and not all of its files are "
            "deleted yet: if nobody is dropping it now, LakeTable.drop goes on",
            url=self.store.url,
        )

    def update(self, snapshot: Snapshot) -> Snapshot:
        """The latest snapshot: ``snapshot`` with the commits after it replayed. If there are none, it is ``snapshot``
        itself; this costs one listing of the log from the snapshot's own version on.

        Raises :class:`TableReplacedError` if this log does not have that version.
        """
        advanced = self._advance(snapshot)
        return advanced.tip if advanced is not None and advanced.is_held else self._reloaded(snapshot)

    def check_holds(self, snapshot: Snapshot) -> None:
        """Raise :class:`TableReplacedError` if the log does not hold ``snapshot`` any more. Costs one listing.

        A commit that stands alone is no log. It was sent before the table was dropped, and carried out after it.
        """
        self._held(snapshot)

    def check_not_dropped(self, snapshot: Snapshot) -> None:
        """Raise :class:`TableReplacedError` if the table was dropped, or is about to be. Costs one listing, and the
        newest commit if it is a later one."""
        commits = list_log(self.store, since=snapshot.version).commits
        if not commits:
            self._reloaded(snapshot)  # raises if the drop came to its end
        newest = max(commits, default=snapshot.version)
        if newest > snapshot.version and self._drops(newest):
            raise replaced_error(self.store, snapshot, f"it was dropped in version {newest}")

    def _held(self, snapshot: Snapshot) -> FileStat | None:
        """The commit of ``snapshot``, as :meth:`check_holds` finds it; ``None`` if it was cleaned up."""
        version = snapshot.version
        listing = list_log(self.store, since=max(version - 1, 0), until=version)
        if not holds(self.store, snapshot, listing):
            if self._reloaded(snapshot).version == version:
                raise replaced_error(self.store, snapshot, "only a checkpoint is left of it")
            return None
        # A clean-up deletes the commit before this one only if there is a checkpoint of this one. Other engines keep
        # one of the commit before.
        if version and version - 1 not in listing.commits and not listing.checkpoints:
            raise replaced_error(self.store, snapshot, "all that was before its last commit is gone")
        return listing.commits.get(version)

    def _drops(self, version: int) -> bool:
        """Whether a commit that was listed drops the table. What is gone by now went with the drop."""
        path = commit_path(version)
        try:
            info = decode_commit_info(self.store.get(path), path)
        except FileNotFoundError:
            return True
        return info is not None and info.fields.get("operation") == self._drop_operation

    def commits(self, *, since: int, until: int | None = None) -> Iterator[tuple[int, tuple[Action, ...]]]:
        """Versions and actions of the commits after ``since`` (excluded; ``-1`` for all) up to
        ``until`` (included; ``None``: the latest at the time of the call), oldest first.

        Raises :class:`VersionNotFoundError` at once if the log does not reach so far (cleaned up,
        or not yet committed), :class:`TableDamagedError` for a gap.
        """
        listing = list_log(self.store, since=max(since, 0), until=until, at_least=until)
        if until is not None and until not in listing.commits:
            listing = list_log(self.store, since=max(since, 0))
        latest = listing.latest
        if latest is None:
            raise VersionNotFoundError(f"the log at {self.store.url} has no version {since} yet", version=since)
        last = latest if until is None else until
        gap = listing.gap(since + 1, last)
        if gap is not None:
            if gap > latest or gap == since + 1:
                raise VersionNotFoundError(
                    f"commit {gap} is not, or no longer, in the log; it has commits "
                    f"{min(listing.commits, default=None)} to {max(listing.commits, default=None)} after {since}",
                    version=gap,
                )
            raise gap_error(gap, latest)
        return self._decoded(range(since + 1, last + 1))

    def history(self, *, limit: int | None = None, known: int = 0) -> list[HistoryEntry]:
        """See :func:`lakemerge.delta.history.read_history`."""
        return read_history(self.store, limit=limit, known=known)

    def committed_ms(self, version: int) -> int | None:
        """The in-commit timestamp of a version; ``None`` if its commit was cleaned up, or has none."""
        path = commit_path(version)
        try:
            info = decode_commit_info(self.store.get(path), path)
        except FileNotFoundError:
            return None
        return None if info is None else info.in_commit_timestamp_ms

    def commit(
        self,
        begin: Snapshot | None,
        build: Callable[[Snapshot | None], Attempt | AlreadyDone],
        *,
        operation: str,
        parameters: Mapping[str, object],
        info: Mapping[str, object] = _NOTHING,
        transaction: Transaction | None = None,
    ) -> Committed | AlreadyDone:
        """Commit the actions that ``build`` gives for the table's tip, at exactly the next version.

        ``begin`` is the snapshot on which the caller's work is based, ``None`` to create a table. ``build(tip)`` is
        called for every attempt with the latest snapshot. It returns an :class:`Attempt`, or :class:`AlreadyDone` to
        stop without writing, or raises. To create a table it is called with ``None``; if there is a table, or another
        writer was first, it is called with that table's snapshot.

        A lost race is repeated as long as others make progress (1000 times). If the id of ``transaction`` is found
        among the commits after ``begin``, an earlier call landed, and its commit is returned. Every N-th commit
        (``delta.checkpointInterval``) also writes a checkpoint; if that fails, it is only logged. Each attempt first
        checks that the log still holds the version on which it builds, and else raises :class:`TableReplacedError`: the
        table was removed or re-created.

        ``transaction`` says at any time whether the commit may be in the log or may get there yet. **The caller may
        delete the data files it wrote only while** :attr:`Transaction.may_land` **is false**, whatever was raised.

        Raises :class:`OutcomeUnknownError` (with ``version`` and ``txn_id``) if the store does not say whether the
        commit landed. After any other error of this library the commit did not and will not land; after an exception
        of somebody else, such as ``KeyboardInterrupt`` or that of a signal handler, it may.
        :class:`CommitConflictError`: too many lost races, or ``begin`` is so old that commits after it were cleaned up.
        :class:`UnsupportedFeatureError`: this table is not ours to write.
        """
        own = Transaction(self._new_id()) if transaction is None else transaction
        work = CommitFields(operation, parameters, info, own)
        tip = self.snapshot() if begin is None and self.exists() else begin
        taken: int | None = None
        for _ in range(_MAX_LOST_RACES):
            looked = self._now()
            if tip is not None:
                advanced = self._advance(tip, at_least=taken)
                landed = () if advanced is None else advanced.landed
                earlier = next((version for version, actions in landed if _is_by(actions, own.id)), None)
                if advanced is not None and earlier is not None:
                    own.send()
                    tip = advanced.tip
                    return Committed(earlier, self._landed_at(earlier, own.id, tip))
                tip = self._proven(tip, advanced)
                check_writable(tip.protocol, self._writer_features, metadata=tip.metadata)
            attempt = build(tip)
            if isinstance(attempt, AlreadyDone):
                self.make_durable(attempt.version)
                return attempt
            prepared = prepare(
                tip,
                attempt,
                work,
                now_ms=self._clock_ms(),
                store_ms=partial(store_time_ms, self.store),
                writer_features=self._writer_features,
            )
            if land(self.store, prepared, transaction=own, sleep=self._sleep):
                self._check_in_time(prepared.version, own.id, looked)
                return Committed(prepared.version, self._checkpoint_if_due(prepared))
            taken = prepared.version
            if tip is None:
                tip = self.snapshot()
        raise CommitConflictError(
            f"{_MAX_LOST_RACES} times another commit was first; nothing was written, try again later",
            attempts=_MAX_LOST_RACES,
        )

    def make_durable(self, version: int) -> None:
        """Make all commits up to a version durable that was read. Its writer may have been killed before that was
        done, so whoever acknowledges what the log has, or deletes what it came from, calls this before."""
        with contextlib.suppress(FileNotFoundError):  # cleaned up: it is old
            self.store.sync([commit_path(version)])

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Write a classic checkpoint of ``snapshot``, and point ``_last_checkpoint`` at it unless that names a later
        one. It is idempotent, and replaces a damaged checkpoint of that version. Raises :class:`TableReplacedError` if
        the log does not hold that version any more."""
        check_writable(snapshot.protocol, self._writer_features, metadata=snapshot.metadata)
        self._write_checkpoint(snapshot)

    def _write_checkpoint(self, snapshot: Snapshot) -> None:
        # A checkpoint of a commit that stands alone would make a table of it.
        commit = self._held(snapshot)

        def still_holds() -> bool:
            try:
                self.check_holds(snapshot)
                self.check_not_dropped(snapshot)  # what comes after a drop listed the log would not be deleted
            except TableReplacedError:
                return False
            return True

        # By the store's clock, and not by this host's: that may be ahead, and would leave out what is still young.
        now_ms = 0 if commit is None else commit.modified_ms
        write_checkpoint(self.store, snapshot, now_ms=now_ms, still_holds=still_holds)

    def _now(self) -> ClockReading:
        return ClockReading(self._clock_ms(), self._running_ms())

    def _check_in_time(self, version: int, txn_id: str, looked: ClockReading) -> None:
        """Check that a commit was made soon after the log was read. A host may have stood still in between. Then
        another commit may have had this version and been cleaned up, and no reader would ever see our commit.

        Raises :class:`OutcomeUnknownError` if that cannot be ruled out.
        """
        if looked.is_within(TRUSTED_AGE_MS, self._now()):
            return
        try:
            listing = list_log(self.store, since=max(version - 1, 0))
            in_time = listing.latest == version or version - 1 in listing.commits
            doubt = None if in_time else "the log has later versions, and no longer the one before it"
        except Exception as error:
            if not is_own_failure(error):
                raise
            doubt = repr(error)
        if doubt is not None:
            raise OutcomeUnknownError(
                f"version {version} was written long after the log was looked at; another commit may have had that "
                f"version and be cleaned up: {doubt}. Data files are kept. Open the table: if it lacks these rows, "
                f"write them again (txnId {txn_id})",
                version=version,
                txn_id=txn_id,
            )

    def _landed_at(self, version: int, txn_id: str, tip: Snapshot) -> Snapshot:
        """The snapshot of a commit that is known to have landed. If it cannot be read or made durable, the error must
        not look like a failed commit, after which callers delete their files."""
        try:
            self.make_durable(tip.version)
            return tip if version == tip.version else self.snapshot(version=version)
        except Exception as error:
            if not is_own_failure(error):
                raise
            raise OutcomeUnknownError(
                f"the commit landed as version {version}, which could not be read back and made durable: {error}. Its "
                "files were kept; open the table again.",
                version=version,
                txn_id=txn_id,
            ) from error

    def _load(self, version: int | None) -> Snapshot:
        found = self._load_tip() if version is None else self._load_near(version)
        if found is not None:
            return found
        for tries in range(1, _MAX_RELOADS + 1):
            listing = list_log(self.store)
            try:
                return load(self.store, listing, version, required_domain=self._required_domain)
            except TableDamagedError:
                # If another table was made in the folder since it was listed, its commits do not fit the old ones.
                if tries == _MAX_RELOADS or list_log(self.store).commits == listing.commits:
                    raise
        raise AssertionError("the last try returns or raises")

    def _load_tip(self) -> Snapshot | None:
        """The latest version from the part of the log to which ``_last_checkpoint`` points. ``None`` if the whole log
        must tell."""
        hint = read_hint(self.store)
        if hint is not None:
            listing = list_log(self.store, since=hint)
            if listing.checkpoints and listing.commits:
                try:
                    return load(self.store, listing, None, required_domain=self._required_domain)
                except TableDamagedError as error:
                    _logger.info("the log is listed in full, since its newest part does not do: %s", error)
        return None

    def _load_near(self, version: int) -> Snapshot | None:
        """A version from the part of the log before it that has a checkpoint. ``None`` if the whole log must tell: the
        version is not there, or this part does not do."""
        window = _FIRST_WINDOW
        while True:
            since = max(0, version - window)
            listing = list_log(self.store, since=since, until=version, at_least=version)
            if version not in listing.commits:
                return None
            if listing.checkpoints or since == 0:
                try:
                    return load(self.store, listing, version, required_domain=self._required_domain)
                except (TableDamagedError, VersionNotFoundError) as error:
                    _logger.info("the log is listed in full, since its part before a version does not do: %s", error)
                    return None
            window *= _WIDER

    def _at_time(self, timestamp_ms: int) -> Snapshot:
        tip = self._load(None)
        near = version_near(self.store, tip, timestamp_ms)
        if near is not None:
            return tip if near == tip.version else self._load(near)
        listing = list_log(self.store)
        tip = load(self.store, listing, None, required_domain=self._required_domain)
        version = version_at(self.store, listing, tip, timestamp_ms)
        if version == tip.version:
            return tip
        return load(self.store, listing, version, required_domain=self._required_domain)

    def _decoded(self, versions: range) -> Iterator[tuple[int, tuple[Action, ...]]]:
        paths = [commit_path(version) for version in versions]
        chain = Chain()
        files = fetch(self.store, paths)
        for version, path in zip(versions, paths, strict=True):
            try:
                data = next(files)
            except FileNotFoundError as error:
                raise VersionNotFoundError(
                    f"commits from version {version} on went while they were read at {self.store.url}: the log was "
                    "cleaned up, or the table was dropped",
                    version=version,
                ) from error
            actions = decode(data, path)
            chain.follow(data, actions, path)
            yield version, actions

    def _advance(self, snapshot: Snapshot, *, at_least: int | None = None) -> _Advanced | None:
        """The commits after ``snapshot``; ``None`` if some are missing. Raises :class:`TableReplacedError`."""
        try:
            return self._advanced(snapshot, at_least=at_least)
        except TableDamagedError:
            # If another table was made in the folder since it was listed, its commits do not fit the old ones.
            if holds(self.store, snapshot, list_log(self.store, since=snapshot.version)):
                raise
            return None

    def _advanced(self, snapshot: Snapshot, *, at_least: int | None) -> _Advanced | None:
        first = snapshot.version + 1
        listing = list_log(self.store, since=snapshot.version, at_least=at_least)
        held = holds(self.store, snapshot, listing)
        last = max(listing.commits, default=snapshot.version)
        if max(last, listing.latest or 0) <= snapshot.version:
            return _Advanced(snapshot, (), held) if held else None
        if last < first or listing.gap(first, last) is not None:
            return None
        paths = [commit_path(version) for version in range(first, last + 1)]
        try:
            files = list(fetch(self.store, paths))
        except FileNotFoundError:
            return None
        landed = tuple((first + at, decode(data, paths[at])) for at, data in enumerate(files))
        replay = SnapshotBuilder(snapshot)
        chain = Chain(snapshot.digest, is_linked=is_linked(snapshot.protocol))
        if chain.is_linked and not held:
            if previous_of(landed[0][1]) != snapshot.digest:
                return None
            held = True  # the next commit was made for this one
        for (_, actions), data, path in zip(landed, files, paths, strict=True):
            chain.follow(data, actions, path)
            replay.apply(actions)
        replay.digest = chain.digest
        known = next((c.version for c in listing.at_or_below(last)), snapshot.checkpoint_version)
        tip = replay.finish(last, listing.commits[last].modified_ms, known)
        check_readable(tip.protocol, tip.metadata)
        info = next((action for action in landed[-1][1] if isinstance(action, CommitInfo)), None)
        tip = replace(
            tip,
            timestamp_ms=timestamp_of(info, tip.timestamp_ms, in_commit=tip.in_commit_timestamps),
            fingerprint=Fingerprint(files[-1], listing.commits[last]),
        )
        return _Advanced(tip, landed, held)

    def _proven(self, tip: Snapshot, advanced: _Advanced | None) -> Snapshot:
        """The tip to commit onto. It is proven to be of the same table, with all commits in between."""
        if advanced is not None and advanced.is_held:
            return advanced.tip
        latest = self._reloaded(tip)
        if advanced is not None:
            return advanced.tip
        if latest.version == tip.version:
            return tip
        raise CommitConflictError(
            f"the commits between version {tip.version} and {latest.version} were cleaned up or lost, so conflicts "
            "with them cannot be ruled out; nothing was written, read the table again and retry",
            version=tip.version,
            latest=latest.version,
        )

    def _reloaded(self, snapshot: Snapshot) -> Snapshot:
        """The latest snapshot of the same table, read from the whole log. It may be ``snapshot`` itself."""
        try:
            latest = self.snapshot()
        except NotATableError as error:
            raise replaced_error(self.store, snapshot, "there is no log now") from error
        check_same_table(self.store, snapshot, latest)
        if latest.version < snapshot.version:
            raise replaced_error(self.store, snapshot, f"its log ends at version {latest.version}")
        return snapshot if latest.version == snapshot.version else latest

    def _checkpoint_if_due(self, prepared: Prepared) -> Snapshot:
        after = prepared.after
        interval = _checkpoint_interval(after)
        if prepared.version == 0 or prepared.version % interval:
            return after
        try:
            self._write_checkpoint(after)
        except Exception as error:
            if not (is_own_failure(error) or isinstance(error, MemoryError)):
                raise
            _logger.warning("the checkpoint of version %d could not be written", prepared.version, exc_info=True)
            return after
        return replace(after, checkpoint_version=prepared.version)


def _checkpoint_interval(snapshot: Snapshot) -> int:
    interval = parse_checkpoint_interval(snapshot.metadata.configuration.get("delta.checkpointInterval", ""))
    return _DEFAULT_CHECKPOINT_INTERVAL if interval is None else interval


def _is_by(actions: tuple[Action, ...], txn_id: str) -> bool:
    return any(isinstance(action, CommitInfo) and action.txn_id == txn_id for action in actions)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A time, by both clocks."""

    wall_ms: int
    """UTC epoch milliseconds. Somebody may set this clock forwards or back."""
    running_ms: int
    """Milliseconds by a clock that nobody sets. They mean nothing to another host, and may stand still while the host
    sleeps."""

    def is_within(self, age_ms: int, now: ClockReading) -> bool:
        """Whether this is surely at most so long before ``now``: by both clocks, and neither went back."""
        ages_ms = (now.wall_ms - self.wall_ms, now.running_ms - self.running_ms)
        return all(0 <= past_ms <= age_ms for past_ms in ages_ms)
