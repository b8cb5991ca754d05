"""Every record of a key, and what the merger did with it.

The one kernel folds the records with the table's merger, one record at a time. There is no second implementation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.pools import thread_pool
from lakemerge.commits.past import PastCommit
from lakemerge.format.config import TableConfig
from lakemerge.format.expiries import Expiry, expiries_of
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.provenance.explanation import Explanation, Step
from lakemerge.provenance.key_records import KeyRecord, KeyState, nullable, read_records, read_state
from lakemerge.provenance.origins import UNKNOWN, find_commits, source_of
from lakemerge.provenance.retained import Retained, retained, unpacked
from lakemerge.provenance.short import in_words, of_load, shorts
from lakemerge.provenance.verdicts import Change, Verdict, judged
from lakemerge.python_values import python_rows
from lakemerge.read.filter.prune import file_slices_of_keys
from lakemerge.read.lookup import sorted_keys
from lakemerge.read.parquet.files import shaped
from mergers import Frame, Merger, TableShape, fold
from mergers.failing import FAILURES
from mergers.kernel import VERSION_COLUMN, overlay_rows, tombstone_schema
from mergers.restart import RecordKind

__all__ = ["explain_key"]


def explain_key(handle: Handle, tip: TableView, key: Mapping[str, object], since: int | None) -> Explanation:
    """See :meth:`lakemerge.LakeTable.explain`."""
    keys = sorted_keys([key], tip.config)
    (named,) = python_rows(keys)
    known = _Known.by_default(tip) if since is None else _Known.since(retained(handle, tip, since))
    file_slice = _file_slice(known.view, keys)
    notes = list(known.notes)
    if since is None and file_slice is not None and any(block.packed_from is not None for block in file_slice.blocks):
        known = replace(known, view=unpacked(handle, tip))
        file_slice = _file_slice(known.view, keys)
    if file_slice is None:
        return Explanation(key=named, version=tip.version, begins=known.start.version, notes=tuple(notes))
    shown_after = since or -1
    with thread_pool(1) as pool:
        stored = pool.submit(read_state, handle, _start(handle, known, file_slice), file_slice)
        records = read_records(handle, file_slice, known.config_at)
    expiries = _expiries(known, file_slice)
    begun = find_commits(handle, _told_of(file_slice, records, expiries, shown_after))
    story = _Story.begin(handle, known, file_slice, stored.result(), begun, shown_after)
    events: list[KeyRecord | Expiry] = [*records, *expiries]
    for event in sorted(events, key=_order):
        story.take(event)
    story.follow_definition(tip.version)
    if any(record.is_packed for record in records):
        notes.append(
            "some logs were consolidated: records that had lost by then are gone, and where the others came from is "
            f"{UNKNOWN}"
        )
    lacking = shorts(handle, [log for log in known.view.log_commits if log.version in begun], begun.values())
    notes += [f"{in_words(short)}; some may be of this key" for short in lacking]
    if (load := of_load(begun.get(file_slice.merged_through + 1))) is not None and story.told_of_load:
        notes.append(f"{in_words(load)}; some may be of this key")
    notes += story.notes
    return Explanation(
        key=named,
        version=tip.version,
        begins=max(file_slice.merged_through + 1, shown_after + 1),
        steps=tuple(story.steps),
        start=story.started,
        row=story.row,
        failed=story.failed,
        notes=tuple(dict.fromkeys(notes)),
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """The sources for the records of a key."""

    tip: TableView
    start: TableView
    view: TableView
    configs: Sequence[tuple[int, TableConfig]]
    expiries: Sequence[Expiry]
    notes: tuple[str, ...] = ()

    @staticmethod
    def by_default(tip: TableView) -> _Known:
        return _Known(tip, tip, tip, [(tip.version, tip.config)], expiries_of(tip.snapshot))

    @staticmethod
    def since(told: Retained) -> _Known:
        return _Known(told.tip, told.start, told.view, told.configs(), told.expiries, told.notes)

    def config_at(self, version: int) -> TableConfig:
        """The table's definition at a version, under which its records are folded."""
        place = bisect_right(self.configs, version, key=lambda entry: entry[0])
        return self.configs[max(0, place - 1)][1]

    def since_of(self, config: TableConfig) -> int:
        """The version from which on this definition holds."""
        return next(version for version, known in reversed(self.configs) if known == config)


def _told_of(
    file_slice: FileSlice, records: Sequence[KeyRecord], expiries: Sequence[Expiry], shown_after: int
) -> set[int]:
    """The versions whose commits are read: those of the records, and the first load if it may be the base file."""
    told = [*(record.version for record in records if not record.is_packed), *(expiry.version for expiry in expiries)]
    versions = {version for version in told if version > shown_after}
    return versions if file_slice.base is None else versions | {file_slice.merged_through + 1}


def _file_slice(view: TableView, keys: pa.Table) -> FileSlice | None:
    return next(iter(file_slices_of_keys(view, keys)), None)


def _expiries(known: _Known, file_slice: FileSlice) -> list[Expiry]:
    return [expiry for expiry in known.expiries if expiry.version > file_slice.merged_through]


def _start(handle: Handle, known: _Known, file_slice: FileSlice) -> TableView:
    """The version whose rows the file slice stores: where they were overwritten since the start, with the definition
    of that commit."""
    config, base = known.start.config, file_slice.base
    if base is not None and base.merged_through >= known.start.version:
        config = known.config_at(base.merged_through + 1)
    return TableView(known.start.snapshot, config, handle.store, handle.decoded)


def _order(event: KeyRecord | Expiry) -> tuple[int, int]:
    """Sorts records of a version before its expiry. :func:`sorted` keeps the order of the records of one version."""
    return event.version, int(isinstance(event, Expiry))


@dataclass(slots=True)
class _Story:
    """The state of the key as its records are applied."""

    handle: Handle
    known: _Known
    commits: Mapping[int, PastCommit]
    shown_after: int
    config: TableConfig
    merger: Merger
    state: KeyState
    ordered_by: str
    pending: list[KeyRecord] = field(default_factory=list)
    """Records since the last state that could be computed."""
    failed: str | None = None
    steps: list[Step] = field(default_factory=list)
    started: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    told_of_load: bool = False
    """Whether the first step is the first write of the table."""

    @staticmethod
    def begin(
        handle: Handle,
        known: _Known,
        file_slice: FileSlice,
        state: KeyState,
        commits: Mapping[int, PastCommit],
        shown_after: int,
    ) -> _Story:
        view = _start(handle, known, file_slice)
        early = [expiry for expiry in known.expiries if expiry.version <= file_slice.merged_through]
        for expiry in early:
            state = _without_forgotten(state, expiry)
        story = _Story(
            handle, known, commits, shown_after, view.config, handle.merger(view), state, f"the row of {state.path}"
        )
        story._tell_of_load(file_slice)
        if shown_after < file_slice.merged_through + 1 and not story.steps and state.row is not None:
            through = file_slice.merged_through
            story.notes.append(
                f"history begins after version {through}: the records up to it are merged into {state.path}"
                + ("" if story._more_is_known else f", and are {UNKNOWN}")
            )
        story.started = None if story.steps else state.row
        return story

    @property
    def _more_is_known(self) -> bool:
        return self.known.start is self.known.tip and self.known.tip.state.oldest_version < self.known.tip.version

    @property
    def row(self) -> dict[str, Any] | None:
        return None if self.failed is not None else self.state.row

    def take(self, event: KeyRecord | Expiry) -> None:
        self.follow_definition(event.version)
        if isinstance(event, Expiry):
            self._expire(event)
        else:
            self._fold(event)

    def _tell_of_load(self, file_slice: FileSlice) -> None:
        """The first write of a table becomes base files, so its records are read from these. So do the rows of an
        overwrite."""
        commit = self.commits.get(file_slice.merged_through + 1)
        if commit is None or file_slice.minor is not None or commit.version <= self.shown_after:
            return
        partition = file_slice.bucket_id.partition
        overwrites = any(reset.covers(partition) for reset in commit.overwrites)
        if not commit.is_load and not overwrites:
            return
        row, tombstone = self.state.row, self.state.tombstone
        if row is None and tombstone is None:
            return
        self.ordered_by = f"version {commit.version}"
        self.told_of_load = not overwrites
        if overwrites:
            said = "a new row, as an overwrite left it"
        else:
            left = "a new row, as the first write of the table left it"
            said = left if row is not None else "the first write deletes it"
        verdict = "applied" if row is not None else "deleted"
        values = row if row is not None else tombstone or {}
        self._add(
            commit.version,
            file=self.state.path or file_slice.tombstones or "",
            row_index=None,
            kind=RecordKind.SET.symbol if overwrites else "+U" if row is not None else "-D",
            values={name: value for name, value in values.items() if name != VERSION_COLUMN},
            before=None,
            after=row,
            verdict=verdict,
            words=f"{verdict}: {said}",
        )

    def follow_definition(self, version: int) -> None:
        """Take up a change of schema or merger: later records are folded by the new definition."""
        config = self.known.config_at(version)
        if config == self.config:
            return
        shape = config.shape
        self.state = KeyState(
            shaped(self.state.rows, nullable(config.schema)),
            shaped(self.state.tombstones, tombstone_schema(shape)),
            self.state.path,
        )
        merger = config.merger(self.handle.registry)
        if (merger.id, merger.options()) != (self.merger.id, self.merger.options()):
            since = self.known.since_of(config)
            was, now = (f"{each.name} {dict(each.shown_options()) or ''}".strip() for each in (self.merger, merger))
            self.notes.append(f"from version {since} on the merger is {now}; before, it was {was}")
        self.config, self.merger = config, merger

    def _expire(self, expiry: Expiry) -> None:
        before = self.state.tombstone
        left = _without_forgotten(self.state, expiry)
        if before is None or left.tombstone is not None:
            return
        self.state = left
        if expiry.version > self.shown_after:
            said = f"dropped by expiry of version {expiry.version}: the delete of version {before[VERSION_COLUMN]}"
            words = f"expired: {said} is no longer remembered"
            self._add(expiry.version, verdict="expired", words=words)

    def _fold(self, record: KeyRecord) -> None:
        before, was_failed = self.state, self.failed
        shape = self.config.shape
        self.pending.append(record)
        try:
            self.state = _folded(self.merger, shape, before, self.pending)
            self.pending, self.failed = [], None
        except FAILURES as error:
            self.failed = error.message
        change = Change(
            merger=self.merger,
            shape=shape,
            kind=record.kind,
            values=record.values,
            before=None if was_failed is not None else before.row,
            after=self.row,
            tombstone_before=before.tombstone,
            tombstone_after=self.state.tombstone,
            ordered_by=self.ordered_by,
        )
        verdict, words = _verdict(change, was_failed, self.failed)
        if record.stands_for > 1:
            words = f"{words} (one record for {record.stands_for:,} of its commit)"
        self._note_setter(change, record)
        if record.version > self.shown_after:
            self._add(
                record.version,
                file=record.file,
                row_index=record.row_index,
                kind=record.kind.symbol,
                ordering=tuple(record.values[name] for name in change.ordering) if change.has_ordering else None,
                values=record.values,
                before=change.before,
                after=change.after,
                verdict=verdict,
                words=words,
                is_packed=record.is_packed,
            )
        elif not self.steps:
            self.started = self.row

    def _note_setter(self, change: Change, record: KeyRecord) -> None:
        """Note which record set the ordering that the next record is compared with."""
        now = change.after or change.tombstone_after
        was = change.before or change.tombstone_before
        if now is None:
            return
        names = change.shape.ordering
        known = (*names, *change.shape.remembers)
        ended = change.before is not None and change.after is None
        moved = was is None or ended or any(now.get(name) != was.get(name) for name in known)
        if moved or (change.has_ordering and all(now.get(name) == record.values[name] for name in names)):
            self.ordered_by = f"version {record.version}"

    def _add(self, version: int, *, verdict: str, words: str, is_packed: bool = False, **told: Any) -> None:
        commit = self.commits.get(version)
        source: dict[str, Any] = {}
        if verdict != "expired":
            source = source_of(self.handle, self.known.tip.snapshot, commit, is_packed=is_packed)
        time = None if commit is None else commit.timestamp_ms
        self.steps.append(Step(version=version, timestamp_ms=time, verdict=verdict, words=words, source=source, **told))


def _verdict(change: Change, was_failed: str | None, failed: str | None) -> tuple[Verdict, str]:
    """The verdict on the record, also if the row before or after it cannot be read."""
    if failed is None and was_failed is None:
        return judged(change)
    verdict: Verdict = "folded" if change.is_upsert else "retracted"
    if failed is not None:
        return verdict, f"{verdict}: {failed}"
    if change.after is None:
        return "deleted", "deleted: the row, which could not be read, is gone"
    return verdict, f"{verdict}: the row can be read again"


def _without_forgotten(state: KeyState, expiry: Expiry) -> KeyState:
    left = state.tombstones.filter(pc.greater(state.tombstones.column(VERSION_COLUMN), expiry.horizon))
    return replace(state, tombstones=left.combine_chunks())


def _folded(merger: Merger, shape: TableShape, state: KeyState, records: Sequence[KeyRecord]) -> KeyState:
    frames = [
        Frame(
            record.rows,
            None if record.kind is RecordKind.UPDATE_AFTER else np.array([record.kind], dtype=np.int8),
            record.version,
        )
        for record in records
    ]
    names = shape.schema.names
    changed = fold(merger, shape, base=state.rows, tombstones=state.tombstones, frames=frames, columns=names)
    return replace(state, rows=overlay_rows(state.rows, changed, names, sort=True), tombstones=changed.tombstones)
