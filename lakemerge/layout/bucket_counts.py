"""Which buckets a table has while its bucket count changes.

Bucket counts are powers of two, so a key's bucket of a smaller count is its bucket of a larger count, modulo the
smaller count. A base file names the count for which it was written. This is the table's count, or a smaller one if a
rescale has not rewritten the file yet. Then the file is a bucket of its own, in the place of several of the table's
buckets. No two buckets share a key. Source: docs/table-format.md, section 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lakemerge.errors import TableDamagedError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.keys import BucketId, Partition
from lakemerge.format.log_block import LogBlock

__all__ = ["Layout", "slices_of"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The buckets of a version."""

    buckets: int
    """The table's bucket count."""
    coarse: Mapping[BucketId, int]
    """Bucket of a smaller count -> that count."""
    counts: tuple[int, ...]
    """The smaller counts that occur."""

    @staticmethod
    def of(base_files: Collection[BaseFile], buckets: int) -> Layout:
        """The layout of base files. Raises :class:`TableDamagedError` if a file has a larger count, or shares keys with
        another bucket."""
        counts = sorted({base.buckets for base in base_files} | {buckets})
        if counts == [buckets]:
            return Layout(buckets, {}, ())
        known: dict[BucketId, BaseFile] = {}
        for base in base_files:
            if base.buckets > buckets or buckets % base.buckets:
                raise TableDamagedError(
                    f"file {base.add.path!r} belongs to a layout of {base.buckets} buckets in a table of {buckets}",
                    path=base.add.path,
                )
            if known.setdefault(base.bucket_id, base).buckets != base.buckets:
                raise _overlapping(base, known[base.bucket_id])
        for part, base in known.items():
            for count in (count for count in counts if count < base.buckets):
                other = known.get(BucketId(part.partition, part.bucket % count))
                if other is not None and other.buckets == count:
                    raise _overlapping(base, other)
        coarse = {part: base.buckets for part, base in known.items() if base.buckets < buckets}
        return Layout(buckets, coarse, tuple(counts[:-1]))

    def bucket_of(self, partition: Partition, bucket: int) -> BucketId:
        """The bucket of this layout that holds the keys of a bucket of the table's count."""
        for count in self.counts:
            part = BucketId(partition, bucket % count)
            if self.coarse.get(part) == count:
                return part
        return BucketId(partition, bucket)

    def buckets_of(self, part: BucketId) -> int:
        """The bucket count of one of the layout's buckets."""
        return self.coarse.get(part, self.buckets)

    def slices_of(self, block: LogBlock) -> Iterable[BucketId]:
        """The buckets that may hold keys of a block, each once."""
        if block.buckets == self.buckets and not self.counts:
            return (block.bucket_id,)
        parts = slices_of(block, self.buckets)
        return dict.fromkeys(self.bucket_of(part.partition, part.bucket) for part in parts) if self.counts else parts


def slices_of(block: LogBlock, buckets: int) -> Iterator[BucketId]:
    """The buckets of a bucket count that may hold keys of a block."""
    if block.buckets >= buckets:
        yield BucketId(block.bucket_id.partition, block.bucket_id.bucket % buckets)
    else:
        for bucket in range(block.bucket_id.bucket, buckets, block.buckets):
            yield BucketId(block.bucket_id.partition, bucket)


def _overlapping(one: BaseFile, other: BaseFile) -> TableDamagedError:
    return TableDamagedError(
        f"files {one.add.path!r} and {other.add.path!r} hold the same keys: buckets {one.bucket_id.bucket} of "
        f"{one.buckets} and {other.bucket_id.bucket} of {other.buckets}",
        paths=(one.add.path, other.add.path),
    )
