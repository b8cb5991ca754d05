"""What keeps a table healthy, as methods of :class:`lakemerge.LakeTable`: thin doors to the package ``compaction``.

``compaction`` knows tables, tables know it only here, inside the methods.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast, overload

from lakemerge.errors import CommitConflictError
from lakemerge.format.ingests import check_job_name
from lakemerge.handle import Handle
from lakemerge.layout.travel import unless_vacuumed
from lakemerge.layout.view import TableView
from lakemerge.options import Settings
from lakemerge.results.findings import CheckResult
from lakemerge.results.plans import CompactionPlan, CompactionStrategy, Order
from lakemerge.results.results import (
    CompactionResult,
    ExpiryResult,
    LogCompactionResult,
    MaintenanceResult,
    RescaleResult,
    VacuumResult,
)
from lakemerge.results.schedule import Auto, Schedule
from lakemerge.table.opening import open_handle
from lakemerge.table.session import TableSession
from mergers import Merger

if TYPE_CHECKING:
    from lakemerge.ingest import Archive, Bins, Files, Fragments, IngestJob
    from lakemerge.table import LakeTable

__all__ = ["TableServices"]

_logger = logging.getLogger(__name__)


class TableServices(ABC):
    """Services of a table; each commits by itself, never blocks writers and never changes an answer."""

    _handle: Handle
    _view: TableView
    _session: TableSession

    @abstractmethod
    def _writable(self) -> TableView:
        """The tip; raises :class:`lakemerge.InputError` where the table stands at an earlier version."""

    @abstractmethod
    def _follow(self) -> None:
        """After a commit: stand at its version."""

    @staticmethod
    def check(
        path: str | os.PathLike[str],
        *,
        rebuild_checkpoints: bool = False,
        storage_options: Mapping[str, object] | None = None,
        mergers: Sequence[type[Merger]] = (),
        settings: Settings | None = None,
    ) -> CheckResult:
        """Verify the latest version of a table, also one that cannot be opened: its log and checkpoints, that
        files are there with their sizes, that rows are sorted, unique and where they belong, that text is UTF-8,
        that statistics are true, and that logs can be merged. Reads the columns of the key and those with text or
        decimals of everything, all columns where there are logs or winner files; changes nothing.

        :param rebuild_checkpoints: write damaged checkpoints anew, from what is older, and check again.
        :raises lakemerge.NotATableError: there is nothing, or a plain Delta table.
        """
        from compaction import check_table

        handle = open_handle(path, storage_options, mergers, settings)
        return check_table(handle, rebuild_checkpoints=rebuild_checkpoints)

    @overload
    def compact(
        self,
        *,
        minor: bool = False,
        strategy: Order | CompactionStrategy | None = None,
        where: str | None = None,
        max_bytes: int | None = None,
        dry_run: Literal[False] = False,
    ) -> CompactionResult: ...
    @overload
    def compact(
        self,
        *,
        minor: bool = False,
        strategy: Order | CompactionStrategy | None = None,
        where: str | None = None,
        max_bytes: int | None = None,
        dry_run: Literal[True],
    ) -> CompactionPlan: ...

    def compact(
        self,
        *,
        minor: bool = False,
        strategy: Order | CompactionStrategy | None = None,
        where: str | None = None,
        max_bytes: int | None = None,
        dry_run: bool = False,
    ) -> CompactionResult | CompactionPlan:
        """Merge live logs into base files: all of them, unless told otherwise. Never blocks writers; never
        changes an answer.

        A *minor* compaction leaves base files as they are and writes the changed rows beside them, in
        proportion to what changed since the last one; reads then need no merge. Other Delta readers
        see what changed only after a full one.

        Buckets are committed in groups (``Settings.target_commit_bytes``): a run that is killed keeps those
        that it committed, and the next one goes on with the rest. A group that another compaction changed
        meanwhile is not committed; the result's ``lost`` names it, and nothing is lost.
        Where a total does not fit its column, that part of the table stays as it is; the result's
        ``skipped`` and a warning in the log name key and column.

        Runs on Spark where the table was opened with a session, else in this process. Progress goes to the
        logger ``compaction`` at level INFO.

        :param strategy: which base files are due, and in which order; an order alone
            (``"read-amplification"``) takes all that have logs.
        :param where: a SQL condition over partition columns: only these partitions.
        :param max_bytes: end after about so many bytes read and written, as estimated; the rest is for the
            next run.
        :param dry_run: only make the plan: what would be merged, why, at what cost and for what gain.
        :raises lakemerge.FilterError: ``where`` names a column that the table is not partitioned by.
        :raises lakemerge.CommitConflictError: a vacuum took the version that was being compacted.
        """
        from compaction import compact, plan_compaction

        view = self._writable()
        due = CompactionStrategy.of(strategy)
        with unless_vacuumed(self._handle.log, view.snapshot):
            if dry_run:
                return plan_compaction(self._handle, view, minor=minor, strategy=due, where=where, max_bytes=max_bytes)
            spark = self._session.of_services()
            result = compact(
                self._handle, view, minor=minor, strategy=due, where=where, max_bytes=max_bytes, spark=spark
            )
        self._follow()
        return result

    def ingest(
        self,
        name: str,
        source: Files | None = None,
        *,
        bins: Bins | None = None,
        fragments: Fragments | None = None,
        kind_column: str | None = None,
        envelope: Literal["debezium", "dms"] | None = None,
        bad_records: Literal["fail", "quarantine"] = "fail",
        max_bad_records: int | None = 0,
        rescued_column: str | None = None,
        merge_schema: bool = False,
        blocks_per_window: int = 200,
        bytes_per_window: int | str = "1GiB",
        after: Literal["keep", "delete", "archive"] | Archive = "keep",
        max_read_amplification: float | None = None,
    ) -> IngestJob:
        """A job that fills the table from files, each record exactly once (docs/guides/ingest.md). Nothing is listed or
        read before :meth:`lakemerge.ingest.IngestJob.run`.

        :param name: of the job; what it did is kept in the table under this name.
        :param source: where the files are. A job without one can be looked at, and told to retry or reset.
        :param bins: how files are gathered before they are worth a commit; by default they are not.
        :param fragments: sets of files that belong together, in the place of ``bins``.
        :param kind_column: the column of the files that holds each record's kind, as for :meth:`LakeTable.upsert`.
        :param envelope: what records are wrapped in.
        :param bad_records: whether a record that cannot be taken up makes its window fail, or is set aside.
        :param max_bad_records: how many of a window may be set aside; ``None``: any number.
        :param rescued_column: a STRING column that takes, as JSON, what files have and the table has no column for.
        :param merge_schema: add columns that only the files have, as for :meth:`LakeTable.upsert`.
        :param blocks_per_window: blocks that are committed at once, at most.
        :param bytes_per_window: the same in bytes of files.
        :param after: what becomes of files that are in the table.
        :param max_read_amplification: above it maintenance comes before the next window.
        :raises lakemerge.InputError: what contradicts itself; everything is listed.
        """
        from lakemerge.ingest.job import IngestJob
        from lakemerge.ingest.settings import JobSettings, OpenTable

        table = cast("LakeTable", self)
        settings = None
        if source is not None:
            settings = JobSettings.checked(
                source,
                bins=bins,
                fragments=fragments,
                kind_column=kind_column,
                envelope=envelope,
                bad_records=bad_records,
                max_bad_records=max_bad_records,
                rescued_column=rescued_column,
                merge_schema=merge_schema,
                blocks_per_window=blocks_per_window,
                bytes_per_window=bytes_per_window,
                after=after,
                max_read_amplification=max_read_amplification,
            )
        opened = OpenTable(table, self._writable, self._maintain_inline, self._session.of_services())
        return IngestJob(opened, check_job_name(name), settings)

    def maintain(self, *, stop: Callable[[], bool] | None = None) -> MaintenanceResult:
        """Do what is due by the table's schedule: full or minor compaction, log compaction, forgetting old
        deletes, vacuum. Call it as often as you like: what is not due costs a look at the metadata.

        The schedule is in table properties (docs/guides/maintenance.md), which :meth:`alter` sets. Several
        maintainers at once waste work, never data. If a run is killed, the next run continues it.

        :param stop: asked between services, and between the commits of a compaction; true ends the run there.
        """
        from compaction import maintain

        result = maintain(self._handle, self._writable(), spark=self._session.of_services(), stop=stop)
        self._follow()
        return result

    def maintain_inline(self) -> None:
        """What a write does in the end; for writers of streams. Not part of the public API."""
        self._maintain_inline()

    def _maintain_inline(self, version: int | None = None) -> None:
        """After a write, where a table property asks for it. The write has landed, so what fails here must not
        make it look like a failure; it is due still.

        :param version: that of the write; by default the one where the table stands.
        """
        landed = self._view.version if version is None else version
        try:
            schedule = Schedule.of(self._view.snapshot.metadata.configuration)
            if schedule.inline:
                self.maintain()
            elif schedule.auto is not None:
                self._maintain_automatically(schedule.auto, landed)
        except CommitConflictError as conflict:
            _logger.info("maintenance of %s after a write: somebody was first: %s", self._handle.store.url, conflict)
        except Exception:
            _logger.warning("maintenance of %s after a write failed", self._handle.store.url, exc_info=True)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"this ended maintenance; the write before it has landed, as version {landed}")
            raise

    def _maintain_automatically(self, auto: Auto, version: int) -> None:
        from compaction import after_write

        with unless_vacuumed(self._handle.log, self._view.snapshot):
            decision = after_write(self._handle, self._view, auto, version=version, spark=self._session.of_services())
        if decision is not None and decision.service != "nothing":
            self._follow()

    @staticmethod
    def _maintenance_told(view: TableView) -> str:
        """What writes are followed by, in words."""
        from compaction import told

        return told(view)

    def compact_logs(self, *, size_ratio: float = 2.0) -> LogCompactionResult:
        """Merge the logs of many commits into few packed logs, without touching base files: hundreds of
        small commits then stay cheap to read, for the price of rewriting their rows once.

        Where the table's merger allows it (merge semantics, section 6), only the records that decide are kept;
        elsewhere they are all kept in commit order. Never blocks writers, never changes an answer, and earlier
        versions still read the original logs.

        Runs on Spark where the table was opened with a session, else in this process.

        :param size_ratio: an older log joins the newer ones unless it is larger than so many times all of
            them together, so that a record is rewritten a logarithmic number of times over a table's life;
            ``math.inf`` merges all logs.
        :raises lakemerge.CommitConflictError: another compaction, or a vacuum, took some of these logs up meanwhile.
        """
        from compaction import compact_logs

        view = self._writable()
        with unless_vacuumed(self._handle.log, view.snapshot):
            result = compact_logs(self._handle, view, size_ratio=size_ratio, spark=self._session.of_services())
        self._follow()
        return result

    def rescale(self, *, buckets: int) -> RescaleResult:
        """Change the number of buckets, to spread a table that grew over more buckets or to gather one that
        shrank into fewer. Readers and writers go on as ever, under the old count or the new one.

        No log is rewritten. Base files are, bucket by bucket, in commits that also merge their logs; tables of
        some size take several. Every version in between is a right one. A call that was killed, or lost too
        often against compactions, is finished by calling it again; calling it with the old count takes it back.

        Runs on Spark where the table was opened with a session, else in this process.

        :param buckets: buckets per partition, a power of two.
        :raises lakemerge.InputError: it is none.
        :raises lakemerge.CommitConflictError: somebody else changed the bucket count or the schema meanwhile,
            compactions were faster again and again, or a vacuum took the version that was being rewritten.
        """
        from compaction import rescale

        view = self._writable()
        with unless_vacuumed(self._handle.log, view.snapshot):
            result = rescale(self._handle, view, buckets, spark=self._session.of_services())
        self._follow()
        return result

    def vacuum(
        self, *, dry_run: bool = True, retention: dt.timedelta | None = None, enforce_retention: bool = True
    ) -> VacuumResult:
        """Delete the files that no version within the retention needs, those of killed writes, and old commits
        of the log. **By default a dry run**: it says what would be deleted.

        Versions older than the retention cannot be read, saved or restored afterwards, savepoints aside.
        Never blocks writers; one that began before the oldest version kept is refused when it commits,
        and nothing of it is lost but its time.

        :param retention: how long ago a version may have been replaced and is still readable; by default the table
            property ``delta.deletedFileRetentionDuration`` (7 days). Ages are by the store's clock; a dry run writes
            nothing, not even to ask for the store's time, and goes by this host's. Commits stay for
            ``delta.logRetentionDuration`` (30 days), and longer where they are needed.
        :param enforce_retention: whether to refuse a shorter one than that property.
        :raises lakemerge.InputError: the retention is too short, or a table property is no duration.
        :raises lakemerge.UnsupportedFeatureError: a newer library keeps files in the table that this one does not
            know; nothing was deleted.
        """
        from compaction import vacuum

        result = vacuum(
            self._handle,
            self._writable(),
            dry_run=dry_run,
            retention=retention,
            enforce_retention=enforce_retention,
        )
        self._follow()
        return result

    def expire_tombstones(self, *, retention: dt.timedelta | None = None) -> ExpiryResult:
        """Forget old deletes, so that tombstones do not grow for ever: a record that is older than such a
        delete and arrives later than this is taken as new.

        Deletes are forgotten up to a version, and only where all logs up to it are compacted.

        :param retention: how long ago a delete must have been committed; by default the table property
            ``lakemerge.tombstoneRetention`` (7 days). Ages are by the store's clock.
        :raises lakemerge.CommitConflictError: a vacuum took the version that was looked at.
        """
        from compaction import expire_tombstones

        view = self._writable()
        with unless_vacuumed(self._handle.log, view.snapshot):
            result = expire_tombstones(self._handle, view, retention=retention)
        self._follow()
        return result
