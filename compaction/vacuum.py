"""Vacuum: delete the files that no version within the retention needs, and old commits of the log.

Safe beside writers, compactions and restores at any moment (docs/table-format.md, section 7):

1. Vacuum lists the files that may be deleted. Their names say that they began below R, the oldest version to keep, and
   neither a version from R on nor a savepoint refers to them. R is not above what a consumer of the change feed needs.
2. It commits a fence: no transaction begun below R can commit after it, and versions below R are no longer read, saved
   or restored. So from now on nobody can refer to such a file again.
3. It leaves out files to which commits up to the fence refer, and deletes the others.

If a vacuum is killed, the table is still correct, and the next vacuum deletes the remaining files.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from types import MappingProxyType
from typing import Final

from compaction.retention import (
    FILE_RETENTION,
    LOG_RETENTION,
    RECORD_RETENTION,
    max_history_bytes,
    property_ms,
    record_retention_ms,
    retention_ms,
)
from compaction.usage import KeptHistory, record_paths, within_bytes
from lakemerge._internal.pools import thread_pool
from lakemerge.commits.retention import ConsumersChangedError, commit_fence
from lakemerge.delta import TRUSTED_AGE_MS, Action, Snapshot, dead_log_files, earliest_version, tip_at
from lakemerge.delta.listing import SIDECAR_FOLDER, list_log
from lakemerge.errors import InputError, StoreError, TableDamagedError, VersionNotFoundError
from lakemerge.feed.consumers import expire_consumers, held_version
from lakemerge.format.conversion import Conversion, FormerFile, read_former
from lakemerge.format.ingests import INGEST_FOLDER
from lakemerge.format.names import BASE_FOLDER, LOG_FOLDER, MERGED_FOLDER, STATE_DOMAIN, TOMBSTONE_FOLDER
from lakemerge.format.record_retention import records_from
from lakemerge.format.savepoint import check_no_holds, savepoints_of
from lakemerge.format.vectors import begin_of, list_vector_files
from lakemerge.handle import Handle
from lakemerge.layout.references import references, snapshot_references
from lakemerge.layout.view import TableView
from lakemerge.results.maintenance import VacuumResult
from lakemerge.storage.base import FileStat
from lakemerge.storage.clock import store_time_ms
from mergers.logs import logger
from mergers.wording import argument

__all__ = ["HALF_WRITTEN_MS", "Cut", "dead_files", "delete_exact", "delete_files", "needed_files", "vacuum"]

_logger = logger(__name__)

_FOLDERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "base": BASE_FOLDER,
        "ingest": INGEST_FOLDER,
        "log": LOG_FOLDER,
        "merged": MERGED_FOLDER,
        "tombstones": TOMBSTONE_FOLDER,
    }
)
_VERSION_DIGITS: Final = 20
_BATCH: Final = 1000
_WINDOW: Final = 64
"""How many commits are in memory at a time."""
HALF_WRITTEN_MS: Final = 86_400_000
"""The least age of half-written files to delete. No reader sees them, and nobody writes a file for so long."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What is too old, by the store's clock. A dry run writes nothing, and so uses this host's clock."""

    now_ms: int
    oldest: int
    """The oldest version to keep."""
    since_ms: int
    """Files written at or before this time are older than the retention."""
    records: int
    """The version from which on records are kept. It is not above ``oldest``."""
    reasons: tuple[str, ...]


def vacuum(
    handle: Handle, view: TableView, *, dry_run: bool, retention: dt.timedelta | None, enforce_retention: bool
) -> VacuumResult:
    """See :meth:`lakemerge.LakeTable.vacuum`."""
    check_no_holds(view.snapshot, "a vacuum")
    if not dry_run and expire_consumers(handle, view):
        view = handle.latest(view)
    try:
        return _vacuum(handle, view, dry_run=dry_run, retention=retention, enforce_retention=enforce_retention)
    except ConsumersChangedError:
        latest = handle.latest(view)
        return vacuum(handle, latest, dry_run=dry_run, retention=retention, enforce_retention=enforce_retention)
    except (TableDamagedError, VersionNotFoundError):
        latest = handle.latest(view)
        if latest.state.oldest_version <= view.state.oldest_version:
            raise
        # Another vacuum went further, and deleted files that this one was reading.
        return vacuum(handle, latest, dry_run=dry_run, retention=retention, enforce_retention=enforce_retention)


def _vacuum(
    handle: Handle, view: TableView, *, dry_run: bool, retention: dt.timedelta | None, enforce_retention: bool
) -> VacuumResult:
    started = time.monotonic()
    cut = _cut(handle, view, retention, dry_run=dry_run, enforce=enforce_retention)
    dead = dead_files(handle, view.snapshot, cut)
    log = _dead_log_files(handle, view.snapshot, cut)
    version, oldest = view.version, cut.oldest if dry_run else view.state.oldest_version
    if not dry_run and (any(dead.values()) or log or _has_waiting_orphans(handle, view, cut)):
        fence = commit_fence(handle, view, oldest=cut.oldest, records=cut.records)
        version, oldest = fence.version, handle.view(fence).state.oldest_version
        kept = _came_back(handle, view.snapshot, fence, cut.oldest)
        dead = {kind: [file for file in files if file.path not in kept] for kind, files in dead.items()}
        log = _dead_log_files(handle, fence, cut)
        delete_files(handle, fence, dead)
        log = delete_exact(handle, log)
    dead |= {"unfinished": _clean_up(handle, cut, dry_run=dry_run), "delta log": log}
    return VacuumResult(
        dry_run=dry_run,
        version=version,
        oldest_version=oldest,
        files={kind: len(files) for kind, files in dead.items() if files},
        bytes=sum(file.size_bytes for files in dead.values() for file in files),
        paths=tuple(file.path for files in dead.values() for file in files),
        seconds=time.monotonic() - started,
        reasons=cut.reasons,
    )


def _cut(handle: Handle, view: TableView, retention: dt.timedelta | None, *, dry_run: bool, enforce: bool) -> Cut:
    metadata = view.snapshot.metadata
    age_ms = retention_ms(metadata, FILE_RETENTION, retention)
    least_ms = property_ms(metadata, FILE_RETENTION)
    if enforce and age_ms < least_ms:
        raise InputError(
            f"a retention of {dt.timedelta(milliseconds=age_ms)} is shorter than the table's "
            f"({FILE_RETENTION}: {dt.timedelta(milliseconds=least_ms)}): readers of earlier versions and long writes "
            f"would fail. Pass {argument('enforce_retention', False)} if there are none",
            retention_ms=age_ms,
            least_ms=least_ms,
        )
    # To learn the store's time, a file has to be written.
    now_ms = handle.now_ms() if dry_run else store_time_ms(handle.store)
    tip = tip_at(handle.store, now_ms - age_ms, now_ms=now_ms)
    oldest = earliest_version(handle.store) if tip is None else tip
    held = held_version(handle, view.snapshot)
    oldest = max(view.state.oldest_version, oldest if held is None else min(oldest, held))
    kept = _records_kept(handle, view, oldest, now_ms)
    bound = max_history_bytes(metadata)
    if bound is not None:
        # Without the retention only the present version, and what consumers have yet to read, is kept.
        young = tip_at(handle.store, now_ms - least_ms, now_ms=now_ms) if enforce else view.version
        safe = [version for version in (kept.oldest if young is None else young, held) if version is not None]
        newest = max(kept.oldest, min(safe))
        saved = _saved(handle, view.snapshot, view.version + 1)
        sizes = {file.path: file.size_bytes for folder in _FOLDERS.values() for file in handle.store.list(folder)}
        sizes |= {file.path: file.size_bytes for file in list_vector_files(handle.store)}
        kept = within_bytes(handle, view.snapshot, kept, saved, bound=bound, newest=newest, sizes=sizes)
    return Cut(now_ms, kept.oldest, now_ms - age_ms, kept.records, kept.reasons)


def _records_kept(handle: Handle, view: TableView, oldest: int, now_ms: int) -> KeptHistory:
    """What the retentions of versions and records keep. Records are not kept if their starting state is gone."""
    reasons = [f"versions before {oldest} are older than the retention"] if oldest else []
    age_ms = record_retention_ms(view.snapshot.metadata)
    if age_ms is None:
        return KeptHistory(oldest, oldest, tuple(reasons))
    tip = tip_at(handle.store, now_ms - age_ms, now_ms=now_ms)
    wanted = earliest_version(handle.store) if tip is None else tip
    records = min(oldest, max(wanted, records_from(view.snapshot)))
    if records < oldest:
        reasons.append(f"the records from version {records} on stay, as {RECORD_RETENTION} asks for")
    return KeptHistory(oldest, records, tuple(reasons))


def dead_files(handle: Handle, tip: Snapshot, cut: Cut) -> dict[str, Sequence[FileStat]]:
    """Kind -> files that began below the oldest version to keep, and that are not needed by any version from there to
    ``tip``, by a savepoint or by records to keep."""
    store, oldest = handle.store, cut.oldest
    kept = needed_files(handle, tip, oldest=oldest, records=cut.records)
    # What a table had before it was converted waits for its own time, and may have the names of base files.
    kept |= {file.path for file in _former(handle, tip)}
    dead: dict[str, Sequence[FileStat]] = {
        kind: [file for file in _begun_below(handle, folder, oldest) if file.path not in kept]
        for kind, folder in _FOLDERS.items()
    }
    vectors = takewhile(lambda file: (begin_of(file.path) or 0) < oldest, list_vector_files(store))
    dead["vectors"] = [file for file in vectors if file.path not in kept]
    return dead | {"former": _former_files(handle, tip, cut)}


def _former_files(handle: Handle, tip: Snapshot, cut: Cut) -> Sequence[FileStat]:
    """The files that the table had before it was converted, once that is longer ago than the retention. Other Delta
    engines read earlier versions until then; LakeMerge reads none of them."""
    conversion = Conversion.of(tip)
    if conversion is None:
        return ()
    old = tip_at(handle.store, cut.since_ms, now_ms=cut.now_ms)
    if old is None or old < conversion.version:
        return ()
    listing = list_log(handle.store)
    found: list[FileStat] = []
    if all(checkpoint.version >= conversion.version for checkpoint in listing.checkpoints):
        found += (file for file in handle.store.list(SIDECAR_FOLDER) if file.modified_ms <= cut.since_ms)
    live = tip.files.keys()
    return [
        *found,
        *(FileStat(file.path, file.size_bytes, 0) for file in _former(handle, tip) if file.path not in live),
    ]


def _former(handle: Handle, tip: Snapshot) -> Iterator[FormerFile]:
    """The list of the files that the table had before it was converted, until a vacuum has deleted them."""
    conversion = Conversion.of(tip)
    if conversion is not None:
        with contextlib.suppress(FileNotFoundError):
            yield from read_former(handle.store, conversion.former)


def _end_former(handle: Handle, tip: Snapshot, files: Sequence[FileStat]) -> None:
    """Forget the list of former files, which were deleted, and delete the folders that they leave."""
    conversion = Conversion.of(tip)
    if conversion is None or not files:
        return
    own = (BASE_FOLDER, SIDECAR_FOLDER.partition("/")[0], "_lakemerge")
    folders = {file.path.partition("/")[0] for file in files if "/" in file.path}
    for folder in sorted(folders.difference(own)):
        handle.store.delete_empty_folders(folder)
    handle.store.delete([conversion.former])


def needed_files(handle: Handle, tip: Snapshot, *, oldest: int, records: int) -> set[str]:
    """The paths of the files that versions from ``oldest`` to ``tip``, savepoints and records from ``records`` on
    need."""
    needed = _saved(handle, tip, oldest) | snapshot_references(handle.log.snapshot(version=oldest), handle.store)
    needed |= _referred(handle, handle.log.commits(since=oldest, until=tip.version))
    if records < oldest:
        needed |= snapshot_references(handle.log.snapshot(version=records), handle.store)
        needed |= record_paths(handle, since=records, until=oldest)
    return needed


def _begun_below(handle: Handle, folder: str, version: int) -> Iterator[FileStat]:
    """Files whose names say that their transactions began below a version. Files with other names are not ours."""
    start, end = len(folder) + 1, len(folder) + 1 + _VERSION_DIGITS
    # Names begin with the version, and listings are sorted.
    below = takewhile(lambda file: file.path[start:] < f"{version:0{_VERSION_DIGITS}d}", handle.store.list(folder))
    return (file for file in below if file.path[start:end].isdecimal() and file.path[end : end + 1] == "-")


def _saved(handle: Handle, tip: Snapshot, oldest: int) -> set[str]:
    """The files that savepoints of versions below ``oldest`` need."""
    versions = {savepoint.version for savepoint in savepoints_of(tip).values() if savepoint.version < oldest}
    needed: set[str] = set()
    for version in sorted(versions):
        needed |= snapshot_references(handle.log.snapshot(version=version), handle.store)
    return needed


def _referred(handle: Handle, commits: Iterator[tuple[int, tuple[Action, ...]]]) -> set[str]:
    """The files to which commits added references. Several block indexes are read at a time."""
    found: set[str] = set()
    with thread_pool(handle.settings.threads) as pool:
        while window := tuple(islice(commits, _WINDOW)):
            found.update(*pool.map(lambda commit: set(references(commit[1], handle.store)), window))
    return found


def _came_back(handle: Handle, planned: Snapshot, fence: Snapshot, oldest: int) -> set[str]:
    """The files to which a restore or a savepoint between the listing and the fence refers again."""
    kept = _referred(handle, handle.log.commits(since=planned.version, until=fence.version))
    if savepoints_of(fence) != savepoints_of(planned):
        kept |= _saved(handle, fence, oldest)
    return kept


def delete_files(handle: Handle, tip: Snapshot, dead: Mapping[str, Sequence[FileStat]]) -> None:
    """Delete what :func:`dead_files` found, once a fence is committed."""
    for files in dead.values():
        # Their names hold transaction ids, so no other table has them.
        for batch in _batches(files):
            handle.store.delete([file.path for file in batch])
    # Each publication has a folder of its own, at the root. Nothing that began so early can land any more.
    for folder in {file.path.partition("/")[0] for file in dead["vectors"]}:
        handle.store.delete_empty_folders(folder)
    _end_former(handle, tip, dead["former"])


def _has_waiting_orphans(handle: Handle, view: TableView, cut: Cut) -> bool:
    """Whether there are old files of killed writes that began at the present version. They stay, because a write under
    way may have begun there as well. The fence makes a new version, so a later vacuum can tell them apart."""
    return any(
        file.modified_ms <= cut.since_ms
        for folder in _FOLDERS.values()
        for file in handle.store.list(folder, start_after=f"{folder}/{view.version:0{_VERSION_DIGITS}d}")
    ) or any(file.modified_ms <= cut.since_ms for file in list_vector_files(handle.store, since=view.version))


def delete_exact(handle: Handle, files: Sequence[FileStat]) -> Sequence[FileStat]:
    """Delete files whose names every table has. Returns those that were deleted. If the table was removed and made anew
    since they were listed, the new table's files stay."""
    left: set[FileStat] = set()
    for batch in _batches(files):
        left.update(handle.store.delete_exact(batch))
    if left:
        _logger.warning("%d files of the log at %s were written again, and stay", len(left), handle.store.url)
    return [file for file in files if file not in left]


def _batches(files: Sequence[FileStat]) -> Iterator[Sequence[FileStat]]:
    return (files[start : start + _BATCH] for start in range(0, len(files), _BATCH))


def _clean_up(handle: Handle, cut: Cut, *, dry_run: bool) -> Sequence[FileStat]:
    """Delete half-written files. A user who may not see or end other people's uploads can still vacuum."""
    before_ms = min(cut.since_ms, cut.now_ms - HALF_WRITTEN_MS)
    try:
        return handle.store.clean_up(before_ms=before_ms, dry_run=dry_run)
    except StoreError:
        _logger.warning("half-written files of %s were not looked for", handle.store.url, exc_info=True)
        return ()


def _dead_log_files(handle: Handle, tip: Snapshot, cut: Cut) -> Sequence[FileStat]:
    """Commits and checkpoints older than the log's retention that neither a version to keep nor a
    savepoint needs."""
    before_ms = cut.now_ms - max(property_ms(tip.metadata, LOG_RETENTION), TRUSTED_AGE_MS)
    needed = min([cut.records, *(point.version for point in savepoints_of(tip).values())])
    history = tip_at(handle.store, before_ms, now_ms=cut.now_ms)
    if history is None:
        return ()
    needed = min(needed, history)
    return dead_log_files(
        handle.store, needed=needed, before_ms=before_ms, now_ms=cut.now_ms, required_domain=STATE_DOMAIN
    )
