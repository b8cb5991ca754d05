"""Makes a commit: adds its provenance, checks it, and lands it at exactly one version.

Nothing here overwrites or deletes. :meth:`lakemerge.delta.DeltaLog.commit` describes the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from lakemerge._internal.version import library_version
from lakemerge.delta.actions import (
    TXNS_UNTIL,
    Action,
    AddFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
    decode_commit_info,
    encode,
)
from lakemerge.delta.chain import CHAIN, digest, link
from lakemerge.delta.fingerprint import Fingerprint
from lakemerge.delta.listing import LOG_FOLDER, commit_path
from lakemerge.delta.protocol import check_writable, in_commit_timestamps, is_set
from lakemerge.delta.snapshot import Snapshot, SnapshotBuilder, can_expire
from lakemerge.delta.transaction import Transaction
from lakemerge.errors import (
    InputError,
    LakeMergeError,
    OutcomeUnknownError,
    StoreError,
    TableReplacedError,
    UnsupportedFeatureError,
)
from lakemerge.storage.base import NothingCreatedError, Put, Store, is_own_failure
from mergers.logs import logger

__all__ = [
    "LOG_INFO",
    "AlreadyDone",
    "Attempt",
    "CommitFields",
    "Committed",
    "Prepared",
    "check_info",
    "land",
    "prepare",
]

_logger = logger(__name__)

_RETRY_DELAYS_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
LOG_INFO: Final = frozenset(
    {
        "engineInfo",
        "inCommitTimestamp",
        CHAIN,
        TXNS_UNTIL,
        "operation",
        "operationMetrics",
        "operationParameters",
        "readVersion",
        "timestamp",
        "txnId",
    }
)
"""The entries of ``commitInfo`` that the log itself writes."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a commit at the current tip would do."""

    actions: Sequence[Action]
    """Without ``commitInfo``: the log adds that."""
    metrics: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The work of this commit was found in the table; nothing is written."""

    version: int


@dataclass(frozen=True, slots=True)
class Committed:
    version: int
    snapshot: Snapshot
    """The table as of ``version``."""


@dataclass(frozen=True, slots=True)
class CommitFields:
    """The parts of a commit that are the same in every attempt."""

    name: str
    parameters: Mapping[str, object]
    info: Mapping[str, object]
    transaction: Transaction

    def __post_init__(self) -> None:
        check_info(self.info)


@dataclass(frozen=True, slots=True)
class Prepared:
    """An attempt in its final form: the bytes of the commit file and the state after it."""

    version: int
    data: bytes
    after: Snapshot


def check_info(info: Mapping[str, object]) -> None:
    """Refuse keys of ``commitInfo`` that a caller cannot set: raises :class:`InputError`."""
    taken = sorted(info.keys() & LOG_INFO)
    if taken:
        raise InputError(f"commit info keys {taken} are set by the log itself", keys=tuple(taken))


def prepare(
    tip: Snapshot | None,
    attempt: Attempt,
    operation: CommitFields,
    *,
    now_ms: int,
    store_ms: Callable[[], int],
    writer_features: frozenset[str],
) -> Prepared:
    """Complete and check an attempt on top of ``tip``. Pure, but for ``store_ms``, the store's clock.

    Raises :class:`InputError` if the actions contradict each other, or a new table lacks protocol or metadata. Raises
    :class:`UnsupportedFeatureError` if this library could not write the table after the commit, or if the table is
    append-only and the commit removes data.
    """
    version = 0 if tip is None else tip.version + 1
    actions = [_spelled_as_before(tip, action) for action in attempt.actions]
    _check_consistent(actions)
    if tip is None and not {Protocol, Metadata} <= {type(action) for action in actions}:
        raise InputError("the first commit of a table needs a Protocol and a Metadata action")
    now_ms = now_ms if tip is None else max(now_ms, tip.timestamp_ms + 1)
    actions = [_dated(_with_enablement(tip, action, version, now_ms), now_ms) for action in actions]
    replay = SnapshotBuilder(tip)
    replay.apply(actions)
    txns_until_ms = None
    if replay.metadata is not None and in_commit_timestamps(replay.metadata):
        txns_until_ms = replay.txns_until(now_ms, store_ms)
    replay.forget(txns_until_ms)
    after = replay.finish(version, now_ms, None if tip is None else tip.checkpoint_version)
    check_writable(after.protocol, writer_features, metadata=after.metadata)
    _check_append_only(after.metadata, actions)
    info = _commit_info(tip, actions, attempt.metrics, operation, now_ms, in_commit=after.in_commit_timestamps)
    rest = encode(actions)
    # The digest of the file of the commit before makes the log a chain.
    fields = {**info.fields, CHAIN: link(rest, after=None if tip is None else tip.digest)}
    if txns_until_ms is not None:
        fields[TXNS_UNTIL] = txns_until_ms
    data = encode([CommitInfo(fields)]) + rest
    return Prepared(version, data, replace(after, fingerprint=Fingerprint(data), digest=digest(data)))


def land(store: Store, prepared: Prepared, *, transaction: Transaction, sleep: Callable[[float], None]) -> bool:
    """Create the commit file: ``True`` if it is ours, ``False`` if another commit has the version.

    After any answer except success the file is read back, and its transaction id decides. If it is ours, it is made
    durable before it is acknowledged. While the file is absent, the same version is tried again, because a request that
    seemed lost may still arrive. If this gives no result, :class:`OutcomeUnknownError` is raised.
    :class:`NothingCreatedError` is the store's word that the first request created nothing. Exceptions that are not the
    store's pass through. ``transaction`` says whether the commit may land.
    """
    path = commit_path(prepared.version)
    doubt: Exception | None = None
    for number, delay_s in enumerate(_RETRY_DELAYS_S, start=1):
        was_sent = transaction.may_land
        transaction.send()
        try:
            outcome = store.put_if_absent(path, prepared.data)
        except NothingCreatedError as error:
            if not was_sent:
                transaction.lose()
                raise StoreError(error.message, **error.facts) from error
            doubt, outcome = error, Put.UNKNOWN
        except (StoreError, OSError) as error:
            if not is_own_failure(error):
                raise
            doubt, outcome = error, Put.UNKNOWN
        if outcome is Put.CREATED:
            _check_not_moved(store, prepared, path, transaction)
            return True
        try:
            is_ours = _read_back(store, prepared, transaction.id, path)
        except FileNotFoundError as error:
            doubt, is_ours = doubt or error, None
        except (LakeMergeError, OSError) as error:
            if not is_own_failure(error):
                raise
            doubt, is_ours = error, None
        if is_ours is not None:
            if not is_ours:
                transaction.lose()
            return is_ours
        tries = f"{number} of {len(_RETRY_DELAYS_S)}"
        _logger.warning("no clear answer to writing %s (try %s, next after %s s): %r", path, tries, delay_s, doubt)
        sleep(delay_s)
    raise _unknown(prepared, transaction, path, doubt) from doubt


def _unknown(prepared: Prepared, transaction: Transaction, path: str, doubt: Exception | None) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"the store did not tell whether {path} was written (last: {doubt!r}). Data files are kept. Look for txnId "
        f"{transaction.id} in that file, or commit again with the same transaction id from the same begin snapshot",
        version=prepared.version,
        txn_id=transaction.id,
    )


def _check_not_moved(store: Store, prepared: Prepared, path: str, transaction: Transaction) -> None:
    """Check that a commit file is among the log's others. If the table's folder was removed or got another name since
    the log was listed, the file is alone in a folder of the old name. Then it is deleted, and no commit. If the folder
    got its other name after the file was made, there is no file here, and the commit is in the table.

    :raises lakemerge.TableReplacedError: the file was alone.
    :raises lakemerge.OutcomeUnknownError: the store did not tell.
    """
    if not (prepared.version and store.can_move):
        return
    try:
        if store.stat(commit_path(prepared.version - 1)) is not None:
            return
        if [file.path for file in store.list(LOG_FOLDER)] != [path]:
            return
        store.delete([path])
        store.delete_empty_folders(LOG_FOLDER)
    except (LakeMergeError, OSError) as error:
        if not is_own_failure(error):
            raise
        raise _unknown(prepared, transaction, path, error) from error
    transaction.lose()
    raise TableReplacedError(
        f"the table at {store.url} was removed or renamed; version {prepared.version} was not written"
    )


def _read_back(store: Store, prepared: Prepared, txn_id: str, path: str) -> bool | None:
    """As :func:`_is_ours` of the file that is there. One of ours is durable then."""
    is_ours = _is_ours(store.get(path), prepared, txn_id, path)
    if is_ours:
        # That it can be read does not say that its name outlives a power cut.
        store.sync([path])
    return is_ours


def _is_ours(found: bytes, prepared: Prepared, txn_id: str, path: str) -> bool | None:
    """Whether a commit file is this commit's; ``None`` if its content does not tell, because it is only a part."""
    if found == prepared.data:
        return True
    if prepared.data.startswith(found):
        return None
    return _txn_id(found, path) == txn_id


def _txn_id(data: bytes, path: str) -> str | None:
    info = decode_commit_info(data, path)
    return None if info is None else info.txn_id


def _commit_info(
    tip: Snapshot | None,
    actions: Sequence[Action],
    metrics: Mapping[str, object],
    operation: CommitFields,
    now_ms: int,
    *,
    in_commit: bool,
) -> CommitInfo:
    fields: dict[str, object] = {
        "timestamp": now_ms,
        "operation": operation.name,
        "operationParameters": {key: _as_text(value) for key, value in operation.parameters.items()},
        "operationMetrics": {key: _as_text(value) for key, value in metrics.items()},
        "engineInfo": f"LakeMerge/{library_version()}",
        "txnId": operation.transaction.id,
        "isBlindAppend": _is_blind_append(actions),
    }
    if in_commit:
        fields["inCommitTimestamp"] = now_ms
    if tip is not None:
        fields["readVersion"] = tip.version
    return CommitInfo({**fields, **operation.info})


def _as_text(value: object) -> str:
    """A string as it is, and any other value as JSON, as Delta's ``DESCRIBE HISTORY`` expects."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _is_blind_append(actions: Sequence[Action]) -> bool:
    """Whether nothing is removed or redefined, so that no other writer's append can conflict. A caller that read the
    table to find what to add says so in its ``info``."""
    return not any(
        isinstance(action, RemoveFile | Metadata | Protocol) or (isinstance(action, DomainMetadata) and action.removed)
        for action in actions
    )


def _spelled_as_before(tip: Snapshot | None, action: Action) -> Action:
    """The action with the spelling under which its file was added, whatever spelling the caller has."""
    if tip is not None and isinstance(action, AddFile | RemoveFile) and action.encoded_path is None:
        known = tip.files.get(action.path)
        if known is not None and known.encoded_path is not None:
            return replace(action, encoded_path=known.encoded_path)
    return action


def _with_enablement(tip: Snapshot | None, action: Action, version: int, now_ms: int) -> Action:
    """If a commit to an existing table turns in-commit timestamps on, the metadata has to say since when (protocol,
    "In-Commit Timestamps")."""
    if tip is None or tip.in_commit_timestamps:
        return action
    if not isinstance(action, Metadata) or not in_commit_timestamps(action):
        return action
    enablement = {
        "delta.inCommitTimestampEnablementVersion": str(version),
        "delta.inCommitTimestampEnablementTimestamp": str(now_ms),
    }
    return replace(action, configuration={**action.configuration, **enablement})


def _dated(action: Action, now_ms: int) -> Action:
    """The action, where it is a transaction that can expire, with the time of its commit. Its age is then measured by
    one clock, that of the commits, also where a host's own clock is wrong."""
    return replace(action, last_updated_ms=now_ms) if isinstance(action, Txn) and can_expire(action.app_id) else action


def _check_append_only(metadata: Metadata, actions: Sequence[Action]) -> None:
    removes = any(isinstance(action, RemoveFile) and action.data_change for action in actions)
    if removes and is_set(metadata, "delta.appendOnly"):
        raise UnsupportedFeatureError(
            "the table is append-only (delta.appendOnly), and the commit removes data", features=("appendOnly",)
        )


def _check_consistent(actions: Sequence[Action]) -> None:
    counts = Counter(name for action in actions for name in _subject(action))
    twice = sorted(name for name, count in counts.items() if count > 1)
    # Under another vector it is another file, so its data file may be removed and added.
    added = {action.path: action.identity for action in actions if isinstance(action, AddFile)}
    removed = [action for action in actions if isinstance(action, RemoveFile)]
    twice += sorted(f"file {action.path}" for action in removed if added.get(action.path) == action.identity)
    if twice:
        raise InputError(f"a commit may hold one action each for: {', '.join(twice[:10])}", subjects=tuple(twice))


def _subject(action: Action) -> Iterator[str]:
    match action:
        case AddFile():
            yield f"file {action.path}"
        case RemoveFile():
            yield f"removal of file {action.path}"
        case DomainMetadata():
            yield f"domain {action.domain}"
        case Txn():
            yield f"txn {action.app_id}"
        case Metadata():
            yield "metaData"
        case Protocol():
            yield "protocol"
        case CommitInfo():
            raise InputError("commitInfo is written by the log itself")
