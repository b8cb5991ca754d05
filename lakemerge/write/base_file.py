"""Writing base files: merged rows of one file slice, sorted by key, as Delta adds.

Source: docs/table-format.md, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakemerge.delta import AddFile, Transaction
from lakemerge.format.base_file import BaseFile
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import BucketId, Key, keys_at
from lakemerge.format.names import BASE_FOLDER, SLICE_TAG
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.options import Settings
from lakemerge.read.merge import MergedRange
from lakemerge.storage.base import Store
from lakemerge.write.parquet.rows import RowsFile
from lakemerge.write.parquet.stats import file_statistics
from lakemerge.write.parquet.tombstones import TombstonesOutput
from mergers.keys import key_columns

__all__ = ["BaseWriteSpec", "ordinals_needed", "write_base_files"]


@dataclass(frozen=True, slots=True)
class BaseWriteSpec:
    """Settings that all tasks share that write base files of one commit. Picklable."""

    store: Store
    config: TableConfig
    settings: Settings
    name: str
    """Begin version and transaction id. It is also the folder of the files."""
    merged_through: int
    buckets: int

    @staticmethod
    def of(handle: Handle, read: TableView, transaction: Transaction, *, buckets: int) -> BaseWriteSpec:
        """For a service that merges what a version holds."""
        return BaseWriteSpec(
            store=handle.store,
            config=read.config,
            settings=handle.settings,
            name=handle.write_name(read, transaction),
            merged_through=read.version,
            buckets=buckets,
        )


def write_base_files(
    ranges: Iterable[MergedRange],
    spec: BaseWriteSpec,
    bucket_id: BucketId,
    *,
    lower: Key | None,
    ordinals: Sequence[int],
    now_ms: int,
) -> list[AddFile]:
    """Write the ranges of one file slice (ascending, rows sorted by key) as one or more files.

    A new file begins at a range boundary once the current one has the target size. There is always
    at least one file, even if it is empty, because it carries the watermark.

    :param lower: the file slice's lower bound. The first file gets it.
    :param ordinals: the ordinals reserved for this file slice, one for each file that may be needed. When they run
        out, the last file takes all remaining rows.
    """
    left = list(ordinals)
    adds: list[AddFile] = []
    writer = _OpenFile(spec, bucket_id, lower, left.pop(0))
    try:
        for part in ranges:
            if not part.rows.num_rows and not part.tombstones.num_rows:
                continue
            if left and writer.is_full:
                adds.append(writer.close(now_ms))
                writer = _OpenFile(spec, bucket_id, _first_key(part, spec.config), left.pop(0))
            writer.add(part)
        adds.append(writer.close(now_ms))
    except BaseException:
        writer.abandon()
        raise
    return adds


def ordinals_needed(stored_bytes: int, settings: Settings) -> int:
    """How many ordinals to reserve for a file slice of ``stored_bytes``."""
    return 1 + 2 * stored_bytes // settings.target_file_bytes


class _OpenFile:
    """One base file being written, with the tombstones of its key range."""

    def __init__(self, spec: BaseWriteSpec, bucket_id: BucketId, lower: Key | None, ordinal: int) -> None:
        self._spec = spec
        self._bucket_id = bucket_id
        self._lower = lower
        self._is_new = True
        self._tombstones = TombstonesOutput(spec.store, spec.name, ordinal, spec.settings)
        path = f"{BASE_FOLDER}/{spec.name}/{bucket_id.bucket:05d}-{ordinal:010d}.parquet"
        self._file = RowsFile(spec.store, path, schema=spec.config.schema, ordinal=ordinal, settings=spec.settings)

    @property
    def is_full(self) -> bool:
        """Whether the file and its tombstones together have the target size."""
        size = self._file.size_bytes + self._tombstones.size_bytes
        return not self._is_new and size >= self._spec.settings.target_file_bytes

    def add(self, part: MergedRange) -> None:
        self._file.add(part.rows)
        self._tombstones.add(part.tombstones)
        self._is_new = False

    def close(self, now_ms: int) -> AddFile:
        footer, tombstones = self._file.close(), self._tombstones.close()
        spec, ordinal = self._spec, self._file.ordinal
        tag = BaseFile.tag(
            bucket=self._bucket_id.bucket,
            buckets=spec.buckets,
            lower=self._lower,
            through=spec.merged_through,
            ordinal=ordinal,
            rows=self._file.rows,
            tombstones=tombstones,
            tombstone_bytes=self._tombstones.size_bytes,
        )
        return AddFile(
            path=self._file.path,
            partition_values=dict(zip(spec.config.partition_by, self._bucket_id.partition, strict=True)),
            size_bytes=self._file.size_bytes,
            modification_time_ms=now_ms,
            data_change=True,
            stats=file_statistics(
                footer, spec.config.schema, partition_by=spec.config.partition_by, texts=self._file.texts
            ),
            tags={SLICE_TAG: tag},
        )

    def abandon(self) -> None:
        self._file.abandon()
        self._tombstones.abandon()


def _first_key(part: MergedRange, config: TableConfig) -> Key:
    keys = [
        keys_at(key_columns(table.slice(0, 1), config.key), [0])[0]
        for table in (part.rows, part.tombstones)
        if table.num_rows
    ]
    return min(keys)
