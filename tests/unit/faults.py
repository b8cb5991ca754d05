"""What tests of faults and of the Arrow side share: tables over a store with faults, and looks from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakemerge import LakeTable, Merger, Settings
from lakemerge.delta import Attempt, DeltaLog, DomainMetadata
from lakemerge.handle import Handle
from lakemerge.storage import LocalStore
from lakemerge.testing.faults import Chance, Fault, FaultStore
from mergers import default_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DDL", "UNKNOWN", "Row", "commit_domains", "create", "frame", "listing", "open_over", "rows_of", "state_of"]

Row = tuple[Any, ...]

DDL = "k BIGINT, o BIGINT, v STRING"
"""The table of most tests: key ``k``, ordering ``o``."""


def create(path: str | Path, *, settings: Settings | None = None, **options: Any) -> LakeTable:
    arguments: dict[str, Any] = {"key": ["k"], "ordering": ["o"], "buckets": 1, **options}
    return LakeTable.create(path, arguments.pop("schema", DDL), settings=settings, **arguments)


def frame(rows: Sequence[Row], names: Sequence[str] = ("k", "o", "v"), **kinds: Any) -> pa.Table:
    """Integers as BIGINT, strings as STRING; ``op`` is a column of row kinds."""
    types = {"k": pa.int64(), "o": pa.int64(), "v": pa.string(), "op": pa.string(), **kinds}
    columns = [pa.array([row[i] for row in rows], types.get(name)) for i, name in enumerate(names)]
    return pa.Table.from_arrays(columns, names=list(names))


UNKNOWN = DomainMetadata("lakemerge.newer.thing", '{"file": "x"}')
"""A domain that a newer library might bring."""


def commit_domains(path: Path, *domains: DomainMetadata) -> int:
    """Commit domains as another writer would. Returns the version."""
    log = DeltaLog(LocalStore(path))
    outcome = log.commit(log.snapshot(), lambda tip: Attempt(list(domains)), operation="TEST", parameters={})
    return outcome.version


def open_over(
    path: Path,
    *faults: Fault | Chance,
    settings: Settings | None = None,
    mergers: Sequence[type[Merger]] = (),
    spark: SparkSession | None = None,
) -> tuple[LakeTable, FaultStore]:
    """The table through a store with faults, which count from the first call after this one. Waiting
    between attempts takes no time."""
    store = FaultStore(LocalStore(path), *faults)
    clean = DeltaLog(LocalStore(path)).snapshot()
    handle = Handle(
        store, DeltaLog(store, sleep=lambda _: None), default_registry().extended(mergers), settings or Settings()
    )
    return LakeTable(handle, clean, pinned=False, spark=spark), store


def rows_of(table: pa.Table) -> list[Row]:
    """Sorted rows."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def state_of(path: Path) -> list[Row]:
    """The rows as a new reader sees them."""
    return rows_of(LakeTable.open(path).to_arrow())


def listing(path: Path) -> Mapping[str, int]:
    """Every file below the folder that is no leftover of an interrupted write, with its size."""
    return {file.path: file.size_bytes for file in LocalStore(path).list("")}
