"""One task of a compaction, on Spark or in a thread. It merges file slices in key ranges, as a stream."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.delta import AddFile, EncodedVector, encode_vector
from lakemerge.errors import LakeMergeError, MergerContractError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.keys import BucketId, Key, KeySpan, keys_at
from lakemerge.format.minor import Minor, RowFile, winner_tag, write_positions
from lakemerge.format.names import BASE_FOLDER, MERGED_FOLDER, WINNER_TAG
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice
from lakemerge.read.merge import MergedRange, MergeSpec, changed_ranges, failing_keys, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.sources import stored_streams, tombstone_stream
from lakemerge.read.superseded import Superseded
from lakemerge.results.compactions import SkippedFileSlice
from lakemerge.results.findings import FailedKey
from lakemerge.schema.nested import settled
from lakemerge.write.base_file import Apart, BaseWriteSpec, write_base_files
from lakemerge.write.parquet.rows import RowsFile
from lakemerge.write.parquet.stats import file_statistics
from lakemerge.write.parquet.tombstones import TombstonesOutput
from mergers.failing import FAILURES
from mergers.kernel import tombstone_schema
from mergers.keys import key_columns

__all__ = [
    "FailingSlice",
    "FileSliceJob",
    "Rewritten",
    "WrittenBeside",
    "find_failing",
    "joining_winners",
    "run_job",
    "skipped_file_slice",
]

_TIMES_NEWER = 1.25
"""A winner file is left as it is if it has more than this many times the rows of all newer ones. With a factor of 2, 16
equal commits would be written 3.7 times; with 1 they are written 2.7 times. Both leave at most four files. The extra
quarter is for commits that are nearly equal."""
_OF_BASE = 8
"""A winner file is also left as it is if it has more rows than the base file's rows divided by this."""


@dataclass(frozen=True, slots=True)
class FileSliceJob:
    """A file slice to compact, or neighbours in a bucket whose base files are rewritten together. Picklable."""

    file_slices: tuple[FileSlice, ...]
    """The file slices, sorted by key."""
    minor: bool
    """Whether the base file stays. Then there is exactly one file slice, and it has a base file."""
    first_ordinal: int
    ordinals: int
    apart: tuple[SkippedFileSlice, ...] = ()
    """Keys whose merge fails. They are in one file slice, and are written as they are stored."""
    publish: bool = False
    """Whether a minor compaction is one that other engines see."""
    at_rows: bool = False
    """Whether new base files begin at keys of rows alone; see :func:`lakemerge.write.base_file.write_base_files`."""

    @property
    def bytes(self) -> int:
        """An estimate of the bytes to read."""
        return sum(file_slice.stored_bytes for file_slice in self.file_slices)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """New base files, with all rows of the file slices."""

    adds: list[AddFile]
    apart: tuple[SkippedFileSlice, ...] = ()
    """The keys whose records they leave in the logs."""


@dataclass(frozen=True, slots=True)
class WrittenBeside:
    """A new minor entry beside the same base file."""

    minor: Minor
    rows: int
    """How many rows the new winner file has."""
    bytes: int
    """The size of all files that were written."""
    winner: AddFile | None = None
    """The new winner file, where it is published."""
    vectors: tuple[tuple[int, EncodedVector], ...] = ()
    """The new deletion vectors, by the ordinal of their file. The commit's one file of vectors gets them."""


def run_job(job: FileSliceJob, merge: MergeSpec, write: BaseWriteSpec) -> Rewritten | WrittenBeside | SkippedFileSlice:
    """Merge the logs of a job's file slices. If the job is skipped, it may have written some files."""
    first = job.file_slices[0]
    try:
        with ParquetFiles(merge.store, merge.footers) as files:
            if job.minor and first.base is not None:
                return _merge_beside(job, first, first.base, merge, write, files)
            return Rewritten(_rewrite(job, merge, write, files), job.apart)
    except FAILURES as error:
        return skipped_file_slice(first.bucket_id, error)


@dataclass(frozen=True, slots=True)
class FailingSlice:
    """What a file slice has that cannot be merged."""

    file_slice: FileSlice
    keys: tuple[SkippedFileSlice, ...]
    others: int
    """How many live records its other keys have. There is nothing to gain from a compaction if it is 0."""


def find_failing(job: FileSliceJob, merge: MergeSpec) -> list[FailingSlice] | SkippedFileSlice:
    """The keys of a job's file slices whose merge fails, for each file slice. If it cannot be told, because too many
    fail, the report on the job."""
    found = []
    try:
        with ParquetFiles(merge.store, merge.footers) as files:
            for file_slice in job.file_slices:
                keys, others = failing_keys(merge, file_slice, files)
                found.append(FailingSlice(file_slice, tuple(_skipped(file_slice, key) for key in keys), others))
    except FAILURES as error:
        return skipped_file_slice(job.file_slices[0].bucket_id, error)
    return found


def _skipped(file_slice: FileSlice, failed: FailedKey) -> SkippedFileSlice:
    return SkippedFileSlice(
        partition=file_slice.bucket_id.partition,
        bucket=file_slice.bucket_id.bucket,
        key=failed.key,
        column=failed.column or "",
        reason=failed.reason,
        records=failed.records,
        more=failed.more,
    )


def skipped_file_slice(part: BucketId, error: LakeMergeError) -> SkippedFileSlice:
    """The report on a file slice, or a whole bucket, in which the merge of a key fails."""
    key = error.facts.get("key")
    return SkippedFileSlice(
        partition=part.partition,
        bucket=part.bucket,
        key=key if isinstance(key, Mapping) else {},
        column=str(error.facts.get("column", "")),
        reason=error.message,
    )


def _rewrite(job: FileSliceJob, merge: MergeSpec, write: BaseWriteSpec, files: ParquetFiles) -> list[AddFile]:
    columns, first = merge.config.schema.names, job.file_slices[0]
    apart = _apart(job, merge, files)
    if apart:
        merge = replace(merge, leave_out=partial(_check_known, known=frozenset(key for key, _ in apart), merge=merge))
    ranges = (
        merge_file_slice(merge, file_slice, columns=columns, sort=True, files=files) for file_slice in job.file_slices
    )
    return write_base_files(
        chain.from_iterable(ranges),
        replace(write, buckets=first.buckets),
        first.bucket_id,
        lower=first.lower,
        ordinals=range(job.first_ordinal, job.first_ordinal + job.ordinals),
        now_ms=Handle.now_ms(),
        apart=[stored for _, stored in apart],
        at_rows=job.at_rows,
    )


def _apart(job: FileSliceJob, merge: MergeSpec, files: ParquetFiles) -> list[tuple[Key, Apart]]:
    """The keys that stay as they are, with their stored rows and tombstones. These include forgotten tombstones:
    every merge decides anew whether a live record came before they were forgotten."""
    if not job.apart:
        return []
    (file_slice,) = job.file_slices
    schema = pa.schema([field.with_nullable(True) for field in merge.config.schema])
    forgotten = tombstone_schema(merge.config.shape)
    found = []
    for key in _keys_of([skipped.key for skipped in job.apart], merge):
        bare = replace(file_slice, blocks=(), wanted=KeySpan.closed(key, key))
        streams = stored_streams(merge, bare, schema, files, merge.settings.merge_budget_bytes)
        rows = pa.concat_tables([schema.empty_table(), *(table for _, stream in streams for table, _ in stream)])
        remembered = [table for table, _ in tombstone_stream(merge, bare, files)]
        tombstones = pa.concat_tables([forgotten.empty_table(), *remembered])
        through = max(0, file_slice.merged_through)  # version 0 has no records
        found.append((key, Apart(key, MergedRange(settled(rows), tombstones), through)))
    return found


def _keys_of(keys: Sequence[Mapping[str, object]], merge: MergeSpec) -> list[Key]:
    schema = pa.schema([merge.config.schema.field(name) for name in merge.config.key])
    table = pa.Table.from_pylist([dict(key) for key in keys], schema=schema)
    return list(keys_at(key_columns(table, merge.config.key), range(len(keys))))


def _check_known(failed: Sequence[FailedKey], *, known: frozenset[Key], merge: MergeSpec) -> None:
    """Raise an error for a key that did not fail before. Its records would be lost."""
    for key, told in zip(_keys_of([each.key for each in failed], merge), failed, strict=True):
        if key not in known:
            raise MergerContractError(
                f"merger {merge.merger.name!r} fails for key {dict(told.key)}, and did not before: a merger gives the "
                "same result each time",
                merger=merge.merger.name,
                key=told.key,
            )


def joining_winners(file_slice: FileSlice, *, publish: bool = False) -> frozenset[int]:
    """Ordinals of the earlier winner files that a minor compaction writes anew, together with what the logs bring.

    A file joins unless it has more than 1.25 times the rows of all newer ones, or more than an eighth of the base
    file's. So each row is written a logarithmic number of times, and large files are left to a full compaction.

    :param publish: whether the result is published. Winner files that are not have to be written anew for that.
    """
    if file_slice.base is None or file_slice.minor is None:
        return frozenset()
    if publish and not file_slice.minor.published:
        return frozenset(winner.ordinal for winner in file_slice.minor.winners)
    newer = sum(block.rows for block in file_slice.blocks)
    joining = set()
    for winner in reversed(file_slice.minor.winners):
        if winner.rows <= _TIMES_NEWER * newer and winner.rows * _OF_BASE <= file_slice.base.rows:
            joining.add(winner.ordinal)
        newer += winner.rows
    return frozenset(joining)


def _merge_beside(
    job: FileSliceJob,
    file_slice: FileSlice,
    base: BaseFile,
    merge: MergeSpec,
    write: BaseWriteSpec,
    files: ParquetFiles,
) -> WrittenBeside:
    """Write the file slice's changed rows, with those of earlier winner files that join them, as a winner file, and
    which stored rows they supersede."""
    ordinal = job.first_ordinal
    folder = BASE_FOLDER if job.publish else MERGED_FOLDER
    prefix = f"{folder}/{write.name}/{file_slice.bucket_id.bucket:05d}-{ordinal:010d}"
    config = write.config
    gone = Superseded(write.store, file_slice, files)
    joining = joining_winners(file_slice, publish=job.publish)
    with contextlib.ExitStack() as on_error:
        tombstones = TombstonesOutput(write.store, write.name, ordinal, write.settings, config.names)
        on_error.callback(tombstones.abandon)
        winners = footer = None
        for part in changed_ranges(merge, file_slice, columns=config.schema.names, files=files, carried=joining):
            gone.mark(part.superseded)
            tombstones.add(part.tombstones)
            if part.rows.num_rows and winners is None:
                path = f"{prefix}.parquet"
                winners = RowsFile(
                    write.store,
                    path,
                    schema=config.schema,
                    names=config.names,
                    ordinal=ordinal,
                    settings=write.settings,
                )
                on_error.callback(winners.abandon)
            if winners is not None:
                winners.add(part.rows)
        if winners is not None:
            footer = winners.close()
        tombstones_path = tombstones.close()
        on_error.pop_all()
    earlier = () if file_slice.minor is None else file_slice.minor.winners
    left = [winner for winner in earlier if winner.ordinal not in joining and not gone.is_whole(winner.ordinal)]
    rows = size = 0
    if winners is not None:
        rows, size = winners.rows, winners.size_bytes
        left.append(RowFile(winners.path, size, ordinal, rows))
    minor = Minor(
        base=base.add.path,
        base_ordinal=base.ordinal,
        through=write.merged_through,
        positions=None,
        winners=tuple(left),
        tombstones=tombstones_path,
        tombstone_bytes=tombstones.size_bytes,
    )
    if job.publish:
        add = None if winners is None or footer is None else _winner_add(base, left[-1], winners, footer, write)
        published, changed = _published(minor, file_slice.minor, gone)
        return WrittenBeside(published, rows, size, add, changed)
    superseded = gone.positions({base.ordinal, *(winner.ordinal for winner in left)})
    if superseded:
        minor = replace(minor, positions=f"{prefix}.positions.parquet")
        size += write_positions(write.store, f"{prefix}.positions.parquet", superseded)
    return WrittenBeside(minor, rows, size)


def _published(
    minor: Minor, before: Minor | None, gone: Superseded
) -> tuple[Minor, tuple[tuple[int, EncodedVector], ...]]:
    """The entry with what other engines are to see of the file slice, and the vectors that have to be written. A file
    of which no more rows are superseded keeps its vector.

    :param before: the entry that this one replaces.
    """
    known = {} if before is None or not before.published else dict(before.vectors)
    left = [minor.base_ordinal, *(winner.ordinal for winner in minor.winners)]
    superseded = gone.positions(left)
    changed = {
        ordinal: encode_vector(bits)
        for ordinal, bits in sorted(superseded.items())
        if ordinal not in known or gone.has_more(ordinal)
    }
    kept = tuple((ordinal, known[ordinal]) for ordinal in left if ordinal in known and ordinal not in changed)
    return replace(minor, published=True, vectors=kept), tuple(changed.items())


def _winner_add(
    base: BaseFile, winner: RowFile, written: RowsFile, footer: pq.FileMetaData, write: BaseWriteSpec
) -> AddFile:
    config = write.config
    return AddFile(
        path=winner.path,
        partition_values=dict(zip(config.stored_partition_by, base.bucket_id.partition, strict=True)),
        size_bytes=winner.size_bytes,
        modification_time_ms=Handle.now_ms(),
        data_change=True,
        stats=file_statistics(
            footer,
            config.names.schema(config.schema),
            partition_by=config.stored_partition_by,
            texts=written.texts,
        ),
        tags={WINNER_TAG: winner_tag(base.ordinal, winner)},
    )
