"""Conformance cases written through Spark, read by ``to_df`` and by ``format("lakemerge")``."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import expr

from lakemerge import LakeMergeError, LakeTable, MergeOverflowError, register
from tests.conformance.arrow_engine import apply_compaction, settings_for
from tests.conformance.custom_mergers import CUSTOM_MERGERS
from tests.conformance.modes import MODES
from tests.conformance.runner import (
    SUPPORTED,
    Case,
    Compaction,
    Filter,
    Mode,
    TableCase,
    applies,
    load_cases,
    run_case,
)
from tests.conformance.values import assert_rows, rows_of
from tests.property.effort import some

AS_WRITTEN = Mode("as-written")
PLAYED = [case for cases in load_cases(supported=SUPPORTED).values() for case in cases if not case.create_error]
REFUSED = [case for cases in load_cases(supported=SUPPORTED).values() for case in cases if case.create_error]
SAMPLE = [
    (case, replace(mode, buckets=2))
    for mode in MODES
    if mode.name != "as-written" and mode.batching != "rows"
    for case in random.Random(f"spark/{mode}").sample(
        [c for c in PLAYED if applies(c, mode, base=AS_WRITTEN)], 5 if mode.compaction in ("minor", "logs") else 1
    )
]
"""A case of every other mode, more where Spark reads in a way of its own; commits of single rows are
left to the runner without Spark."""


class SparkHandle:
    """Every frame is a DataFrame; every read goes through both doors of Spark, which must agree."""

    def __init__(self, spark: SparkSession, path: str, table: LakeTable) -> None:
        self.spark = spark
        self.path = path
        self.table = table

    def write(self, frame: pa.Table, *, kind_column: str | None, spread: bool) -> int:
        return self.table.upsert(self.frame(frame, spread=spread), kind_column=kind_column).version

    def delete(self, frame: pa.Table) -> int:
        return self.table.delete(self.frame(frame, spread=False)).version

    def frame(self, frame: pa.Table, *, spread: bool) -> DataFrame:
        """One partition; with ``spread`` up to three, in order: a union keeps the order of its parts."""
        cut = -(-frame.num_rows // 3) if spread else frame.num_rows
        # Spark does not take slices of lists with nulls, so each part has its own buffers.
        starts = range(0, frame.num_rows, max(cut, 1))
        parts = [frame.take(pa.array(range(at, min(at + cut, frame.num_rows)))) for at in starts] or [frame]
        return reduce(DataFrame.union, [self.spark.createDataFrame(part).coalesce(1) for part in parts])

    def update(self, values: Mapping[str, Any], where: Filter | None) -> int:
        given = {name: f"'{value}'" if isinstance(value, str) else value for name, value in values.items()}
        return self.table.update_where("true" if where is None else where.sql(), given).version

    def delete_where(self, where: Filter | None) -> int:
        return self.table.delete_where("true" if where is None else where.sql()).version

    def merge(self, source: pa.Table, matched: str | None, *, insert: bool) -> int:
        on = " AND ".join(f"target.{name} = source.{name}" for name in self.table.opened.view.config.key)
        merge = self.table.merge(self.frame(source, spread=False), on)
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
        given, condition = self.frame(frame, spread=spread), None if where is None else where.sql()
        return self.table.overwrite(given, condition, partition_mode="dynamic" if dynamic else "static").version

    def add_columns(self, ddl: str) -> None:
        self.table.alter(add_columns=ddl)

    def compact(self, kind: Compaction) -> None:
        apply_compaction(self.table, kind)

    def version(self) -> int:
        return self.table.version

    def reopen(self) -> None:
        self.table = LakeTable.open(
            self.path, spark=self.spark, mergers=CUSTOM_MERGERS, settings=settings_for(spread=False)
        )

    def read(
        self,
        *,
        version: int | None = None,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        form: Literal["sql", "expression"] = "sql",
    ) -> pa.Table:
        table = self.table if version is None else self._at(version)
        names = None if columns is None else list(columns)
        condition: str | Column | None = None
        if filter is not None:
            condition = filter.sql() if form == "sql" else expr(filter.sql())
        try:
            result = table.to_df(columns=names, filter=condition).toArrow()
        except PythonException as error:  # a task's error reaches the driver as Spark's, with ours in its text
            if "mergers.errors.Merge" in str(error):
                raise MergeOverflowError(str(error)) from error
            raise
        loader = self.spark.read.format("lakemerge")
        if version is not None:
            loader = loader.option("version", version)
        loaded = loader.load(self.path)
        loaded = loaded if filter is None else loaded.where(filter.sql())
        loaded = loaded if names is None else loaded.select(*names)
        assert_rows(loaded.toArrow(), rows_of(result), result.schema, "format('lakemerge') against to_df()")
        return result

    def _at(self, version: int) -> LakeTable:
        return LakeTable.open(self.path, version=version, spark=self.spark, mergers=CUSTOM_MERGERS)


class SparkEngine:
    """Tables in new folders below ``folder``."""

    errors: tuple[type[Exception], ...] = (LakeMergeError,)

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        register(spark, mergers=CUSTOM_MERGERS)
        self._paths = (folder / f"table {number}" for number in itertools.count())

    def create(self, table: TableCase, *, buckets: int, spread: bool) -> SparkHandle:
        path = str(next(self._paths))
        created = LakeTable.create(
            path,
            table.ddl,
            key=list(table.key),
            ordering=list(table.ordering),
            merger=table.merger,
            options=dict(table.options),
            partition_by=list(table.partition_by),
            buckets=buckets,
            settings=settings_for(spread=spread),
            mergers=CUSTOM_MERGERS,
            spark=self._spark,
        )
        return SparkHandle(self._spark, path, created)


@pytest.fixture(scope="module", autouse=True)
def one_shuffle_partition(spark: SparkSession) -> Iterator[None]:
    """Cases have a handful of rows: a second shuffle task would only cost its start."""
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


def test_every_supported_case_is_collected() -> None:
    assert (len(PLAYED), len(REFUSED), len(SAMPLE)) == (252, 18, 33)


@pytest.mark.parametrize("case", some(PLAYED), ids=str)
def test_case_as_written(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    run_case(case, AS_WRITTEN, SparkEngine(spark, tmp_path))


@pytest.mark.parametrize(("case", "mode"), some(SAMPLE), ids=str)
def test_case_in_other_modes(case: Case, mode: Mode, spark: SparkSession, tmp_path: Path) -> None:
    run_case(case, mode, SparkEngine(spark, tmp_path))


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_table_is_refused(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    run_case(case, AS_WRITTEN, SparkEngine(spark, tmp_path))
