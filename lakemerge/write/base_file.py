"""Writing base files: merged rows of one file slice, sorted by key, as Delta adds.

Source: docs/table-format.md, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from lakemerge.read.runs import key_position
from lakemerge.storage.base import Store
from lakemerge.write.parquet.rows import RowsFile
from lakemerge.write.parquet.stats import file_statistics
from lakemerge.write.parquet.tombstones import TombstonesOutput
from mergers.keys import key_columns

__all__ = ["Apart", "BaseWriteSpec", "ordinals_needed", "write_base_files"]


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


@dataclass(frozen=True, slots=True)
class Apart:
    """A key that is written as it was stored, because its records cannot be merged."""

    key: Key
    stored: MergedRange
    """Its row or its tombstone, or nothing."""
    through: int
    """The version through which its logs are merged. Later ones stay live for it."""


def write_base_files(
    ranges: Iterable[MergedRange],
    spec: BaseWriteSpec,
    bucket_id: BucketId,
    *,
    lower: Key | None,
    ordinals: Sequence[int],
    now_ms: int,
    apart: Sequence[Apart] = (),
    at_rows: bool = False,
) -> list[AddFile]:
    """Write the ranges of one file slice (ascending, rows sorted by key) as one or more files.

    A new file begins at a range boundary once the current one has the target size. It begins at the first row of the
    range: its tag holds that key for as long as the file's range is there, so it should be one that the table has.
    There is always at least one file, even if it is empty, because it carries the watermark.

    :param lower: the file slice's lower bound. The first file gets it.
    :param ordinals: the ordinals reserved for this file slice, one for each file that may be needed. When they run
        out, the last file takes all remaining rows.
    :param apart: keys for files of their own, ascending, which are in none of the ranges. A file for them begins with
        the first of them, and ends where the next row of ``ranges`` is. Each key may need two ordinals.
    :param at_rows: whether a file may begin at a row alone. Otherwise a range of deletes alone begins one,
        too, where deletes alone fill a file.
    """
    left = list(ordinals)
    adds: list[AddFile] = []
    writer = _OpenFile(spec, bucket_id, lower, left.pop(0))
    to_come = 2 * len(apart)
    try:
        for piece in _with_apart(ranges, apart, spec.config):
            through = piece.through if isinstance(piece, Apart) else spec.merged_through
            part = piece.stored if isinstance(piece, Apart) else piece
            if writer.through != through and not writer.is_untouched:
                adds.append(writer.close(now_ms))
                begin = piece.key if isinstance(piece, Apart) else _first_key(piece, spec.config)
                writer = _OpenFile(spec, bucket_id, begin, left.pop(0))
            elif (
                len(left) > to_come
                and writer.is_full
                and (part.rows.num_rows or (writer.has_many_deletes and not at_rows))
            ):
                if part.rows.num_rows and not isinstance(piece, Apart):
                    deletes, part = _cut(part, _first_row(part, spec.config), spec.config)
                    writer.add(deletes)
                begin = piece.key if isinstance(piece, Apart) else _first_key(part, spec.config)
                adds.append(writer.close(now_ms))
                writer = _OpenFile(spec, bucket_id, begin, left.pop(0))
            to_come -= 2 * isinstance(piece, Apart)
            writer.through = through
            writer.add(part)
        adds.append(writer.close(now_ms))
    except BaseException:
        writer.abandon()
        raise
    return adds


def _with_apart(
    ranges: Iterable[MergedRange], apart: Sequence[Apart], config: TableConfig
) -> Iterator[MergedRange | Apart]:
    """The ranges, cut where the keys are that stay apart. Empty ranges are left out."""
    left = list(apart)
    for whole in ranges:
        part = whole
        while left and _has_any(part) and left[0].key < _last_key(part, config):
            before, part = _cut(part, left[0].key, config)
            if _has_any(before):
                yield before
            yield left.pop(0)
        if _has_any(part):
            yield part
    yield from left


def _has_any(part: MergedRange) -> bool:
    return bool(part.rows.num_rows or part.tombstones.num_rows)


def _cut(part: MergedRange, key: Key, config: TableConfig) -> tuple[MergedRange, MergedRange]:
    """The rows and tombstones below the key, and those above."""
    sides = []
    for table in (part.rows, part.tombstones):
        place = key_position(key_columns(table, config.key), key, after=False) if table.num_rows else 0
        sides.append((table.slice(0, place), table.slice(place)))
    (rows, more_rows), (tombstones, more_tombstones) = sides
    return MergedRange(rows, tombstones), MergedRange(more_rows, more_tombstones)


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
        self.through = spec.merged_through
        """The version through which the logs of its keys are merged."""
        self._tombstones = TombstonesOutput(spec.store, spec.name, ordinal, spec.settings, spec.config.names)
        path = f"{BASE_FOLDER}/{spec.name}/{bucket_id.bucket:05d}-{ordinal:010d}.parquet"
        config = spec.config
        self._file = RowsFile(
            spec.store, path, schema=config.schema, names=config.names, ordinal=ordinal, settings=spec.settings
        )

    @property
    def is_untouched(self) -> bool:
        return self._is_new

    @property
    def is_full(self) -> bool:
        """Whether the file and its tombstones together have the target size."""
        left = self._spec.settings.target_file_bytes - self._tombstones.size_bytes
        return not self._is_new and self._file.reaches(left)

    @property
    def has_many_deletes(self) -> bool:
        """Whether the tombstones alone have the target size."""
        return self._tombstones.size_bytes >= self._spec.settings.target_file_bytes

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
            through=self.through,
            ordinal=ordinal,
            rows=self._file.rows,
            tombstones=tombstones,
            tombstone_bytes=self._tombstones.size_bytes,
        )
        return AddFile(
            path=self._file.path,
            partition_values=dict(zip(spec.config.stored_partition_by, self._bucket_id.partition, strict=True)),
            size_bytes=self._file.size_bytes,
            modification_time_ms=now_ms,
            data_change=True,
            stats=file_statistics(
                footer,
                spec.config.names.schema(spec.config.schema),
                partition_by=spec.config.stored_partition_by,
                texts=self._file.texts,
            ),
            tags={SLICE_TAG: tag},
        )

    def abandon(self) -> None:
        self._file.abandon()
        self._tombstones.abandon()


def _last_key(part: MergedRange, config: TableConfig) -> Key:
    return max(
        keys_at(key_columns(table, config.key), [table.num_rows - 1])[0]
        for table in (part.rows, part.tombstones)
        if table.num_rows
    )


def _first_row(part: MergedRange, config: TableConfig) -> Key:
    return keys_at(key_columns(part.rows.slice(0, 1), config.key), [0])[0]


def _first_key(part: MergedRange, config: TableConfig) -> Key:
    keys = [
        keys_at(key_columns(table.slice(0, 1), config.key), [0])[0]
        for table in (part.rows, part.tombstones)
        if table.num_rows
    ]
    return min(keys)
