"""Records which stored rows of a file slice are superseded while its logs are merged."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from lakemerge.errors import TableDamagedError
from lakemerge.format.minor import Positions, read_superseded
from lakemerge.layout.view import FileSlice
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.read.sources import PLACE
from lakemerge.storage.base import Store

__all__ = ["Superseded"]


class Superseded:
    """A bit for each row of a file slice's base file and winner files, by ordinal. Rows that the file slice's minor
    entry supersedes are marked from the beginning.

    Raises :class:`TableDamagedError` if a file does not have as many rows as the table says.
    """

    def __init__(self, store: Store, file_slice: FileSlice, files: ParquetFiles) -> None:
        for file in file_slice.row_files:
            path, rows = file.path, files.footer(StoredFile(file.path, file.size_bytes)).num_rows
            if rows != file.rows:
                raise TableDamagedError(f"file {path!r} has {rows} rows; the table says {file.rows}", path=path)
        self._gone = {file.ordinal: np.zeros(file.rows, dtype=np.bool_) for file in file_slice.row_files}
        for ordinal, bits in read_superseded(store, file_slice.minor).items():
            if ordinal not in self._gone:
                named = None if file_slice.minor is None else file_slice.minor.positions
                raise TableDamagedError(f"positions file {named!r} is of another file slice's files", path=named)
            mine = self._gone[ordinal]
            mine[: len(bits)] = bits[: len(mine)]
        self._before = {ordinal: int(bits.sum()) for ordinal, bits in self._gone.items()}

    def mark(self, places: pa.Table) -> None:
        """Mark more rows as superseded. ``places`` has the columns of :data:`lakemerge.read.sources.PLACE`."""
        ordinals, rows = (column.to_numpy() for column in places.select(PLACE.names).columns)
        for ordinal, bits in self._gone.items():
            bits[rows[ordinals == ordinal]] = True

    def has_more(self, ordinal: int) -> bool:
        """Whether rows of a file were marked that its minor entry does not supersede."""
        return int(self._gone[ordinal].sum()) > self._before[ordinal]

    def is_whole(self, ordinal: int) -> bool:
        """Whether all rows of a file are superseded."""
        return bool(self._gone[ordinal].all())

    def positions(self, ordinals: Collection[int]) -> Positions:
        """The superseded rows of these files. Files without any are left out."""
        return {ordinal: bits for ordinal, bits in self._gone.items() if ordinal in ordinals and bits.any()}
