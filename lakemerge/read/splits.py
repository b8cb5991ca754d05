"""Splits: one task reads a part of a large file slice, or several small file slices.

A part is a key range that begins and ends where row groups of the file slice's largest file do. Each task reads these
keys from that file's footer, so planning opens no file. All parts of a file slice read the same footer, so their
ranges adjoin: each row is in exactly one part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.format.keys import Key, KeySpan
from lakemerge.layout.view import FileSlice
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.read.parquet.row_groups import key_bounds

__all__ = ["Part", "split_file_slices"]


@dataclass(frozen=True, slots=True)
class Part:
    """One of ``count`` parts of a file slice, of about even size. Picklable."""

    file_slice: FileSlice
    number: int
    count: int
    stored_bytes: int
    """An estimate of the Parquet bytes to read."""

    def narrowed(self, files: ParquetFiles, key: Sequence[pa.Field]) -> FileSlice | None:
        """The file slice, narrowed to the part's keys and the logs that may hold some of them. ``None`` if the file
        has too few row groups for so many parts.

        :param key: the key columns, as files have them.
        """
        if self.count == 1:
            return self.file_slice
        _, file, groups = _largest_file(self.file_slice)
        footer = files.column_footer(file, groups or ())
        there = groups or range(footer.num_row_groups)
        bounds = [None, *_cuts(footer, there, key, min(self.count, len(there))), None]
        if self.number + 1 >= len(bounds):
            return None
        span = KeySpan(bounds[self.number], bounds[self.number + 1])
        blocks = [block for block in self.file_slice.blocks if span.may_hold(block.key_min or (), block.key_max or ())]
        return replace(self.file_slice, blocks=tuple(blocks), wanted=span)


def split_file_slices(file_slices: Sequence[FileSlice], target_bytes: int) -> list[Part]:
    """The file slices in parts of at most about ``target_bytes``. A file slice of which only some keys are wanted is
    one part."""
    sizes = [file_slice.stored_bytes for file_slice in file_slices]
    large = [
        file_slice.wanted is None and size > target_bytes for file_slice, size in zip(file_slices, sizes, strict=True)
    ]
    # A block that reaches into several file slices is read by row groups: each file slice reads its share.
    sharing = Counter(id(block) for file_slice in compress(file_slices, large) for block in file_slice.blocks)
    parts = []
    for file_slice, size, is_large in zip(file_slices, sizes, large, strict=True):
        if not is_large:
            parts.append(Part(file_slice, 0, 1, size))
            continue
        share = _bytes(file_slice, sharing)
        rows, _, _ = _largest_file(file_slice)
        count = max(1, min(rows, -(-share // target_bytes)))
        parts += [Part(file_slice, number, count, share // count) for number in range(count)]
    return parts


def _bytes(file_slice: FileSlice, sharing: Counter[int]) -> int:
    shares = sum(block.data_bytes // sharing[id(block)] for block in file_slice.blocks)
    return file_slice.stored_bytes - file_slice.log_bytes + shares


def _largest_file(file_slice: FileSlice) -> tuple[int, StoredFile, range | None]:
    """The file that has the most rows of a file slice. Returns the number of these rows, the file, and which of its row
    groups belong to the file slice (``None``: all)."""
    found: list[tuple[int, StoredFile, range | None]] = []
    found += [(file.rows, StoredFile(file.path, file.size_bytes), None) for file in file_slice.row_files]
    for block in file_slice.blocks:
        found.append((block.rows, StoredFile(block.file.path, block.file.size_bytes), block.groups))
    return max(found, key=lambda candidate: candidate[0])


def _cuts(footer: pq.FileMetaData, groups: Sequence[int], key: Sequence[pa.Field], count: int) -> list[Key]:
    """The first keys of all parts except the first: at most ``count - 1`` keys, ascending."""
    if not groups:
        return []
    starts = np.array(list(accumulate((footer.row_group(group).num_rows for group in groups), initial=0)))
    nearest = {int(np.abs(starts[:-1] - starts[-1] * number / count).argmin()) for number in range(1, count)}
    begins = key_bounds(footer, [groups[place] for place in sorted(nearest - {0})], key)
    return sorted({least for least, _ in begins} - {()})
