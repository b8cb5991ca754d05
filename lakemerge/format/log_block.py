"""Log files, and the blocks of records in them.

Source: docs/table-format.md, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakemerge.format.keys import BucketId, Key

__all__ = ["LogBlock", "LogFile"]


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file: blocks of many buckets, written by one task of one commit."""

    path: str
    size_bytes: int
    columns: tuple[str, ...]
    """The table columns that the file's records carry, by their names in files."""


@dataclass(frozen=True, slots=True)
class LogBlock:
    """Records of one bucket in one log file: consecutive row groups, sorted by key, equal keys in
    arrival order."""

    file: LogFile
    first_row_group: int
    row_groups: int
    bucket_id: BucketId
    buckets: int
    """The bucket count the block was written under."""
    rows: int
    data_bytes: int
    """The size of the records as Arrow data."""
    key_min: Key | None
    """The smallest key; ``None`` if it is not known."""
    key_max: Key | None
    version: int = -1
    """The commit's version; -1 while it is not committed. For a block of a consolidated log, the newest version of its
    records."""
    packed_from: int | None = None
    """For a block of a consolidated log, the oldest version of its records. Each of these records names its own
    version. ``None`` for any other block."""

    @property
    def groups(self) -> range:
        """The numbers of its row groups in the file. A damaged file may have fewer."""
        return range(self.first_row_group, self.first_row_group + self.row_groups)

    @property
    def oldest_version(self) -> int:
        """The oldest version of its records."""
        return self.version if self.packed_from is None else self.packed_from

    def covers(self, bucket_id: BucketId, buckets: int) -> bool:
        """Whether the block may hold keys of a bucket of a table with ``buckets`` buckets."""
        common = min(self.buckets, buckets)
        same = self.bucket_id.bucket % common == bucket_id.bucket % common
        return same and self.bucket_id.partition == bucket_id.partition
