"""The commits of compactions: merged rows in the place of logs, consolidated logs in the place of many.

Source: docs/table-format.md, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakemerge.commits.base import TilesChangedError, check_same_meaning, commit_records, landed
from lakemerge.commits.provenance import Provenance
from lakemerge.delta import (
    AddFile,
    Attempt,
    Committed,
    DomainMetadata,
    RemoveFile,
)
from lakemerge.errors import CommitConflictError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.block_index import LogCommit
from lakemerge.format.minor import Minor
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView, Tile, build_tiles

__all__ = ["commit_compaction", "commit_packed_logs", "removal"]


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

    def build(view: TableView) -> Attempt:
        check_same_meaning(read, view)
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

    return landed(commit_records(handle, read, build, provenance))


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

    def build(view: TableView) -> Attempt:
        check_same_meaning(read, view)
        names = [commit.domain_name for commit in replaced]
        if any(view.snapshot.domains.get(name) != read.snapshot.domains[name] for name in names):
            raise CommitConflictError(
                "some of the logs were compacted by somebody else meanwhile; this run's files were discarded, nothing "
                "is lost"
            )
        domains = [log.domain(config=view.config, state=view.state, version=log.version) for log in packed]
        return Attempt([*(DomainMetadata(name, "", True) for name in names), *domains], metrics)

    return landed(commit_records(handle, read, build, provenance))


def _check_uncompacted(view: TableView, tiles: Sequence[Tile]) -> None:
    files, minors = view.snapshot.files, view.minors
    with_base = {base.bucket_id for base in view.base_files}
    for tile in tiles:
        if tile.base is None:
            same = view.layout.bucket_of(tile.bucket_id.partition, tile.bucket_id.bucket) not in with_base
        else:
            path = tile.base.add.path
            same = files.get(path) == tile.base.add and minors.get(path) == tile.minor
        if not same:
            raise TilesChangedError(
                f"bucket {tile.bucket_id} was compacted by somebody else meanwhile; this run's files were discarded, "
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
