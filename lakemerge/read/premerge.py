"""A minor compaction in memory: where logs are small beside what is stored, a read merges them first.

Then base minus superseded positions plus merged rows is the answer, as after a minor compaction
(docs/table-format.md, section 8), and no stored row has to pass through the merge. Where the merger gives back one of
its inputs, the merged rows are in the logs already, and places tell all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakemerge.format.minor import packed_positions
from lakemerge.layout.view import FileSlice
from lakemerge.read.merge import MergeSpec, changed_ranges, may_pick_records, picked_ranges, picks_records
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.sources import PLACE
from lakemerge.read.superseded import Superseded
from mergers.contract import Ints

__all__ = ["MergedBeside", "are_few", "due_first", "merge_beside", "pays_first"]

_MOST_ROWS = 2**25
"""Stored rows of the file slices that one read merges first: their bitmaps take 4 MiB."""
_LEAST_BYTES = 16 * 2**20
"""Below this many Parquet bytes of requested columns, merging during the read is cheaper than a separate premerge
job."""
_STORED_PER_RECORD = 4
"""Where a file slice has fewer stored rows per log record, a merge is much of the read anyway."""
_STORED_PER_PLACE = 1
"""The same where a merge gives places alone."""
_PLACE_BYTES = 4
"""What the driver holds of a record by its place."""
_MOST_LOGS = 256
"""Log files that a scan tells records of apart, by their names."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class MergedBeside:
    """What the logs of a file slice change in it. Picklable."""

    positions: pa.Table
    """Superseded rows, of :data:`lakemerge.format.minor.POSITIONS_SCHEMA`; those of its minor entry are among them."""
    rows: bytes
    """The rows in their place and new ones, sorted by key, the columns asked for, nullable: an Arrow IPC stream,
    compressed. Empty where there are none."""
    records: Mapping[str, Ints]
    """More of such rows: by log file, the positions of records that are some, whole."""
    picked: bool
    """Whether there are ``records`` alone, and this is what any columns come to."""


def due_first(file_slices: Sequence[FileSlice], spec: MergeSpec) -> list[FileSlice]:
    """Those of the file slices whose logs may be merged first; none where their bitmaps would take too much.

    File slices of which a read wants a few keys are not due: their merge reads little of what is stored.
    """
    few = are_few(file_slices)
    due = [
        file_slice
        for file_slice in file_slices
        if file_slice.blocks and file_slice.wanted is None and _has_small_logs(file_slice, spec, few=few)
    ]
    return due if sum(file_slice.stored_rows for file_slice in due) <= _MOST_ROWS else []


def pays_first(due: Sequence[FileSlice], spec: MergeSpec, *, asked: float) -> bool:
    """Whether a job that merges them first costs less than merging them while reading, and gives no more than the
    driver may hold.

    :param due: see :func:`due_first`.
    :param asked: the share of the table's columns that the read asks for.
    """
    stored = sum(file_slice.file_bytes for file_slice in due)
    few = are_few(due)
    places = [file_slice for file_slice in due if few and _is_whole(file_slice, spec)]
    rows = [file_slice for file_slice in due if not few or not _is_whole(file_slice, spec)]
    held = sum(map(_records, places)) * _PLACE_BYTES + sum(file_slice.log_bytes for file_slice in rows) * asked
    return stored * asked >= _LEAST_BYTES and held <= spec.settings.merge_first_bytes


def _has_small_logs(file_slice: FileSlice, spec: MergeSpec, *, few: bool) -> bool:
    per_record = _STORED_PER_PLACE if few and _is_whole(file_slice, spec) else _STORED_PER_RECORD
    return 0 < _records(file_slice) * per_record <= file_slice.stored_rows


def _is_whole(file_slice: FileSlice, spec: MergeSpec) -> bool:
    """Whether a merge is sure to give places. Where a block lacks columns, the job alone can tell."""
    whole = all(len(block.file.columns) == len(spec.config.schema) for block in file_slice.blocks)
    return whole and may_pick_records(spec, file_slice)


def _records(file_slice: FileSlice) -> int:
    return sum(block.rows for block in file_slice.blocks)


def are_few(file_slices: Sequence[FileSlice]) -> bool:
    """Whether the file slices' log files are few enough for a scan of them, and have names that tell them apart."""
    names = [
        path.rpartition("/")[2]
        for path in {block.file.path for file_slice in file_slices for block in file_slice.blocks}
    ]
    return len(names) <= _MOST_LOGS and len(set(names)) == len(names) and all(map(_NAME.fullmatch, names))


def merge_beside(file_slice: FileSlice, spec: MergeSpec, columns: Sequence[str], *, pick: bool) -> MergedBeside:
    """Merge a file slice's logs; of what is stored, only what that needs is read.

    :param columns: of the rows, at least one.
    :param pick: whether the caller reads ``records``; then there are no ``rows`` where places tell all.
    """
    with ParquetFiles(spec.store) as files:
        gone = Superseded(spec.store, file_slice, files)
        if picked := pick and picks_records(spec, file_slice, files):
            rows, records = b"", _picked(file_slice, spec, gone, files)
        else:
            rows, records = _merged(file_slice, spec, columns, gone, files), {}
    positions = packed_positions(gone.positions({file.ordinal for file in file_slice.row_files}))
    return MergedBeside(positions, rows, records, picked)


def _picked(file_slice: FileSlice, spec: MergeSpec, gone: Superseded, files: ParquetFiles) -> dict[str, Ints]:
    found = [PLACE.empty_table()]
    for part in picked_ranges(spec, file_slice, files=files):
        gone.mark(part.superseded)
        found.append(part.records)
    numbers, rows = (column.to_numpy() for column in pa.concat_tables(found).columns)
    records: dict[str, Ints] = {}
    for number in np.unique(numbers).tolist():
        path = file_slice.blocks[number].file.path
        mine = rows[numbers == number]
        records[path] = np.concatenate([records[path], mine]) if path in records else mine
    return records


def _merged(
    file_slice: FileSlice, spec: MergeSpec, columns: Sequence[str], gone: Superseded, files: ParquetFiles
) -> bytes:
    schema = pa.schema([spec.config.schema.field(name).with_nullable(True) for name in columns])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    rows = 0
    with pa.ipc.new_stream(sink, schema, options=options) as stream:
        for part in changed_ranges(spec, file_slice, columns=columns, files=files):
            gone.mark(part.superseded)
            stream.write_table(part.rows.select(list(columns)).cast(schema))
            rows += part.rows.num_rows
    return sink.getvalue().to_pybytes() if rows else b""
