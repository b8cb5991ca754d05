"""Makes a snapshot from the log's files: chooses the version, the checkpoint and the commits.

A checkpoint is a short cut. If one is damaged, incomplete, or has lost what the table needs, it is passed over for an
older one or for the commits from 0. The table counts as damaged only if nothing complete is left.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Final

from lakemerge._internal.collector import collector_paused
from lakemerge.delta.actions import CommitInfo, Protocol, decode, decode_commit_info
from lakemerge.delta.chain import Chain, digest, previous_of
from lakemerge.delta.checkpoint_reader import read_checkpoint
from lakemerge.delta.fingerprint import Fingerprint
from lakemerge.delta.listing import Checkpoint, Listing, begun, commit_path, fetch, no_log
from lakemerge.delta.protocol import check_readable, in_commit_timestamps
from lakemerge.delta.snapshot import Snapshot, SnapshotBuilder
from lakemerge.errors import (
    TableDamagedError,
    TableError,
    VersionNotFoundError,
)
from lakemerge.storage.base import Store
from mergers.logs import logger

__all__ = ["gap_error", "is_linked", "load", "own_part", "read_accepted", "timestamp_of", "version_at", "version_near"]

_logger = logger(__name__)

_LAKEMERGE: Final = "lakemerge"


class _FalseCheckpointError(TableDamagedError):
    """A checkpoint stands for another commit than the log's, such as one of a table that was here before."""


def load(store: Store, listing: Listing, version: int | None, *, required_domain: str | None) -> Snapshot:
    """The snapshot at ``version`` (the latest for ``None``) from the files in ``listing``.

    Every checkpoint of a table with the ``lakemerge`` writer feature has the domain ``required_domain``. A checkpoint
    without it was written by a library that drops domains, and is not used.
    Raises :class:`NotATableError`, :class:`VersionNotFoundError`, :class:`TableDamagedError` and
    :class:`UnsupportedFeatureError`; :class:`FileNotFoundError` if a listed file was deleted.
    """
    listing = own_part(store, listing, required_domain)
    latest = listing.latest
    if latest is None:
        raise no_log(store)
    wanted = latest if version is None else version
    if not 0 <= wanted <= latest:
        raise _not_found(listing, wanted, latest)
    problem: TableError | None = None
    for checkpoint in (*listing.at_or_below(wanted), None):
        first = 0 if checkpoint is None else checkpoint.version + 1
        gap = listing.gap(first, wanted)
        if gap is not None:
            raise problem or _unreachable(listing, checkpoint, gap, wanted, latest)
        paths = [commit_path(v) for v in range(first, wanted + 1)]
        if checkpoint is None:
            return _finish(store, listing, None, SnapshotBuilder(), wanted, fetch(store, paths))
        if not paths and wanted in listing.commits:
            paths = [commit_path(wanted)]  # a checkpoint holds no commit times
        with begun(store, paths) as commits:
            try:
                replay = _read_whole(store, checkpoint, required_domain)
            except TableDamagedError as error:
                _logger.warning("a checkpoint is skipped: %s", error)
                problem = problem or error
                continue
            try:
                return _finish(store, listing, checkpoint, replay, wanted, commits)
            except _FalseCheckpointError as error:
                _logger.warning("a checkpoint is skipped: %s", error)
                problem = problem or error
    raise AssertionError("the commits from 0 were neither missing nor replayed")


def timestamp_of(info: CommitInfo | None, fallback_ms: int, *, in_commit: bool) -> int:
    """A commit's time: its in-commit timestamp if the table has them, else the time of its file."""
    own_ms = info.in_commit_timestamp_ms if info is not None and in_commit else None
    return fallback_ms if own_ms is None else own_ms


def gap_error(version: int, above: int) -> TableDamagedError:
    return TableDamagedError(
        f"commit {version} is missing from the log, while version {above} is there; "
        f"restore {commit_path(version)} from a backup",
        version=version,
    )


def version_at(store: Store, listing: Listing, tip: Snapshot, timestamp_ms: int) -> int:
    """The last version committed at or before ``timestamp_ms``.

    Commits since in-commit timestamps were enabled are searched by these timestamps. Earlier commits are searched by
    the times of their files, made monotonic (protocol, "In-Commit Timestamps"). Raises :class:`VersionNotFoundError`
    before the first commit and after the last one.
    """
    first = listing.earliest
    if first is None:
        raise no_log(store)
    enabled_at = tip.version + 1
    enabled_ms = timestamp_ms + 1
    if tip.in_commit_timestamps:
        enabled_at = int(tip.metadata.configuration.get("delta.inCommitTimestampEnablementVersion", "0"))
        enabled_ms = int(tip.metadata.configuration.get("delta.inCommitTimestampEnablementTimestamp", "0"))

    def committed_ms(version: int) -> int:
        """The time of a commit since the enablement."""
        path = commit_path(version)
        info = decode_commit_info(store.get(path), path) if version in listing.commits else None
        return timestamp_of(info, _file_ms(listing, version), in_commit=True)

    if timestamp_ms >= enabled_ms and tip.in_commit_timestamps:
        candidates = range(max(first, enabled_at), tip.version + 1)
        found = bisect_right(candidates, timestamp_ms, key=committed_ms)
    else:
        candidates = range(first, min(enabled_at, tip.version + 1))
        times = accumulate((_file_ms(listing, version) for version in candidates), max)
        found = bisect_right(list(times), timestamp_ms)
    oldest_ms = committed_ms(first) if first >= enabled_at else _file_ms(listing, first)
    late = timestamp_ms > tip.timestamp_ms
    if found == 0 or late:
        # As in Delta's own readers: which version a future time shows depends on commits still to come.
        raise VersionNotFoundError(
            f"no version is known for {_shown(timestamp_ms)}; the history reaches from {_shown(oldest_ms)} "
            f"(version {first}) to {_shown(tip.timestamp_ms)} (version {tip.version})"
            + ("; for the latest version name no timestamp" if late else ""),
            timestamp_ms=timestamp_ms,
            earliest=first,
            latest=tip.version,
            earliest_ms=oldest_ms,
            latest_ms=tip.timestamp_ms,
        )
    return candidates[found - 1]


def version_near(store: Store, tip: Snapshot, timestamp_ms: int) -> int | None:
    """The same as :func:`version_at`, without a listing: single commits say when they were made, from the tip back in
    steps that double. ``None`` if a commit is missing or does not say, or if the time is outside of such commits."""
    if not tip.in_commit_timestamps or timestamp_ms > tip.timestamp_ms:
        return None
    if timestamp_ms == tip.timestamp_ms:
        return tip.version
    first = int(tip.metadata.configuration.get("delta.inCommitTimestampEnablementVersion", "0"))
    later, step = tip.version, 1
    try:
        while later > first:
            earlier = max(first, later - step)
            if _own_ms(store, earlier) <= timestamp_ms:
                between = range(earlier + 1, later)
                return earlier + bisect_right(between, timestamp_ms, key=lambda version: _own_ms(store, version))
            later, step = earlier, 2 * step
    except (FileNotFoundError, _UntoldError):
        pass
    return None


class _UntoldError(Exception):
    """A commit does not say when it was made."""


def _own_ms(store: Store, version: int) -> int:
    path = commit_path(version)
    info = decode_commit_info(store.get(path), path)
    if info is None or info.in_commit_timestamp_ms is None:
        raise _UntoldError
    return info.in_commit_timestamp_ms


def _file_ms(listing: Listing, version: int) -> int:
    """When the commit was written or, if only its checkpoint is left, when that was."""
    stat = listing.commits.get(version)
    if stat is not None:
        return stat.modified_ms
    return next(c.parts[0].modified_ms for c in listing.checkpoints if c.version == version)


def is_linked(protocol: Protocol | None) -> bool:
    """Whether all commits of a table with that protocol say what they hold (:mod:`lakemerge.delta.chain`)."""
    return protocol is not None and _LAKEMERGE in protocol.writer_features


def read_accepted(
    store: Store, listing: Listing, checkpoint: Checkpoint, required_domain: str | None
) -> SnapshotBuilder:
    """The state a checkpoint holds. Raises :class:`TableDamagedError` for one that readers pass over: it is damaged,
    lacks the domain, or stands for another commit than the one of its version in this log."""
    replay = _read_whole(store, checkpoint, required_domain)
    if is_linked(replay.protocol) and replay.digest != _digest_at(store, listing, checkpoint.version):
        raise _false(checkpoint)
    return replay


def own_part(store: Store, listing: Listing, required_domain: str | None) -> Listing:
    """The listing without checkpoints of another table beyond the last commit. The request for such a checkpoint may be
    carried out when the folder holds another table already, or nobody is left to withdraw the file. By itself it shows
    nothing amiss: the commit that it stands for is not there. If it has this table's id, then the commits were lost,
    and it stands in for them."""
    last = max(listing.commits, default=None)
    if last is None or not listing.checkpoints or listing.checkpoints[-1].version <= last:
        return listing
    own = replace(listing, checkpoints=listing.at_or_below(last)[::-1])
    try:
        table_id = load(store, own, None, required_domain=required_domain).metadata.id
    except TableError:
        return listing
    beyond = []
    for checkpoint in listing.checkpoints[len(own.checkpoints) :]:
        try:
            metadata = _read_whole(store, checkpoint, required_domain).metadata
        except TableDamagedError:
            metadata = None
        if metadata is not None and metadata.id != table_id:
            _logger.warning("a checkpoint is skipped: %s", _false(checkpoint))
        else:
            beyond.append(checkpoint)
    return replace(own, checkpoints=(*own.checkpoints, *beyond))


def _digest_at(store: Store, listing: Listing, version: int) -> str | None:
    """The digest of a commit, by its file or by what the commit after it says."""
    if version in listing.commits:
        return digest(store.get(commit_path(version)))
    if version + 1 in listing.commits:
        path = commit_path(version + 1)
        return previous_of(decode(store.get(path), path))
    return None


def _read_whole(store: Store, checkpoint: Checkpoint, required_domain: str | None) -> SnapshotBuilder:
    """The state a checkpoint holds; raises :class:`TableDamagedError` if it is damaged or not LakeMerge's."""
    replay = read_checkpoint(store, checkpoint)
    protocol = replay.protocol
    if protocol is None or replay.metadata is None:
        raise TableDamagedError(
            f"{checkpoint.parts[0].path} has no protocol or no metaData", path=checkpoint.parts[0].path
        )
    lakemerge = _LAKEMERGE in protocol.writer_features
    if required_domain is not None and lakemerge and required_domain not in replay.domains:
        path = checkpoint.parts[0].path
        raise TableDamagedError(
            f"{path} has lost the table's domain metadata ({required_domain} is not in it), and the commits it "
            "stands for, or an older checkpoint, are not all there to rebuild it from. A library that does not know "
            "domain metadata wrote it (deltalake up to 1.2.1 does). Restore the deleted commits or an older "
            "checkpoint from a backup; the next checkpoint then puts things right.",
            path=path,
            version=checkpoint.version,
            domain=required_domain,
        )
    if lakemerge and replay.digest is None:
        path = checkpoint.parts[0].path
        raise TableDamagedError(
            f"{path} does not say for which commit it stands, so another engine wrote it, and the commits, or an older "
            "checkpoint, are not all there to do without it. Restore the deleted commits from a backup; the next "
            "checkpoint then puts things right.",
            path=path,
            version=checkpoint.version,
        )
    return replay


def _finish(
    store: Store,
    listing: Listing,
    checkpoint: Checkpoint | None,
    replay: SnapshotBuilder,
    version: int,
    commits: Iterator[bytes],
) -> Snapshot:
    """Apply the commits after a checkpoint, each of which has to fit the one before it.

    :param commits: their files, or that of the checkpoint's version if there are none.
    """
    first = 0 if checkpoint is None else checkpoint.version + 1
    paths = [commit_path(v) for v in range(first, version + 1)]
    chain = Chain(replay.digest, is_linked=checkpoint is not None and is_linked(replay.protocol))
    info: CommitInfo | None = None
    newest: bytes | None = None
    for path, data in zip(paths, commits, strict=False):
        with collector_paused():
            actions = decode(data, path)
            if newest is None and checkpoint is not None and chain.is_linked and previous_of(actions) != replay.digest:
                _check_stands(store, listing, checkpoint, replay)
            chain.follow(data, actions, path)
            replay.apply(actions)
        info = next((action for action in actions if isinstance(action, CommitInfo)), None)
        newest = data
    if not paths and version in listing.commits:
        newest = next(commits)
        info = decode_commit_info(newest, commit_path(version))
        if chain.is_linked and checkpoint is not None and digest(newest) != replay.digest:
            raise _false(checkpoint)
    elif is_linked(replay.protocol) and not chain.is_linked:
        raise TableDamagedError(f"{paths[-1]} lost the line that says what it holds; restore it from a backup")
    replay.digest = chain.digest if newest is None else digest(newest)
    in_commit = replay.metadata is not None and in_commit_timestamps(replay.metadata)
    timestamp_ms = timestamp_of(info, _file_ms(listing, version), in_commit=in_commit)
    snapshot = replay.finish(version, timestamp_ms, None if checkpoint is None else checkpoint.version)
    check_readable(snapshot.protocol, snapshot.metadata)
    return snapshot if newest is None else replace(snapshot, fingerprint=Fingerprint(newest, listing.commits[version]))


def _check_stands(store: Store, listing: Listing, checkpoint: Checkpoint, replay: SnapshotBuilder) -> None:
    """Raise :class:`_FalseCheckpointError` unless the commit of the checkpoint's version is the one that it stands
    for. Then the commit after it is the wrong one."""
    if checkpoint.version not in listing.commits:
        raise _false(checkpoint)
    if digest(store.get(commit_path(checkpoint.version))) != replay.digest:
        raise _false(checkpoint)


def _false(checkpoint: Checkpoint) -> _FalseCheckpointError:
    path = checkpoint.parts[0].path
    return _FalseCheckpointError(
        f"{path} stands for another commit than {commit_path(checkpoint.version)}: it is of a table that was here "
        "before",
        path=path,
        version=checkpoint.version,
    )


def _unreachable(
    listing: Listing, checkpoint: Checkpoint | None, gap: int, wanted: int, latest: int
) -> TableError | VersionNotFoundError:
    if checkpoint is None and listing.checkpoints and listing.earliest is not None:
        return _not_found(listing, wanted, latest)
    return gap_error(gap, wanted if gap < wanted else latest)


def _not_found(listing: Listing, wanted: int, latest: int) -> VersionNotFoundError:
    earliest = listing.earliest
    return VersionNotFoundError(
        f"version {wanted} is not in the table's history, which reaches from {earliest} to {latest}",
        version=wanted,
        earliest=earliest,
        latest=latest,
    )


def _shown(epoch_ms: int) -> str:
    """In UTC. Times of years that Python has no name for stay numbers."""
    try:
        return dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"
