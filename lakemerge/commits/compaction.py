"""The commits of compactions: they replace logs by merged rows, or many logs by consolidated logs.

Source: docs/table-format.md, section 4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import orjson

from lakemerge.commits.base import FileSlicesChangedError, check_same_meaning, commit_records, landed
from lakemerge.commits.provenance import Provenance
from lakemerge.delta import (
    Action,
    AddFile,
    Attempt,
    Committed,
    DomainMetadata,
    RemoveFile,
)
from lakemerge.errors import CommitConflictError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.block_index import LogCommit
from lakemerge.format.keys import Partition
from lakemerge.format.minor import Minor
from lakemerge.format.names import WINNER_TAG
from lakemerge.format.publish import Publish
from lakemerge.format.reset import Reset
from lakemerge.handle import Handle
from lakemerge.layout.published import oldest_hidden
from lakemerge.layout.view import FileSlice, TableView, build_file_slices

__all__ = ["commit_compaction", "commit_packed_logs", "removal", "removals", "slices_after", "without_dead_logs"]


def commit_compaction(
    handle: Handle,
    read: TableView,
    provenance: Provenance,
    metrics: Mapping[str, object],
    *,
    replaced: Sequence[FileSlice] = (),
    adds: Sequence[AddFile] = (),
    merged: Sequence[FileSlice] = (),
    minors: Sequence[Minor] = (),
    winners: Mapping[str, AddFile] = MappingProxyType({}),
) -> Committed:
    """Replace logs that were read at ``read.version`` by merged rows, and drop dead logs.

    Raises :class:`FileSlicesChangedError` if another compaction changed one of the file slices or the table was
    overwritten, :class:`CommitConflictError` if merger, layout or schema changed. Log appends do not disturb it.

    :param replaced: file slices whose base files are removed, with their minor entries.
    :param adds: the base files that replace them.
    :param merged: file slices whose base files stay.
    :param minors: the new minor entries of the file slices in ``merged``.
    :param winners: the new winner files of published entries, by the path of their base file.
    """
    publishes = Publish.of(read.snapshot.metadata.configuration).is_on

    def build(view: TableView) -> Attempt:
        check_same_meaning(read, view)
        if (view.state.layout_epoch, view.state.schema_epoch) != (read.state.layout_epoch, read.state.schema_epoch):
            raise CommitConflictError("schema or bucket count changed while the compaction ran; run it again")
        _check_not_overwritten(read, view)
        _check_uncompacted(view, [*replaced, *merged])
        now = handle.store_now_ms()
        removes = removals(view, {file_slice.base.add.path for file_slice in replaced if file_slice.base}, now)
        ended = [file_slice.minor.removal() for file_slice in replaced if file_slice.minor is not None]
        gone = {remove.path for remove in removes}
        fresh = [BaseFile.of(add, view.config.stored_partition_by) for add in adds]
        files = [base for base in view.base_files if base.add.path not in gone] + fresh
        kept = {path: minor for path, minor in view.minors.items() if path not in gone}
        shown = [action for minor in minors for action in _shown(view, minor, winners.get(minor.base), now)]
        kept |= {minor.base: minor for minor in minors}
        after = slices_after(view, files, kept)
        dead = without_dead_logs(view, after)
        told = {**metrics, **_published(after, read.version)} if publishes else metrics
        return Attempt([*removes, *adds, *ended, *shown, *(minor.domain() for minor in minors), *dead], told)

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
    """Replace logs that were live at ``read.version`` by consolidated logs.

    Raises :class:`CommitConflictError` if one of these logs is gone, because another compaction took it up, if the
    merger changed, or if the table was overwritten. Nothing else disturbs it: each record in a consolidated log has its
    own version, so a record that was merged into a base file meanwhile is dead there as well.
    """

    def build(view: TableView) -> Attempt:
        check_same_meaning(read, view)
        _check_not_overwritten(read, view)
        names = [commit.domain_name for commit in replaced]
        if any(view.snapshot.domains.get(name) != read.snapshot.domains[name] for name in names):
            raise CommitConflictError(
                "some of the logs were compacted by somebody else meanwhile; this run's files were discarded, nothing "
                "is lost"
            )
        domains = [log.domain(config=view.config, state=view.state, version=log.version) for log in packed]
        return Attempt([*(DomainMetadata(name, "", True) for name in names), *domains], metrics)

    return landed(commit_records(handle, read, build, provenance))


def slices_after(
    tip: TableView, files: Sequence[BaseFile], minors: Mapping[str, Minor], fresh: Sequence[Reset] = ()
) -> list[FileSlice]:
    """The file slices once the table has other files.

    :param files: all base files after the commit.
    :param minors: by the path of their base file.
    :param fresh: the resets of the commit itself.
    """
    blocks = [block for commit in tip.log_commits for block in commit.blocks]
    buckets, resets = tip.config.buckets or 1, tip.resets.with_entries(fresh)
    return list(build_file_slices(files, blocks, buckets=buckets, minors=minors, resets=resets))


def without_dead_logs(
    tip: TableView, file_slices: Sequence[FileSlice], fresh: Sequence[Reset] = ()
) -> list[DomainMetadata]:
    """The actions that remove dead logs, and resets that no log needs any more.

    :param file_slices: see :func:`slices_after`.
    :param fresh: the resets of the commit itself. They stay until a later commit: they tell what it did.
    """
    resets = tip.resets.with_entries(fresh)
    dead = tip.dead_log_commits(file_slices)
    gone = dict.fromkeys(commit.domain_name for commit in dead)
    oldest: dict[Partition, int] = {}
    if resets.entries:
        for block in (b for commit in tip.log_commits if commit.domain_name not in gone for b in commit.blocks):
            partition = block.bucket_id.partition
            oldest[partition] = min(block.oldest_version, oldest.get(partition, block.oldest_version))
    left = resets.needed(oldest).with_entries(fresh)
    changed = [] if left == tip.resets else [left.domain()]
    return [*(DomainMetadata(name, "", True) for name in gone), *changed]


def _check_not_overwritten(read: TableView, tip: TableView) -> None:
    if read.state.overwrite_epoch != tip.state.overwrite_epoch:
        raise FileSlicesChangedError(
            "rows of the table were overwritten meanwhile; this run's files were discarded, nothing is lost"
        )


def _check_uncompacted(view: TableView, file_slices: Sequence[FileSlice]) -> None:
    files, minors = view.snapshot.files, view.minors
    with_base = {base.bucket_id for base in view.base_files}
    for file_slice in file_slices:
        if file_slice.base is None:
            same = view.layout.bucket_of(file_slice.bucket_id.partition, file_slice.bucket_id.bucket) not in with_base
        else:
            path = file_slice.base.add.path
            same = files.get(path) == file_slice.base.add and minors.get(path) == file_slice.minor
        if not same:
            raise FileSlicesChangedError(
                f"bucket {file_slice.bucket_id} was compacted by somebody else meanwhile; this run's files were "
                "discarded, nothing is lost"
            )


def removals(view: TableView, bases: Collection[str], now_ms: int) -> list[RemoveFile]:
    """The actions that take base files out of the table, and with each the winner files that are published beside it.

    :param bases: paths of base files.
    """
    files, minors = view.snapshot.files, view.minors
    beside = (
        winner.path for path in bases if path in minors and minors[path].published for winner in minors[path].winners
    )
    return [removal(files[path], now_ms) for path in (*bases, *beside)]


def _shown(view: TableView, minor: Minor, winner: AddFile | None, now_ms: int) -> Iterator[Action]:
    """The actions by which other engines see a published entry. An unchanged file is not added again.

    :param winner: the entry's new winner file.
    """
    if not minor.published:
        return
    before, vectors = view.minors.get(minor.base), dict(minor.vectors)
    files = {minor.base_ordinal: minor.base}
    if before is not None and before.published:
        files |= {each.ordinal: each.path for each in before.winners}
    left = {minor.base, *(each.path for each in minor.winners)}
    for ordinal, path in files.items():
        add, vector = view.snapshot.files[path], vectors.get(ordinal)
        # Each publication has many removes, so they say little more than which file it is. Adds tell the rest.
        if path not in left:
            yield _bare(removal(add, now_ms))
        elif vector != add.vector:
            yield replace(_bare(removal(add, now_ms)), deletion_time_ms=None)
            yield replace(add, vector=vector, stats=loose(add.stats), data_change=True)
    if winner is not None:
        yield winner


def _bare(remove: RemoveFile) -> RemoveFile:
    return replace(remove, partition_values=None, tags={})


def loose(stats: str | None) -> str | None:
    """Statistics of a file some of whose rows are superseded: its bounds may not be reached any more."""
    return None if stats is None else orjson.dumps({**orjson.loads(stats), "tightBounds": False}).decode()


def _published(file_slices: Sequence[FileSlice], version: int) -> dict[str, object]:
    """What the commit says about what other engines see: the version, and how many file slices do not show it."""
    lacking = (oldest for file_slice in file_slices if (oldest := oldest_hidden(file_slice)) is not None)
    left = sum(oldest <= version for oldest in lacking)
    return {"publishedVersion": version, "numUnpublishedFileSlices": left}


def removal(add: AddFile, now_ms: int) -> RemoveFile:
    """The action that takes a file out of the table.

    That of a published winner file has no time, so that no tombstone is left of it: publications make very many, and
    tombstones serve only other engines' clean-up, which the table's feature keeps out.

    :param now_ms: the time by the store's clock. Checkpoints of any host leave the action out when it is too old.
    """
    return RemoveFile(
        path=add.path,
        deletion_time_ms=None if WINNER_TAG in add.tags else now_ms,
        data_change=True,
        partition_values=add.partition_values,
        size_bytes=add.size_bytes,
        tags=add.tags,
        vector=add.vector,
    )
