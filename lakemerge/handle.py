"""The handle of a table, which all operations on it share: its store, its log, the known mergers, the settings."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lakemerge._internal.cache import Cache
from lakemerge.delta import DeltaLog, Metadata, Snapshot, Transaction, check_same_table
from lakemerge.errors import LakeMergeError
from lakemerge.format.base_file import DecodedFiles, paths_of
from lakemerge.format.block_index import DecodedLogs
from lakemerge.format.config import TableConfig
from lakemerge.format.minor import Minor
from lakemerge.format.names import BASE_FOLDER, MINOR_DOMAIN_PREFIX
from lakemerge.format.vectors import VECTOR_FILE
from lakemerge.layout.view import MadeSlices, TableView
from lakemerge.options import Settings
from lakemerge.storage.base import Store
from lakemerge.storage.clock import StoreClock
from mergers import Merger, MergerRegistry

__all__ = ["Definition", "Handle", "Landed"]

_FOOTER_BYTES = 16 * 2**20
"""How many bytes of footers are kept, as they are in files. In memory they take several times as much."""
_FOOTER_ENTRY_BYTES = 1024
_SCAN_BYTES = 64 * 2**20
_SCAN_ENTRY_BYTES = 16 * 1024
"""About what Spark's plan of a scan takes."""
_OF_TABLES = (f"{BASE_FOLDER}/", "_lakemerge/")


class Definition:
    """A table's definition, decoded once for all versions that have it. A pickle holds none."""

    def __init__(self) -> None:
        self._last: tuple[Metadata, TableConfig] | None = None

    def of(self, metadata: Metadata, *, url: str) -> TableConfig:
        """See :meth:`TableConfig.of`."""
        last = self._last
        if last is None or last[0] is not metadata:
            last = metadata, TableConfig.of(metadata, url=url)
            self._last = last
        return last[1]

    def __reduce__(self) -> tuple[type[Definition], tuple[()]]:
        return type(self), ()


class Landed:
    """The last commit of a handle. A table stands at it after a write, without another look at the log. A pickle holds
    none."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None

    def __reduce__(self) -> tuple[type[Landed], tuple[()]]:
        return type(self), ()


@dataclass(frozen=True, slots=True)
class Handle:
    """The parts of an open table that do not change. Each version is a :class:`TableView`."""

    store: Store
    log: DeltaLog
    registry: MergerRegistry
    settings: Settings
    decoded: DecodedLogs = field(default_factory=DecodedLogs, repr=False, compare=False)
    decoded_files: DecodedFiles = field(default_factory=DecodedFiles, repr=False, compare=False)
    made: MadeSlices = field(default_factory=MadeSlices, repr=False, compare=False)
    footers: Cache[str, Any] = field(
        default_factory=partial(Cache, _FOOTER_BYTES, _FOOTER_ENTRY_BYTES), repr=False, compare=False
    )
    """What :mod:`lakemerge.read.parquet.footers` keeps."""
    scans: Cache[tuple[Hashable, ...], Any] = field(
        default_factory=partial(Cache, _SCAN_BYTES, _SCAN_ENTRY_BYTES), repr=False, compare=False
    )
    """What :mod:`lakemerge.spark.scans` keeps."""
    definition: Definition = field(default_factory=Definition, repr=False, compare=False)
    landed: Landed = field(default_factory=Landed, repr=False, compare=False)
    clock: StoreClock = field(default_factory=StoreClock, repr=False, compare=False)
    leave_out: Any = field(default=None, repr=False, compare=False)
    """What :mod:`lakemerge.read.failures` tells of keys whose merge fails. ``None``: reads raise their error."""

    def view(self, snapshot: Snapshot) -> TableView:
        config = self.definition.of(snapshot.metadata, url=self.store.url)
        return TableView(snapshot, config, self.store, self.decoded, self.decoded_files, self.made)

    def view_at(self, version: int, *, of: Snapshot) -> TableView:
        """Another version in the log of ``of``. Raises :class:`lakemerge.VersionNotFoundError`, and
        :class:`lakemerge.TableReplacedError` if another log is there by now."""
        snapshot = self.log.snapshot(version=version)
        if snapshot.metadata.id != of.metadata.id:
            # Versions on both sides of a replacement have different ids. So only the log itself can tell.
            self.log.check_holds(of)
        return self.view(snapshot)

    def latest(self, view: TableView) -> TableView:
        """The latest version of the table of ``view``; ``view`` itself if there is no later one.

        Raises :class:`lakemerge.TableReplacedError` if the table was removed, re-created or replaced since."""
        snapshot = self.log.update(view.snapshot)
        if snapshot is view.snapshot:
            return view
        check_same_table(self.store, view.snapshot, snapshot)
        return self.view(snapshot)

    def release(self, latest: Snapshot) -> None:
        """Drop cache entries of files that the latest version does not have, once they are many. Readers of earlier
        versions read again what they need. Nothing is read here."""

        @functools.cache
        def live() -> Collection[str] | None:
            try:
                return _paths_without_reading(latest, self.decoded)
            except LakeMergeError:
                return None  # a read of this version will say what is damaged

        def of_footers() -> Callable[[str], bool] | None:
            paths = live()
            return None if paths is None else paths.__contains__

        def of_scans() -> Callable[[tuple[Hashable, ...]], bool] | None:
            paths = live()
            return None if paths is None else lambda key: all(path in paths for path in _paths_in(key))

        self.made.release(latest.version)
        self.footers.prune(of_footers)
        self.scans.prune(of_scans)

    def knowing(self, merger: object) -> Handle:
        """The handle with the class of a merger instance that nobody registered; itself if ``merger`` is no such
        instance. Raises :class:`lakemerge.MergerRegistrationError` if the class cannot be registered."""
        if not isinstance(merger, Merger) or any(known is type(merger) for known in self.registry):
            return self
        return replace(self, registry=self.registry.extended([type(merger)]))

    def merger(self, view: TableView) -> Merger:
        return view.config.merger(self.registry)

    @staticmethod
    def now_ms() -> int:
        """UTC epoch milliseconds by this host's clock, which may be wrong. Compare it with a time that another process
        noted only to show how old something is."""
        return time.time_ns() // 1_000_000

    def store_now_ms(self) -> int:
        """UTC epoch milliseconds by the store's clock, for whatever is compared with a time that another process noted.
        It costs two requests an hour, one of them a write."""
        return self.clock.now_ms(self.store)

    @staticmethod
    def write_name(view: TableView, transaction: Transaction) -> str:
        """The part of file names that identifies a write: the version at which it began, and its id."""
        return f"{view.version:020d}-{transaction.id}"

    @staticmethod
    def new_transaction() -> Transaction:
        return Transaction(str(uuid.uuid4()))

    @staticmethod
    def new_id() -> str:
        return str(uuid.uuid4())


def _paths_without_reading(snapshot: Snapshot, decoded: DecodedLogs) -> set[str]:
    """The files that a version needs, without logs that were never decoded: nothing is kept of those."""
    found = decoded.paths(snapshot.domains)
    for add in snapshot.files.values():
        found.update(paths_of(add))
    for name, domain in snapshot.domains.items():
        if name.startswith(MINOR_DOMAIN_PREFIX):
            found |= Minor.of(domain).paths
    return found


def _paths_in(key: Hashable) -> Iterator[str]:
    """The paths of a table's files in a cache key."""
    if isinstance(key, str):
        if key.startswith(_OF_TABLES) or VECTOR_FILE.fullmatch(key):
            yield key
    elif isinstance(key, tuple):
        for part in key:
            yield from _paths_in(part)
