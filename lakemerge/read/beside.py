"""A minor compaction in memory: where logs are small beside what is stored, a read merges them first.

Then base minus superseded positions plus merged rows is the answer, as after a minor compaction
(docs/table-format.md, section 8), and no stored row has to pass through the merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakemerge.options import Settings
from lakemerge.read.merge import MergeSpec, changed_ranges
from lakemerge.read.parquet import ParquetFiles
from lakemerge.read.superseded import Superseded
from lakemerge.slices.minor import packed_positions
from lakemerge.slices.view import Tile

__all__ = ["MergedBeside", "merge_beside", "to_merge_first"]

_MOST_ROWS = 2**25
"""Stored rows of the tiles that one read merges first: their bitmaps take 4 MiB."""
_LEAST_BYTES = 16 * 2**20
"""Of stored columns that are asked for, Parquet: what a merge while reading passes on of fewer costs less than the job
that a merge beforehand takes."""
_STORED_PER_RECORD = 4
"""Of a tile with fewer stored rows per log record a merge is much of the read anyway."""


@dataclass(frozen=True, slots=True)
class MergedBeside:
    """What the logs of a tile change in it. Picklable."""

    positions: pa.Table
    """Superseded rows, of :data:`lakemerge.slices.minor.POSITIONS_SCHEMA`; those of its minor entry are among them."""
    rows: bytes
    """The rows in their place and new ones, sorted by key, the columns asked for, nullable: an Arrow IPC stream,
    compressed. Empty where there are none."""


def to_merge_first(tiles: Sequence[Tile], settings: Settings, *, asked: float) -> list[Tile]:
    """Those of the tiles whose logs are better merged first: all that are due for it, or none where that is too much.

    Tiles of which a read wants a few keys are not due: their merge reads little of what is stored.

    :param asked: the share of the table's columns that the read asks for.
    """
    due = [tile for tile in tiles if tile.blocks and tile.wanted is None and _has_small_logs(tile)]
    files = [file for tile in due for file in tile.row_files]
    pays = sum(file.size_bytes for file in files) * asked >= _LEAST_BYTES
    fits = sum(tile.log_bytes for tile in due) * asked <= settings.merge_first_bytes
    return due if pays and fits and sum(file.rows for file in files) <= _MOST_ROWS else []


def _has_small_logs(tile: Tile) -> bool:
    records = sum(block.rows for block in tile.blocks)
    return 0 < records * _STORED_PER_RECORD <= sum(file.rows for file in tile.row_files)


def merge_beside(tile: Tile, spec: MergeSpec, columns: Sequence[str]) -> MergedBeside:
    """Merge a tile's logs; of what is stored, only what that needs is read.

    :param columns: of the rows, at least one.
    """
    schema = pa.schema([spec.config.schema.field(name).with_nullable(True) for name in columns])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    rows = 0
    with ParquetFiles(spec.store) as files, pa.ipc.new_stream(sink, schema, options=options) as stream:
        gone = Superseded(spec.store, tile, files)
        for part in changed_ranges(spec, tile, columns=columns, files=files):
            gone.mark(part.superseded)
            stream.write_table(part.rows.select(list(columns)).cast(schema))
            rows += part.rows.num_rows
    positions = packed_positions(gone.positions({file.ordinal for file in tile.row_files}))
    return MergedBeside(positions, sink.getvalue().to_pybytes() if rows else b"")
