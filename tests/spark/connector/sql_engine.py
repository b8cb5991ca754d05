"""An engine of the conformance cases that does in SQL what SQL can: transactions, overwrites, added columns, reads."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import lakemerge
from lakemerge import LakeMergeError, MergeOverflowError
from tests.conformance.arrow_engine import settings_for
from tests.conformance.custom_mergers import CUSTOM_MERGERS
from tests.conformance.runner import Compaction, Filter, TableCase
from tests.spark.mergers.test_conformance import SparkEngine, SparkHandle

_views = itertools.count()


class SqlHandle(SparkHandle):
    """A table that SQL names by its path."""

    vacuums = False
    """Whether a vacuum of all earlier versions follows each other service."""

    @property
    def name(self) -> str:
        return f"lakemerge.`{self.path}`"

    def run(self, text: str) -> int:
        """Run a statement. Returns the version after it."""
        self.spark.sql(text).collect()
        return self.table.version

    def view(self, frame: pa.Table) -> str:
        """The name of a view that has the rows."""
        name = f"rows_{next(_views)}"
        self.spark.createDataFrame(frame).coalesce(1).createOrReplaceTempView(name)
        return name

    def compact(self, kind: Compaction) -> None:
        """The services, as procedures. A rescale says how many buckets there shall be."""
        if kind == "logs":
            self.run(f"CALL lakemerge.system.compact_logs('{self.path}')")
        elif kind == "rescale":
            super().compact(kind)
        else:
            self.run(f"CALL lakemerge.system.compact(table => '{self.path}', minor => {kind == 'minor'})")
        if self.vacuums:
            self.table.vacuum(retention=dt.timedelta(0), enforce_retention=False)

    def update(self, values: Mapping[str, Any], where: Filter | None) -> int:
        # Subqueries give values of any type.
        schema = self.table.schema
        row = pa.table([pa.array([values[n]], schema.field(n).type) for n in values], names=list(values))
        view = self.view(row)
        assignments = ", ".join(f"`{name}` = (SELECT `{name}` FROM {view})" for name in values)
        return self.run(f"UPDATE {self.name} SET {assignments}{_where(where)}")

    def delete_where(self, where: Filter | None) -> int:
        return self.run(f"DELETE FROM {self.name}{_where(where)}")

    def merge(self, source: pa.Table, matched: str | None, *, insert: bool) -> int:
        key = self.table.key
        names = [name for name in source.column_names if name not in key]
        clauses = []
        if matched == "delete":
            clauses.append("WHEN MATCHED THEN DELETE")
        elif matched == "update" and names:
            clauses.append("WHEN MATCHED THEN UPDATE SET " + ", ".join(f"t.`{name}` = s.`{name}`" for name in names))
        if insert:
            columns = ", ".join(f"`{name}`" for name in source.column_names)
            values = ", ".join(f"s.`{name}`" for name in source.column_names)
            clauses.append(f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})")
        on = " AND ".join(f"t.`{name}` = s.`{name}`" for name in key)
        return self.run(f"MERGE INTO {self.name} t USING {self.view(source)} s ON {on} {' '.join(clauses)}")

    def overwrite(self, frame: pa.Table, where: Filter | None, *, dynamic: bool, spread: bool) -> int:
        columns = ", ".join(f"`{name}`" for name in frame.column_names)
        view = self.view(frame)
        if where is not None:
            return self.run(f"INSERT INTO {self.name} BY NAME REPLACE WHERE {where.sql()} SELECT {columns} FROM {view}")
        mode = "spark.sql.sources.partitionOverwriteMode"
        self.spark.conf.set(mode, "dynamic" if dynamic else "static")
        try:
            return self.run(f"INSERT OVERWRITE {self.name} BY NAME SELECT {columns} FROM {view}")
        finally:
            self.spark.conf.unset(mode)

    def add_columns(self, ddl: str) -> None:
        self.run(f"ALTER TABLE {self.name} ADD COLUMNS ({ddl})")

    def read(
        self,
        *,
        version: int | None = None,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        form: Literal["sql", "expression"] = "sql",
    ) -> pa.Table:
        names = "*" if columns is None else ", ".join(f"`{name}`" for name in columns)
        at = "" if version is None else f" VERSION AS OF {version}"
        try:
            return self.spark.sql(f"SELECT {names} FROM {self.name}{at}{_where(filter)}").toArrow()
        except PySparkException as error:  # a task's error reaches the driver with ours in its text
            if "mergers.errors.Merge" in str(error):
                raise MergeOverflowError(str(error)) from error
            raise


class SqlEngine(SparkEngine):
    """Tables in new folders below ``folder``. What Spark refuses, it refuses before our Python sees it."""

    errors: tuple[type[Exception], ...] = (LakeMergeError, AnalysisException, PySparkException)

    def __init__(self, spark: SparkSession, folder: Path, *, vacuums: bool = False) -> None:
        super().__init__(spark, folder)
        self._vacuums = vacuums
        lakemerge.catalog(spark, "lake", warehouse="/nowhere", mergers=CUSTOM_MERGERS)

    def create(self, table: TableCase, *, buckets: int, spread: bool) -> SqlHandle:
        made = super().create(table, buckets=buckets, spread=spread)
        handle = SqlHandle(made.spark, made.path, made.table)
        handle.vacuums = self._vacuums
        handle.table = lakemerge.LakeTable.open(
            made.path, spark=made.spark, mergers=CUSTOM_MERGERS, settings=settings_for(spread=spread)
        )
        return handle


def _where(condition: Filter | None) -> str:
    return "" if condition is None else f" WHERE {condition.sql()}"
