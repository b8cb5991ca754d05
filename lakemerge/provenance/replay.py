"""Replay: commits the records of one table once more to another table, commit by commit.

Each commit of the source becomes one commit of the target, under the transaction
``lakemerge.replay.<id of the source>`` with the source's version as its number. So a replay that is repeated, or that
goes on after it was killed, commits nothing twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction import compact_open, maintain_after_write, make_room
from lakemerge.commits.appends import commit_load, commit_note
from lakemerge.commits.past import PastCommit
from lakemerge.commits.provenance import Provenance
from lakemerge.commits.retention import commit_expiry
from lakemerge.delta import AddFile, AlreadyDone, DomainMetadata
from lakemerge.errors import CommitConflictError, InputError, NotATableError, VersionNotFoundError
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import Partition
from lakemerge.format.names import EXPIRY_DOMAIN, KIND_COLUMN, STATE_DOMAIN
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.provenance.key_records import nullable
from lakemerge.provenance.origins import custody_of, find_commits
from lakemerge.provenance.record_streams import KIND, kept_rows, records_of, with_kinds
from lakemerge.provenance.retained import Retained, check_since, retained
from lakemerge.provenance.short import short_notes
from lakemerge.read.filter.filter import Filter, parse_filter
from lakemerge.read.merge import MergedRange, MergeSpec, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles, shaped
from lakemerge.read.scan import scan
from lakemerge.results.display import Shown
from lakemerge.results.writes import UpsertResult
from lakemerge.schema.widening import is_wider
from lakemerge.table.alter import SchemaChange, alter
from lakemerge.table.create import choose_merger, create_table
from lakemerge.table.open_table import OpenTable
from lakemerge.table.opening import open_handle, open_table
from lakemerge.write.base_file import BaseWriteSpec, ordinals_needed, write_base_files
from lakemerge.write.discard import discard
from lakemerge.write.overwrite import OverwriteRequest, overwrite_arrow
from lakemerge.write.pack import pack
from lakemerge.write.start import OwnTxn, Write, WriteRequest, plan_frame
from lakemerge.write.upsert import finish, load_in_process
from mergers import Merger
from mergers.kernel import VERSION_COLUMN, tombstone_schema
from mergers.restart import CLEAR, SET, RecordKind
from mergers.wording import argument

if TYPE_CHECKING:
    from lakemerge.delta import AddFile
    from lakemerge.table.open_table import OpenTable

__all__ = ["REPLAY_APPLICATION", "Replay", "ReplayResult", "commit_frame", "commit_number", "load_state"]


REPLAY_APPLICATION = "lakemerge.replay."
"""The beginning of a replay's application id. The id of the source follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult(Shown):
    """What a replay did. The counts are 0 if everything was replayed already."""

    path: str
    """The path of the other table."""
    version: int
    """The version of the other table."""
    begins: int
    """The version of the source whose rows the replay began with."""
    until: int
    """The version of the source up to which the other table has the records."""
    commits: int
    """How many commits this call made."""
    records: int
    """How many records this call committed, without the rows that it began with."""
    notes: tuple[str, ...] = ()
    """Sentences on what could not be replayed exactly."""

    def __repr__(self) -> str:
        return (
            f"ReplayResult(path={self.path!r}, version={self.version}, begins={self.begins}, until={self.until}, "
            f"commits={self.commits}, records={self.records:,})"
        )

    def report(self) -> tuple[tuple[str, str], ...]:
        """Names and values to show to people, one pair a line."""
        return (
            ("replayed into", self.path),
            ("versions", f"{self.begins} to {self.until}"),
            ("committed", f"{self.records:,} records in {self.commits} commits"),
            ("version there", str(self.version)),
            *(("note", note) for note in self.notes),
        )


class Replay:
    """One replay of a table; see :meth:`lakemerge.LakeTable.replay`."""

    def __init__(
        self,
        handle: Handle,
        tip: TableView,
        *,
        transform: Callable[[pa.Table], pa.Table] | None,
        since: int | None,
        until: int | None,
        where: str | None,
    ) -> None:
        check_since(since, tip)
        if until is not None and (type(until) is not int or not 0 <= until <= tip.version):
            raise InputError(f"{argument('until')} must be a version from 0 to {tip.version}, not {until!r}")
        if until is not None and since is not None and since > until:
            raise InputError(f"{argument('since')} must not be above {argument('until')}")
        self._handle = handle
        self._end = tip if until is None else handle.view_at(until, of=tip.snapshot)
        self._transform = transform
        self._since = since or 0
        self._where: Filter | None = parse_filter(where, self._end.config.schema)
        self._application = REPLAY_APPLICATION + self._end.snapshot.metadata.id

    def into(
        self,
        path: str | os.PathLike[str],
        *,
        merger: str | Merger | None,
        options: Mapping[str, object] | None,
        storage_options: Mapping[str, object] | None,
    ) -> ReplayResult:
        classes = list(self._handle.registry)
        try:
            table = open_table(path, storage_options=storage_options, mergers=classes)
        except NotATableError:
            table = None
        if table is not None and table.view.snapshot.metadata.id == self._end.snapshot.metadata.id:
            raise InputError("a table cannot be replayed into itself; give another path")
        if table is not None:
            self._check_same(table, merger, options)
        done = None if table is None else self._done(table)
        known = self._known(done, is_empty=table is None or table.view.is_empty)
        if table is None:
            begins = known.start.config
            handle = open_handle(path, storage_options, classes, None).knowing(merger)
            made = create_table(
                handle,
                self._end.config.schema,
                key=begins.key,
                ordering=begins.ordering,
                merger=begins.merger_id if merger is None else merger,
                options=dict(begins.merger_options) if merger is None and options is None else options,
                partition_by=begins.partition_by,
                buckets=known.start.config.buckets or self._end.config.buckets,
                name=None,
                description=None,
                properties=None,
            )
            table = OpenTable.without_session(handle, made)
        run = _Run(self, table, known)
        merges_alike = _merging(table.view.config) == _merging(self._end.config)
        if not merges_alike or self._where is not None or self._transform is not None:
            # Only the records of this call: those before were told of by the call that replayed them.
            run.notes += short_notes(self._handle, known) if done is None or known.commits else []
        if done is None or known.is_loaded:
            run.begin()
        for commit in known.commits:
            run.take(commit)
        run.end()
        return self._result(run, begins=known.start.version if done is None else done)

    def _done(self, table: OpenTable) -> int | None:
        """The last version of this table that the other one has."""
        txn = table.view.snapshot.txns.get(self._application)
        return None if txn is None else txn.version

    def _known(self, done: int | None, *, is_empty: bool) -> Retained:
        """The records still to be replayed.

        :param done: the version up to which they were replayed.
        :param is_empty: whether the other table has no rows and no logs.
        """
        if done is None:
            return retained(self._handle, self._end, self._since)
        if done >= self._end.version:
            return retained(self._handle, self._end, None)
        try:
            known = retained(self._handle, self._end, done)
        except VersionNotFoundError as error:
            raise VersionNotFoundError(
                f"the replay stands at version {done}, and {error.message}. Replay into a new table",
                version=done,
            ) from error
        # Before a first load there are no records. If the other table has some, that load came after a restore.
        if known.start.version != done and not (known.is_loaded and is_empty):
            raise CommitConflictError(
                f"the table was restored to a version below {done}, up to which it was replayed: what was replayed "
                "since is no longer its history. Replay into a new table",
                version=done,
            )
        return known

    @staticmethod
    def _check_same(table: OpenTable, merger: str | Merger | None, options: Mapping[str, object] | None) -> None:
        """Raise an error if the caller asks for another merger than an existing table has."""
        config = table.view.config
        name = merger.name if isinstance(merger, Merger) else merger
        other = name not in (None, config.merger_name, config.merger_id)
        if not other and (options is not None or isinstance(merger, Merger)):
            # A merger may keep more than it is given, so what it keeps is compared.
            wanted = choose_merger(table.handle, merger or config.merger_id, options, config.shape)
            other = dict(wanted.options()) != dict(config.merger_options)
        if other:
            raise InputError(
                f"the table at {table.url} merges by {config.merger_name!r} with options "
                f"{dict(config.merger_options)}; replay into a new table to merge in another way"
            )

    def _result(self, run: _Run, *, begins: int) -> ReplayResult:
        return ReplayResult(
            path=run.table.url,
            version=run.table.version,
            begins=begins,
            until=self._end.version,
            commits=run.commits,
            records=run.records,
            notes=tuple(run.notes),
        )


@dataclass(slots=True)
class _Run:
    """A replay under way between two tables."""

    replay: Replay
    table: OpenTable
    known: Retained
    commits: int = 0
    records: int = 0
    notes: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Write the rows before the first records, as base files if possible, and otherwise as records."""
        replay, start = self.replay, self.known.start
        number = start.version
        if start.is_empty:
            return
        view = self.table.view
        txn = (replay._application, number)
        told = self._custody_of_start()
        as_it_is = replay._transform is None and _alike(view.config, start.config)
        if as_it_is and view.is_empty:
            load_state(replay._handle, self.known, self.table.handle, view, txn, replay._where, told)
        else:
            self.notes.append(
                f"the rows of version {number} were committed as records, and deletes before it are not remembered"
            )
            reader = scan(replay._handle, start, columns=None, filter=None)
            commit_frame(self.table, [with_kinds(reader, "+I", replay._where, replay._transform)], txn, told)
        self.commits += 1

    def end(self) -> None:
        """Follow a change of the source's columns whose commit a vacuum has removed."""
        if self.replay._transform is None:
            self._grow(self.replay._end.config.schema, self.table.view.config.schema)

    def take(self, commit: PastCommit) -> None:
        """Replay one commit of the source."""
        self._follow_definition(commit)
        logs = {domain.domain for domain in commit.new_logs}
        if logs:
            replay = self.replay
            txn = (replay._application, commit.version)
            for log in self.known.view.log_commits:
                if log.domain_name in logs:
                    config = self._config_at(commit.version)
                    readers = records_of(replay._handle, log, config, replay._where, replay._transform)
                    self.records += commit_frame(self.table, readers, txn, self._custody(commit))
                    self.commits += 1
        elif commit.overwrites:
            self._overwrite(commit)
        elif any(isinstance(a, DomainMetadata) and a.domain == EXPIRY_DOMAIN for a in commit.actions):
            self._expire(commit)

    def _overwrite(self, commit: PastCommit) -> None:
        """Put the rows of an overwrite in the place of those that it was about. They are its base files."""
        replay, config = self.replay, self._config_at(commit.version)
        whole = any(reset.partition is None for reset in commit.overwrites)
        problem = None
        if replay._transform is not None:
            problem = "a transform is about records, and these are rows"
        elif not whole and self.table.view.config.partition_by != config.partition_by:
            problem = "the other table has other partitions"
        if problem is not None:
            raise InputError(
                f"rows were overwritten at version {commit.version}, which cannot be replayed: {problem}. Begin there, "
                f"with {argument('since', commit.version)} and a new table",
                version=commit.version,
            )
        tip, handle = self.known.tip, replay._handle
        adds = {action.path: action for action in commit.actions if isinstance(action, AddFile)}
        domains = {STATE_DOMAIN: tip.snapshot.domains[STATE_DOMAIN]}
        view = TableView(replace(tip.snapshot, files=adds, domains=domains), config, handle.store, handle.decoded)
        rows = scan(handle, view, columns=None, filter=None)
        self.records += commit_overwritten(
            self.table,
            kept_rows(rows, replay._where),
            (replay._application, commit.version),
            self._custody(commit),
            None if whole else frozenset(reset.partition or () for reset in commit.overwrites),
        )
        self.commits += 1

    def _custody(self, commit: PastCommit) -> dict[str, object]:
        return custody_of(self.replay._handle, self.known.tip.snapshot, commit)

    def _custody_of_start(self) -> dict[str, object]:
        """Where the rows before the first records came from. Only if one commit brought all of them, it is told."""
        handle, version = self.replay._handle, self.known.start.version
        found = find_commits(handle, [version]) if self.known.is_loaded else {}
        if version in found:
            return self._custody(found[version])
        return {"version": version, "table": handle.store.url, "tableId": self.known.tip.snapshot.metadata.id}

    def _config_at(self, version: int) -> TableConfig:
        return [config for since, config in self.known.configs() if since <= version or since == self._first][-1]

    @property
    def _first(self) -> int:
        return self.known.start.version

    def _follow_definition(self, commit: PastCommit) -> None:
        """Apply a change of the source's definition to the other table, if that had the same definition before."""
        if commit.metadata is None:
            return
        before, after = self._config_at(commit.version - 1), self._config_at(commit.version)
        if commit.restored is not None:
            # The other table may have followed a change that a restore has undone.
            before = self.replay._handle.view_at(commit.version - 1, of=self.known.tip.snapshot).config
        own = self.table.view.config
        if _merging(before) != _merging(after) and _merging(own) == _merging(before):
            compact_open(self.table)
            alter(self.table, SchemaChange(), merger=after.merger_id, options=dict(after.merger_options))
        if self.replay._transform is None and commit.restored is None:
            self._grow(after.schema, own.schema)

    def _grow(self, wanted: pa.Schema, own: pa.Schema) -> None:
        known = {field.name: field.type for field in own}
        if added := [field for field in nullable(wanted) if field.name not in known]:
            alter(self.table, SchemaChange(add_columns=pa.schema(added)))
        plain = [field for field in wanted if field.name in known and not pa.types.is_nested(field.type)]
        # A column that a restore made narrow again stays wide here.
        if wider := {field.name: field.type for field in plain if is_wider(known[field.name], field.type)}:
            compact_open(self.table)
            alter(self.table, SchemaChange(widen=wider))

    def _expire(self, commit: PastCommit) -> None:
        """Make an expiry at the same place among the records."""
        for expiry in self.known.expiries:
            if expiry.version == commit.version:
                compact_open(self.table)
                horizon = self._version_of(expiry.horizon)
                if horizon is not None:
                    commit_expiry(self.table.handle, self.table.view, horizon=horizon)
                commit_number(self.table, (self.replay._application, commit.version))
                self.commits += 1

    def _version_of(self, source: int) -> int | None:
        """The version of the other table that has the records up to a version of the source."""
        found = [
            entry.version if told["version"] <= source else entry.version - 1
            for entry in self.table.history()
            if isinstance(told := entry.info.get("replay"), dict)
            and (told["version"] <= source or (told.get("early") or -1) == source)
        ]
        return max(found, default=None)


def _alike(one: TableConfig, other: TableConfig) -> bool:
    """Whether rows are in the same partitions and buckets in both tables."""
    return (one.key, one.ordering, one.partition_by, one.buckets) == (
        other.key,
        other.ordering,
        other.partition_by,
        other.buckets,
    )


def _merging(config: TableConfig) -> tuple[str, dict[str, object]]:
    return config.merger_id, dict(config.merger_options)


_OPERATION = Operation.REPLAY


def commit_frame(
    table: OpenTable, records: Sequence[pa.RecordBatchReader], txn: tuple[str, int], told: Mapping[str, object]
) -> int:
    """Commit the records of one version of the source, in their order. Returns how many there were.

    :param records: streams one after the other, each with the columns that its records carry.
    :param told: where they came from, see :func:`lakemerge.provenance.origins.custody_of`.
    """
    found = [_with_states(reader) for reader in records]
    # A commit is a transaction's as a whole, or not at all; a reader without records fits both.
    states = any(of_states for _, of_states, _ in found)
    readers = [reader for reader, _, empty in found if not (states and empty)]
    request = WriteRequest(
        kind_column=None if states else KIND, states=states, info={"replay": dict(told)}, merge_schema=True
    )
    schema = pa.unify_schemas([reader.schema for reader in readers])
    make_room(table)
    write = Write.start(table.handle, table.view, schema, request, estimated_bytes=None)
    if isinstance(write, UpsertResult):
        raise AssertionError("a write without a transaction is never done already")
    provenance = replace(write.provenance, operation=_OPERATION, app_txn=txn)
    write = replace(write, provenance=provenance)
    try:
        packed = []
        for task, reader in enumerate(readers):
            kind_column = request.kind_column
            config, merger = write.begin.config, write.pack.merger
            plan = plan_frame(reader.schema, config, merger, kind_column=kind_column, states=states)
            packed.append(pack(reader, replace(write.pack, frame=plan), task))
    except BaseException:
        write.discard()
        raise
    return _maintained(table, finish(write, packed, load_file_slices=load_in_process))


def _with_states(records: pa.RecordBatchReader) -> tuple[pa.RecordBatchReader, bool, bool]:
    """The records, whether they are those of a transaction, and whether there are none. The records of a transaction
    have the column of kinds of sets and clears."""
    batches = iter(records)
    first = next((batch for batch in batches if batch.num_rows), None)
    codes = {RecordKind.SET.symbol: SET, RecordKind.CLEAR.symbol: CLEAR}
    if first is None or first.column(KIND)[0].as_py() not in codes:
        both = batches if first is None else chain([first], batches)
        return pa.RecordBatchReader.from_batches(records.schema, both), False, first is None
    place = records.schema.get_field_index(KIND)
    schema = records.schema.set(place, pa.field(KIND_COLUMN, pa.int8()))

    def coded() -> Iterator[pa.RecordBatch]:
        for batch in chain([first], batches):
            kinds = pc.index_in(batch.column(KIND), pa.array(list(codes), pa.string()))
            found = pa.array(list(codes.values()), pa.int8()).take(kinds)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns[:place], found, *batch.columns[place + 1 :]], schema=schema
            )

    return pa.RecordBatchReader.from_batches(schema, coded()), True, False


def commit_overwritten(
    table: OpenTable,
    rows: pa.RecordBatchReader,
    txn: tuple[str, int],
    told: Mapping[str, object],
    partitions: frozenset[Partition] | None,
) -> int:
    """Overwrite some partitions (``None``: all) with the rows of an overwrite of the source. Returns how many there
    were."""
    own: Any = OwnTxn(*txn)
    request = OverwriteRequest(
        txn=own,
        info={"replay": dict(told)},
        partitions=partitions,
        merge_schema=True,
        operation=_OPERATION,
    )
    return _maintained(table, overwrite_arrow(table.handle, table.view, rows, request))


def _maintained(table: OpenTable, written: UpsertResult) -> int:
    """Follow a write by what the table asks for. Returns how many records it has."""
    table.follow()
    maintain_after_write(table, written.version)
    return written.rows


def commit_number(table: OpenTable, txn: tuple[str, int]) -> None:
    """Note that a version without records is replayed."""
    handle = table.handle
    parameters = {"version": txn[1]}
    commit_note(handle, table.view, Provenance(_OPERATION, parameters, handle.new_transaction(), txn))


def load_state(
    source: Handle,
    known: Retained,
    handle: Handle,
    begin: TableView,
    txn: tuple[str, int],
    where: Filter | None,
    told: Mapping[str, object],
) -> None:
    """Write the rows and remembered deletes of the version that a replay begins with, as a table's first base files.

    No merger is involved, because the rows are merged already.
    """
    start = known.start
    spec = MergeSpec(source.store, start.config, source.merger(start), source.settings)
    transaction = handle.new_transaction()
    write = BaseWriteSpec.of(handle, begin, transaction, buckets=start.config.buckets or 1)
    early = max(
        (e.horizon for e in known.expiries if start.version > e.horizon and e.version > start.version), default=-1
    )
    adds: list[AddFile] = []
    first, ordinals = begin.state.next_ordinal, 0
    try:
        for file_slice in start.file_slices:
            count = ordinals_needed(file_slice.stored_bytes, handle.settings)
            with ParquetFiles(source.store) as files:
                ranges = merge_file_slice(spec, file_slice, columns=start.config.schema.names, sort=True, files=files)
                adds += write_base_files(
                    _moved(ranges, begin, early, where),
                    replace(write, buckets=file_slice.buckets),
                    file_slice.bucket_id,
                    lower=file_slice.lower,
                    ordinals=range(first + ordinals, first + ordinals + count),
                    now_ms=handle.now_ms(),
                )
            ordinals += count
        custody = {**told, "early": early if early >= 0 else None}
        parameters = {"mode": "load", "version": start.version}
        provenance = Provenance(_OPERATION, parameters, transaction, txn, info={"replay": custody})
        outcome = commit_load(
            handle, begin, adds, provenance, {"numFiles": len(adds)}, buckets=write.buckets, ordinals=ordinals
        )
    except BaseException:
        discard(handle.store, transaction, write.name)
        raise
    if isinstance(outcome, AlreadyDone):
        # Another replay was faster, so no version names these files.
        discard(handle.store, transaction, write.name)


def _moved(ranges: Iterator[MergedRange], begin: TableView, early: int, where: Filter | None) -> Iterator[MergedRange]:
    """Ranges with the columns of the other table. Deletes that a later expiry will forget get an early version, below
    its horizon; the horizon lies before everything that is replayed."""
    schema, deleted = nullable(begin.config.schema), tombstone_schema(begin.config.shape)
    for part in ranges:
        rows = part.rows if where is None else where.kept(part.rows)
        tombstones = shaped(part.tombstones, deleted)
        versions = tombstones.column(VERSION_COLUMN).to_numpy()
        moved = np.where(versions <= early, begin.version, begin.version + 1)
        place = deleted.get_field_index(VERSION_COLUMN)
        tombstones = tombstones.set_column(place, deleted.field(place), pa.array(moved, pa.int64()))
        yield MergedRange(shaped(rows, schema), tombstones)
