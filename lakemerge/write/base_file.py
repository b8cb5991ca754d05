"""Writing base files: merged rows of one tile, sorted by key, as Delta adds.

Files carry the table's columns and two hidden physical ones, ``_lm_file`` (the file's ordinal) and
``_lm_pos`` (the row in the file). Source: docs/table-format.md, section 2.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.config import TableConfig
from lakemerge.log import AddFile
from lakemerge.options import Settings
from lakemerge.read.merge import MergedRange
from lakemerge.slices.model import SLICE_TAG, BaseFile, Key, SliceId, keys_at
from lakemerge.storage.base import Store
from lakemerge.write.encoding import writer_options
from lakemerge.write.stats import file_statistics
from mergers.keys import key_columns

__all__ = [
    "BASE_FOLDER",
    "FILE_COLUMN",
    "POSITION_COLUMN",
    "BaseWriteSpec",
    "delete_prefix",
    "discard_base_files",
    "hidden_fields",
    "ordinals_needed",
    "write_base_files",
]

BASE_FOLDER = "base"
TOMBSTONE_FOLDER = "_lakemerge/tombstones"
FILE_COLUMN = "_lm_file"
POSITION_COLUMN = "_lm_pos"

_logger = logging.getLogger(__name__)


def hidden_fields() -> list[pa.Field]:
    """The physical columns of base files that are not in the Delta schema."""
    return [pa.field(FILE_COLUMN, pa.int32()), pa.field(POSITION_COLUMN, pa.int32())]


@dataclass(frozen=True, slots=True)
class BaseWriteSpec:
    """What every task that writes base files of one commit knows. Picklable."""

    store: Store
    config: TableConfig
    settings: Settings
    name: str
    """Begin version and transaction id; the folder of the files."""
    merged_through: int
    buckets: int


def write_base_files(
    ranges: Iterable[MergedRange],
    spec: BaseWriteSpec,
    slice_id: SliceId,
    *,
    lower: Key | None,
    ordinals: Sequence[int],
    now_ms: int,
) -> list[AddFile]:
    """Write the ranges of one tile (ascending, rows sorted by key) as one or more files.

    A new file begins at a range boundary once the current one has the target size. There is always
    at least one file, possibly empty: it carries the watermark.

    :param lower: the tile's lower bound; the first file gets it.
    :param ordinals: reserved for this tile, as many as files may be needed; when they run out, the
        last file takes all the rest.
    """
    left = list(ordinals)
    adds: list[AddFile] = []
    writer = _OpenFile(spec, slice_id, lower, left.pop(0))
    try:
        for part in ranges:
            if not part.rows.num_rows and not part.tombstones.num_rows:
                continue
            if left and writer.is_full:
                adds.append(writer.close(now_ms))
                writer = _OpenFile(spec, slice_id, _first_key(part, spec.config), left.pop(0))
            writer.add(part)
        adds.append(writer.close(now_ms))
    except BaseException:
        writer.abandon()
        raise
    return adds


def discard_base_files(store: Store, name: str, *, keep: Collection[BaseFile] = ()) -> None:
    """Delete the base and tombstone files of a write that surely did not land; or, before it does,
    those that are not part of ``keep``."""
    kept = frozenset(path for base in keep for path in (base.add.path, base.tombstones) if path is not None)
    for prefix in (f"{TOMBSTONE_FOLDER}/{name}", f"{BASE_FOLDER}/{name}/"):
        delete_prefix(store, prefix, keep=kept)


def delete_prefix(store: Store, prefix: str, *, keep: Collection[str] = ()) -> None:
    """Delete the files whose path begins with ``prefix``, but for those in ``keep``; a prefix names a
    folder and the start of a name.

    Nothing refers to them, so a failure is only logged: it must neither hide the error that ended a
    write nor turn a commit that landed into a failure.
    """
    try:
        listed = store.list(prefix.rsplit("/", 1)[0], start_after=prefix)
        paths = [stat.path for stat in takewhile(lambda stat: stat.path.startswith(prefix), listed)]
        store.delete([path for path in paths if path not in keep])
    except Exception:
        _logger.warning("files at %s* could not be deleted; they are in no version of the table", prefix, exc_info=True)


def ordinals_needed(stored_bytes: int, settings: Settings) -> int:
    """How many ordinals to reserve for a tile that reads ``stored_bytes``."""
    return 1 + 2 * stored_bytes // settings.target_file_bytes


class _OpenFile:
    """One base file being written, with the tombstones of its key range."""

    def __init__(self, spec: BaseWriteSpec, slice_id: SliceId, lower: Key | None, ordinal: int) -> None:
        self._spec = spec
        self._slice = slice_id
        self._lower = lower
        self._ordinal = ordinal
        self._path = f"{BASE_FOLDER}/{spec.name}/{slice_id.bucket:05d}-{ordinal:010d}.parquet"
        self._schema = pa.schema([*spec.config.schema, *hidden_fields()])
        self._rows = 0
        self._tombstones: list[pa.Table] = []
        self._output = spec.store.open_output(self._path)
        self._sink = self._output.__enter__()
        self._writer: Any = None

    @property
    def is_full(self) -> bool:
        """Whether it has the target size; a file without rows never does."""
        return self._rows > 0 and self._sink.tell() >= self._spec.settings.target_file_bytes

    def add(self, part: MergedRange) -> None:
        rows = part.rows.num_rows
        if part.tombstones.num_rows:
            self._tombstones.append(part.tombstones)
        if rows:
            positions = pa.array(np.arange(self._rows, self._rows + rows, dtype=np.int32))
            ordinals = pa.array(np.full(rows, self._ordinal, dtype=np.int32))
            columns = [*part.rows.select(self._spec.config.schema.names).columns, ordinals, positions]
            self._write(pa.table(columns, schema=self._schema).replace_schema_metadata(None))
            self._rows += rows

    def _write(self, table: pa.Table) -> None:
        limit = self._spec.settings.row_group_rows
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._sink,
                table.schema,
                **writer_options(table, group_rows=limit),
                column_encoding={POSITION_COLUMN: "DELTA_BINARY_PACKED"},
            )
        self._writer.write_table(table, row_group_size=limit)

    def close(self, now_ms: int) -> AddFile:
        if self._writer is None:
            self._write(self._schema.remove_metadata().empty_table())
        self._writer.close()
        size = self._sink.tell()
        footer = self._writer.writer.metadata
        self._output.__exit__(None, None, None)
        spec = self._spec
        tag = BaseFile.tag(
            bucket=self._slice.bucket,
            buckets=spec.buckets,
            lower=self._lower,
            through=spec.merged_through,
            ordinal=self._ordinal,
            rows=self._rows,
            tombstones=self._write_tombstones(),
        )
        return AddFile(
            path=self._path,
            partition_values=dict(zip(spec.config.partition_by, self._slice.partition, strict=True)),
            size_bytes=size,
            modification_time_ms=now_ms,
            data_change=True,
            stats=file_statistics(footer, spec.config.schema),
            tags={SLICE_TAG: tag},
        )

    def abandon(self) -> None:
        # The footer goes to a file that is never published; a writer left open would try to write it
        # when it is collected, long after the file has gone.
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        error = RuntimeError("the write was abandoned")
        self._output.__exit__(type(error), error, None)

    def _write_tombstones(self) -> str | None:
        if not self._tombstones:
            return None
        path = f"{TOMBSTONE_FOLDER}/{self._spec.name}-{self._ordinal:010d}.parquet"
        with self._spec.store.open_output(path) as sink:
            rows = pa.concat_tables(self._tombstones)
            pq.write_table(rows, sink, **writer_options(rows, group_rows=rows.num_rows))
        return path


def _first_key(part: MergedRange, config: TableConfig) -> Key:
    keys = [
        keys_at(key_columns(table.slice(0, 1), config.key), [0])[0]
        for table in (part.rows, part.tombstones)
        if table.num_rows
    ]
    return min(keys)
