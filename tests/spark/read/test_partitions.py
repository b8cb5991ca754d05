"""A filter on partition columns leaves out partitions of a dirty table, wherever in a query it stands.

What must not be read is moved away before the query runs.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lakemerge import LakeTable, Settings
from lakemerge.spark import kernel
from tests.unit.faults import Row

DDL = "country STRING NOT NULL, id BIGINT NOT NULL, at INT, v STRING"
COUNTRIES = ["DK", "NO", "SE", "a'b", "ø `x`\\"]


def rows_of(countries: list[str], ids: range, at: int) -> dict[tuple[str, int], Row]:
    return {(country, i): (country, i, at, f"{country}{i}-{at}") for country in countries for i in ids}


def frame(rows: dict[tuple[str, int], Row]) -> pa.Table:
    schema = pa.schema([("country", pa.string()), ("id", pa.int64()), ("at", pa.int32()), ("v", pa.string())])
    return pa.table(list(zip(*rows.values(), strict=True)), schema=schema)


@pytest.fixture(params=["one scan", "unions"])
def _route(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """LakeMerge's own scan, and what reads tables where it cannot be used."""
    if request.param == "unions":
        spark.conf.set("spark.lakemerge.nativeReads", "off")
    yield
    spark.conf.unset("spark.lakemerge.nativeReads")


@pytest.fixture(scope="module")
def dirty(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[LakeTable, dict[Any, Row]]:
    path = tmp_path_factory.mktemp("dirty")
    table = LakeTable.create(
        path, DDL, key=["country", "id"], ordering=["at"], partition_by=["country"], buckets=2, spark=spark
    )
    first, second = rows_of(COUNTRIES, range(40), 1), rows_of(COUNTRIES, range(30, 50), 2)
    table.upsert(frame(first))
    table.upsert(frame(second))
    assert {
        file_slice.bucket_id.partition for file_slice in table.opened.view.file_slices if not file_slice.is_merged
    } == {(c,) for c in COUNTRIES}
    return table, first | second


@contextmanager
def without_others(table: LakeTable, *partitions: str) -> Iterator[None]:
    """Base files of other partitions are elsewhere meanwhile."""
    files = [
        Path(table.url) / file_slice.base.add.path
        for file_slice in table.opened.view.file_slices
        if file_slice.base is not None and file_slice.bucket_id.partition[0] not in partitions
    ]
    assert files
    for file in files:
        file.rename(file.with_suffix(".away"))
    try:
        yield
    finally:
        for file in files:
            file.with_suffix(".away").rename(file)


def collected(found: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, found.collect()))


@pytest.mark.usefixtures("_route")
def test_where_reads_only_partitions_that_may_match(dirty: tuple[LakeTable, dict[Any, Row]]) -> None:
    table, rows = dirty
    found = table.to_df()
    assert collected(found) == sorted(rows.values())
    with without_others(table, "NO"):
        expected = sorted(row for row in rows.values() if row[0] == "NO")
        assert collected(found.where("country = 'NO'")) == expected
        assert collected(found.where(F.lower("country") == "no").select("v")) == sorted((row[3],) for row in expected)
        assert found.where("country > 'NN' AND country < 'O' AND at = 2").count() == 20
        assert collected(found.groupBy("country").count().where("country = 'NO'")) == [("NO", 50)]
        with pytest.raises(Exception, match=r"\[(LAKEMERGE_TABLE_DAMAGED|table-damaged)\] file .* is missing"):
            found.where("country >= 'NO'").collect()
    with without_others(table, "a'b", "ø `x`\\"):
        assert found.where("country IN ('ø `x`\\\\', \"a'b\")").count() == 100
        assert found.where(F.col("country").isin("XX")).count() == 0


@pytest.mark.usefixtures("_route")
def test_a_view_in_sql(spark: SparkSession, dirty: tuple[LakeTable, dict[Any, Row]]) -> None:
    table, _ = dirty
    table.create_temp_view("lm_partitions")
    query = "SELECT max(v), count(*) FROM lm_partitions WHERE id > 45 AND (country = 'SE' OR country = 'DK')"
    with without_others(table, "SE", "DK"):
        assert collected(spark.sql(query)) == [("SE49-2", 8)]
    joined = spark.sql("SELECT count(*) FROM lm_partitions a JOIN lm_partitions b USING (country, id)")
    assert collected(joined) == [(250,)]


@pytest.mark.usefixtures("_route")
def test_columns_and_filters(dirty: tuple[LakeTable, dict[Any, Row]]) -> None:
    """Whatever is asked for: partition columns alone, none, and a filter that the plan is made with."""
    table, rows = dirty
    assert collected(table.to_df(columns=["country"])) == sorted((row[0],) for row in rows.values())
    assert table.to_df(columns=[]).count() == 250
    assert table.to_df(columns=["v", "country"]).columns == ["v", "country"]
    found = table.to_df(columns=["v"], filter="country <> 'NO' AND at = 1")
    assert collected(found) == sorted((row[3],) for row in rows.values() if row[0] != "NO" and row[2] == 1)
    assert table.to_df().schema == table.to_df(filter="country = 'NO'").schema  # that one is of one partition


TYPES: dict[str, list[Any]] = {
    "TINYINT": [-128, 0, 127],
    "BIGINT": [-(2**63), 0, 2**63 - 1],
    "BOOLEAN": [False, True],
    "DECIMAL(38,10)": [Decimal("-9999999999999999999999999999.9999999999"), Decimal("0E-10"), Decimal("1.5000000000")],
    "DATE": [dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31)],
    "TIMESTAMP": [
        dt.datetime(1000, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2021, 3, 14, 7, 30, 0, 1, tzinfo=dt.UTC),
        dt.datetime(2021, 11, 7, 5, 30, tzinfo=dt.UTC),
        dt.datetime(2021, 11, 7, 6, 30, tzinfo=dt.UTC),
    ],
    "TIMESTAMP_NTZ": [dt.datetime(1000, 1, 1), dt.datetime(2021, 3, 14, 2, 30, 0, 1)],  # noqa: DTZ001 - without a zone
    "STRING": [" a ", "NULL", "__HIVE_DEFAULT_PARTITION__", "a/b=c%20"],
}


@pytest.fixture
def in_new_york(spark: SparkSession) -> Iterator[None]:
    """Where 2:30 on the 14th of March 2021 was not, and 1:30 on the 7th of November was twice."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.usefixtures("_route")
@pytest.mark.parametrize("ddl", TYPES)
def test_partition_values_of_every_type(spark: SparkSession, in_new_york: None, tmp_path: Path, ddl: str) -> None:
    """Through Arrow both ways: what PySpark makes of times depends on zones."""
    table = LakeTable.create(tmp_path, f"p {ddl}, n INT", key=["p"], partition_by=["p"], spark=spark)
    kind = table.schema.field("p").type
    for n in (1, 2):
        table.upsert(pa.table({"p": pa.array(TYPES[ddl], kind), "n": pa.array([n] * len(TYPES[ddl]), pa.int32())}))
    found = table.to_df().toArrow().sort_by("p")
    assert found.column("p").cast(kind).to_pylist() == sorted(TYPES[ddl])
    assert set(found.column("n").to_pylist()) == {2}
    for value in TYPES[ddl]:
        text = value.isoformat() if isinstance(value, dt.date) else str(value)
        one = table.to_df().where(f"p = CAST('{text}' AS {ddl})").toArrow()
        assert one.column("p").cast(kind).to_pylist() == [value]


@pytest.mark.usefixtures("_route")
def test_two_partition_columns_and_values_bit_for_bit(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "a INT, b STRING, id BIGINT, x DOUBLE, l ARRAY<STRUCT<`y z`: INT, t: TIMESTAMP>>, m MAP<STRING, DOUBLE>"
    table = LakeTable.create(tmp_path, ddl, key=["a", "b", "id"], partition_by=["b", "a"], buckets=1, spark=spark)
    rows = spark.sql(
        "SELECT int(id % 2) a, string(id % 3) b, id, IF(id < 6, -0.0D, double('NaN')) x, "
        "array(named_struct('y z', int(id), 't', timestamp_seconds(id))) l, map('k', -0.0D) m FROM range(12)"
    )
    table.upsert(rows)
    table.upsert(rows)
    found = table.to_df()
    assert found.schema == spark.createDataFrame([], ddl).schema
    exact = [frame.drop("x", "m").toArrow().sort_by("id").to_pylist() for frame in (found, rows)]
    assert exact[0] == exact[1]
    assert {str(row.x) for row in found.where("a = 1 AND b = '0'").collect()} == {"-0.0", "nan"}
    assert {str(row.m["k"]) for row in found.collect()} == {"-0.0"}


@pytest.mark.long
@pytest.mark.usefixtures("by_unions")
def test_large_partitions_go_in_several_lists_and_parts(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(row_group_rows=1_000, target_task_bytes=100_000)
    table = LakeTable.create(
        tmp_path, DDL, key=["country", "id"], partition_by=["country"], buckets=1, settings=settings, spark=spark
    )
    first, second = rows_of(["NO", "SE"], range(12_000), 1), rows_of(["NO", "SE"], range(9_000, 20_000), 2)
    table.upsert(frame(first))
    table.upsert(frame(second))
    found = table.to_df()
    assert collected(found) == sorted((first | second).values())
    tasks = found.where("country = 'SE'").withColumn("task", F.spark_partition_id())
    counts = {row.task: row["count"] for row in tasks.groupBy("task").count().collect()}
    assert sum(counts.values()) == 20_000
    assert len(counts) > 2
    assert found.limit(5_000).count() == 5_000


class _Numbers:
    """A reading whose part ``n`` has the numbers below ``n``, in tables of random sizes."""

    schema = pa.schema([("n", pa.int64())])

    def tables(self, part: int) -> Iterator[pa.Table]:
        sizes, start = random.Random(part), 0
        while start < part:
            end = min(part, start + sizes.randint(0, 3_000))
            yield pa.table({"n": pa.array(range(start, end), pa.int64())})
            start = end


@pytest.mark.parametrize("planned", [1, 2, 3, 50])
def test_lists_are_even_and_lose_nothing(monkeypatch: pytest.MonkeyPatch, planned: int) -> None:
    """However many were planned: some may be left empty, and the last one takes what there is."""
    sizes = [0, 1, 2_500, 9_000]
    monkeypatch.setattr(kernel._Lists, "_numbered", lambda self, number: _Part(sizes[number]))
    monkeypatch.setattr(kernel, "_list_rows", lambda file_slice: 1_000)
    reading: Any = _Numbers()
    monkeypatch.setattr(reading, "tables", lambda part: _Numbers().tables(part.rows))
    lists = kernel._Lists([], 1, reading, pa.struct([("n", pa.int64())]))
    for number, size in enumerate(sizes):
        if number == 1:
            continue  # left out by a filter
        given = [lists.get(number, place, is_last=place == planned) for place in range(1, planned + 1)]
        rows = [[row["n"] for row in one] for array in given for one in array.to_pylist()]
        assert [n for one in rows for n in one] == list(range(size))
        assert all(len(one) in (0, 1_000, size % 1_000) for one in rows[:-1])
    again = kernel._Lists([], 1, reading, pa.struct([("n", pa.int64())])).get(3, 2, is_last=False).to_pylist()[0]
    assert [row["n"] for row in again] == list(range(1_000, 2_000))


class _Part:
    file_slice = None

    def __init__(self, rows: int) -> None:
        self.rows = rows


@pytest.mark.parametrize("size", [1, 3, 7, 4096])
@pytest.mark.parametrize("largest", [1, 3])
def test_lists_of_rows_that_are_larger_than_their_files_say(
    size: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list stays within a portion or has one row, and the lists after it have what it lacks."""
    monkeypatch.setattr("mergers.portions.LARGEST_BYTES", 1_000)
    random_bytes = random.Random(size)
    values = ["x" * (largest * random_bytes.randrange(1, 300)) for _ in range(60)]
    table = pa.table({"v": values})
    rows = kernel._Rows([table.slice(0, 25), table.slice(0, 0), table.slice(25)], size)
    lists = [rows.take(all_left=False) for _ in range(-(-60 // size) + 60)]
    assert [value for found in lists for batch in found for value in batch.column(0).to_pylist()] == values
    for found in lists:
        assert sum(batch.num_rows for batch in found) < 2 or sum(batch.nbytes for batch in found) <= 1_000
    assert lists[-1] == rows.take(all_left=True) == []
    if size < 7 and largest == 1:
        assert all(lists[: 60 // size]), "no row waits longer than it must"
