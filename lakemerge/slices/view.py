"""A version of a table as slices: which base files and which live log blocks make up each.

The unit of every merge is the *tile*: one base file (or none), the key range it is responsible for,
and the live log blocks that reach into that range. Liveness has one rule (docs/table-format.md,
section 4): a log row is live iff its commit's version > ``merged_through`` of the tile whose range
holds its key: that of the base file or, where a minor compaction merged on, of its minor entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from lakemerge.cached import cached_property
from lakemerge.collector import collector_paused
from lakemerge.config import LOG_DOMAIN_PREFIX, State, TableConfig
from lakemerge.errors import TableDamagedError
from lakemerge.log import Snapshot
from lakemerge.slices.blocks import DecodedLogs, LogCommit
from lakemerge.slices.expiry import Expiry, expiries_of
from lakemerge.slices.layout import Layout
from lakemerge.slices.minor import MINOR_DOMAIN_PREFIX, Minor, RowFile
from lakemerge.slices.model import (
    BaseFile,
    Key,
    KeyKinds,
    KeySpan,
    LogBlock,
    SliceId,
    SoughtKeys,
    check_kinds,
    key_kinds,
)
from lakemerge.storage.base import Store

__all__ = ["TableView", "Tile", "build_tiles"]


@dataclass(frozen=True, slots=True)
class Tile:
    """One base file's key range of a slice, with the log blocks that are live in it."""

    slice: SliceId
    buckets: int
    """The bucket count of the slice; the table's, but for slices that a rescale has yet to come to."""
    base: BaseFile | None
    lower: Key | None
    """Included; ``None``: open."""
    upper: Key | None
    """Excluded; ``None``: open."""
    blocks: tuple[LogBlock, ...]
    """In commit order."""
    minor: Minor | None = None
    """Present only with a base file; ``blocks`` are then those after it."""
    wanted: KeySpan | None = None
    """The keys that a read asks for, where it does not ask for all; it leaves out those beyond."""
    sought: SoughtKeys | None = field(default=None, repr=False, compare=False)
    """The keys within ``wanted`` that a look-up asks for; it leaves out what lies between them."""
    expiries: tuple[Expiry, ...] = ()
    """What the table forgot of its tombstones, and when."""

    @property
    def is_clean(self) -> bool:
        """Whether the base file alone is the answer."""
        return not self.blocks and self.minor is None

    @property
    def is_merged(self) -> bool:
        """Whether no log is left to fold: base file, positions and winners are the answer."""
        return not self.blocks

    @property
    def is_empty(self) -> bool:
        """Whether it surely has no row."""
        return not self.blocks and not self.stored_rows

    @property
    def row_files(self) -> tuple[RowFile, ...]:
        """The base file and then the winner files, oldest first."""
        if self.base is None:
            return ()
        base = RowFile(self.base.add.path, self.base.add.size_bytes, self.base.ordinal, self.base.rows)
        return (base, *(() if self.minor is None else self.minor.winners))

    @property
    def stored_rows(self) -> int:
        """Of the row files, superseded ones included."""
        own = 0 if self.base is None else self.base.rows
        return own if self.minor is None else own + sum(file.rows for file in self.minor.winners)

    @property
    def file_bytes(self) -> int:
        """Of the row files."""
        own = 0 if self.base is None else self.base.add.size_bytes
        return own if self.minor is None else own + sum(file.size_bytes for file in self.minor.winners)

    @property
    def merged_through(self) -> int:
        return _merged_through(self.base, self.minor)

    @property
    def tombstones(self) -> str | None:
        """Path of the tile's tombstones."""
        if self.minor is not None:
            return self.minor.tombstones
        return None if self.base is None else self.base.tombstones

    @property
    def tombstone_bytes(self) -> int:
        """Of the tile's tombstones, as stored."""
        if self.minor is not None:
            return self.minor.tombstone_bytes
        return 0 if self.base is None else self.base.tombstone_bytes

    @property
    def log_bytes(self) -> int:
        """Uncompressed bytes of the live blocks."""
        return sum(block.data_bytes for block in self.blocks)

    @property
    def stored_bytes(self) -> int:
        """Parquet bytes a merge of the tile reads, estimated."""
        return self.file_bytes + self.tombstone_bytes + self.log_bytes


class TableView:
    """What a snapshot holds, decoded once. ``store`` is read only for block index files."""

    def __init__(
        self, snapshot: Snapshot, config: TableConfig, store: Store, decoded: DecodedLogs | None = None
    ) -> None:
        self.snapshot = snapshot
        self.config = config
        self.store = store
        self._decoded = decoded or DecodedLogs()

    @property
    def version(self) -> int:
        return self.snapshot.version

    @cached_property
    def state(self) -> State:
        return State.of(self.snapshot)

    @cached_property
    def base_files(self) -> tuple[BaseFile, ...]:
        files = tuple(BaseFile.of(add, self.config.partition_by) for add in self.snapshot.files.values())
        kinds = self.key_kinds
        for file in files:
            try:
                check_kinds(file.lower, kinds)
            except TypeError as error:
                raise TableDamagedError(f"the tag of file {file.add.path!r}: {error}", path=file.add.path) from error
        return files

    @property
    def key_kinds(self) -> KeyKinds:
        return key_kinds(self.config.schema.field(name) for name in self.config.key)

    def check_past(self, log_version: int) -> None:
        """Raises :class:`TableDamagedError` for a log that says it is of a version to come."""
        if log_version > self.version:
            raise TableDamagedError(f"version {self.version} is damaged: it has a log of version {log_version}")

    def check_slices(self, slices: Iterable[SliceId]) -> None:
        """Raises :class:`TableDamagedError` for a log of a slice with other partition columns than the table's."""
        if {len(part.partition) for part in slices} - {len(self.config.partition_by)}:
            told = f"version {self.version} is damaged: it has logs of other partition columns"
            raise TableDamagedError(f"{told} than {list(self.config.partition_by)}")

    @cached_property
    def log_commits(self) -> tuple[LogCommit, ...]:
        """In version order. Raises :class:`TableDamagedError` for one whose records would have no key."""
        domains = [d for name, d in self.snapshot.domains.items() if name.startswith(LOG_DOMAIN_PREFIX)]
        commits = self._decoded.read(domains, self.store, self.key_kinds)
        for commit in commits:
            if lacking := set(self.config.key).difference(commit.columns):
                raise TableDamagedError(
                    f"log domain {commit.domain_name!r} is damaged: its records lack key columns {sorted(lacking)}",
                    domain=commit.domain_name,
                )
            self.check_past(commit.version)
            self.check_slices(block.slice for block in commit.blocks)
        return tuple(sorted(commits, key=lambda commit: commit.version))

    @cached_property
    def minors(self) -> Mapping[str, Minor]:
        """Minor entries by the path of their base file."""
        domains = [d for name, d in self.snapshot.domains.items() if name.startswith(MINOR_DOMAIN_PREFIX)]
        minors = {minor.base: minor for minor in map(Minor.of, domains)}
        if strays := minors.keys() - self.snapshot.files.keys():
            raise TableDamagedError(
                f"version {self.version} has minor compactions of base files that are not in the table "
                f"({sorted(strays)}); another writer than LakeMerge must have removed the files",
                paths=tuple(sorted(strays)),
            )
        return minors

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """Every tile of every slice that has files or live logs.

        Raises :class:`TableDamagedError` for a live log that was written under another merger.
        """
        commits = self.log_commits
        with collector_paused():
            blocks = [block for commit in commits for block in commit.blocks]
            tiles = tuple(build_tiles(self.base_files, blocks, buckets=self.config.buckets or 1, minors=self.minors))
        strange = {commit.version for commit in commits if commit.merger_epoch != self.state.merger_epoch}
        if strange and any(block.version in strange for tile in tiles for block in tile.blocks):
            raise TableDamagedError(
                f"version {self.version} has live logs (of versions {sorted(strange)}) that were written under another "
                "merger than it has now; another writer than LakeMerge must have changed it",
                versions=tuple(sorted(strange)),
            )
        expiries = expiries_of(self.snapshot)
        if not expiries:
            return tiles
        return tuple(tile if tile.tombstones is None else replace(tile, expiries=expiries) for tile in tiles)

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.base_files, self.config.buckets or 1)

    @cached_property
    def tiles_by_slice(self) -> Mapping[SliceId, Sequence[Tile]]:
        """The tiles of each slice, by key."""
        found: dict[SliceId, list[Tile]] = defaultdict(list)
        for tile in self.tiles:
            found[tile.slice].append(tile)
        return dict(found)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever loaded: no base file and no log."""
        logged = any(name.startswith(LOG_DOMAIN_PREFIX) for name in self.snapshot.domains)
        return not self.snapshot.files and not logged

    def dead_log_commits(self, tiles: Sequence[Tile] | None = None) -> list[LogCommit]:
        """Commits none of whose blocks is live in any of the tiles."""
        live = {block.version for tile in (self.tiles if tiles is None else tiles) for block in tile.blocks}
        return [commit for commit in self.log_commits if commit.version not in live]


def build_tiles(
    base_files: Sequence[BaseFile],
    blocks: Sequence[LogBlock],
    *,
    buckets: int,
    minors: Mapping[str, Minor] = MappingProxyType({}),
) -> Iterator[Tile]:
    """Tiles of all slices, in no particular order of slices, by key within a slice.

    :param blocks: in commit order.
    :param buckets: the table's count; see :class:`lakemerge.slices.layout.Layout`.
    :param minors: by the path of their base file.
    """
    layout = Layout.of(base_files, buckets)
    by_slice: dict[SliceId, list[BaseFile]] = defaultdict(list)
    for base in base_files:
        by_slice[base.slice].append(base)
    logs: dict[SliceId, list[LogBlock]] = defaultdict(list)
    for block in blocks:
        for slice_id in layout.slices_of(block):
            logs[slice_id].append(block)
    for slice_id in by_slice.keys() | logs.keys():
        count = layout.buckets_of(slice_id)
        yield from _tiles_of(slice_id, count, by_slice.get(slice_id, ()), logs.get(slice_id, ()), minors)


def _tiles_of(
    slice_id: SliceId,
    buckets: int,
    files: Sequence[BaseFile],
    blocks: Sequence[LogBlock],
    minors: Mapping[str, Minor],
) -> Iterator[Tile]:
    if not files:
        yield Tile(slice_id, buckets, None, None, None, tuple(blocks))
        return
    if len(files) == 1 and files[0].lower is None:
        (file,) = files
        minor = minors.get(file.add.path)
        after = _merged_through(file, minor)
        alive = tuple([block for block in blocks if block.version > after])
        yield Tile(slice_id, buckets, file, None, None, alive, minor)
        return
    ordered = sorted(files, key=lambda file: () if file.lower is None else file.lower)
    if ordered[0].lower is not None or any(file.lower is None for file in ordered[1:]):
        raise TableDamagedError(
            f"the base files of slice {slice_id} do not tile its keys: {[file.add.path for file in ordered]}",
            slice=slice_id,
        )
    bounds = [file.lower for file in ordered[1:] if file.lower is not None]
    found = [minors.get(file.add.path) for file in ordered]
    through = [_merged_through(file, minor) for file, minor in zip(ordered, found, strict=True)]
    live: list[list[LogBlock]] = [[] for _ in ordered]
    for block in blocks:
        first = 0 if block.key_min is None else bisect_right(bounds, block.key_min)
        last = len(bounds) if block.key_max is None else bisect_right(bounds, block.key_max)
        for place in range(first, last + 1):
            if block.version > through[place]:
                live[place].append(block)
    for place, file in enumerate(ordered):
        upper = bounds[place] if place < len(bounds) else None
        yield Tile(slice_id, buckets, file, file.lower, upper, tuple(live[place]), found[place])


def _merged_through(base: BaseFile | None, minor: Minor | None) -> int:
    if minor is not None:
        return minor.through
    return -1 if base is None else base.merged_through
