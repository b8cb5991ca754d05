"""A premerge is a minor compaction in memory. A read does it where the logs are small beside what is stored.

Base minus superseded positions plus merged rows is then the answer, as after a minor compaction (docs/table-format.md,
section 8). No stored row has to pass through the merge. Where the merger gives back one of its inputs, the merged rows
are in the logs already, and their places are all that a premerge gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from lakemerge.format.minor import POSITIONS_SCHEMA, packed_positions
from lakemerge.layout.view import FileSlice
from lakemerge.options import ReadPolicy
from lakemerge.read.merge import (
    MergeSpec,
    changed_ranges,
    deciding_columns,
    may_pick_records,
    picked_ranges,
    picks_records,
)
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.sources import PLACE
from lakemerge.read.superseded import Superseded
from mergers.contract import Ints

__all__ = [
    "Premerged",
    "can_scan_logs",
    "may_pick_places",
    "may_premerge",
    "premerge",
    "premerge_pays",
    "premerged_bytes",
]

_BATCH_ROWS = 64 * 1024
_PLACE_BYTES = 4
"""The bytes that the driver holds for the place of a record."""
_LEAST_SHARE = 1 / 4
"""The columns that decide count for this share of a file's bytes at least: a key may be wider than other columns."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Premerged:
    """What the logs of a file slice change in it. Picklable."""

    positions: pa.Table
    """Superseded rows, including those of its minor entry, as :data:`lakemerge.format.minor.POSITIONS_SCHEMA`."""
    rows: bytes
    """The rows that replace them and new rows, sorted by key, as a compressed Arrow IPC stream. It has the requested
    columns, as nullable ones. Empty if there are no rows."""
    records: Mapping[str, Ints]
    """More such rows, which are whole log records: for each log file, the positions of the records."""
    picked: bool
    """Whether there are only ``records``. They can then be used for a read of any columns."""
    row_count: int = 0
    """How many ``rows`` there are."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return self.positions.nbytes + len(self.rows) + sum(rows.nbytes for rows in self.records.values())


def may_premerge(file_slices: Sequence[FileSlice], spec: MergeSpec) -> list[FileSlice]:
    """The file slices that the read policy allows to premerge. None if their bitmaps would take too much memory.

    A file slice is not among them if a read wants only a few of its keys: its merge then reads few stored rows.
    """
    policy = spec.settings.reads
    if not policy.premerge:
        return []
    few = can_scan_logs(file_slices, policy)
    due = [
        file_slice
        for file_slice in file_slices
        if file_slice.blocks and file_slice.wanted is None and _has_small_logs(file_slice, spec, few=few)
    ]
    return due if sum(file_slice.stored_rows for file_slice in due) <= policy.premerge_rows else []


def may_pick_places(file_slices: Sequence[FileSlice], spec: MergeSpec) -> list[FileSlice]:
    """The file slices with logs of which a premerge may give places alone, as far as the table's metadata say. That
    reads less than any other way to merge them, so the logs may be large. None if the places would take too much
    memory, or if there are so many file slices that opening their files takes longest."""
    policy = spec.settings.reads
    if not policy.premerge or spec.leave_out is not None:  # of a key that is left out, no file may show a row
        return []
    dirty = (file_slice for file_slice in file_slices if file_slice.blocks)
    due = list(islice(filter(may_pick_records(spec), dirty), policy.premerge_slices + 1))
    if len(due) > policy.premerge_slices:
        return []
    held = sum(map(_records, due)) * _PLACE_BYTES
    rows = sum(file_slice.stored_rows for file_slice in due)
    return due if held <= spec.settings.merge_first_bytes and rows <= policy.premerge_rows else []


def premerge_pays(due: Sequence[FileSlice], spec: MergeSpec, *, asked: float) -> bool:
    """Whether a premerge job costs less than merging during the read, and gives no more than the driver may hold.

    :param due: see :func:`may_premerge`.
    :param asked: the share of the table's columns that the read asks for.
    """
    stored = sum(file_slice.file_bytes for file_slice in due)
    policy = spec.settings.reads
    few = can_scan_logs(due, policy)
    places = [file_slice for file_slice in due if few and _is_whole(file_slice, spec)]
    rows = [file_slice for file_slice in due if not few or not _is_whole(file_slice, spec)]
    held = sum(map(_records, places)) * _PLACE_BYTES + sum(file_slice.log_bytes for file_slice in rows) * asked
    return stored * asked >= policy.premerge_from_bytes and held <= spec.settings.merge_first_bytes


def _has_small_logs(file_slice: FileSlice, spec: MergeSpec, *, few: bool) -> bool:
    policy, picks = spec.settings.reads, few and _is_whole(file_slice, spec)
    per_record = policy.premerge_stored_per_place if picks else policy.premerge_stored_per_record
    return 0 < _records(file_slice) * per_record <= file_slice.stored_rows


def _is_whole(file_slice: FileSlice, spec: MergeSpec) -> bool:
    """Whether a premerge is sure to return places. If a block lacks columns, only the job can tell."""
    carried = spec.config.names.carried
    whole = all(len(carried(block.file.columns)) == len(spec.config.schema) for block in file_slice.blocks)
    return whole and may_pick_records(spec)(file_slice)


def _records(file_slice: FileSlice) -> int:
    return sum(block.rows for block in file_slice.blocks)


def can_scan_logs(file_slices: Sequence[FileSlice], policy: ReadPolicy) -> bool:
    """Whether the file slices have few enough log files for a scan of them, and no two with the same name."""
    names = [
        path.rpartition("/")[2]
        for path in {block.file.path for file_slice in file_slices for block in file_slice.blocks}
    ]
    if len(names) > policy.premerge_log_files:
        return False
    return len(set(names)) == len(names) and all(map(_NAME.fullmatch, names))


def premerged_bytes(file_slice: FileSlice, spec: MergeSpec, *, only_places: bool) -> int:
    """An estimate of the bytes that :func:`premerge` reads: for places those of the columns that decide, and otherwise
    those of all columns."""
    if not only_places:
        return file_slice.stored_bytes
    share = max(_LEAST_SHARE, len(deciding_columns(spec)) / len(spec.config.schema))
    return file_slice.tombstone_bytes + int((file_slice.file_bytes + file_slice.log_bytes) * share)


def premerge(
    file_slice: FileSlice,
    spec: MergeSpec,
    columns: Sequence[str],
    *,
    pick: bool,
    only_places: bool = False,
    compressed: bool = True,
) -> Premerged:
    """Merge the logs of a file slice. Only the stored data that the merge needs is read.

    :param columns: the columns of the rows, at least one.
    :param pick: whether the caller can read ``records``. There are then no ``rows`` if places are enough.
    :param only_places: do nothing if places are not enough.
    :param compressed: whether ``rows`` are.
    """
    if only_places:
        with ParquetFiles(spec.store, spec.footers) as files:
            if not picks_records(spec, file_slice, files):
                return Premerged(POSITIONS_SCHEMA.empty_table(), b"", {}, False)
    with ParquetFiles(spec.store, spec.footers) as files:
        superseded = Superseded(spec.store, file_slice, files)
        if picked := pick and picks_records(spec, file_slice, files):
            rows, records, count = b"", _picked(file_slice, spec, superseded, files), 0
        else:
            (rows, count), records = _merged(file_slice, spec, columns, superseded, files, compressed=compressed), {}
    positions = packed_positions(superseded.positions({file.ordinal for file in file_slice.row_files}))
    return Premerged(positions, rows, records, picked, count)


def _picked(file_slice: FileSlice, spec: MergeSpec, superseded: Superseded, files: ParquetFiles) -> dict[str, Ints]:
    found = [PLACE.empty_table()]
    for part in picked_ranges(spec, file_slice, files=files):
        superseded.mark(part.superseded)
        found.append(part.records)
    numbers, rows = (column.to_numpy() for column in pa.concat_tables(found).columns)
    records: dict[str, Ints] = {}
    for number in np.unique(numbers).tolist():
        path = file_slice.blocks[number].file.path
        mine = rows[numbers == number]
        records[path] = np.concatenate([records[path], mine]) if path in records else mine
    return records


def _merged(
    file_slice: FileSlice,
    spec: MergeSpec,
    columns: Sequence[str],
    superseded: Superseded,
    files: ParquetFiles,
    *,
    compressed: bool,
) -> tuple[bytes, int]:
    schema = pa.schema([spec.config.schema.field(name).with_nullable(True) for name in columns])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None, use_threads=False)
    rows = 0
    with pa.ipc.new_stream(sink, schema, options=options) as stream:
        for part in changed_ranges(spec, file_slice, columns=columns, files=files):
            superseded.mark(part.superseded)
            stream.write_table(part.rows.select(list(columns)).cast(schema), max_chunksize=_BATCH_ROWS)
            rows += part.rows.num_rows
    return (sink.getvalue().to_pybytes() if rows else b""), rows
