"""The handle of a table, which all operations on it share: its store, its log, the known mergers, the settings."""

from __future__ import annotations

import time
import uuid
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lakemerge._internal.kept import Kept
from lakemerge.delta import DeltaLog, Snapshot, check_same_table
from lakemerge.format.block_index import DecodedLogs
from lakemerge.format.config import TableConfig
from lakemerge.layout.view import TableView
from lakemerge.options import Settings
from lakemerge.storage.base import Store
from lakemerge.storage.clock import StoreClock
from mergers import Merger, MergerRegistry

__all__ = ["Handle", "Landed"]

_FOOTER_BYTES = 16 * 2**20
"""How many bytes of footers are kept, as they are in files. In memory they take several times as much."""
_SCAN_BYTES = 64 * 2**20


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
    footers: Kept[str, Any] = field(default_factory=partial(Kept, _FOOTER_BYTES), repr=False, compare=False)
    """What :mod:`lakemerge.read.parquet.footers` keeps."""
    scans: Kept[tuple[Hashable, ...], Any] = field(
        default_factory=partial(Kept, _SCAN_BYTES), repr=False, compare=False
    )
    """What :mod:`lakemerge.spark.scans` keeps."""
    landed: Landed = field(default_factory=Landed, repr=False, compare=False)
    clock: StoreClock = field(default_factory=StoreClock, repr=False, compare=False)

    def view(self, snapshot: Snapshot) -> TableView:
        config = TableConfig.of(snapshot.metadata, url=self.store.url)
        return TableView(snapshot, config, self.store, self.decoded)

    def view_at(self, version: int, *, of: Snapshot) -> TableView:
        """Another version of the table of ``of``. Raises :class:`lakemerge.VersionNotFoundError`, and
        :class:`lakemerge.TableReplacedError` if another table is there by now."""
        snapshot = self.log.snapshot(version=version)
        check_same_table(self.store, of, snapshot)
        return self.view(snapshot)

    def merger(self, view: TableView) -> Merger:
        return view.config.merger(self.registry)

    @staticmethod
    def now_ms() -> int:
        """UTC epoch milliseconds by this host's clock, which may be wrong: to be shown, never to be compared."""
        return time.time_ns() // 1_000_000

    def store_now_ms(self) -> int:
        """UTC epoch milliseconds by the store's clock, for whatever is compared with a time that another process noted.
        It costs two requests an hour, one of them a write."""
        return self.clock.now_ms(self.store)

    @staticmethod
    def write_name(view: TableView, txn_id: str) -> str:
        """The part of file names that identifies a write: the version at which it began, and its id."""
        return f"{view.version:020d}-{txn_id}"

    @staticmethod
    def new_txn_id() -> str:
        return str(uuid.uuid4())
