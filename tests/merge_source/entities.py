"""A source with stable ids beside the plain-Python model: the same changes, the same runs, the same output."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from lakemerge.merge_source import MergeConfig, MergeSource, RunResult

__all__ = ["Entities"]

Rows = dict[str, dict[str, Any]]


class Entities:
    """Tables ``A``, ``B`` and ``C`` with an id, ``x`` and ``y``, and one source over them."""

    def __init__(
        self,
        folder: Path,
        rules: Sequence[str],
        spark: SparkSession | None = None,
        count: int = 2,
        *,
        overridden: bool = False,
        **config: Any,
    ) -> None:
        self.folder = folder
        self.tables = {
            name: LakeTable.create(folder / name, "_id STRING, x BIGINT, y BIGINT", key=["_id"], buckets=1)
            for name in "ABC"[:count]
        }
        if overridden:
            columns = "left_dataset, left_id, right_dataset, right_id, verdict, who, why".replace(",", " STRING,")
            ddl = f"nr STRING, {columns} STRING, at TIMESTAMP"
            config["overrides"] = self.overrides = LakeTable.create(folder / "overrides", ddl, key=["nr"], buckets=1)
        datasets = {name.lower(): table for name, table in self.tables.items()}
        told: dict[str, Any] = {"identity": "stable", "max_retired": 1.0, "initial_datasets": [], **config}
        self.config = MergeConfig(datasets=datasets, equality=list(rules), **told)
        self.source = MergeSource.create(folder / "out", self.config, spark=spark)

    def put(self, name: str, rows: Mapping[str, Any]) -> None:
        pairs = [(key, value if isinstance(value, list) else [value, None]) for key, value in rows.items()]
        told = [{"_id": key, "x": x, "y": y} for key, (x, y) in pairs]
        self.tables[name].upsert(
            pa.Table.from_pylist(told, pa.schema([("_id", pa.string()), ("x", pa.int64()), ("y", pa.int64())]))
        )

    def drop(self, name: str, keys: Sequence[str]) -> None:
        self.tables[name].delete(pa.table({"_id": pa.array(keys, pa.string())}))

    def override(self, rows: Mapping[str, Sequence[str]]) -> None:
        """Rows by key: two datasets and ids, and the verdict."""
        names = ("left_dataset", "left_id", "right_dataset", "right_id", "verdict")
        told = [{"nr": key, **dict(zip(names, given, strict=True))} for key, given in rows.items()]
        more = {"who": "Ann", "why": "I asked them", "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)}
        schema = pa.schema([field.with_nullable(True) for field in self.overrides.schema])
        self.overrides.upsert(pa.Table.from_pylist([{**one, **more} for one in told], schema))

    def apply(self, step: Mapping[str, Any]) -> None:
        for name, rows in step.get("put", {}).items():
            self.put(name, rows)
        for name, keys in step.get("drop", {}).items():
            self.drop(name, keys)
        if step.get("override"):
            self.override(step["override"])
        if step.get("withdraw"):
            self.overrides.delete(pa.table({"nr": pa.array(step["withdraw"], pa.string())}))

    def run(self, *, full: bool = False, attempt: Callable[[], RunResult] | None = None) -> Rows:
        """A run, and the whole output after it."""
        (attempt or (lambda: self.source.run(full=full)))()
        assert self.source.check().findings == ()
        return self.now()

    def now(self) -> Rows:
        """Of each id what its row says, as the cases write it."""
        return {row["_id"]: _told(row) for row in self.source.table.to_arrow().to_pylist()}


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if row["_members"]:
        found["rows"] = [f"{one['dataset']}|{one['id']}" for one in row["_members"]]
    for name, column in (("deleted", "_deleted"), ("replaced", "$replaced")):
        if row[column]:
            found[name] = True
    for name, column in (("replaced_by", "$replaced_by"), ("split_into", "$split_into")):
        if row.get(column) is not None:
            found[name] = row[column]
    return found
