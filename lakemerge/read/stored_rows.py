"""Which rows of which Parquet files a version has, for readers that know nothing of merging.

Base and winner files have all their rows but superseded ones. If a premerge found that the merged rows are records of
the logs, a log file has those records. Other file slices need the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import TableDamagedError
from lakemerge.format.log_block import LogFile
from lakemerge.format.minor import RowFile, superseded_table
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice
from lakemerge.read.merge import MergeSpec
from lakemerge.read.premerge import Premerged, may_pick_places
from mergers.contract import Bools, Ints

__all__ = ["SelectedFile", "StoredRows", "merged_files", "stored_rows"]

_NO_BITS: npt.NDArray[np.int64] = np.zeros(0, dtype="<i8")


@dataclass(frozen=True, slots=True)
class SelectedFile:
    """A Parquet file, and which of its rows a version has."""

    path: str
    size_bytes: int
    rows: int | None
    """The rows of the file, if the table says how many they are."""
    wanted: int
    """How many of them the version has."""
    words: npt.NDArray[np.int64] | None = None
    """A bit for each row, up to the last that is set; ``None``: the version has all rows."""
    skipped: int = 0
    """Before the words there are so many without any bit that is set."""
    keeps: bool = False
    """Whether the bits are set for rows that the version has, or for those that it does not have."""


@dataclass(slots=True)
class StoredRows:
    """The rows of a version, or of some of its file slices."""

    files: list[SelectedFile] = field(default_factory=list)
    """Log files once for each file slice that has records there."""
    owners: list[FileSlice] = field(default_factory=list)
    """Of each file, the file slice whose rows are read."""
    streams: list[bytes] = field(default_factory=list)
    """Rows that are merged already, as Arrow IPC streams with the requested columns."""
    stream_owners: list[FileSlice] = field(default_factory=list)
    stream_rows: int = 0
    kernel: list[FileSlice] = field(default_factory=list)
    """File slices whose rows the kernel has to merge."""

    def add(self, files: Iterable[SelectedFile], owner: FileSlice) -> None:
        for file in files:
            self.files.append(file)
            self.owners.append(owner)


Premerge = Callable[..., Sequence[Premerged]]
"""Premerges file slices, on Spark or on threads: ``premerge(file_slices, only_places=...)``. Rows are not
compressed."""
FilesOf = Callable[[FileSlice], Sequence[SelectedFile]]


def stored_rows(
    handle: Handle,
    spec: MergeSpec,
    file_slices: Sequence[FileSlice],
    premerge: Premerge,
    first: Sequence[FileSlice] = (),
    files_of: FilesOf | None = None,
) -> StoredRows:
    """The rows of file slices.

    :param files_of: what :func:`merged_files` gives, perhaps from an earlier call.
    :param first: those of the file slices whose computed rows are merged now, and not by the kernel during the read.

    If the caller wants only some keys, file slices carry these (:attr:`FileSlice.wanted`). Files then have other rows,
    too, some of which may be superseded: whoever reads them judges each row by the same condition.
    """
    found = StoredRows()
    merged = [file_slice for file_slice in file_slices if file_slice.is_merged]
    now = {id(file_slice) for file_slice in first}
    due = [file_slice for file_slice in may_pick_places(file_slices, spec) if id(file_slice) not in now]
    files = _files_of(handle, merged, files_of or partial(merged_files, handle))
    for file_slice, each in zip(merged, files, strict=True):
        found.add(each, file_slice)
    records: list[tuple[SelectedFile, FileSlice]] = []
    given = premerge(due, only_places=True) if due else ()
    for file_slice, part in zip(due, given, strict=True):
        if not part.picked:
            found.kernel.append(file_slice)
            continue
        found.add(_selected(file_slice.row_files, part.positions), file_slice)
        blocks = {block.file.path: block.file for block in file_slice.blocks}
        records += ((_records_of(blocks[path], rows), file_slice) for path, rows in part.records.items())
    for file, file_slice in records:
        found.add([file], file_slice)
    for file_slice, part in zip(first, premerge(first, only_places=False) if first else (), strict=True):
        found.add(_selected(file_slice.row_files, part.positions), file_slice)
        if part.rows:
            found.streams.append(part.rows)
            found.stream_owners.append(file_slice)
            found.stream_rows += part.row_count
    chosen = now | {id(file_slice) for file_slice in due}
    found.kernel.extend(each for each in file_slices if not each.is_merged and id(each) not in chosen)
    return found


def merged_files(handle: Handle, file_slice: FileSlice) -> Sequence[SelectedFile]:
    """The files of a file slice without live logs."""
    minor = file_slice.minor
    if minor is None or not _lacks_rows(file_slice):
        return list(_whole(file_slice.row_files))
    return list(_selected(file_slice.row_files, superseded_table(handle.store, minor), minor.positions))


def _files_of(handle: Handle, merged: Sequence[FileSlice], files_of: FilesOf) -> Iterator[Sequence[SelectedFile]]:
    """The files of each file slice. The log tells those of most. Only superseded rows are read, by threads."""
    lacking = [_lacks_rows(file_slice) for file_slice in merged]
    with thread_pool(handle.settings.threads) as pool:
        read = pool.map(files_of, compress(merged, lacking))
        for file_slice, lacks in zip(merged, lacking, strict=True):
            yield next(read) if lacks else list(_whole(file_slice.row_files))


def _lacks_rows(file_slice: FileSlice) -> bool:
    """Whether its files have superseded rows."""
    return file_slice.minor is not None and bool(file_slice.minor.superseded_key)


def _whole(files: Iterable[RowFile]) -> Iterator[SelectedFile]:
    return (SelectedFile(file.path, file.size_bytes, file.rows, file.rows) for file in files if file.rows)


def _selected(files: Sequence[RowFile], positions: pa.Table, path: str | None = None) -> Iterator[SelectedFile]:
    """Files without superseded rows.

    :param positions: see :data:`lakemerge.format.minor.POSITIONS_SCHEMA`.
    :param path: the positions file, for errors.
    """
    columns = (positions.column("file").to_pylist(), positions.column("bits"))
    gone = {ordinal: bits.values for ordinal, bits in zip(*columns, strict=True)}
    if strange := gone.keys() - {file.ordinal for file in files}:
        raise TableDamagedError(
            f"positions file {path!r} is of another file slice's files: {sorted(strange)}", path=path
        )
    for file in files:
        bits = gone.get(file.ordinal)
        if bits is None:
            yield from _whole([file])
            continue
        words = np.ascontiguousarray(bits.to_numpy(zero_copy_only=False), dtype="<i8")
        mask = np.unpackbits(words.view(np.uint8), bitorder="little")[: file.rows]
        left = file.rows - int(mask.sum())
        if left:
            yield SelectedFile(file.path, file.size_bytes, file.rows, left, words)


def _records_of(file: LogFile, rows: Ints) -> SelectedFile:
    """The wanted records of a log file."""
    if not len(rows):
        return SelectedFile(file.path, file.size_bytes, None, 0, _NO_BITS, keeps=True)
    skipped = int(rows.min()) // 64
    kept: Bools = np.zeros((int(rows.max()) // 64 + 1 - skipped) * 64, dtype=np.bool_)
    kept[rows - skipped * 64] = True
    words = np.packbits(kept, bitorder="little").view("<i8")
    return SelectedFile(file.path, file.size_bytes, None, int(kept.sum()), words, skipped, keeps=True)
