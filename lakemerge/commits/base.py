"""The commits that change rows: log appends, bulk loads and compactions, with their preconditions.

Every attempt is judged anew against the tip (docs/table-format.md, section 4). The log retries; what
is here only says whether an attempt is still valid and which actions it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from lakemerge.delta import (
    Action,
    AddFile,
    AlreadyDone,
    Attempt,
    Committed,
    DomainMetadata,
    Metadata,
    RemoveFile,
    Snapshot,
    Txn,
)
from lakemerge.errors import CommitConflictError, VersionNotFoundError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.block_index import LogCommit, log_version
from lakemerge.format.config import TableConfig
from lakemerge.format.minor import Minor
from lakemerge.format.names import LOG_DOMAIN_PREFIX
from lakemerge.format.state import State
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView, Tile, build_tiles
from lakemerge.schema.evolution import carries, with_schema
from lakemerge.schema.schema import to_delta_json
from lakemerge.write.provenance import Provenance

__all__ = [
    "NotEmptyError",
    "Provenance",
    "RowsChangedError",
    "TilesChangedError",
    "check_not_overtaken",
    "commit_compaction",
    "commit_layout",
    "commit_load",
    "commit_logs",
    "commit_note",
    "commit_packed_logs",
    "removal",
    "reserve_ordinals",
    "rows_changed",
]


_Build = Callable[[Snapshot | None, object], Attempt | AlreadyDone]


class NotEmptyError(CommitConflictError):
    """A bulk load found rows in the table; it becomes a log append."""

    code = "not-empty"


class RowsChangedError(CommitConflictError):
    """Rows changed after the version a conditional write was judged on; it is judged again."""

    code = "rows-changed"


class TilesChangedError(CommitConflictError):
    """Another compaction merged one of the tiles first; what it read is no longer what is there."""

    code = "tiles-changed"


def commit_logs(
    handle: Handle, begin: TableView, logs: LogCommit | None, provenance: Provenance, metrics: Mapping[str, object]
) -> Committed | AlreadyDone:
    """Append log blocks (none: an empty batch is a version too)."""

    def build(tip: Snapshot | None, _: object) -> Attempt | AlreadyDone:
        before = _view(handle, tip)
        if done := _already_done(before, provenance):
            return done
        view = _grown(handle, before, begin) if provenance.merge_schema else before
        _check_same_meaning(begin, view)
        if provenance.only_onto_begin and rows_changed(handle, begin, view):
            raise RowsChangedError(f"rows were written after version {begin.version}")
        state = _state(before, view)
        actions: list[Action] = _define(before, view, None if logs is None else logs.blocks[0].buckets)
        if state != before.state:
            actions.append(state.domain())
        if logs is not None:
            actions.append(logs.domain(config=view.config, state=state, version=view.version + 1))
        return Attempt([*actions, *_also(provenance, before)], metrics)

    return _commit(handle, begin, build, provenance)


def commit_note(handle: Handle, begin: TableView, provenance: Provenance) -> Committed:
    """Commit what ``provenance`` carries along, and no rows."""

    def build(tip: Snapshot | None, _: object) -> Attempt:
        view = _view(handle, tip)
        _check_same_meaning(begin, view)
        return Attempt(_also(provenance, view))

    return _landed(_commit(handle, begin, build, provenance))


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
    """Add base files to a table that was never written to; raises :class:`NotEmptyError` otherwise.

    The files carry the ordinals from 0 on; nobody else can have used them.
    """

    def build(tip: Snapshot | None, _: object) -> Attempt | AlreadyDone:
        before = _view(handle, tip)
        if done := _already_done(before, provenance):
            return done
        view = _grown(handle, before, begin) if provenance.merge_schema else before
        _check_same_meaning(begin, view)
        same = (begin.state.schema_epoch, begin.state.layout_epoch) == (
            view.state.schema_epoch,
            view.state.layout_epoch,
        )
        if not view.is_empty or view.state.next_ordinal or not same:
            raise NotEmptyError("the table was written to or changed while its first rows were loaded")
        state = _state(before, view).reserving(ordinals)
        return Attempt([*_define(before, view, buckets), state.domain(), *adds, *_also(provenance, before)], metrics)

    return _commit(handle, begin, build, provenance)


def reserve_ordinals(handle: Handle, begin: TableView, count: int) -> int:
    """Reserve file ordinals by a commit of its own; returns the first."""
    first = 0

    def build(tip: Snapshot | None, _: object) -> Attempt | AlreadyDone:
        nonlocal first
        view = _view(handle, tip)
        _check_same_meaning(begin, view)
        first = view.state.next_ordinal
        return Attempt([view.state.reserving(count).domain()])

    provenance = Provenance("RESERVE ORDINALS", {"count": count}, handle.new_txn_id())
    _commit(handle, begin, build, provenance)
    return first


def commit_compaction(
    handle: Handle,
    read: TableView,
    provenance: Provenance,
    metrics: Mapping[str, object],
    *,
    replaced: Sequence[Tile] = (),
    adds: Sequence[AddFile] = (),
    merged: Sequence[Tile] = (),
    minors: Sequence[Minor] = (),
) -> Committed:
    """Put merged rows in the place of logs that were read at ``read.version``, and drop dead logs.

    Raises :class:`TilesChangedError` if another compaction changed one of the tiles,
    :class:`CommitConflictError` if merger, layout or schema changed. Log appends do not disturb it.

    :param replaced: tiles whose base files go away, with their minor entries.
    :param adds: the base files that come in their place.
    :param merged: tiles whose base files stay.
    :param minors: the minor entries that these get, in place of those they have.
    """

    def build(tip: Snapshot | None, _: object) -> Attempt:
        view = _view(handle, tip)
        _check_same_meaning(read, view)
        if (view.state.layout_epoch, view.state.schema_epoch) != (read.state.layout_epoch, read.state.schema_epoch):
            raise CommitConflictError("schema or bucket count changed while the compaction ran; run it again")
        _check_uncompacted(view, [*replaced, *merged])
        now = handle.now_ms()
        removes = [removal(tile.base.add, now) for tile in replaced if tile.base is not None]
        ended = [tile.minor.removal() for tile in replaced if tile.minor is not None]
        gone = {remove.path for remove in removes}
        fresh = [BaseFile.of(add, view.config.partition_by) for add in adds]
        files = [base for base in view.base_files if base.add.path not in gone] + fresh
        kept = {path: minor for path, minor in view.minors.items() if path not in gone}
        kept |= {minor.base: minor for minor in minors}
        blocks = [block for commit in view.log_commits for block in commit.blocks]
        tiles = list(build_tiles(files, blocks, buckets=view.config.buckets or 1, minors=kept))
        dead = [DomainMetadata(commit.domain_name, "", True) for commit in view.dead_log_commits(tiles)]
        return Attempt([*removes, *adds, *ended, *(minor.domain() for minor in minors), *dead], metrics)

    return _landed(_commit(handle, read, build, provenance))


def commit_packed_logs(
    handle: Handle,
    read: TableView,
    provenance: Provenance,
    metrics: Mapping[str, object],
    *,
    replaced: Sequence[LogCommit],
    packed: Sequence[LogCommit],
) -> Committed:
    """Put packed logs in the place of logs that were live at ``read.version``.

    Raises :class:`CommitConflictError` if one of these is gone, because another compaction took it up, or if
    the merger changed. Nothing else disturbs it: each packed record has its own version, so that what was
    merged into a base file meanwhile is dead in the packed log as well.
    """

    def build(tip: Snapshot | None, _: object) -> Attempt:
        view = _view(handle, tip)
        _check_same_meaning(read, view)
        names = [commit.domain_name for commit in replaced]
        if any(view.snapshot.domains.get(name) != read.snapshot.domains[name] for name in names):
            raise CommitConflictError(
                "some of the logs were compacted by somebody else meanwhile; this run's files were discarded, nothing "
                "is lost"
            )
        domains = [log.domain(config=view.config, state=view.state, version=log.version) for log in packed]
        return Attempt([*(DomainMetadata(name, "", True) for name in names), *domains], metrics)

    return _landed(_commit(handle, read, build, provenance))


def commit_layout(handle: Handle, begin: TableView, buckets: int) -> Snapshot:
    """Make ``buckets`` the table's bucket count. Base files of smaller counts stay what they are.

    Raises :class:`TilesChangedError` while there are base files of a larger count, and
    :class:`CommitConflictError` if somebody else changed the count meanwhile.
    """

    def build(tip: Snapshot | None, _: object) -> Attempt:
        view = _view(handle, tip)
        if view.state.layout_epoch != begin.state.layout_epoch:
            raise CommitConflictError("the bucket count changed meanwhile; open the table again and retry")
        if view.state.restore_epoch != begin.state.restore_epoch:
            raise CommitConflictError("the table was restored to an earlier version meanwhile; open it again and retry")
        if any(base.buckets > buckets for base in view.base_files):
            raise TilesChangedError("a compaction wrote base files of the old bucket count meanwhile")
        state = replace(view.state, layout_epoch=view.state.layout_epoch + 1)
        return Attempt([_with_buckets(view.snapshot.metadata, view.config, buckets), state.domain()])

    parameters = {"buckets": buckets, "before": begin.config.buckets}
    return _landed(_commit(handle, begin, build, Provenance("RESCALE", parameters, handle.new_txn_id()))).snapshot


def _commit(handle: Handle, begin: TableView, build: _Build, provenance: Provenance) -> Committed | AlreadyDone:
    return handle.log.commit(
        begin.snapshot,
        build,
        operation=provenance.operation,
        parameters=provenance.parameters,
        info=provenance.info,
        txn_id=provenance.txn_id,
    )


def _landed(outcome: Committed | AlreadyDone) -> Committed:
    if isinstance(outcome, AlreadyDone):
        raise AssertionError("a compaction has no application transaction")
    return outcome


def _view(handle: Handle, tip: Snapshot | None) -> TableView:
    if tip is None:
        raise AssertionError("the table exists: the commit began from a snapshot")
    return handle.view(tip)


def _already_done(view: TableView, provenance: Provenance) -> AlreadyDone | None:
    if provenance.app_txn is None:
        return None
    app, version = provenance.app_txn
    done = view.snapshot.txns.get(app)
    return AlreadyDone(view.version) if done is not None and done.version >= version else None


def _also(provenance: Provenance, tip: TableView) -> list[Action]:
    """What a commit of records carries beside them. Raises where the tip is not as it requires."""
    along = list(provenance.along.at(tip.snapshot))
    if provenance.app_txn is None:
        return along
    app, version = provenance.app_txn
    return [*along, Txn(app, version, Handle.now_ms())]


def _check_same_meaning(begin: TableView, tip: TableView) -> None:
    """Whether what was prepared at ``begin`` still means the same at ``tip``."""
    if begin.snapshot is tip.snapshot:
        return
    if begin.state.restore_epoch != tip.state.restore_epoch:
        raise CommitConflictError("the table was restored to an earlier version meanwhile; open it again and retry")
    if begin.state.merger_epoch != tip.state.merger_epoch or begin.config.merger_id != tip.config.merger_id:
        raise CommitConflictError("the table's merger or its options changed meanwhile; open the table again and retry")
    if tip.state.fence_begin_version > begin.version:
        raise CommitConflictError(
            f"this write began at version {begin.version}, before the vacuum fence {tip.state.fence_begin_version}; "
            "its files may be gone. Open the table again and retry."
        )
    for before in begin.config.schema:
        index = tip.config.schema.get_field_index(before.name)
        if index < 0 or not carries(tip.config.schema.field(index).type, before.type):
            raise CommitConflictError(f"column {before.name!r} changed meanwhile; open the table again and retry")


def check_not_overtaken(handle: Handle, begin: TableView) -> None:
    """Raise :class:`CommitConflictError` where what was prepared at ``begin`` can no longer land."""
    _check_same_meaning(begin, _view(handle, handle.log.update(begin.snapshot)))


def rows_changed(handle: Handle, begin: TableView, tip: TableView) -> bool:
    """Whether records were committed between the two versions, neither of which restores an earlier one."""
    if any(commit.version > begin.version for commit in tip.log_commits) or (begin.is_empty and not tip.is_empty):
        return True
    merged = [*(base.merged_through for base in tip.base_files), *(minor.through for minor in tip.minors.values())]
    if max(merged, default=-1) <= begin.version:
        return False
    # A compaction merges through the version that it read; whether there were new records, the commits say.
    try:
        commits = handle.log.commits(since=begin.version, until=tip.version)
    except VersionNotFoundError:
        return True  # cleaned up already
    return any(_brings_records(actions, begin.version) for _, actions in commits)


def _brings_records(actions: Iterable[Action], after: int) -> bool:
    logs = (a for a in actions if isinstance(a, DomainMetadata) and a.domain.startswith(LOG_DOMAIN_PREFIX))
    return any(not log.removed and log_version(log) > after for log in logs)


def _grown(handle: Handle, tip: TableView, begin: TableView) -> TableView:
    """The tip with the columns that a write brings. Raises where its merger cannot take them."""
    schema = with_schema(tip.config.schema, begin.config.schema)
    if schema == tip.config.schema:
        return tip
    grown = TableView(tip.snapshot, replace(tip.config, schema=schema), handle.store, handle.decoded)
    handle.merger(grown)
    return grown


def _state(before: TableView, after: TableView) -> State:
    """The state once the schema of ``before`` is that of ``after``."""
    return replace(before.state, schema_epoch=before.state.schema_epoch + (after is not before))


def _define(before: TableView, after: TableView, buckets: int | None) -> list[Action]:
    """What makes the schema of ``after`` the table's, and ``buckets`` the count of one that has none: the
    first write of a table sets it."""
    metadata = before.snapshot.metadata
    if buckets is not None and before.config.buckets is None:
        metadata = _with_buckets(metadata, before.config, buckets)
    if after is not before:
        metadata = replace(metadata, schema_string=to_delta_json(after.config.schema))
    return [] if metadata is before.snapshot.metadata else [metadata]


def _with_buckets(metadata: Metadata, config: TableConfig, buckets: int) -> Metadata:
    chosen = replace(config, buckets=buckets).configuration()
    return replace(metadata, configuration={**metadata.configuration, **chosen})


def _check_uncompacted(view: TableView, tiles: Sequence[Tile]) -> None:
    files, minors = view.snapshot.files, view.minors
    with_base = {base.slice for base in view.base_files}
    for tile in tiles:
        if tile.base is None:
            same = view.layout.slice_of(tile.slice.partition, tile.slice.bucket) not in with_base
        else:
            path = tile.base.add.path
            same = files.get(path) == tile.base.add and minors.get(path) == tile.minor
        if not same:
            raise TilesChangedError(
                f"slice {tile.slice} was compacted by somebody else meanwhile; this run's files were discarded, "
                "nothing is lost"
            )


def removal(add: AddFile, now_ms: int) -> RemoveFile:
    """The action that takes a file out of the table."""
    return RemoveFile(
        path=add.path,
        deletion_time_ms=now_ms,
        data_change=True,
        partition_values=add.partition_values,
        size_bytes=add.size_bytes,
        tags=add.tags,
    )
