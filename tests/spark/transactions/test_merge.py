"""Merges on Spark: the cases of :mod:`tests.unit.transactions.merging`, and what only Spark has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from lakemerge import FilterError, FrameError, LakeMergeError, LakeTable
from tests.property.effort import some
from tests.unit.faults import listing
from tests.unit.transactions.merging import MERGES, REFUSALS, SAME, SOURCE, made, state, table_of_key, with_holes
from tests.unit.transactions.test_merge import expected


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    """Plans of small frames take longer to adapt than to run."""
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield
    spark.conf.set("spark.sql.adaptive.enabled", str(before))


def on_spark(spark: SparkSession, source: pa.Table) -> DataFrame:
    return spark.createDataFrame(source)


@pytest.mark.parametrize("name", some(list(MERGES)))
def test_what_a_merge_leaves_and_explains(name: str, spark: SparkSession, tmp_path: Path) -> None:
    case = MERGES[name]
    table = made(tmp_path / "t", spark=spark)
    before = listing(tmp_path / "t")
    merge = case.build(table.merge(on_spark(spark, case.source.select(case.columns)), case.on, **case.how))
    plan = merge.execute(explain=True)
    assert (plan.matched, plan.updated, plan.deleted, plan.inserted) == case.counts
    assert listing(tmp_path / "t") == before
    assert merge.execute().rows == plan.keys
    assert state(table) == expected(name)


@pytest.mark.parametrize("name", some([name for name in REFUSALS if name != "no clause"]))
def test_refusals(name: str, spark: SparkSession, tmp_path: Path) -> None:
    case = REFUSALS[name]
    table = made(tmp_path / "t", spark=spark)
    before = listing(tmp_path / "t")
    with pytest.raises(case.error, match=case.text):
        case.build(table.merge(on_spark(spark, case.source.select(case.columns)), case.on)).execute()
    assert listing(tmp_path / "t") == before


@pytest.mark.long
def test_columns_and_own_aliases(spark: SparkSession, tmp_path: Path) -> None:
    """The example of Delta's documentation, word for word but for the table."""
    table = made(tmp_path / "t", spark=spark)
    updates = on_spark(spark, SOURCE).alias("updates")
    merge = table.merge(updates, "events.k = updates.k", target_alias="events")
    merge = merge.whenMatchedUpdate(f.col("updates.n") > 200, set={"n": f.col("events.k") + 1, "g": f.lit("lit")})
    merge = merge.whenMatchedDelete(condition=f.expr("updates.n = 100"))
    merge = merge.whenNotMatchedInsert(values={"k": f.col("updates.k"), "n": f.col("updates.n")})
    merge.whenNotMatchedBySourceUpdate(set={"n": f.col("events.n") + 1}).execute()
    assert state(table) == [
        (2, "x", 20, None), (3, "lit", 4, {"a": 3, "b": None}), (4, "y", 41, {"a": 4, "b": "q"}),
        (8, None, 800, None), (9, None, 900, None),
    ]  # fmt: skip
    # The frame's alias is not forced upon a condition that does not use it.
    table.merge(updates, SAME).whenMatchedDelete().execute()
    assert [row[0] for row in state(table)] == [4]
    with pytest.raises(FrameError, match="another value than the one that the merge compares"):
        table.merge(updates, SAME).whenNotMatchedInsert(values={"k": f.col("source.k") + 1}).execute()


def test_updates_and_deletes(spark: SparkSession, tmp_path: Path) -> None:
    table = made(tmp_path / "t", spark=spark)
    before = listing(tmp_path / "t")
    plan = table.update_where(f.col("n") > 10, {"g": f.upper("g")}, explain=True)
    assert (plan.matched, plan.updated, plan.keys, plan.files > 1) == (2, 2, 2, True)
    plan = table.delete_where("n > 10", explain=True)
    assert (plan.matched, plan.deleted, plan.keys) == (2, 2, 2)
    assert listing(tmp_path / "t") == before
    table.update_where(f.col("n") > 10, {"g": f.upper("g"), "s": {"a": 5, "b": None}})
    table.delete_where(f.col("k") == 1)
    assert state(table) == [
        (2, "X", 20, {"a": 5, "b": None}), (3, "y", None, {"a": 3, "b": None}), (4, "Y", 40, {"a": 5, "b": None}),
    ]  # fmt: skip
    with pytest.raises(FilterError, match="Column of Spark, and the rows are not read by Spark"):
        LakeTable.open(tmp_path / "t").delete_where(f.col("k") == 2)
    for wrong in ("nope > 1", "g"):
        with pytest.raises(FilterError):
            table.update_where(wrong, {"n": 1})
    with pytest.raises(FilterError, match="'n' is STRING, and the column"):
        table.update_where("true", {"n": "g"})


@pytest.mark.parametrize("merge_schema", [True, False])
def test_all_columns_evolve_the_schema(merge_schema: bool, spark: SparkSession, tmp_path: Path) -> None:
    table = made(tmp_path / "t", spark=spark)
    nested = SOURCE.append_column(
        "s", pa.array([{"c": 2.5, "a": 7}] * 5, pa.struct({"c": pa.float64(), "a": pa.int32()}))
    )
    merge = table.merge(on_spark(spark, nested), SAME, merge_schema=merge_schema)
    merge = merge.whenMatchedUpdateAll("source.k < 3").whenNotMatchedInsertAll("source.k = 8")
    if not merge_schema:
        with pytest.raises(FilterError, match="'s' is STRUCT"):
            merge.execute()
        return
    assert merge.execute(explain=True).keys == 3
    merge.execute()
    assert table.schema.names == ["k", "g", "n", "s", "extra"]
    s = {"a": 7, "b": None, "c": 2.5}
    assert state(table) == [
        (1, "a", 100, s, "e1"), (2, "b", None, s, "e2"), (3, "y", None, {"a": 3, "b": None, "c": None}, None),
        (4, "y", 40, {"a": 4, "b": "q", "c": None}, None), (8, "d", 800, s, "e8"),
    ]  # fmt: skip


def test_a_source_that_differs_at_each_computation(spark: SparkSession, tmp_path: Path) -> None:
    """All of a merge sees the rows of one computation: here a key either matches or is inserted, never both or none."""
    table = LakeTable.create(
        tmp_path / "t", "k BIGINT, n BIGINT", key=["k"], merger="commit-time", buckets=2, spark=spark
    )
    table.upsert(pa.table({"k": range(40), "n": [0] * 40}))
    source = spark.range(40, numPartitions=2).select((f.floor(f.rand() * 1e6) * 100 + f.col("id")).alias("k"))
    merge = table.merge(source, "target.k = pmod(source.k, 100) + IF(rand() < 0.5, 0, 1000)")
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()
    merge.whenMatchedUpdate(set={"n": "1"}).whenNotMatchedInsert(values={"n": "2"}).execute()
    rows = table.to_arrow().to_pylist()
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept
    hit = {row["k"] for row in rows if row["n"] == 1}
    new = {row["k"] - 1000 for row in rows if row["n"] == 2}
    assert hit | new == set(range(40))
    assert not hit & new


@pytest.mark.long
def test_only_files_of_the_source_keys_are_read(spark: SparkSession, tmp_path: Path) -> None:
    table = with_holes(tmp_path / "t", spark=spark)
    merge = table.merge(on_spark(spark, table_of_key("a", 1)), "target.p = source.p AND target.k = source.k")
    plan = merge.whenMatchedUpdate(set={"n": 5}).whenNotMatchedInsert(values={}).execute(explain=True)
    assert (plan.matched, plan.updated, plan.inserted, plan.partitions, plan.buckets) == (1, 1, 0, 1, 1)
    with pytest.raises((LakeMergeError, PySparkException)):
        merge.whenNotMatchedBySourceDelete().execute(explain=True)


def test_rows_do_not_pass_the_driver(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver collects are reports of tasks and keys of a small source."""
    table = made(tmp_path / "t", spark=spark)
    collected: list[Any] = []
    right = DataFrame.collect, DataFrame.toArrow
    kind = type(spark.range(1))

    def collect(frame: Any) -> Any:
        collected.extend(frame.columns)
        return original_collect(frame)

    def to_arrow(frame: Any) -> Any:
        collected.extend(frame.columns)
        return original_arrow(frame)

    original_collect, original_arrow = kind.collect, kind.toArrow
    monkeypatch.setattr(kind, "collect", collect)
    monkeypatch.setattr(kind, "toArrow", to_arrow)
    source = on_spark(spark, SOURCE)
    merge = table.merge(source, SAME).whenMatchedUpdate(set={"n": "source.n", "g": "source.g"})
    merge.whenNotMatchedInsert(values={"g": "source.g"}).whenNotMatchedBySourceDelete().execute()
    table.update_where("true", {"g": "concat(g, '!')"})
    table.delete_where("k > 1")
    assert right
    assert not {"g", "n", "s"} & set(collected)
    monkeypatch.undo()
    assert state(table) == [(1, "a!", 100, {"a": 1, "b": "p"})]
