"""Restore: a commit that makes an earlier version the table's present one again.

Source: docs/table-format.md, section 4. No data file is written: base files and the domains of logs and compactions
come back as they were, logs with their original versions. Everything that concerns the table and not its rows stays as
it is now: transactions of applications, savepoints, ingest jobs, reserved ordinals, the fence of vacuum, and Delta's
and the users' own properties. What a replacement took away comes back with the version: the table's id, and the
transactions and ingest jobs that there are none of now.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from lakemerge.commits.base import commit_to, rows_changed
from lakemerge.commits.compaction import removal
from lakemerge.delta import Action, AddFile, AlreadyDone, Attempt, DomainMetadata, Metadata, RemoveFile, Snapshot
from lakemerge.errors import CommitConflictError, InputError, TableDamagedError, VersionNotFoundError
from lakemerge.format.consumers import CONSUMER_DOMAIN_PREFIX
from lakemerge.format.conversion import CONVERSION_DOMAIN
from lakemerge.format.ingests import INGEST_DOMAIN_PREFIX
from lakemerge.format.names import SAVEPOINT_DOMAIN_PREFIX, STATE_DOMAIN
from lakemerge.format.operations import Operation
from lakemerge.format.publish import with_vectors
from lakemerge.format.record_retention import RECORDS_DOMAIN
from lakemerge.format.state import State
from lakemerge.handle import Handle
from lakemerge.layout.references import check_domains, snapshot_references
from lakemerge.layout.travel import check_kept
from lakemerge.layout.view import TableView
from lakemerge.results.writes import RestoreResult

__all__ = ["restore_table"]


def restore_table(handle: Handle, begin: TableView, target: Snapshot) -> RestoreResult:
    """Make ``target`` the present; see :meth:`lakemerge.LakeTable.restore`.

    Raises :class:`CommitConflictError` if rows or the definition change between ``begin`` and the commit.
    """
    started = time.monotonic()
    if target.version == begin.version:
        raise InputError(f"version {target.version} is the present one; there is nothing to restore")
    earlier = handle.view(target)
    _check_files(handle, begin, earlier)
    actions: list[Action] = []

    def build(view: TableView) -> Attempt | AlreadyDone:
        _check_nothing_is_lost(handle, begin, view)
        # If a vacuum's fence was first, it decides. A vacuum that comes later sees what is restored.
        check_kept(target.version, view.snapshot)
        tip = view.snapshot
        check_domains(tip)
        actions[:] = [*_files(tip, target, handle.store_now_ms()), *_domains(tip, target), *_forgotten(tip, target)]
        metadata = _metadata(view, earlier)
        defined: list[Action] = [] if metadata == view.snapshot.metadata else [metadata]
        if any(add.vector is not None for add in target.files.values()):
            # Never lowered, and so it allows vectors already, unless something else wrote it.
            protocol = with_vectors(view.snapshot.protocol)
            defined += [] if protocol == view.snapshot.protocol else [protocol]
        return Attempt([*defined, _state(view.state, earlier.state), *actions], _metrics(actions))

    parameters = {"version": target.version, "timestamp": None}
    outcome = commit_to(handle, begin, build, operation=Operation.RESTORE, parameters=parameters)
    adds, removes = _files_of(actions)
    return RestoreResult(
        version=outcome.version,
        restored_version=target.version,
        added_files=len(adds),
        removed_files=len(removes),
        live_logs=len(earlier.log_commits),
        bytes=sum(add.size_bytes for add in adds),
        seconds=time.monotonic() - started,
    )


def _check_nothing_is_lost(handle: Handle, begin: TableView, tip: TableView) -> None:
    """Raise an error if there are rows that were not there at ``begin``: the caller did not decide to give them up."""
    if tip.version == begin.version:
        return  # its logs need not be readable
    same = begin.state.restore_epoch == tip.state.restore_epoch
    if not same or rows_changed(handle, begin, tip) or begin.snapshot.metadata != tip.snapshot.metadata:
        raise CommitConflictError(
            f"the table changed after version {begin.version}; nothing was restored. Look at what was written and "
            "restore again to give it up"
        )


def _check_files(handle: Handle, present: TableView, earlier: TableView) -> None:
    """Raise :class:`VersionNotFoundError` unless every file that only the earlier version needs is there. If it cannot
    be told what the present version needs, because it is damaged, all that the earlier one needs is looked for."""
    needed = snapshot_references(earlier.snapshot, handle.store)
    with suppress(TableDamagedError, FileNotFoundError):
        needed -= snapshot_references(present.snapshot, handle.store)
    if not needed:
        return
    missing = needed.difference(stat.path for stat in handle.store.list(""))
    if missing:
        check_kept(earlier.version, handle.log.update(present.snapshot))
        raise VersionNotFoundError(
            f"version {earlier.version} cannot be restored: {len(missing)} of its files are gone, such as "
            f"{min(missing)!r}; something else than this library's vacuum must have deleted them",
            version=earlier.version,
            paths=tuple(sorted(missing)[:100]),
        )


def _files(tip: Snapshot, target: Snapshot, now_ms: int) -> Iterator[Action]:
    # The same data file under another vector is another file: it is removed, and added.
    for path, add in tip.files.items():
        if path not in target.files or target.files[path].identity != add.identity:
            yield removal(add, now_ms)
    for path, add in target.files.items():
        present = tip.files.get(path)
        if present is None or present.tags != add.tags or present.identity != add.identity:
            yield replace(add, data_change=True)


def _domains(tip: Snapshot, target: Snapshot) -> Iterator[Action]:
    """Removals and additions of our own domains, except those that do not concern a version's rows."""
    before = {name: domain for name, domain in tip.domains.items() if _is_of_rows(name)}
    after = {name: domain for name, domain in target.domains.items() if _is_of_rows(name)}
    for name in before.keys() - after.keys():
        yield DomainMetadata(name, "", True)
    for name, domain in after.items():
        if name not in before or before[name].configuration != domain.configuration:
            yield domain


def _forgotten(tip: Snapshot, target: Snapshot) -> Iterator[Action]:
    """What only a replacement can have taken from the table: what the restored rows are made of is known again. The
    jobs find another restore epoch than theirs, and wait for a reset."""
    for app, txn in target.txns.items():
        if app not in tip.txns:
            yield txn
    for name, domain in target.domains.items():
        if name.startswith(INGEST_DOMAIN_PREFIX) and name not in tip.domains:
            yield domain


def _is_of_rows(domain: str) -> bool:
    of_table = (SAVEPOINT_DOMAIN_PREFIX, INGEST_DOMAIN_PREFIX, CONSUMER_DOMAIN_PREFIX)
    return (
        domain.startswith("lakemerge.")
        and domain not in (STATE_DOMAIN, RECORDS_DOMAIN, CONVERSION_DOMAIN)
        and not domain.startswith(of_table)
    )


def _metadata(present: TableView, earlier: TableView) -> Metadata:
    now, then = present.snapshot.metadata, earlier.snapshot.metadata
    defined = present.config.configuration()
    # A mapping of names stays, and files keep the names that they have: the table may have other columns again.
    names = present.config.names.restored(earlier.config.names, earlier.config.schema, then.id)
    config = replace(earlier.config, names=names)
    kept = {name: value for name, value in now.configuration.items() if name not in defined}
    return replace(
        now,
        id=then.id,
        schema_string=config.schema_string,
        partition_columns=then.partition_columns,
        configuration=kept | config.configuration(),
    )


def _state(present: State, earlier: State) -> DomainMetadata:
    return replace(
        earlier,
        next_ordinal=present.next_ordinal,
        fence_begin_version=present.fence_begin_version,
        oldest_version=present.oldest_version,
        overwrite_epoch=present.overwrite_epoch,
        restore_epoch=present.restore_epoch + 1,
    ).domain()


def _metrics(actions: Sequence[Action]) -> dict[str, object]:
    adds, removes = _files_of(actions)
    return {
        "numRestoredFiles": len(adds),
        "numRemovedFiles": len(removes),
        "restoredFilesSize": sum(add.size_bytes for add in adds),
    }


def _files_of(actions: Sequence[Action]) -> tuple[list[AddFile], list[RemoveFile]]:
    adds = [action for action in actions if isinstance(action, AddFile)]
    return adds, [action for action in actions if isinstance(action, RemoveFile)]
