"""What every operation on one table shares: its store, its log, the mergers known, the settings."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

from lakemerge.config import TableConfig
from lakemerge.log import DeltaLog, Snapshot
from lakemerge.options import Settings
from lakemerge.read.parquet import Footers
from lakemerge.slices.blocks import DecodedLogs
from lakemerge.slices.view import TableView
from lakemerge.storage.base import Store
from mergers import Merger, MergerRegistry

__all__ = ["Handle"]


@dataclass(frozen=True, slots=True)
class Handle:
    """The immutable surroundings of a table; versions come and go as :class:`TableView`."""

    store: Store
    log: DeltaLog
    registry: MergerRegistry
    settings: Settings
    decoded: DecodedLogs = field(default_factory=DecodedLogs, repr=False, compare=False)
    footers: Footers = field(default_factory=Footers, repr=False, compare=False)

    def view(self, snapshot: Snapshot) -> TableView:
        config = TableConfig.of(snapshot.metadata, url=self.store.url)
        return TableView(snapshot, config, self.store, self.decoded)

    def merger(self, view: TableView) -> Merger:
        return view.config.merger(self.registry)

    @staticmethod
    def now_ms() -> int:
        """UTC epoch milliseconds."""
        return time.time_ns() // 1_000_000

    @staticmethod
    def write_name(view: TableView, txn_id: str) -> str:
        """The part of file names that tells a write: the version it began at and its id."""
        return f"{view.version:020d}-{txn_id}"

    @staticmethod
    def new_txn_id() -> str:
        return str(uuid.uuid4())
