"""A version of a table as slices: which base files and which live log blocks make up each.

The unit of every merge is the *tile*: one base file (or none), the key range it is responsible for,
and the live log blocks that reach into that range. Liveness has one rule (docs/table-format.md,
section 4): a log row is live iff its commit's version > ``merged_through`` of the base file whose
range holds its key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from lakemerge.config import LOG_DOMAIN_PREFIX, State, TableConfig
from lakemerge.errors import TableDamagedError
from lakemerge.log import Snapshot
from lakemerge.slices.blocks import LogCommit, read_log_commit
from lakemerge.slices.model import BaseFile, Key, LogBlock, SliceId
from lakemerge.storage.base import Store

__all__ = ["TableView", "Tile", "build_tiles"]


@dataclass(frozen=True, slots=True)
class Tile:
    """One base file's key range of a slice, with the log blocks that are live in it."""

    slice: SliceId
    buckets: int
    base: BaseFile | None
    lower: Key | None
    """Included; ``None``: open."""
    upper: Key | None
    """Excluded; ``None``: open."""
    blocks: tuple[LogBlock, ...]
    """In commit order."""

    @property
    def is_clean(self) -> bool:
        """Whether the base file alone is the answer."""
        return not self.blocks

    @property
    def merged_through(self) -> int:
        return -1 if self.base is None else self.base.merged_through

    @property
    def log_bytes(self) -> int:
        """Uncompressed bytes of the live blocks."""
        return sum(block.data_bytes for block in self.blocks)

    @property
    def stored_bytes(self) -> int:
        """Parquet bytes a merge of the tile reads, estimated."""
        base = 0 if self.base is None else self.base.add.size_bytes
        return base + self.log_bytes


class TableView:
    """What a snapshot holds, decoded once. ``store`` is read only for block index files."""

    def __init__(self, snapshot: Snapshot, config: TableConfig, store: Store) -> None:
        self.snapshot = snapshot
        self.config = config
        self.store = store

    @property
    def version(self) -> int:
        return self.snapshot.version

    @cached_property
    def state(self) -> State:
        return State.of(self.snapshot)

    @cached_property
    def base_files(self) -> tuple[BaseFile, ...]:
        return tuple(BaseFile.of(add, self.config.partition_by) for add in self.snapshot.files.values())

    @cached_property
    def log_commits(self) -> tuple[LogCommit, ...]:
        """In version order."""
        domains = [d for name, d in self.snapshot.domains.items() if name.startswith(LOG_DOMAIN_PREFIX)]
        commits = [read_log_commit(domain, self.store) for domain in domains]
        return tuple(sorted(commits, key=lambda commit: commit.version))

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """Every tile of every slice that has files or live logs."""
        blocks = [block for commit in self.log_commits for block in commit.blocks]
        return tuple(build_tiles(self.base_files, blocks, buckets=self.config.buckets or 1))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever loaded: no base file and no log."""
        return not self.base_files and not self.log_commits

    def dead_log_commits(self, tiles: Sequence[Tile] | None = None) -> list[LogCommit]:
        """Commits none of whose blocks is live in any of the tiles."""
        live = {block.version for tile in (self.tiles if tiles is None else tiles) for block in tile.blocks}
        return [commit for commit in self.log_commits if commit.version not in live]


def build_tiles(base_files: Sequence[BaseFile], blocks: Sequence[LogBlock], *, buckets: int) -> Iterator[Tile]:
    """Tiles of all slices, in no particular order of slices, by key within a slice.

    :param blocks: in commit order.
    """
    by_slice: dict[SliceId, list[BaseFile]] = defaultdict(list)
    for base in base_files:
        if base.buckets != buckets:
            raise TableDamagedError(
                f"file {base.add.path!r} belongs to a layout of {base.buckets} buckets in a table of {buckets}",
                path=base.add.path,
            )
        by_slice[base.slice].append(base)
    logs: dict[SliceId, list[LogBlock]] = defaultdict(list)
    for block in blocks:
        for slice_id in _slices_of(block, buckets):
            logs[slice_id].append(block)
    for slice_id in by_slice.keys() | logs.keys():
        yield from _tiles_of(slice_id, buckets, by_slice.get(slice_id, ()), logs.get(slice_id, ()))


def _slices_of(block: LogBlock, buckets: int) -> Iterator[SliceId]:
    """The slices that may hold keys of a block. Bucket counts are powers of two, so a key's bucket
    of the smaller count is its bucket of the larger one, modulo."""
    if block.buckets >= buckets:
        yield SliceId(block.slice.partition, block.slice.bucket % buckets)
    else:
        for bucket in range(block.slice.bucket, buckets, block.buckets):
            yield SliceId(block.slice.partition, bucket)


def _tiles_of(slice_id: SliceId, buckets: int, files: Sequence[BaseFile], blocks: Sequence[LogBlock]) -> Iterator[Tile]:
    if not files:
        yield Tile(slice_id, buckets, None, None, None, tuple(blocks))
        return
    ordered = sorted(files, key=lambda file: () if file.lower is None else file.lower)
    if ordered[0].lower is not None or any(file.lower is None for file in ordered[1:]):
        raise TableDamagedError(
            f"the base files of slice {slice_id} do not tile its keys: {[file.add.path for file in ordered]}",
            slice=slice_id,
        )
    uppers: list[Key | None] = [file.lower for file in ordered[1:]]
    for file, upper in zip(ordered, [*uppers, None], strict=True):
        live = tuple(
            block
            for block in blocks
            if block.version > file.merged_through
            and (upper is None or block.key_min is None or block.key_min < upper)
            and (file.lower is None or block.key_max is None or block.key_max >= file.lower)
        )
        yield Tile(slice_id, buckets, file, file.lower, upper, live)
