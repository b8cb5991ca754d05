"""The commits that bring records: log appends, and the bulk load of a table's first rows.

Source: docs/table-format.md, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lakemerge.commits.base import (
    check_same_meaning,
    commit_records,
    with_buckets,
)
from lakemerge.commits.footprint import Footprint
from lakemerge.commits.provenance import Provenance
from lakemerge.delta import (
    Action,
    AddFile,
    AlreadyDone,
    Attempt,
    Committed,
    Txn,
)
from lakemerge.errors import CommitConflictError, SchemaError
from lakemerge.format.block_index import LogCommit
from lakemerge.format.bounds import skipping_property
from lakemerge.format.state import State
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.schema.evolution import check_columns, with_schema

__all__ = [
    "NotEmptyError",
    "already_done",
    "also",
    "commit_load",
    "commit_logs",
    "commit_note",
    "defining",
    "grown",
    "state_after",
]


class NotEmptyError(CommitConflictError):
    """A bulk load found rows in the table. It becomes a log append."""

    code = "not-empty"


def commit_logs(
    handle: Handle, begin: TableView, logs: LogCommit | None, provenance: Provenance, metrics: Mapping[str, object]
) -> Committed | AlreadyDone:
    """Append log blocks. Without blocks the commit is an empty batch, which makes a version, too.

    Raises :class:`lakemerge.commits.footprint.RowsChangedError` for a transaction that conflicts with later commits.
    """
    conflicts = None
    if provenance.isolation is not None:
        conflicts = Footprint(handle, begin, () if logs is None else logs.blocks, provenance.isolation)

    def build(before: TableView) -> Attempt | AlreadyDone:
        if done := already_done(before, provenance):
            return done
        view = grown(handle, before, begin) if provenance.merge_schema else before
        check_same_meaning(begin, view)
        if conflicts is not None:
            conflicts.check(view)
        state = state_after(before, view)
        actions: list[Action] = defining(before, view, None if logs is None else logs.blocks[0].buckets)
        if state != before.state:
            actions.append(state.domain())
        if logs is not None:
            actions.append(logs.domain(config=view.config, state=state, version=view.version + 1))
        return Attempt([*actions, *also(provenance, before)], metrics)

    return commit_records(handle, begin, build, provenance)


def commit_note(handle: Handle, begin: TableView, provenance: Provenance) -> Committed | AlreadyDone:
    """Commit the additional actions of ``provenance``, and no rows. The number of an application is never set back."""

    def build(view: TableView) -> Attempt | AlreadyDone:
        if done := already_done(view, provenance):
            return done
        check_same_meaning(begin, view)
        return Attempt(also(provenance, view))

    return commit_records(handle, begin, build, provenance)


def commit_load(
    handle: Handle,
    begin: TableView,
    adds: Sequence[AddFile],
    provenance: Provenance,
    metrics: Mapping[str, object],
    *,
    buckets: int,
    ordinals: int,
) -> Committed | AlreadyDone:
    """Add base files to a table that has neither base files nor logs. Otherwise it raises :class:`NotEmptyError`.

    The files have ordinals from the high-water mark of ``begin`` on. So it is not valid either where somebody reserved
    ordinals since.
    """

    def build(before: TableView) -> Attempt | AlreadyDone:
        if done := already_done(before, provenance):
            return done
        view = grown(handle, before, begin) if provenance.merge_schema else before
        check_same_meaning(begin, view)
        same = (begin.state.schema_epoch, begin.state.layout_epoch) == (
            view.state.schema_epoch,
            view.state.layout_epoch,
        )
        reserved = view.state.next_ordinal != begin.state.next_ordinal
        if not view.is_empty or reserved or not same:
            raise NotEmptyError("the table was written to or changed while its first rows were loaded")
        state = state_after(before, view).reserving(ordinals)
        return Attempt([*defining(before, view, buckets), state.domain(), *adds, *also(provenance, before)], metrics)

    return commit_records(handle, begin, build, provenance)


def already_done(view: TableView, provenance: Provenance) -> AlreadyDone | None:
    """The outcome of a commit whose application transaction is in the table already."""
    if provenance.app_txn is None:
        return None
    app, version = provenance.app_txn
    done = view.snapshot.txns.get(app)
    return AlreadyDone(view.version) if done is not None and done.version >= version else None


def also(provenance: Provenance, tip: TableView) -> list[Action]:
    """The additional actions of a commit of records. Raises an error if the tip is not as they require."""
    along = list(provenance.along.at(tip.snapshot))
    if provenance.app_txn is None:
        return along
    app, version = provenance.app_txn
    return [*along, Txn(app, version, Handle.now_ms())]


def grown(handle: Handle, tip: TableView, begin: TableView) -> TableView:
    """The tip with the columns that a write brings. Raises an error if its merger cannot take them, or if these and
    the columns that others added meanwhile are too many."""
    brought = _brought(handle, tip, begin)
    schema = with_schema(tip.config.schema, brought)
    if schema == tip.config.schema:
        return tip
    check_columns(tip.config.schema, schema, handle.settings.max_columns)
    try:
        names = tip.config.names.extended(schema, begin.config.names)
    except SchemaError as error:
        raise CommitConflictError(error.message) from error
    config = replace(tip.config, schema=schema, names=names)
    grown = TableView(tip.snapshot, config, handle.store, handle.decoded)
    handle.merger(grown)
    return grown


def _brought(handle: Handle, tip: TableView, begin: TableView) -> pa.Schema:
    """The columns of a write, by the names that they have at the tip.

    Columns that the table had are known by their stored names, and are left out if they were dropped since. Raises
    :class:`CommitConflictError` if somebody else added one of the new columns under another stored name.
    """
    known = handle.view(begin.snapshot).config
    now = {stored: name for name, stored in tip.config.names.stored.items()}
    fields: list[pa.Field] = []
    for field in begin.config.schema:
        stored = begin.config.names.of(field.name)
        if known.schema.get_field_index(field.name) >= 0:
            name = now.get(stored) if tip.config.names.is_on else field.name
            fields += [] if name is None else [field.with_name(name)]
            continue
        at_tip = tip.config.schema.get_field_index(field.name) >= 0
        if at_tip and tip.config.names.of(field.name) != stored:
            raise CommitConflictError(f"column {field.name!r} was added meanwhile; open the table again and retry")
        fields.append(field)
    return pa.schema(fields)


def state_after(before: TableView, after: TableView) -> State:
    """The state after the schema of ``before`` is changed to that of ``after``."""
    return replace(before.state, schema_epoch=before.state.schema_epoch + (after is not before))


def defining(before: TableView, after: TableView, buckets: int | None) -> list[Action]:
    """The actions that give the table the schema of ``after`` and, on its first write, the bucket count ``buckets``."""
    metadata = before.snapshot.metadata
    if buckets is not None and before.config.buckets is None:
        metadata = with_buckets(metadata, before.config, buckets)
    if after is not before:
        skipping = skipping_property(after.config.schema, after.config.partition_by)
        metadata = replace(
            metadata,
            schema_string=after.config.schema_string,
            configuration={**metadata.configuration, **skipping, **after.config.names.properties()},
        )
    return [] if metadata is before.snapshot.metadata else [metadata]
