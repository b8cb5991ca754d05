"""A version of a table as buckets: which base files and which live log blocks make up each.

The unit of every merge is the *file slice*: one base file (or none), its key range, and the live log blocks that reach
into that range. Liveness has one rule (docs/table-format.md, section 4): a log row is live iff its commit's version is
above ``merged_through`` of the file slice whose range holds its key. This value is from the base file or, after a minor
compaction, from its minor entry; an overwrite of the partition raises it (:class:`lakemerge.format.reset.Resets`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import is_
from types import MappingProxyType

from lakemerge._internal.cached import cached_property
from lakemerge._internal.collector import collector_paused
from lakemerge.delta import Snapshot
from lakemerge.errors import TableDamagedError
from lakemerge.format.base_file import BaseFile, BaseFiles, DecodedFiles
from lakemerge.format.block_index import DecodedLogs, LogCommit
from lakemerge.format.config import TableConfig
from lakemerge.format.expiries import Expiry, expiries_of
from lakemerge.format.keys import BucketId, Key, KeyKinds, KeySpan, SoughtKeys, key_kinds
from lakemerge.format.log_block import LogBlock
from lakemerge.format.minor import Minor, RowFile
from lakemerge.format.names import LOG_DOMAIN_PREFIX, MINOR_DOMAIN_PREFIX
from lakemerge.format.reset import Resets
from lakemerge.format.state import State
from lakemerge.layout.bucket_counts import Layout
from lakemerge.storage.base import Store

__all__ = ["FileSlice", "MadeSlices", "TableView", "build_file_slices"]

_OLD_VERSIONS = 64
"""File slices of a version that is older are not kept for the next one."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """One base file's key range of a bucket, with the log blocks that are live in it."""

    bucket_id: BucketId
    buckets: int
    """The bucket count of the bucket. It is the table's, except in buckets that a rescale has not rewritten yet."""
    base: BaseFile | None = None
    lower: Key | None = None
    """The lower bound of its keys, included; ``None``: open."""
    upper: Key | None = None
    """The upper bound of its keys, excluded; ``None``: open."""
    blocks: tuple[LogBlock, ...] = ()
    """The live log blocks, in commit order."""
    minor: Minor | None = None
    """The minor entry, which needs a base file. ``blocks`` are then those after it."""
    wanted: KeySpan | None = None
    """The span of the keys that a read wants; ``None``: all keys."""
    sought: SoughtKeys | None = field(default=None, repr=False, compare=False)
    """The keys within ``wanted`` that a look-up wants; ``None``: all of them."""
    expiries: tuple[Expiry, ...] = ()
    """The table's tombstone expiries."""
    reset: int = -1
    """The version through which an overwrite made log records of its partition dead."""
    sent: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """What :func:`lakemerge.spark.transport.sending.pickled_once` made of it."""

    @property
    def is_clean(self) -> bool:
        """Whether the base file alone has all rows."""
        return not self.blocks and self.minor is None

    @property
    def is_merged(self) -> bool:
        """Whether no log is left to fold: base file, superseded positions and winner files give all rows."""
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
        """The rows of the row files, superseded ones included."""
        own = 0 if self.base is None else self.base.rows
        return own if self.minor is None else own + sum(file.rows for file in self.minor.winners)

    @property
    def file_bytes(self) -> int:
        """The size of the row files."""
        own = 0 if self.base is None else self.base.add.size_bytes
        return own if self.minor is None else own + sum(file.size_bytes for file in self.minor.winners)

    @property
    def merged_through(self) -> int:
        return _merged_through(self.base, self.minor, self.reset)

    @property
    def oldest_live(self) -> int | None:
        """The oldest version that may have a live record, which the row files lack; ``None``: there is none."""
        oldest = min((block.oldest_version for block in self.blocks), default=None)
        # Records of a consolidated block do not count if the row files have them already.
        return None if oldest is None else max(oldest, self.merged_through + 1)

    @property
    def tombstones(self) -> str | None:
        """Path of the file slice's tombstones."""
        if self.minor is not None:
            return self.minor.tombstones
        return None if self.base is None else self.base.tombstones

    @property
    def tombstone_bytes(self) -> int:
        """The size of the file slice's tombstones, as stored."""
        if self.minor is not None:
            return self.minor.tombstone_bytes
        return 0 if self.base is None else self.base.tombstone_bytes

    @property
    def log_bytes(self) -> int:
        """Uncompressed bytes of the live blocks."""
        return sum(block.data_bytes for block in self.blocks)

    @property
    def stored_bytes(self) -> int:
        """An estimate of the Parquet bytes that a merge of the file slice reads."""
        return self.file_bytes + self.tombstone_bytes + self.log_bytes


class TableView:
    """The contents of a snapshot, decoded once. ``store`` is read only for block index files."""

    def __init__(
        self,
        snapshot: Snapshot,
        config: TableConfig,
        store: Store,
        decoded: DecodedLogs | None = None,
        files: DecodedFiles | None = None,
        made: MadeSlices | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.config = config
        self.store = store
        self._decoded = decoded or DecodedLogs()
        self._decoded_files = files or DecodedFiles()
        self._made_last = made or MadeSlices()

    @property
    def version(self) -> int:
        return self.snapshot.version

    @cached_property
    def state(self) -> State:
        return State.of(self.snapshot)

    @cached_property
    def _files(self) -> BaseFiles:
        with collector_paused():
            return self._decoded_files.read(self.snapshot.files, self.config.stored_partition_by, self.key_kinds)

    @cached_property
    def base_files(self) -> tuple[BaseFile, ...]:
        return tuple(self._files.by_path.values())

    @property
    def key_kinds(self) -> KeyKinds:
        return key_kinds(self.config.schema.field(name) for name in self.config.key)

    def check_past(self, log_version: int) -> None:
        """Raises :class:`TableDamagedError` for a log with a version above this one."""
        if log_version > self.version:
            raise TableDamagedError(f"version {self.version} is damaged: it has a log of version {log_version}")

    def check_buckets(self, slices: Iterable[BucketId]) -> None:
        """Raises :class:`TableDamagedError` for a log of a bucket with other partition columns than the table's."""
        if {len(part.partition) for part in slices} - {len(self.config.partition_by)}:
            told = f"version {self.version} is damaged: it has logs of other partition columns"
            raise TableDamagedError(f"{told} than {list(self.config.partition_by)}")

    @cached_property
    def log_commits(self) -> tuple[LogCommit, ...]:
        """The log commits in version order. Raises :class:`TableDamagedError` if the records of one lack key
        columns."""
        domains = [d for name, d in self.snapshot.domains.items() if name.startswith(LOG_DOMAIN_PREFIX)]
        commits = self._decoded.read(domains, self.store, self.key_kinds)
        key = frozenset(self.config.names.all_of(self.config.key))
        for commit in commits:
            carried = {commit.columns, *(block.file.columns for block in commit.blocks)}
            if lacking := {name for own in carried for name in key.difference(own)}:
                raise TableDamagedError(
                    f"log domain {commit.domain_name!r} is damaged: its records lack key columns {sorted(lacking)}",
                    domain=commit.domain_name,
                )
            self.check_past(commit.version)
            self.check_buckets(block.bucket_id for block in commit.blocks)
        return tuple(sorted(commits, key=lambda commit: commit.version))

    @cached_property
    def minors(self) -> Mapping[str, Minor]:
        """Minor entries by the path of their base file.

        Raises :class:`TableDamagedError` if deletion vectors or winner files are in the table that no entry tells of:
        their rows would be wrong.
        """
        domains = [d for name, d in self.snapshot.domains.items() if name.startswith(MINOR_DOMAIN_PREFIX)]
        minors = {minor.base: minor for minor in map(Minor.of, domains)}
        if strays := minors.keys() - self.snapshot.files.keys():
            raise TableDamagedError(
                f"version {self.version} has minor compactions of base files that are not in the table "
                f"({sorted(strays)}); another writer than LakeMerge must have removed the files",
                paths=tuple(sorted(strays)),
            )
        files = self.snapshot.files
        minors = {path: minor.with_adds(files) for path, minor in minors.items()}
        known = {path for path, minor in minors.items() if minor.published}
        known.update(winner.path for minor in minors.values() if minor.published for winner in minor.winners)
        if strange := self._files.of_minors - known:
            raise TableDamagedError(
                f"version {self.version} has deletion vectors or winner files that no minor compaction tells of "
                f"({sorted(strange)[:10]}); another writer than LakeMerge must have changed it",
                paths=tuple(sorted(strange)),
            )
        return minors

    @cached_property
    def resets(self) -> Resets:
        found = Resets.of(self.snapshot.domains)
        if any(entry.version > self.version for entry in found.entries):
            raise TableDamagedError(f"version {self.version} is damaged: it has an overwrite of a later version")
        return found

    @cached_property
    def file_slices(self) -> tuple[FileSlice, ...]:
        """Every file slice of every bucket that has files or live logs.

        Raises :class:`TableDamagedError` for a live log that was written under another merger.
        """
        buckets, made = self._buckets, self._made  # which may ask the store
        with collector_paused():
            each = (made.get(bucket_id) or self.file_slices_of(bucket_id) for bucket_id in buckets.all())
            return tuple(chain.from_iterable(each))

    def file_slices_of(self, bucket_id: BucketId) -> Sequence[FileSlice]:
        """The file slices of a bucket, by key; none if it has neither files nor live logs. Those of other buckets are
        not made. Raises as :attr:`file_slices`, whichever bucket is damaged."""
        made = self._made
        known = made.get(bucket_id)
        if known is None:
            buckets = self._buckets
            if bucket_id not in buckets.files and bucket_id not in buckets.logs:
                return ()  # not kept: callers may ask for any number of buckets
            # Another thread may have made them meanwhile. There is one object for each file slice of a view.
            known = made.setdefault(bucket_id, list(map(self._with_expiries, buckets.file_slices(bucket_id))))
        return known

    @cached_property
    def _made(self) -> dict[BucketId, Sequence[FileSlice]]:
        buckets, expiries = self._buckets, self._expiries
        with collector_paused():
            return self._made_last.of(self.version, buckets, expiries)

    @cached_property
    def file_slice_count(self) -> int:
        """How many file slices there are at most. Buckets whose logs are all dead count as one. None is made."""
        files = self._files
        return len(files.by_path) + sum(bucket_id not in files.by_bucket for bucket_id in self._buckets.logs)

    def _with_expiries(self, file_slice: FileSlice) -> FileSlice:
        expiries = self._expiries
        return replace(file_slice, expiries=expiries) if expiries and file_slice.tombstones is not None else file_slice

    @cached_property
    def _expiries(self) -> tuple[Expiry, ...]:
        return expiries_of(self.snapshot)

    @cached_property
    def _buckets(self) -> _Buckets:
        """Raises :class:`TableDamagedError` for a live log that was written under another merger, in any bucket."""
        commits, layout, minors = self.log_commits, self.layout, self.minors
        with collector_paused():
            logs = _logs_of((block for commit in commits for block in commit.blocks), layout)
            found = _Buckets(layout, self._files.by_bucket, logs, minors, self.resets)
        strange = {commit.version for commit in commits if commit.merger_epoch != self.state.merger_epoch}
        if strange and strange & found.live_versions(strange):
            raise TableDamagedError(
                f"version {self.version} has live logs (of versions {sorted(strange)}) that were written under another "
                "merger than it has now; another writer than LakeMerge must have changed it",
                versions=tuple(sorted(strange)),
            )
        return found

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.base_files, self.config.buckets or 1)

    @cached_property
    def file_slices_by_bucket(self) -> Mapping[BucketId, Sequence[FileSlice]]:
        """The file slices of each bucket that has any, by key."""
        return {part: found for part in self._buckets.all() if (found := self.file_slices_of(part))}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever loaded: no base file and no log."""
        logged = any(name.startswith(LOG_DOMAIN_PREFIX) for name in self.snapshot.domains)
        return not self.snapshot.files and not logged

    def dead_log_commits(self, file_slices: Sequence[FileSlice] | None = None) -> list[LogCommit]:
        """Commits none of whose blocks is live in any of the file slices."""
        live = {
            block.version
            for file_slice in (self.file_slices if file_slices is None else file_slices)
            for block in file_slice.blocks
        }
        return [commit for commit in self.log_commits if commit.version not in live]


def build_file_slices(
    base_files: Sequence[BaseFile],
    blocks: Sequence[LogBlock],
    *,
    buckets: int,
    minors: Mapping[str, Minor] = MappingProxyType({}),
    resets: Resets = Resets(),  # noqa: B008 - a value
) -> Iterator[FileSlice]:
    """File slices of all buckets, in no particular order of buckets, by key within a bucket.

    :param blocks: in commit order.
    :param buckets: the table's count; see :class:`lakemerge.layout.bucket_counts.Layout`.
    :param minors: by the path of their base file.
    :param resets: buckets in which nothing is left after them have no file slice.
    """
    layout = Layout.of(base_files, buckets)
    by_bucket: dict[BucketId, list[BaseFile]] = defaultdict(list)
    for base in base_files:
        by_bucket[base.bucket_id].append(base)
    found = _Buckets(layout, by_bucket, _logs_of(blocks, layout), minors, resets)
    for bucket_id in found.all():
        yield from found.file_slices(bucket_id)


def _logs_of(blocks: Iterable[LogBlock], layout: Layout) -> Mapping[BucketId, Sequence[LogBlock]]:
    """The log blocks of each bucket, in the order in which they come."""
    logs: dict[BucketId, list[LogBlock]] = defaultdict(list)
    for block in blocks:
        for bucket_id in layout.slices_of(block):
            logs[bucket_id].append(block)
    return dict(logs)


def _are_same(some: Sequence[LogBlock], others: Sequence[LogBlock]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


@dataclass(frozen=True, slots=True)
class _Buckets:
    """What the file slices of each bucket are made of."""

    layout: Layout
    files: Mapping[BucketId, Sequence[BaseFile]]
    logs: Mapping[BucketId, Sequence[LogBlock]]
    minors: Mapping[str, Minor]
    resets: Resets

    def __post_init__(self) -> None:
        """Raises :class:`TableDamagedError` if the files of a bucket do not divide its keys: one of them has no lower
        bound. All buckets are looked at, so that a damaged table is not written to."""
        for bucket_id, files in self.files.items():
            if len(files) == 1 and files[0].lower is None:
                continue
            if sum([file.lower is None for file in files]) != 1:
                raise TableDamagedError(
                    f"the base files of bucket {bucket_id} do not divide its keys: {[file.add.path for file in files]}",
                    bucket_id=bucket_id,
                )

    def all(self) -> Collection[BucketId]:
        return self.files.keys() | self.logs.keys()

    def live_versions(self, among: Collection[int]) -> set[int]:
        """The versions of live blocks in buckets that have blocks of some versions."""
        some = [part for part, blocks in self.logs.items() if any(block.version in among for block in blocks)]
        return {block.version for part in some for each in self.file_slices(part) for block in each.blocks}

    def still(
        self, known: Mapping[BucketId, Sequence[FileSlice]], before: _Buckets
    ) -> dict[BucketId, Sequence[FileSlice]]:
        """The known file slices of buckets that have the same files, blocks, minor entries and resets as before.

        Blocks must be the same objects. Logs that are decoded again give equal ones, and log compaction would not know
        them as those of the version's log commits.
        """
        files, logs = self.files.get, self.logs.get
        files_before, logs_before = before.files.get, before.logs.get
        # This looks at each bucket of the table, so it does as little as can be.
        same = {
            part: slices
            for part, slices in known.items()
            if files(part) is files_before(part) and _are_same(logs(part, ()), logs_before(part, ()))
        }
        if self.resets != before.resets:
            now, then = self.resets.through, before.resets.through
            same = {part: slices for part, slices in same.items() if now(part.partition) == then(part.partition)}
        paths = self.minors.keys() | before.minors.keys()
        if changed := {path for path in paths if self.minors.get(path) != before.minors.get(path)}:
            return {
                part: slices
                for part, slices in same.items()
                if not any(file.add.path in changed for file in self.files.get(part, ()))
            }
        return same

    def file_slices(self, bucket_id: BucketId) -> Iterator[FileSlice]:
        return _file_slices_of(
            bucket_id,
            self.layout.buckets_of(bucket_id),
            self.files.get(bucket_id, ()),
            self.logs.get(bucket_id, ()),
            self.minors,
            self.resets.through(bucket_id.partition),
        )


class MadeSlices:
    """The file slices that were made last. Most buckets of a version have the files and logs that they had in the
    version before it, and so the same file slices."""

    def __init__(self) -> None:
        self._last: tuple[int, _Buckets, tuple[Expiry, ...], dict[BucketId, Sequence[FileSlice]]] | None = None

    def __reduce__(self) -> tuple[type[MadeSlices], tuple[()]]:
        return MadeSlices, ()  # executors have no use for them

    def release(self, version: int) -> None:
        """Forget the file slices of a version that is much older than this one."""
        if self._last is not None and version - self._last[0] > _OLD_VERSIONS:
            self._last = None

    def of(self, version: int, buckets: _Buckets, expiries: tuple[Expiry, ...]) -> dict[BucketId, Sequence[FileSlice]]:
        """Those of a version that are known. The caller adds those that it makes. All blocks in them are those of
        ``buckets``, and no equal ones.

        :param expiries: the table's tombstone expiries.
        """
        made: dict[BucketId, Sequence[FileSlice]] = {}
        if self._last is not None:
            _, before, known_expiries, known = self._last
            if before.layout.buckets == buckets.layout.buckets and known_expiries == expiries:
                made = buckets.still(known.copy(), before)  # a copy, because other threads may add to it
        self._last = version, buckets, expiries, made
        return made


def _file_slices_of(
    bucket_id: BucketId,
    buckets: int,
    files: Sequence[BaseFile],
    blocks: Sequence[LogBlock],
    minors: Mapping[str, Minor],
    reset: int,
) -> Iterator[FileSlice]:
    if not files:
        alive = tuple([block for block in blocks if block.version > reset])
        if alive:
            yield FileSlice(bucket_id, buckets, blocks=alive, reset=reset)
        return
    if len(files) == 1 and files[0].lower is None:
        (file,) = files
        minor = minors.get(file.add.path)
        after = _merged_through(file, minor, reset)
        alive = tuple([block for block in blocks if block.version > after])
        yield FileSlice(bucket_id, buckets, file, blocks=alive, minor=minor, reset=reset)
        return
    ordered = sorted(files, key=lambda file: () if file.lower is None else file.lower)
    bounds = [file.lower for file in ordered[1:] if file.lower is not None]
    found = [minors.get(file.add.path) for file in ordered]
    through = [_merged_through(file, minor, reset) for file, minor in zip(ordered, found, strict=True)]
    live: list[list[LogBlock]] = [[] for _ in ordered]
    for block in blocks:
        first = 0 if block.key_min is None else bisect_right(bounds, block.key_min)
        last = len(bounds) if block.key_max is None else bisect_right(bounds, block.key_max)
        for place in range(first, last + 1):
            if block.version > through[place]:
                live[place].append(block)
    for place, file in enumerate(ordered):
        upper = bounds[place] if place < len(bounds) else None
        alive = tuple(live[place])
        yield FileSlice(bucket_id, buckets, file, file.lower, upper, alive, found[place], reset=reset)


def _merged_through(base: BaseFile | None, minor: Minor | None, reset: int) -> int:
    if minor is not None:
        return max(minor.through, reset)
    return reset if base is None else max(base.merged_through, reset)
