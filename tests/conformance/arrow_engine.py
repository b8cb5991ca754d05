"""The product without Spark as an engine of the conformance runner."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from lakemerge import LakeMergeError, LakeTable, Settings
from tests.conformance.custom_mergers import CUSTOM_MERGERS
from tests.conformance.runner import Compaction, Filter, TableCase

__all__ = ["ArrowEngine", "ArrowHandle", "apply_compaction", "settings_for"]


_NEXT_COUNT = {2: 8, 8: 1, 1: 4, 4: 2}
"""Every count that tests begin with, up and down by several factors."""


def apply_compaction(table: LakeTable, kind: Compaction) -> None:
    """Do it, as far as there is anything to do."""
    match kind:
        case "full" | "minor":
            table.compact(minor=kind == "minor")
        case "logs":
            table.compact_logs(size_ratio=math.inf)
        case "rescale":
            table.rescale(buckets=_NEXT_COUNT[table.opened.view.config.buckets or 1])


def settings_for(*, spread: bool) -> Settings:
    """With ``spread``, a budget of one byte: every batch of the input becomes a log file of its own."""
    return Settings(write_budget_bytes=1, driver_bytes=1) if spread else Settings()


class ArrowEngine:
    """Tables in new folders below ``folder``."""

    errors: tuple[type[Exception], ...] = (LakeMergeError,)

    def __init__(self, folder: Path) -> None:
        self._paths = (folder / f"table {number}" for number in itertools.count())

    def create(self, table: TableCase, *, buckets: int, spread: bool) -> ArrowHandle:
        path = str(next(self._paths))
        settings = settings_for(spread=spread)
        LakeTable.create(
            path,
            table.ddl,
            key=list(table.key),
            ordering=list(table.ordering),
            merger=table.merger,
            options=dict(table.options),
            partition_by=list(table.partition_by),
            buckets=buckets,
            settings=settings,
            mergers=CUSTOM_MERGERS,
        )
        return ArrowHandle(path, settings)


class ArrowHandle:
    """A table written through one handle, and read through that and, at a version, through new ones."""

    def __init__(self, path: str, settings: Settings) -> None:
        self.path = path
        self.settings = settings
        self.table = LakeTable.open(path, settings=settings, mergers=CUSTOM_MERGERS)

    def write(self, frame: pa.Table, *, kind_column: str | None, spread: bool) -> int:
        data = pa.RecordBatchReader.from_batches(frame.schema, frame.to_batches(max_chunksize=1)) if spread else frame
        return self.table.upsert(data, kind_column=kind_column).version

    def delete(self, frame: pa.Table) -> int:
        return self.table.delete(frame).version

    def update(self, values: Mapping[str, Any], where: Filter | None) -> int:
        given = {name: f"'{value}'" if isinstance(value, str) else value for name, value in values.items()}
        return self.table.update_where("true" if where is None else where.sql(), given).version

    def delete_where(self, where: Filter | None) -> int:
        return self.table.delete_where("true" if where is None else where.sql()).version

    def merge(self, source: pa.Table, matched: str | None, *, insert: bool) -> int:
        on = " AND ".join(f"target.{name} = source.{name}" for name in self.table.opened.view.config.key)
        merge = self.table.merge(source, on)
        names = [name for name in source.column_names if name not in self.table.opened.view.config.key]
        values = {name: f"source.{name}" for name in names}
        if matched == "delete":
            merge = merge.whenMatchedDelete()
        elif matched == "update" and values:
            merge = merge.whenMatchedUpdate(set=values)
        if insert:
            merge = merge.whenNotMatchedInsert(values=values)
        return merge.execute().version

    def overwrite(self, frame: pa.Table, where: Filter | None, *, dynamic: bool, spread: bool) -> int:
        data = pa.RecordBatchReader.from_batches(frame.schema, frame.to_batches(max_chunksize=1)) if spread else frame
        condition = None if where is None else where.sql()
        return self.table.overwrite(data, condition, partition_mode="dynamic" if dynamic else "static").version

    def add_columns(self, ddl: str) -> None:
        self.table.alter(add_columns=ddl)

    def compact(self, kind: Compaction) -> None:
        apply_compaction(self.table, kind)

    def reopen(self) -> None:
        self.table = LakeTable.open(self.path, settings=self.settings, mergers=CUSTOM_MERGERS)

    def version(self) -> int:
        return self.table.version

    def read(
        self,
        *,
        version: int | None = None,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        form: Literal["sql", "expression"] = "sql",
    ) -> pa.Table:
        table = self.table if version is None else self._at(version)
        condition = None if filter is None else (filter.sql() if form == "sql" else filter.expression())
        return table.to_arrow(columns=None if columns is None else list(columns), filter=condition)

    def _at(self, version: int) -> LakeTable:
        return LakeTable.open(self.path, version=version, settings=self.settings, mergers=CUSTOM_MERGERS)
