"""User mergers on Spark: sent with the job where the executors cannot import them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable, Merger, MergerMissingError, Record, RowMerger, Settings, register
from mergers.errors import MergerRegistrationError

DDL = "id BIGINT, total BIGINT, ts BIGINT"
IN_TASKS = Settings(driver_bytes=1)
"""A compaction of a few rows has tasks, too."""

BESIDE_THE_SCRIPT = """
from dataclasses import dataclass

from lakemerge import RowMerger

STEP = 10


def scaled(value):
    return value * STEP


@dataclass(frozen=True)
class Beside(RowMerger):
    id = "7d6f3a0e-9a3b-4f0d-8f4e-53f1b0a6f3c9"
    name = "beside"

    factor: int

    def merge(self, older, newer):
        return {**newer, "total": older["total"] + self.factor * scaled(newer["total"])}
"""


@dataclass(frozen=True)
class Adds(RowMerger):
    id = "b5d3d0a8-3f1c-4a73-a8c1-1b1f5c8de0f6"
    name = "adds"

    factor: int = 1

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return {**newer, "total": older["total"] + self.factor * newer["total"]}


@dataclass(frozen=True)
class Wrong(RowMerger):
    id = "2f9a2c0b-3c43-4d0e-8a3f-0d1c2b3a4f5e"
    name = "wrong"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return {**newer, "total": "many"}


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[ModuleType]:
    """A module that this process loaded from a place that executors do not look in."""
    path = tmp_path / "beside_the_script.py"
    path.write_text(BESIDE_THE_SCRIPT)
    spec = importlib.util.spec_from_file_location("beside_the_script", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
    path.unlink()


def frame(spark: SparkSession, *rows: tuple[int, int, int]) -> Any:
    return spark.createDataFrame(list(rows), "id BIGINT, total BIGINT, ts BIGINT").coalesce(1)


def rows(table: pa.Table) -> list[tuple[int, int, int]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def play(spark: SparkSession, path: str, merger: type[Merger], options: Mapping[str, object]) -> LakeTable:
    """Three rows of key 1 and two of key 2, in a load with duplicates and an append."""
    table = LakeTable.create(
        path, DDL, key=["id"], ordering=["ts"], merger=merger.name, options=options, mergers=[merger], buckets=2,
        settings=IN_TASKS, spark=spark,
    )  # fmt: skip
    table.upsert(frame(spark, (1, 1, 5), (1, 2, 6), (2, 5, 5)))
    table.upsert(frame(spark, (1, 3, 4), (2, 1, 7)))
    return table


def test_a_class_of_a_module_that_executors_lack(spark: SparkSession, beside: ModuleType, tmp_path: Path) -> None:
    """Load, append, read, compaction and the data source all fold with the option."""
    path = str(tmp_path / "table")
    table = play(spark, path, beside.Beside, {"factor": 2})
    # 1 + 2*10*2 = 41, then + 2*10*3 = 101; 5 + 2*10*1 = 25
    expected = [(1, 101, 4), (2, 25, 7)]
    assert rows(table.to_df().toArrow()) == expected
    assert rows(table.to_arrow()) == expected

    with pytest.raises(Exception, match="which nobody registered here") as refused:
        spark.read.format("lakemerge").load(path).collect()
    assert "lakemerge.register(spark, mergers=[TheClass])" in str(refused.value)

    register(spark, mergers=[beside.Beside])
    assert rows(spark.read.format("lakemerge").load(path).toArrow()) == expected
    frame(spark, (2, 1, 1)).write.format("lakemerge").mode("append").save(path)
    expected = [(1, 101, 4), (2, 45, 1)]
    assert rows(spark.read.format("lakemerge").load(path).toArrow()) == expected
    table.compact()
    assert all(file_slice.is_clean for file_slice in table.opened.view.file_slices)
    assert rows(table.to_df().toArrow()) == expected

    register(spark)
    with pytest.raises(Exception, match="which nobody registered here"):
        spark.read.format("lakemerge").load(path).collect()


def test_a_class_of_this_test_module(spark: SparkSession, tmp_path: Path) -> None:
    table = play(spark, str(tmp_path / "table"), Adds, {"factor": 3})
    assert rows(table.to_df().toArrow()) == [(1, 16, 4), (2, 8, 7)]
    table.compact()
    assert rows(table.to_df().toArrow()) == [(1, 16, 4), (2, 8, 7)]


def test_a_class_defined_in_a_function(spark: SparkSession, tmp_path: Path) -> None:
    """As in a notebook: nothing can import it by name."""
    bonus = 100

    class Local(Adds):
        id = "e1f3c2a4-66c1-4f0c-9a51-c2f1d0b3a897"
        name = "local"

        def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
            return {**super().merge(older, newer), "ts": bonus}

    table = play(spark, str(tmp_path / "table"), Local, {})
    assert rows(table.to_df().toArrow()) == [(1, 6, 100), (2, 6, 100)]


def test_a_broken_merger_is_named_from_the_executor(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = LakeTable.create(
        path, DDL, key=["id"], merger="wrong", mergers=[Wrong], buckets=1, settings=IN_TASKS, spark=spark
    )
    table.upsert(frame(spark, (7, 1, 1)))
    table.upsert(frame(spark, (7, 2, 1)))
    (skipped,) = table.compact().skipped
    assert skipped.key == {"id": 7}
    assert "merger 'wrong'" in skipped.reason
    with pytest.raises(Exception, match="merger 'wrong', at key"):
        table.to_df().collect()


def test_reads_and_writes_without_the_class_are_refused_before_a_job(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    play(spark, path, Adds, {})
    stranger = LakeTable.open(path, spark=spark)
    assert stranger.version == 2
    for act in (stranger.to_df, stranger.compact, lambda: stranger.upsert(frame(spark, (1, 1, 1)))):
        with pytest.raises(MergerMissingError, match="adds"):
            act()
    assert LakeTable.open(path).version == 2


def test_register_checks_the_classes(spark: SparkSession) -> None:
    class Nameless(Adds):
        id = "no uuid"

    with pytest.raises(MergerRegistrationError, match="lower-case UUID"):
        register(spark, mergers=[Nameless])


def test_the_order_example(spark: SparkSession, tmp_path: Path) -> None:
    """The example of the guide: a stream a service, with a late and a repeated event."""
    path = Path(__file__).resolve().parents[3] / "docs" / "examples" / "order_merger.py"
    spec = importlib.util.spec_from_file_location("spark_order_merger", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    table = LakeTable.create(
        str(tmp_path / "orders"), "order_id BIGINT, state STRING, order_info STRING, payment_info STRING",
        key=["order_id"], merger="order", mergers=[module.OrderMerger], options={"states": ["CREATED", "PAID"]},
        buckets=1, spark=spark,
    )  # fmt: skip
    payments = spark.createDataFrame(
        [(1, "PAID", "card"), (2, "PAID", "cash")], "order_id BIGINT, state STRING, payment_info STRING"
    )
    created = spark.createDataFrame(
        [(2, "CREATED", "a lamp"), (1, "CREATED", "two books"), (3, "CREATED", "a pen")],
        "order_id BIGINT, state STRING, order_info STRING",
    )
    table.upsert(payments)
    table.upsert(created.union(created))
    table.upsert(payments)
    expected = [(1, "PAID", "two books", "card"), (2, "PAID", "a lamp", "cash"), (3, "CREATED", "a pen", None)]
    assert sorted(map(tuple, table.to_df().collect())) == expected
    table.compact()
    assert sorted(map(tuple, table.to_df().collect())) == expected
