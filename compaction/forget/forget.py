"""Erases keys: rows, records, remembered deletes, boundaries, the log before them; then looks for what is left.

Each call looks at what is there and does what is left to do, so a call that was killed is repeated with the same keys.
Nothing notes that a call is under way. Source: docs/table-format.md, section 14.
"""

from __future__ import annotations

import datetime as dt
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa

from compaction.forget.search import DELTA_LOG, Found, count_keys, in_snapshot, search_folder, search_table, text_rows
from compaction.forget.sought import Sought
from compaction.run.rewrite import off_boundaries, rewrite
from compaction.vacuum import HALF_WRITTEN_MS, Cut, dead_files, delete_exact, delete_files, needed_files
from lakemerge.commits.base import FileSlicesChangedError, commit_to, rows_changed
from lakemerge.commits.compaction import commit_compaction
from lakemerge.commits.forget import commit_forget
from lakemerge.commits.provenance import DomainIs, Provenance
from lakemerge.commits.retention import ConsumersChangedError, commit_fence
from lakemerge.delta import TRUSTED_AGE_MS, AddFile, Attempt, DomainMetadata, dead_log_files, duration_ms
from lakemerge.errors import CommitConflictError, InputError, StoreError, TableDamagedError, VersionNotFoundError
from lakemerge.format.block_index import DecodedLogs, LogCommit, log_version
from lakemerge.format.consumers import advanced_ms, registrations_of, stored_position
from lakemerge.format.ingests import INGEST_FOLDER, ingests_of
from lakemerge.format.ledger import rejects_tables, write_rejects
from lakemerge.format.log_block import LogBlock
from lakemerge.format.names import KIND_COLUMN, LOG_DOMAIN_PREFIX, STATE_DOMAIN
from lakemerge.format.operations import Operation
from lakemerge.format.record_retention import records_from
from lakemerge.format.savepoint import check_no_holds, savepoints_of
from lakemerge.format.vectors import begin_of
from lakemerge.handle import Handle
from lakemerge.layout.references import check_domains
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.lookup import find_rows
from lakemerge.results.forgetting import ForgetResult, Left, Searched, Waiting
from lakemerge.storage import open_store
from lakemerge.storage.base import FileStat
from lakemerge.storage.clock import store_time_ms
from lakemerge.table.open_table import OpenTable
from lakemerge.write.start import WriteRequest
from lakemerge.write.upsert import upsert_arrow
from mergers.restart import CLEAR
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ForgetOptions", "forget_open"]

_ROUNDS: Final = 5
"""How often it begins again, where others write the keys or compact their file slices meanwhile."""
_VERSION: Final = re.compile(r"(?:^|/)(\d{20})[.-]")
_NAMED: Final = (
    "a property, a name or a text of the table, or an option of its merger, has a key: change it, and then call forget "
    "again"
)
_PARTITION: Final = (
    "the key is the value of a partition, which stays as long as the table has a base file of it, even an empty one: "
    "overwrite the table with its own rows, and then call forget again"
)
_UNREACHABLE: Final = (
    "earlier versions of objects, where the store keeps them",
    "replicas, backups and copies",
    "what consumers, sinks, caches and other tables have read",
    "values that went into other rows, such as sums and lists, or that stand in other columns",
    "records of the keys that are delivered again: stop their source",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetOptions:
    """See :meth:`lakemerge.LakeTable.forget`."""

    drop_history: bool = False
    drop_rejects: bool = False
    search: Sequence[str] = ()
    salt: str | None = None
    storage_options: Mapping[str, object] | None = None


def forget_open(table: OpenTable, keys: object, options: ForgetOptions) -> ForgetResult:
    """See :meth:`lakemerge.LakeTable.forget`."""
    view = table.writable()
    run = _Forget(table.handle, view, Sought(keys, view.config), options, table.services_session)
    result = run.result()
    table.follow()
    return result


class _Again(Exception):  # noqa: N818 - it is no error: somebody wrote the keys meanwhile
    """The keys are in the table again, or in what the last commit has."""


class _Forget:
    """One call."""

    def __init__(
        self, handle: Handle, view: TableView, sought: Sought, options: ForgetOptions, spark: SparkSession | None
    ) -> None:
        self._handle = handle
        self._view = view
        self._sought = sought
        self._options = options
        self._spark = spark
        self._salt = secrets.token_hex(16) if options.salt is None else options.salt
        self._digest = sought.digest(self._salt)
        self._rows = 0
        self._checked = False
        self._unseen: tuple[Left, ...] = ()
        self._started = time.monotonic()
        self._counts: dict[tuple[str, tuple[int, ...]], int] = {}

    def result(self) -> ForgetResult:
        if not len(self._sought):
            return self._told((), (), Found({}, (), ()), [])
        fresh = False
        stuck_at: int | None = None
        for _ in range(_ROUNDS):
            try:
                return self._once(fresh=fresh)
            except (_Again, FileSlicesChangedError, ConsumersChangedError):
                fresh = True
                self._view = self._handle.latest(self._view)
            except (FileNotFoundError, TableDamagedError, VersionNotFoundError):
                # Another erasure or a vacuum may have deleted what this version had.
                latest = self._handle.latest(self._view)
                if latest.version == stuck_at:
                    raise  # it is no other version's, so it is missing
                self._view, stuck_at = latest, latest.version
        raise CommitConflictError(
            f"others wrote the keys, or compacted their file slices, {_ROUNDS} times meanwhile. Nothing is lost: stop "
            "the source of the keys and call forget again"
        )

    def _once(self, *, fresh: bool) -> ForgetResult:
        """All steps, from the present version on.

        :param fresh: whether a mark of an earlier call counts for nothing.
        """
        check_no_holds(self._view.snapshot, "forget")
        check_domains(self._view.snapshot)
        touched = self._touched(self._view)
        left = touched or self._holding(self._view) or self._at_boundaries(self._view)
        mark = None if left or fresh else self._marked()
        if not self._checked:  # consumers have yet to read what a first round has cleared
            self._check_history(mark)
            self._checked = True
        if left:
            self._erase(touched)
        if self._options.drop_rejects:
            self._drop_rejects()
        waits = self._consumers_behind(self._view.version + 1 if mark is None else mark)
        fenced = not waits
        if mark is None:
            snapshot = commit_forget(
                self._handle,
                self._view,
                keys=len(self._sought),
                digest=self._digest,
                fenced=fenced,
                drop_savepoints=self._options.drop_history,
            )
            mark = snapshot.version
        elif fenced and self._view.state.oldest_version < mark:
            commit_fence(self._handle, self._view, oldest=mark, records=mark)
        self._view = self._handle.latest(self._view)
        if fenced:
            waits += self._delete(mark)
        found = search_table(self._handle.store, self._sought)
        waiting, lasting = self._judged(found, mark, fenced=fenced)
        return self._told((*waits, *waiting), lasting, found, self._elsewhere())

    # What needs earlier versions

    def _check_history(self, mark: int | None) -> None:
        """Refuse, with a list, what needs versions that have the keys.

        :param mark: the version from which on none has them; ``None``: that is still to come.
        """
        if self._options.drop_history:
            return
        view, bound = self._view, self._view.version + 1 if mark is None else mark
        needs = [
            f"savepoint {savepoint.name!r} keeps version {savepoint.version}"
            for savepoint in savepoints_of(view.snapshot).values()
            if savepoint.version < bound
        ]
        if mark is None:
            needs += [
                f"consumer {name!r} has yet to read the versions from {version + 1} on"
                for name, version in self._needed_by_consumers().items()
                if self._has_news(version)
            ]
        asked = duration_ms(view.snapshot.metadata, "lakemerge.recordRetention", default=0)
        if asked and records_from(view.snapshot) < bound:
            needs.append("lakemerge.recordRetention keeps records of earlier versions")
        if needs:
            raise InputError(
                f"forget ends the history of the table, and this is needed: {'; '.join(needs)}. Let consumers read on, "
                f"drop what nobody needs, or give it all up with {argument('drop_history', True)}",
                needs=tuple(needs),
            )

    def _has_news(self, version: int) -> bool:
        """Whether rows were committed after a version, as far as that can be told."""
        if version >= self._view.version:
            return False
        try:
            return rows_changed(self._handle, self._handle.view_at(version, of=self._view.snapshot), self._view)
        except (TableDamagedError, VersionNotFoundError):
            return True

    def _needed_by_consumers(self) -> dict[str, int]:
        """The oldest version that each consumer needs."""
        known = registrations_of(self._view.snapshot)
        return {name: stored_position(self._handle.store, each).needed_version for name, each in known.items()}

    def _consumers_behind(self, mark: int) -> tuple[Waiting, ...]:
        """The consumers that have not read up to a version yet."""
        if self._options.drop_history:
            return ()
        known, waits = registrations_of(self._view.snapshot), []
        for name, version in self._needed_by_consumers().items():
            # One that needs versions which are gone was given up before.
            if self._view.state.oldest_version <= version < mark:
                own = advanced_ms(self._handle.store, known[name])
                until = (known[name].created_ms if own is None else own) + known[name].expires_after_ms
                why = f"it has to read up to version {mark}, and then call forget again; it expires at that time"
                waits.append(Waiting(path=f"consumer {name!r}", reason=why, until=_instant(until)))
        return tuple(waits)

    # Where the keys are

    def _count(self, path: str, numbers: Sequence[int]) -> int:
        place = (path, tuple(numbers))
        if place not in self._counts:
            self._counts[place] = count_keys(self._handle.store, path, self._sought, numbers=numbers)
        return self._counts[place]

    def _touched(self, view: TableView) -> list[FileSlice]:
        """The file slices of which a file has a key: in a row, superseded or not, in a record, or as a delete."""
        found = []
        for file_slice in view.file_slices:
            numbers = self._numbers_in(file_slice)
            if numbers and any(self._count(path, numbers) for path in _files_of(file_slice)):
                found.append(file_slice)
        return found

    def _numbers_in(self, file_slice: FileSlice) -> list[int]:
        keys = self._sought.keys
        return [
            number
            for number in self._sought.of_bucket(file_slice.bucket_id, file_slice.buckets)
            if (file_slice.lower is None or file_slice.lower <= keys[number])
            and (file_slice.upper is None or keys[number] < file_slice.upper)
        ]

    def _holding(self, view: TableView) -> list[LogCommit]:
        """The log commits of which a block has a key. The bounds of their blocks may be keys, too."""
        return [log for log in view.log_commits if any(map(self._has_key, log.blocks))]

    def _has_key(self, block: LogBlock) -> bool:
        keys = self._sought.keys
        numbers = [
            number
            for number in self._sought.of_bucket(block.bucket_id, block.buckets)
            if (block.key_min is None or block.key_min <= keys[number])
            and (block.key_max is None or keys[number] <= block.key_max)
        ]
        return bool(numbers) and self._count(block.file.path, numbers) > 0

    def _at_boundaries(self, view: TableView) -> bool:
        return any(base.lower in self._sought.key_set for base in view.base_files if base.lower is not None)

    def _marked(self) -> int | None:
        """The version of the newest commit of an erasure, if it did for these keys: none was written since."""
        view, log = self._view, self._handle.log
        marks = (entry.version for entry in log.history(known=view.version) if entry.operation == Operation.FORGET)
        mark = next(marks, None)
        # If a vacuum went further, it deleted files by which it could be told what that version had.
        if mark is None or mark < view.state.oldest_version or mark > view.version:
            return None
        try:
            before = self._handle.view_at(mark, of=view.snapshot)
            same = (before.state.restore_epoch, before.state.overwrite_epoch, before.snapshot.metadata.id) == (
                view.state.restore_epoch,
                view.state.overwrite_epoch,
                view.snapshot.metadata.id,
            )
            if not same:
                return None
            for version, actions in log.commits(since=mark, until=view.version):
                logs = [a for a in actions if isinstance(a, DomainMetadata) and _is_log_of(a, version)]
                decoded = DecodedLogs().read(logs, self._handle.store, view.key_kinds)
                if any(self._has_key(block) for commit in decoded for block in commit.blocks):
                    return None
                if before.is_empty and any(isinstance(action, AddFile) for action in actions):
                    return None
        except (FileNotFoundError, TableDamagedError, VersionNotFoundError):
            return None  # it cannot be told any more
        return mark

    # Steps

    def _erase(self, touched: Sequence[FileSlice]) -> None:
        """Clear the keys, and write the files anew that have them."""
        handle, sought = self._handle, self._sought
        if touched:
            names = list(self._view.config.key)
            self._rows += find_rows(handle, self._view, sought.table, names).num_rows
            upsert_arrow(handle, self._view, _clears(sought.table), self._request())
            self._view = handle.latest(self._view)
        view = self._view
        parts = off_boundaries(view, self._touched(view), sought.key_set)
        done = {(each.bucket_id, each.buckets, each.lower) for part in parts for each in part}
        paths = {block.file.path for log in self._holding(view) for block in log.blocks}
        beside = [
            each
            for each in view.file_slices
            if (each.bucket_id, each.buckets, each.lower) not in done
            and any(block.file.path in paths for block in each.blocks)
        ]
        if parts or beside:
            outcome = rewrite(handle, view, parts, beside=beside, why="forget", spark=self._spark)
            if outcome.skipped:
                failed = outcome.skipped[0]
                raise InputError(
                    f"records in bucket {failed.bucket} cannot be merged ({failed.reason}), so their logs stay, and "
                    "the keys with them: correct these records first. `lakemerge failed-keys` lists them",
                    bucket=failed.bucket,
                )
        else:
            # Logs that are dead everywhere go with any compaction.
            parameters = {"readVersion": view.version, "mode": "full", "due": "forget", "why": "forget"}
            commit_compaction(handle, view, Provenance(Operation.COMPACT, parameters, handle.new_transaction()), {})
        self._view = handle.latest(view)
        if self._touched(self._view) or self._holding(self._view) or self._at_boundaries(self._view):
            raise _Again

    def _request(self) -> WriteRequest:
        told = {"keys": len(self._sought), "digest": self._digest}
        return WriteRequest(info={"forget": told, "isBlindAppend": False}, states=True, operation=Operation.ERASE)

    def _drop_rejects(self) -> None:
        """Take records out of what ingest jobs set aside."""
        handle = self._handle
        for job in ingests_of(self._view.snapshot).values():
            before = self._view.snapshot.domains[job.domain_name]
            kept, changed = [], False
            for number, (file, table) in enumerate(
                zip(job.rejects, rejects_tables(handle.store, job.rejects), strict=True)
            ):
                rows = text_rows(table, self._sought)
                if not rows:
                    kept.append(file)
                    continue
                changed = True
                left = table.filter(pa.array(~np.isin(np.arange(table.num_rows), rows)))
                name = handle.write_name(self._view, handle.new_transaction())
                if left.num_rows:
                    path = f"{INGEST_FOLDER}/{name}-rejects-{number:05d}.parquet"
                    kept.append(write_rejects(handle.store, path, [left]))
            if changed:
                domain = replace(job, rejects=tuple(kept)).domain()
                is_same = DomainIs(job.domain_name, before.configuration)

                def build(tip: TableView, domain: DomainMetadata = domain, is_same: DomainIs = is_same) -> Attempt:
                    is_same.check(tip.snapshot)
                    return Attempt([domain])

                told = {"keys": len(self._sought), "digest": self._digest}
                commit_to(handle, self._view, build, operation=Operation.ERASE, parameters=told)
                self._view = handle.latest(self._view)

    def _delete(self, mark: int) -> tuple[Waiting, ...]:
        """Delete everything that only versions below ``mark`` need. Returns what is too young for that."""
        handle, tip = self._handle, self._view.snapshot
        handle.log.checkpoint(handle.log.snapshot(version=mark))
        now_ms = store_time_ms(handle.store)
        cut = Cut(now_ms, mark, now_ms, mark, ())
        delete_files(handle, tip, dead_files(handle, tip, cut))
        old = dead_log_files(
            handle.store,
            needed=mark,
            before_ms=now_ms - TRUSTED_AGE_MS,
            now_ms=now_ms,
            required_domain=STATE_DOMAIN,
        )
        delete_exact(handle, old)
        waits = []
        marked = [file for file in handle.store.list(DELTA_LOG) if _log_version(file.path) is not None]
        young = [file for file in marked if (_log_version(file.path) or 0) < mark]
        if young:
            latest = max(file.modified_ms for file in young)
            why = f"commits and checkpoints before version {mark} are deleted when they are an hour old"
            waits.append(Waiting(path=DELTA_LOG, reason=why, until=_instant(latest + TRUSTED_AGE_MS)))
        written = max((f.modified_ms for f in marked if _log_version(f.path) == mark), default=now_ms)
        half = [file for file in self._half_written(now_ms) if file.modified_ms <= written]
        if half:
            latest = max(file.modified_ms for file in half)
            why = "half-written files of killed writers are deleted after a day"
            waits.append(Waiting(path=".", reason=why, until=_instant(latest + HALF_WRITTEN_MS)))
        return tuple(waits)

    def _half_written(self, now_ms: int) -> tuple[FileStat, ...]:
        """Half-written files that are too young to be deleted. Others are deleted."""
        store = self._handle.store
        try:
            store.clean_up(before_ms=now_ms - HALF_WRITTEN_MS, dry_run=False)
            self._unseen = ()
            return store.clean_up(before_ms=now_ms + 1, dry_run=True)
        except StoreError:
            why = "half-written files of killed writers could not be listed or deleted; somebody who may has to do so"
            self._unseen = (Left(path=".", reason=why),)
            return ()

    # What is left

    def _judged(self, found: Found, mark: int, *, fenced: bool) -> tuple[list[Waiting], list[Left]]:
        """What becomes of the files with a key.

        :raises _Again: some are of versions that stay.
        """
        handle, tip = self._handle, self._view.snapshot
        needed = needed_files(handle, tip, oldest=mark, records=mark) if found.hits else set()
        jobs = {file.path: (job, kind) for job in ingests_of(tip).values()
                for kind, files in (("ledger", job.ledger), ("rejects", job.rejects)) for file in files}  # fmt: skip
        named = bool(found.hits) and in_snapshot(tip, self._sought)
        is_partition = any(base.bucket_id.partition in self._sought.partitions for base in self._view.base_files)
        waiting: dict[str, list[str]] = defaultdict(list)
        left = list(self._unseen)
        left += [self._left(path, "it could not be read; look into it yourself") for path in found.unread]
        for path in found.hits:
            version = _log_version(path)
            begin = begin_of(path) if version is None else version
            if begin is None and (name := _VERSION.search(path)) is not None:
                begin = int(name[1])
            if path in jobs:
                job, kind = jobs[path]
                left.append(self._left(path, _ingest_words(job.name, kind)))
            elif version is not None and version < mark:
                if not fenced:
                    waiting[DELTA_LOG].append(path)
            elif version is not None and named:
                left.append(self._left(path, _NAMED))
            elif version is not None and is_partition:
                left.append(self._left(path, _PARTITION))
            elif begin is not None and (begin >= mark or path in needed or version is not None):
                raise _Again
            elif begin is not None and not path.startswith("_lakemerge/consumers/"):
                waiting[path.rpartition("/")[0]].append(path)
            else:
                left.append(self._left(path, "it is no file of the table's rows; delete or change it yourself"))
        why = "files with the keys go once nothing needs earlier versions"
        return [Waiting(path=folder, reason=why, until=None) for folder in waiting], left

    def _left(self, path: str, reason: str) -> Left:
        """A place without the keys that its name may have."""
        shown = path if not self._sought.in_text(path) else f"{path.rpartition('/')[0]}/(a name with a key)"
        return Left(path=shown, reason=reason)

    def _elsewhere(self) -> list[tuple[str, Found]]:
        """What the folders hold that the caller named."""
        return [
            (url, search_folder(open_store(url, self._options.storage_options), self._sought))
            for url in self._options.search
        ]

    def _told(
        self, waits: Sequence[Waiting], left: Sequence[Left], found: Found, elsewhere: Sequence[tuple[str, Found]]
    ) -> ForgetResult:
        lasting = list(left)
        searched = [
            Searched(path=folder, files=files, unread=sum(_is_in(path, folder) for path in found.unread))
            for folder, files in sorted(found.files.items())
        ]
        for url, there in elsewhere:
            searched.append(Searched(path=url, files=sum(there.files.values()), unread=len(there.unread)))
            lasting += [self._left(f"{url}/{path}", "it holds a key; erase it there") for path in there.hits]
            lasting += [
                self._left(f"{url}/{path}", "it could not be read; look into it yourself") for path in there.unread
            ]
        times = [wait.until for wait in waits]
        state: Literal["done", "waiting", "found"] = "waiting" if waits else "found" if lasting else "done"
        return ForgetResult(
            state=state,
            keys=len(self._sought),
            rows=self._rows,
            version=self._view.version,
            oldest_version=self._view.state.oldest_version,
            until=max((time for time in times if time is not None), default=None) if None not in times else None,
            digest=self._digest,
            salt=self._salt,
            searched=tuple(searched),
            waits=tuple(waits),
            left=tuple(lasting),
            unreachable=_UNREACHABLE,
            seconds=time.monotonic() - self._started,
        )


def _files_of(file_slice: FileSlice) -> list[str]:
    paths = [file.path for file in file_slice.row_files]
    paths += [path for path in (file_slice.tombstones,) if path is not None]
    # A minor entry has its own tombstones, and the base file's are there until it is rewritten.
    if file_slice.base is not None and file_slice.base.tombstones is not None:
        paths.append(file_slice.base.tombstones)
    return list(dict.fromkeys([*paths, *(block.file.path for block in file_slice.blocks)]))


def _clears(keys: pa.Table) -> pa.RecordBatchReader:
    """Records that clear keys, and remember nothing of them: they have no ordering."""
    kinds = pa.array(np.full(keys.num_rows, CLEAR, dtype=np.int8))
    return keys.append_column(pa.field(KIND_COLUMN, pa.int8()), kinds).to_reader()


def _is_log_of(domain: DomainMetadata, version: int) -> bool:
    return domain.domain.startswith(LOG_DOMAIN_PREFIX) and not domain.removed and log_version(domain) == version


def _log_version(path: str) -> int | None:
    """The version of a file of the log; ``None`` for other files."""
    found = _VERSION.match(path.removeprefix(f"{DELTA_LOG}/")) if path.startswith(f"{DELTA_LOG}/") else None
    return None if found is None else int(found[1])


def _ingest_words(job: str, kind: str) -> str:
    if kind == "ledger":
        return f"the name of a source file of job {job!r} has a key: reset the job, once the file is gone"
    return f"records that job {job!r} set aside hold a key; they are taken out on request"


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/") if folder != "." else "/" not in path


def _instant(epoch_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC)
