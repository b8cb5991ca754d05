"""Counts the logs on each file slice, in columns: even with a million log blocks, no block becomes a Python object.

The result agrees with :attr:`lakemerge.layout.view.TableView.file_slices`, but has only sizes and counts. A test
compares the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import TableDamagedError
from lakemerge.format.block_checks import parsed_partition
from lakemerge.format.block_index import COUNT_COLUMNS, KEY_COLUMNS, BlockCounts, parsed_keys, read_block_counts
from lakemerge.format.keys import BucketId, Key, KeyKinds, Partition
from lakemerge.format.names import LOG_DOMAIN_PREFIX
from lakemerge.layout.bucket_counts import Layout
from lakemerge.layout.view import FileSlice, TableView, build_file_slices

__all__ = ["FileSliceLoad", "file_slice_loads"]

Integers = npt.NDArray[np.int64]

_READERS = 8
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class FileSliceLoad:
    """One file slice, and the size of what its compaction merges."""

    bucket_id: BucketId
    file: str | None
    """Path of the base file."""
    base_bytes: int
    base_rows: int
    winner_bytes: int
    winner_files: int
    new_tombstone_bytes: int
    """By how many bytes tombstones grew since the base file was written."""
    log_blocks: int
    """How many live log blocks there are."""
    log_commits: int
    """How many commits those blocks come from."""
    log_rows: int
    log_bytes: int
    oldest_version: int | None
    """The oldest commit that the base file lacks. With a minor entry, the oldest that it may lack. ``None`` if it lacks
    none."""
    oldest_live: int | None
    """As :attr:`FileSlice.oldest_live`: with a minor entry, the oldest commit that this lacks, too."""
    is_hidden: bool = False
    """Whether it has a minor entry that is not published, so that other engines do not see what it merged."""

    @property
    def bytes(self) -> int:
        """An estimate of the bytes that a full compaction reads."""
        return self.base_bytes + self.winner_bytes + self.log_bytes

    @property
    def is_clean(self) -> bool:
        """As :attr:`FileSlice.is_clean`."""
        return self.oldest_version is None

    @property
    def is_merged(self) -> bool:
        """As :attr:`FileSlice.is_merged`."""
        return not self.log_blocks


def file_slice_loads(view: TableView) -> list[FileSliceLoad]:
    """The load of every file slice of the version. Reads only block index files."""
    buckets = view.config.buckets or 1
    domains = [domain for name, domain in view.snapshot.domains.items() if name.startswith(LOG_DOMAIN_PREFIX)]
    resets = view.resets
    file_slices = list(build_file_slices(view.base_files, (), buckets=buckets, minors=view.minors, resets=resets))
    # Keys matter only if a bucket has several file slices. They are most of what there is to read.
    keys = len({file_slice.bucket_id for file_slice in file_slices}) < len(file_slices)
    with thread_pool(_READERS) as pool:
        commits = list(pool.map(lambda domain: read_block_counts(domain, view.store, keys=keys), domains))
    for commit in commits:
        view.check_past(commit.version)
    blocks = _Blocks.of([commit for commit in commits if commit.blocks.num_rows], view.layout)
    view.check_buckets(blocks.slices)
    with_base = {file_slice.bucket_id for file_slice in file_slices}
    bare = [part for part in blocks.slices if part not in with_base]
    file_slices += [
        FileSlice(part, view.layout.buckets_of(part), reset=resets.through(part.partition)) for part in bare
    ]
    places, rows = blocks.placed(file_slices, view.key_kinds)
    through = np.array([file_slice.merged_through for file_slice in file_slices], dtype=np.int64)
    live = blocks.versions[rows] > through[places]
    loads = _loads(file_slices, blocks, places[live], rows[live], through)
    # A bucket without a file, in which an overwrite left no log, is none.
    return [load for load in loads if load.file is not None or load.log_blocks]


def _loads(
    file_slices: Sequence[FileSlice], blocks: _Blocks, places: Integers, rows: Integers, through: Integers
) -> list[FileSliceLoad]:
    """:param places: for each live pair of a file slice and a block, the file slice.
    :param rows: for each such pair, the block.
    """
    count = len(file_slices)
    versions = blocks.versions[rows]
    span = versions.max(initial=0) + 1
    pairs = _distinct(places * span + versions) // span
    oldest = np.full(count, _NEVER, dtype=np.int64)
    # Records of a consolidated block do not count if the file slice has them already.
    np.minimum.at(oldest, places, np.maximum(blocks.oldest[rows], through[places] + 1))
    columns = (
        np.bincount(places, minlength=count),
        np.bincount(pairs, minlength=count),
        np.bincount(places, weights=blocks.rows[rows], minlength=count).astype(np.int64),
        np.bincount(places, weights=blocks.bytes[rows], minlength=count).astype(np.int64),
        oldest,
    )
    return [
        _load(file_slice, *numbers)
        for file_slice, *numbers in zip(file_slices, *(c.tolist() for c in columns), strict=True)
    ]


def _distinct(codes: Integers) -> Integers:
    """The same as ``np.unique``, but by sorting. ``np.unique`` hashes, which takes twenty times as long for a million
    codes."""
    ordered = np.sort(codes, kind="stable")
    return ordered[np.diff(ordered, prepend=-1) != 0]


def _load(file_slice: FileSlice, blocks: int, commits: int, rows: int, size: int, live: int) -> FileSliceLoad:
    oldest = live
    if file_slice.base is not None and file_slice.minor is not None:
        oldest = min(live, file_slice.base.merged_through + 1)
    base, winners = file_slice.base, () if file_slice.minor is None else file_slice.minor.winners
    return FileSliceLoad(
        bucket_id=file_slice.bucket_id,
        file=None if base is None else base.add.path,
        base_bytes=0 if base is None else base.add.size_bytes,
        base_rows=0 if base is None else base.rows,
        winner_bytes=sum(winner.size_bytes for winner in winners),
        winner_files=len(winners),
        new_tombstone_bytes=max(0, file_slice.tombstone_bytes - (0 if base is None else base.tombstone_bytes)),
        log_blocks=blocks,
        log_commits=commits,
        log_rows=rows,
        log_bytes=size,
        oldest_version=None if oldest == _NEVER else oldest,
        oldest_live=None if live == _NEVER else live,
        is_hidden=file_slice.minor is not None and not file_slice.minor.published,
    )


class _Blocks:
    """All blocks of a version, each once for every bucket that it may reach into."""

    def __init__(
        self, table: pa.Table, versions: Integers, oldest: Integers, slices: Integers, found: Sequence[BucketId]
    ) -> None:
        self.versions = versions
        self.oldest = oldest
        self.slices = found
        self.rows = table.column("rows").to_numpy()
        self.bytes = table.column("data_bytes").to_numpy()
        self._bucket_of = slices
        self._table = table

    @staticmethod
    def of(commits: Sequence[BlockCounts], layout: Layout) -> _Blocks:
        numbers: dict[str, int] = {}
        tables, versions, oldest, codes = [], [], [], []
        for commit in commits:
            table, bucket = _mapped(commit, layout)
            tables.append(table)
            versions.append(np.full(len(bucket), commit.version, dtype=np.int64))
            oldest.append(np.full(len(bucket), commit.oldest, dtype=np.int64))
            codes.append(_partition_numbers(table, numbers) * layout.buckets + bucket)
        if not tables:
            none = np.empty(0, dtype=np.int64)
            return _Blocks(pa.table({name: pa.array([], pa.int64()) for name in COUNT_COLUMNS}), none, none, none, ())
        partitions = _partitions(numbers)
        unique, places = np.unique(np.concatenate(codes), return_inverse=True)
        named = [
            layout.bucket_of(partitions[code // layout.buckets], code % layout.buckets) for code in unique.tolist()
        ]
        found = {part: number for number, part in enumerate(dict.fromkeys(named))}
        slices = np.array([found[part] for part in named], dtype=np.int64)[places]
        commits_of = np.concatenate(versions), np.concatenate(oldest)
        return _Blocks(pa.concat_tables(tables), *commits_of, slices, tuple(found))

    def placed(self, file_slices: Sequence[FileSlice], kinds: KeyKinds) -> tuple[Integers, Integers]:
        """All pairs of a file slice and a block that may reach into its key range: their numbers.

        :param kinds: the kinds of the table's key columns.
        """
        by_bucket: dict[BucketId, list[int]] = {}
        for number, file_slice in enumerate(file_slices):
            by_bucket.setdefault(file_slice.bucket_id, []).append(number)
        only = np.array([by_bucket[part][0] for part in self.slices], dtype=np.int64)
        several = np.array([len(by_bucket[part]) > 1 for part in self.slices], dtype=np.bool_)
        if not several.any():
            return only[self._bucket_of], np.arange(len(self._bucket_of))
        alone = np.flatnonzero(~several[self._bucket_of])
        places, rows = self._reaching(np.flatnonzero(several[self._bucket_of]), file_slices, by_bucket, kinds)
        return np.concatenate([only[self._bucket_of[alone]], places]), np.concatenate([alone, rows])

    def _reaching(
        self, rows: Integers, file_slices: Sequence[FileSlice], by_bucket: dict[BucketId, list[int]], kinds: KeyKinds
    ) -> tuple[Integers, Integers]:
        """In buckets with several file slices, the keys of a block say into which file slices it reaches."""
        there = [by_bucket[part] for part in self.slices]
        bounds = [[low for number in numbers if (low := file_slices[number].lower) is not None] for numbers in there]
        numbers, keys = self._bucket_of[rows].tolist(), self._table.select(KEY_COLUMNS).take(pa.array(rows))
        lows, highs = (zip(numbers, _keys(keys.column(name), kinds), strict=True) for name in KEY_COLUMNS)
        first = [0 if key is None else bisect_right(bounds[number], key) for number, key in lows]
        last = [len(bounds[n]) if key is None else bisect_right(bounds[n], key) for n, key in highs]
        counts = np.maximum(np.array(last) - np.array(first) + 1, 0)
        # The file slices of all buckets stand one after the other. A block reaches into adjacent ones.
        starts = np.cumsum([0, *(len(numbers) for numbers in there)])[:-1]
        begins = np.repeat(starts[self._bucket_of[rows]] + np.array(first), counts)
        offsets = np.arange(len(begins)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.concatenate([np.array(numbers) for numbers in there])[begins + offsets], np.repeat(rows, counts)


def _mapped(commit: BlockCounts, layout: Layout) -> tuple[pa.Table, Integers]:
    """The blocks, and the buckets (by the table's count) whose keys they may hold. A block comes once for each such
    bucket, as in :meth:`Layout.slices_of`."""
    buckets = layout.buckets
    bucket = commit.blocks.column("bucket").to_numpy().astype(np.int64)
    if commit.buckets >= buckets:
        return commit.blocks, bucket % buckets
    times = buckets // commit.buckets
    rows = np.repeat(np.arange(len(bucket)), times)
    reached = bucket[rows] + np.tile(np.arange(times) * commit.buckets, len(bucket))
    if layout.counts:
        # Several of these buckets may still be one bucket of a smaller count.
        parts = _partitions(commit.blocks.column("partition").to_pylist())
        pairs = zip(rows.tolist(), reached.tolist(), strict=True)
        slices = [(row, layout.bucket_of(parts[row], place)) for row, place in pairs]
        once = sorted({pair: number for number, pair in enumerate(slices)}.values())
        rows, reached = rows[once], reached[once]
    return commit.blocks.take(pa.array(rows)), reached


def _partition_numbers(table: pa.Table, numbers: dict[str, int]) -> Integers:
    """A number for each partition, the same in all commits. New partitions are added to ``numbers``."""
    encoded = table.column("partition").combine_chunks().dictionary_encode()
    known = [numbers.setdefault(text, len(numbers)) for text in encoded.dictionary.to_pylist()]
    return np.array(known, dtype=np.int64)[encoded.indices.to_numpy()]


def _partitions(texts: Iterable[str]) -> list[Partition]:
    try:
        return [parsed_partition(text) for text in texts]
    except (ValueError, TypeError) as error:
        raise TableDamagedError(f"the partitions of log blocks are damaged: {error!r}") from error


def _keys(column: pa.ChunkedArray, kinds: KeyKinds) -> list[Key | None]:
    try:
        return parsed_keys(column, kinds)
    except (ValueError, TypeError) as error:
        raise TableDamagedError(f"the key bounds of log blocks are damaged: {error!r}") from error
