"""LakeMerge's own scan: whatever Spark's Parquet reader does, a file's rows are those that the version has of it.

Files are made here with a selection of rows, and pyarrow says which rows these are. For tables a dictionary does, and
DuckDB.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import lakemerge
from lakemerge import LakeTable, ReadPolicy, Settings
from lakemerge.read.stored_rows import SelectedFile, StoredRows
from lakemerge.schema.schema import to_arrow_schema, to_delta_json
from lakemerge.spark.jar import jar_class
from lakemerge.spark.native import plan_json
from lakemerge.storage import LocalStore
from tests.spark.application import Application
from tests.spark.compaction.test_minor import plan_of

Mask = npt.NDArray[np.bool_]
SWITCH = "spark.lakemerge.nativeReads"
_numbers = itertools.count()


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, own in before.items():
            spark.conf.unset(name) if own is None else spark.conf.set(name, own)


def selected(path: Path, bits: Mask | None, *, keeps: bool, rows: int | None = -1) -> SelectedFile:
    """A file with a bit for each row."""
    there = pq.ParquetFile(path).metadata.num_rows
    told = there if rows == -1 else rows
    if bits is None:
        return SelectedFile(path.name, path.stat().st_size, told, there)
    padded = np.pad(bits, (0, -len(bits) % 64))
    words = np.packbits(padded, bitorder="little").view("<i8")
    wanted = int(bits.sum()) if keeps else there - int(bits.sum())
    return SelectedFile(path.name, path.stat().st_size, told, wanted, words, keeps=keeps)


def scanned(spark: SparkSession, folder: Path, schema: pa.Schema, files: Sequence[SelectedFile]) -> DataFrame:
    """The rows that the scan gives of files."""
    plan = plan_json(StoredRows(list(files)), LocalStore(folder), None)
    told = {"name": "files", "identity": str(next(_numbers)), "schema": to_delta_json(schema)}
    frames = jar_class(spark, "lakemerge.spark.NativeFrames")
    return DataFrame(frames.read(spark._jsparkSession, orjson.dumps({**plan, **told}), None, {}), spark)


def same(found: pa.Table, expected: pa.Table) -> bool:
    """Whether two tables have the same rows, whose column ``id`` tells them apart."""
    expected = expected.cast(found.schema)
    return bool(found.sort_by("id").combine_chunks().equals(expected.sort_by("id").combine_chunks()))


DDL = (
    "id BIGINT, few STRING, many STRING, flag BOOLEAN, tiny TINYINT, small SMALLINT, i INT, f FLOAT, d DOUBLE, "
    "dec9 DECIMAL(9,2), dec18 DECIMAL(18,4), dec38 DECIMAL(38,6), bin BINARY, day DATE, at TIMESTAMP, "
    "local TIMESTAMP_NTZ, st STRUCT<a: BIGINT, b: STRING, c: ARRAY<BIGINT>, e: STRUCT<z: DECIMAL(30,2)>>, "
    "li ARRAY<STRUCT<k: BIGINT, v: STRING>>, ma MAP<STRING, BIGINT>, deep MAP<STRING, ARRAY<STRUCT<q: DATE>>>"
)
ROWS = 6000
KINDS = (
    "id", "concat('f', id % 5)", "concat('many-', id)", "if(id % 9 = 0, null, id % 3 = 0)", "cast(id % 100 as tinyint)",
    "cast(id % 1000 as smallint)", "if(id % 7 = 0, null, cast(id as int))", "cast(id as float)",
    "if(id % 8 = 0, null, cast(id as double) / 4)", "cast(id as decimal(9,2))", "cast(id * 7 as decimal(18,4))",
    "if(id % 5 = 0, null, cast(id * 11 as decimal(38,6)))", "if(id % 6 = 0, null, cast(concat('b', id) as binary))",
    "date_add(date'1500-01-01', cast(id % 3000 as int))", "timestamp_micros(id * 1000001 - 14000000000000000)",
    "cast(timestamp_micros(id * 7) as timestamp_ntz)",
    (
        "if(id % 11 = 0, null, named_struct('a', id, 'b', if(id % 3 = 0, null, concat('s', id % 13)), 'c', "
        "array(id, null, id + 1), 'e', if(id % 4 = 0, null, named_struct('z', cast(id as decimal(30,2))))))"
    ),
    "if(id % 5 = 0, null, array_repeat(named_struct('k', id, 'v', concat('v', id)), cast(id % 4 as int)))",
    "if(id % 10 = 0, null, map('x', id, concat('y', id % 3), null))",
    "map('m', array(named_struct('q', date_add(date'2020-01-01', cast(id % 50 as int))), null))",
)  # fmt: skip
FILES = {
    "many row groups": {"parquet.block.size": "60000", "parquet.page.row.count.limit": "100"},
    "plain pages": {"parquet.enable.dictionary": "false", "parquet.page.row.count.limit": "500"},
}
"""Name -> options of Spark's writer."""
TIMES = {"many row groups": "TIMESTAMP_MICROS", "plain pages": "INT96"}
READERS: Mapping[str, Mapping[str, str]] = {
    "as usual": {},
    "small splits": {"spark.sql.files.maxPartitionBytes": "20000"},
    "off the heap": {"spark.sql.columnVector.offheap.enabled": "true"},
    "small batches": {"spark.sql.parquet.columnarReaderBatchSize": "37", "spark.sql.ansi.enabled": "false"},
    "rows": {"spark.sql.parquet.enableVectorizedReader": "false"},
    "nested columns as rows": {"spark.sql.parquet.enableNestedColumnVectorizedReader": "false"},
    "without generated code": {"spark.sql.codegen.wholeStage": "false"},
    "other values": {
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.parquet.int96AsTimestamp": "false",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
        "spark.sql.parquet.fieldId.read.enabled": "true",
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "America/New_York",
    },
    "without filters of Parquet": {"spark.sql.parquet.filterPushdown": "false"},
}


@pytest.fixture(scope="module")
def kinds(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Files with all types, as Spark writes them."""
    folder = tmp_path_factory.mktemp("kinds")
    rows = spark.range(0, ROWS, 1, 1).selectExpr(*KINDS).toDF(*to_arrow_schema(DDL).names)
    found = {}
    for name, options in FILES.items():
        with settings(spark, {"spark.sql.parquet.outputTimestampType": TIMES[name]}):
            rows.write.options(**options).parquet(str(folder / name))
        [path] = (folder / name).glob("*.parquet")
        found[name] = path
    return found


def read(path: Path) -> pa.Table:
    return pq.read_table(path, coerce_int96_timestamp_unit="us")


def selections() -> Iterator[tuple[Mask, bool]]:
    """Bits, and whether they are set for the wanted rows. Some have long parts without a bit."""
    draw = np.random.default_rng(7)
    for share, keeps in ((0.1, False), (0.5, True), (0.002, True), (0.95, False), (0.0, False), (1.0, True)):
        bits = draw.random(ROWS) < share
        if 0 < share < 1:
            bits[1500:3200] = False
        yield bits, keeps


CONDITIONS: Sequence[tuple[str, Callable[[pa.Table], Any]]] = (
    ("id BETWEEN 3000 AND 3100", lambda t: pc.and_(pc.greater_equal(t["id"], 3000), pc.less_equal(t["id"], 3100))),
    ("few = 'f2' AND id > 5500", lambda t: pc.and_(pc.equal(t["few"], "f2"), pc.greater(t["id"], 5500))),
    ("many IN ('many-7', 'many-1600', 'many-5999')", lambda t: pc.is_in(t["id"], pa.array([7, 1600, 5999]))),
    ("d IS NULL AND id < 900", lambda t: pc.and_(pc.is_null(t["d"]), pc.less(t["id"], 900))),
)


def quick(names: Iterable[str], *first: str) -> list[Any]:
    """Parameters, of which all but the first are long."""
    return [name if name in first else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.parametrize("file", quick(FILES, "many row groups"))
def test_selected_rows_of_all_types(spark: SparkSession, kinds: Mapping[str, Path], file: str) -> None:
    path, schema = kinds[file], to_arrow_schema(DDL)
    stored = read(path)
    assert (pq.ParquetFile(path).num_row_groups > 5) == (file == "many row groups")
    for bits, keeps in selections():
        expected = stored.filter(pa.array(bits if keeps else ~bits))
        frame = scanned(spark, path.parent, schema, [selected(path, bits, keeps=keeps)])
        assert same(frame.toArrow(), expected), keeps
        assert frame.count() == frame.where("true").count() == expected.num_rows
        for condition, judge in CONDITIONS:
            assert same(frame.where(condition).toArrow(), expected.filter(judge(expected))), condition


@pytest.mark.parametrize("reader", quick(READERS, "small splits", "rows"))
def test_selected_rows_however_spark_reads(spark: SparkSession, kinds: Mapping[str, Path], reader: str) -> None:
    path, schema = kinds["many row groups"], to_arrow_schema(DDL)
    stored = read(path)
    for bits, keeps in itertools.islice(selections(), 3):
        expected = stored.filter(pa.array(bits if keeps else ~bits))
        with settings(spark, READERS[reader]):
            frame = scanned(spark, path.parent, schema, [selected(path, bits, keeps=keeps)])
            assert same(frame.toArrow(), expected)
            condition, judge = CONDITIONS[0]
            assert same(frame.where(condition).toArrow(), expected.filter(judge(expected)))
            assert frame.select().where("true").count() == expected.num_rows
            inner = frame.selectExpr("id", "st.e.z", "transform(li, x -> x.v) v", "ma['x'] x").where("id < 400")
            assert {row.id: (row.z, row.v, row.x) for row in inner.collect()} == {
                row["id"]: (
                    row["st"] and row["st"]["e"] and row["st"]["e"]["z"],
                    row["li"] and [each["v"] for each in row["li"]],
                    row["ma"] and dict(row["ma"])["x"],
                )
                for row in expected.filter(pc.less(expected["id"], 400)).select(["id", "st", "li", "ma"]).to_pylist()
            }


def test_files_together(spark: SparkSession, kinds: Mapping[str, Path], tmp_path: Path) -> None:
    """Several files in a task, with selections that are sent to the executors once."""
    path, schema = kinds["many row groups"], to_arrow_schema("id BIGINT, many STRING")
    bits, _ = next(selections())
    huge = np.zeros(10_000_000, dtype=np.bool_)
    huge[: len(bits)] = bits
    files = []
    for number in range(3):
        (tmp_path / f"{number}.parquet").symlink_to(path)
        own = [bits, None, huge][number]
        files.append(selected(tmp_path / f"{number}.parquet", own, keeps=number == 0))
    found = scanned(spark, tmp_path, schema, files).groupBy("id").count()
    expected = {}
    for row in range(ROWS):
        expected[row] = int(bits[row]) + 1 + int(not bits[row])
    assert {row.id: row["count"] for row in found.collect()} == expected


def test_more_columns_than_generated_code_takes(spark: SparkSession, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(120)]
    schema = pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in names)])
    table = pa.table([pa.array(range(900)), *(pa.array(range(number, 900 + number)) for number in range(120))], schema)
    pq.write_table(table, tmp_path / "wide.parquet", row_group_size=200)
    bits = np.arange(900) % 3 == 0
    frame = scanned(spark, tmp_path, schema, [selected(tmp_path / "wide.parquet", bits, keeps=False)])
    expected = table.filter(pa.array(~bits))
    assert same(frame.toArrow(), expected)
    assert same(frame.where("c7 > 700").toArrow(), expected.filter(pc.greater(expected["c7"], 700)))
    assert frame.select("id", "c119").toArrow().num_rows == frame.count() == expected.num_rows


def test_types_that_were_widened_and_columns_that_came_later(spark: SparkSession, tmp_path: Path) -> None:
    stored = pa.table(
        {
            "id": pa.array(range(500), pa.int32()),
            "f": pa.array([None if n % 5 == 0 else n / 2 for n in range(500)], pa.float32()),
            "d": pa.array([Decimal(n) / 100 for n in range(500)], pa.decimal128(5, 2)),
            "st": pa.array([{"a": n} for n in range(500)], pa.struct([("a", pa.int64())])),
        }
    )
    pq.write_table(stored, tmp_path / "old.parquet", row_group_size=64, store_decimal_as_integer=True)
    schema = to_arrow_schema("id BIGINT, f DOUBLE, d DECIMAL(12,2), st STRUCT<a: BIGINT, b: STRING>, later STRING")
    bits = np.arange(500) % 7 == 0
    frame = scanned(spark, tmp_path, schema, [selected(tmp_path / "old.parquet", bits, keeps=True)])
    rows = {row.id: tuple(row) for row in frame.collect()}
    assert rows == {n: (n, None if n % 5 == 0 else n / 2, Decimal(n) / 100, (n, None), None) for n in range(0, 500, 7)}
    assert frame.where("id > 400 AND later IS NULL").count() == sum(n > 400 for n in rows)


def test_timestamps_of_96_bits(spark: SparkSession, tmp_path: Path) -> None:
    """Files that others wrote. What the session says of old calendars changes nothing."""
    times = [dt.datetime(1600 + n, 1, 1, tzinfo=dt.UTC) for n in range(300)]
    table = pa.table({"id": pa.array(range(300)), "at": pa.array(times, pa.timestamp("us", "UTC"))})
    pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True, row_group_size=100)
    bits = np.arange(300) % 2 == 0
    file = selected(tmp_path / "t.parquet", bits, keeps=True)
    for own in ({}, READERS["other values"]):
        with settings(spark, own):
            frame = scanned(spark, tmp_path, table.schema, [file])
            micros = frame.selectExpr("id", "unix_micros(at) us").collect()
        assert {row.id: row.us for row in micros} == {
            n: int((times[n] - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)).total_seconds()) * 10**6
            for n in range(0, 300, 2)
        }


# Doubts


def test_a_file_that_has_other_rows_than_the_table_says(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(range(100))})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=30)
    for rows in (90, 110):
        for own in ({}, READERS["rows"]):
            file = selected(tmp_path / "t.parquet", None, keeps=False, rows=rows)
            with (
                settings(spark, own),
                pytest.raises(PySparkException, match=r"gave up at .*t\.parquet|t\.parquet has 100 rows"),
            ):
                scanned(spark, tmp_path, table.schema, [file]).collect()


def test_rows_without_a_value_in_a_required_column(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1, None, 3])}), tmp_path / "t.parquet")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    for own in ({}, READERS["rows"]):
        with settings(spark, own):
            bits = np.array([False, True, False])
            good = scanned(spark, tmp_path, schema, [selected(tmp_path / "t.parquet", bits, keeps=False)])
            assert sorted(row.id for row in good.collect()) == [1, 3]
            with pytest.raises(PySparkException, match="NOT NULL"):
                scanned(spark, tmp_path, schema, [selected(tmp_path / "t.parquet", None, keeps=False)]).collect()


# Tables

TABLE = "id BIGINT, at INT, v STRING, n BIGINT, st STRUCT<a: INT, b: STRING>"
MERGERS: Mapping[str, Mapping[str, Any]] = {
    "event-time": {"ordering": ["at"]},
    "aggregate": {"options": {"aggregates": {"n": "sum"}}},
}
STATES = ("pending", "minor", "minor and pending", "published and pending", "compacted")
COMPUTING = {
    "in tasks": Settings(row_group_rows=50, reads=ReadPolicy(premerge_stored_per_record=10**9)),
    "first": Settings(row_group_rows=50, reads=ReadPolicy(premerge_stored_per_record=0.001, premerge_from_bytes=0)),
}
"""When rows that the merger computes are merged: in tasks of the scan, or before it."""


def played(
    spark: SparkSession, path: Path, merger: str, state: str, computing: str = "in tasks"
) -> tuple[LakeTable, dict[int, tuple[Any, ...]]]:
    """A table in four buckets, and its rows."""
    table = LakeTable.create(
        path,
        TABLE,
        key=["id"],
        merger=merger,
        buckets=4,
        settings=COMPUTING[computing],
        properties={
            "lakemerge.maintenance": "off",
            "lakemerge.publish": "deletionVectors" if "published" in state else "off",
        },
        spark=spark,
        **MERGERS[merger],
    )
    rows: dict[int, tuple[Any, ...]] = {}

    def write(changes: dict[int, tuple[Any, ...]]) -> None:
        columns = [list(column) for column in zip(*changes.values(), strict=True)]
        table.upsert(pa.table(columns, schema=pa.schema(table.schema)))
        for key, row in changes.items():
            old = rows.get(key)
            if old is not None and merger == "aggregate":
                rows[key] = (*row[:3], old[3] + row[3], row[4])
            elif old is None or row[1] >= old[1]:
                rows[key] = row

    def row(key: int, at: int) -> tuple[Any, ...]:
        return key, at, f"v{key % 3}-{at}", key + at, None if key % 5 == 0 else {"a": key, "b": f"b{at}"}

    write({key: row(key, 10) for key in range(600)})
    table.compact()
    write({key: row(key, 11) for key in range(0, 640, 7)})
    if state in ("minor", "minor and pending", "published and pending"):
        table.compact(minor=True)
    if state != "minor":
        write({key: row(key, 5 if key % 2 else 12) for key in range(0, 660, 9)})
        if merger == "event-time":
            table.delete(pa.table({"id": [0, 9, 400], "at": pa.array([50, 50, 50], pa.int32())}))
            for key in (0, 9, 400):
                del rows[key]
    if state == "compacted":
        table.compact()
    return table, rows


def by_name_and_by_format(spark: SparkSession, table: LakeTable) -> list[DataFrame]:
    """The table by the catalog of paths, and by the format."""
    return [spark.table(f"lakemerge.`{table.url}`"), spark.read.format("lakemerge").load(table.url)]


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.asDict(recursive=True).values()) for row in frame.collect()), key=lambda row: row[0])


@pytest.mark.parametrize(
    ("merger", "state", "computing"),
    [
        ("event-time", "minor and pending", "in tasks"),
        *(
            pytest.param("event-time", state, "in tasks", marks=pytest.mark.long)
            for state in STATES
            if state != "minor and pending"
        ),
        *(("aggregate", "minor and pending", computing) for computing in COMPUTING),
        *(pytest.param("aggregate", "pending", computing, marks=pytest.mark.long) for computing in COMPUTING),
    ],
)
def test_tables(spark: SparkSession, tmp_path: Path, merger: str, state: str, computing: str) -> None:
    table, rows = played(spark, tmp_path / "t", merger, state, computing)
    lakemerge.catalog(spark, "native_paths", warehouse=str(tmp_path.parent.parent))
    expected = sorted(rows.values())
    computed = merger == "aggregate"
    way = table.explain_read()
    assert way.not_native is None
    assert (way.first > 0, way.merged > 0) == (
        "pending" in state and not (computed and computing == "in tasks"),
        computed and computing == "in tasks",
    )
    others = by_name_and_by_format(spark, table)
    for frame in (table.to_df(), *others):
        plan = plan_of(frame)
        assert (plan.count("BatchScan"), "Union" in plan, "MapInArrow" in plan) == (1, False, False), plan
        assert collected(frame) == expected
        assert frame.count() == len(expected)
        in_kernel = computed and (computing == "in tasks" or frame in others)
        assert ("LocalTableScan" in plan_of(frame.groupBy().count())) == (not in_kernel)
        asked: dict[str, Callable[[tuple[Any, ...]], bool]] = {
            "id = 14": lambda row: row[0] == 14,
            "id IN (9, 10, 63, 655)": lambda row: row[0] in (9, 10, 63, 655),
            "at >= 11 AND v LIKE 'v1%'": lambda row: row[1] >= 11 and row[2].startswith("v1"),
            "st.a > 630": lambda row: row[4] is not None and row[4]["a"] > 630,
            "st IS NULL AND n < 100": lambda row: row[4] is None and row[3] < 100,
        }
        for number, (condition, keep) in enumerate(asked.items()):
            kept = list(filter(keep, expected))
            if number % 2 == (frame in others):
                assert collected(frame.where(condition)) == kept, condition
            else:
                inner = collected(frame.where(condition).select("id", "st.b", "n"))
                assert inner == [(row[0], row[4] and row[4]["b"], row[3]) for row in kept], condition
            if frame not in others and number < 3:
                found = table.to_df(filter=condition, columns=["n", "id"]).collect()
                assert sorted((row.id, row.n) for row in found) == [(row[0], row[3]) for row in kept], condition
        assert frame.limit(7).count() == 7
        assert frame.alias("a").join(frame.alias("b"), "id").count() == len(expected)
    with settings(spark, {SWITCH: "off"}):
        off = LakeTable.open(table.url, spark=spark)
        assert off.explain_read().not_native == f"{SWITCH}=off in the session"
        for frame in (off.to_df(), *by_name_and_by_format(spark, table)):
            assert " files" not in plan_of(frame)
            assert collected(frame) == expected
            assert collected(frame.where("id < 20").select("id", "st.b")) == [
                (row[0], row[4] and row[4]["b"]) for row in expected if row[0] < 20
            ]


QUERIES = (
    "SELECT count(*), count(v), sum(n), min(ts), max(v) FROM t",
    "SELECT ts, v, count(*), sum(n) FROM t GROUP BY ts, v",
    "SELECT id, n FROM t WHERE v IS NULL OR n % 7 = 3",
    "SELECT count(*) FROM t WHERE id BETWEEN 100 AND 400 AND ts > 1",
    "SELECT a.id, b.n - a.n FROM t a JOIN t b ON a.id = b.id + 1 WHERE a.ts <> b.ts",
    "SELECT o.half, count(*), sum(t.n) FROM t JOIN other o ON t.id = o.id GROUP BY o.half",
    "SELECT id, row_number() OVER (PARTITION BY ts ORDER BY n DESC, id) FROM t WHERE n > 900",
    "SELECT id FROM t WHERE id NOT IN (SELECT id FROM other) ORDER BY n DESC, id LIMIT 5",
)


def test_answers_are_those_of_duckdb(spark: SparkSession, tmp_path: Path) -> None:
    """It merges the same records by itself: of a key, the last one with the highest ordering."""
    draw = np.random.default_rng(5)
    schema = pa.schema([("id", pa.int64()), ("ts", pa.int32()), ("v", pa.string()), ("n", pa.int64())])
    table = LakeTable.create(
        tmp_path / "t",
        schema,
        key=["id"],
        ordering=["ts"],
        buckets=4,
        properties={"lakemerge.maintenance": "off"},
        settings=Settings(row_group_rows=100),
        spark=spark,
    )
    writes = []
    for step, rows in enumerate((1000, 200, 200, 100)):
        ids = np.arange(rows) if step == 0 else np.sort(draw.choice(1200, rows, replace=False))
        words = [None if draw.random() < 0.1 else f"w{draw.integers(9)}" for _ in ids]
        columns = [ids, draw.integers(0, 3 + step, rows, dtype=np.int32), words, draw.integers(0, 1000, rows)]
        write = pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)
        table.upsert(write)
        writes.append(write.append_column("step", pa.array([step] * rows)))
        if step in (0, 1):
            table.compact(minor=step == 1)
    duck = duckdb.connect()
    duck.register("log", pa.concat_tables(writes))
    duck.execute("CREATE TABLE t AS SELECT DISTINCT ON (id) id, ts, v, n FROM log ORDER BY id, ts DESC, step DESC")
    duck.execute("CREATE TABLE other AS SELECT range * 3 AS id, range // 100 AS half FROM range(300)")
    table.to_df().createOrReplaceTempView("t")
    spark.range(300).selectExpr("id * 3 AS id", "id div 100 AS half").createOrReplaceTempView("other")
    assert "BatchScan" in plan_of(spark.table("t"))
    for query in QUERIES:
        mine = sorted(map(repr, map(tuple, spark.sql(query).collect())))
        assert mine == sorted(map(repr, duck.execute(query).fetchall())), query
    spark.catalog.dropTempView("t")  # other tests have tables of this name


@pytest.mark.parametrize("reader", quick(("as usual", "rows"), "as usual"))
def test_statements_read_what_they_change(spark: SparkSession, tmp_path: Path, reader: str) -> None:
    """The ordering, too, which a deleted row's tombstone remembers, and under a name of its own."""
    table, rows = played(spark, tmp_path / "t", "event-time", "minor and pending")
    lakemerge.catalog(spark, "native_paths", warehouse=str(tmp_path.parent.parent))
    name = f"lakemerge.`{table.url}`"
    with settings(spark, READERS[reader]):
        for statement in (
            f"DELETE FROM {name} WHERE id % 10 = 3 AND at > 10",
            f"UPDATE {name} SET v = concat(v, '!'), n = at WHERE st.a > 300",
            (
                f"MERGE INTO {name} t USING (SELECT id, max(n) m FROM {name} WHERE id > 500 GROUP BY id) s "
                "ON t.id = s.id AND t.v LIKE '%!' WHEN MATCHED AND t.at > 10 THEN DELETE "
                "WHEN MATCHED THEN UPDATE SET n = s.m + 1"
            ),
        ):
            plan = "\n".join(row[0] for row in spark.sql(f"EXPLAIN {statement}").collect())
            assert " files)" in plan, plan
            spark.sql(statement)
    expected = {}
    for key, (_, at, v, n, st) in rows.items():
        updated = st is not None and key > 300
        merged = updated and key > 500
        if not (key % 10 == 3 and at > 10) and not (merged and at > 10):
            expected[key] = (key, at, f"{v}!" if updated else v, at + merged if updated else n, st)
    assert len(expected) < len(rows) - 20
    assert collected(LakeTable.open(table.url, spark=spark).to_df()) == sorted(expected.values())


@pytest.mark.parametrize("merger", ["event-time", "aggregate"])
def test_columns_that_have_other_names_in_files(spark: SparkSession, tmp_path: Path, merger: str) -> None:
    """They were renamed, also the key, and a column has the name of one that was dropped."""
    options: dict[str, Any] = {"options": {"aggregates": {"n": "sum"}}} if merger == "aggregate" else {}
    table = LakeTable.create(
        tmp_path / "t",
        "id BIGINT, at INT, v STRING, n BIGINT, st STRUCT<a: BIGINT, v: STRING>",
        key=["id"],
        ordering=["at"],
        merger=merger,
        **options,
        buckets=2,
        properties={"lakemerge.maintenance": "off"},
        spark=spark,
    )

    def write(keys: range, at: int, *more: Any) -> None:
        columns = [list(keys), [at] * len(keys), [f"{key}-{at}" for key in keys], [key + at for key in keys]]
        structs = [{"a": key, "v": f"s{at}"} for key in keys]
        table.upsert(pa.table([*columns, structs, *more], names=table.schema.names).cast(table.schema))

    write(range(500), 1)
    table.compact()
    table.alter(rename_columns={"v": "the v", "id": "key"}, drop_columns=["st"])
    table.alter(add_columns="st STRUCT<a: BIGINT, v: STRING>, v BIGINT")
    table = LakeTable.open(tmp_path / "t", spark=spark)
    lakemerge.catalog(spark, "native_paths", warehouse=str(tmp_path.parent.parent))
    expected: dict[int, tuple[Any, ...]] = {key: (key, 1, f"{key}-1", key + 1, None, None) for key in range(500)}
    for step, (at, keys) in enumerate(((2, range(0, 500, 3)), (3, range(0, 600, 7)))):
        write(keys, at, list(keys))
        for key in keys:
            before = expected[key][3] if merger == "aggregate" and key in expected else 0
            expected[key] = (key, at, f"{key}-{at}", before + key + at, {"a": key, "v": f"s{at}"}, key)
        if step == 0:
            table.compact(minor=True)
    assert table.opened.view.config.names.is_on
    rows = sorted(expected.values())
    assert table.explain_read().not_native is None
    for frame in (table.to_df(), spark.table(f"lakemerge.`{table.url}`")):
        assert "BatchScan" in plan_of(frame)
        assert collected(frame) == rows
        asked: dict[str, Callable[[tuple[Any, ...]], bool]] = {
            "key = 14": lambda row: row[0] == 14,
            "`the v` = '21-3' OR `the v` = '6-2'": lambda row: row[2] in ("21-3", "6-2"),
            "v = 300 OR key = 301": lambda row: row[5] == 300 or row[0] == 301,
            "st.a > 450 AND st.v = 's2'": lambda row: row[4] is not None and row[0] > 450 and row[4]["v"] == "s2",
            "v IS NULL AND st IS NULL AND key < 50": lambda row: row[5] is None and row[4] is None and row[0] < 50,
        }
        for condition, keep in asked.items():
            assert collected(frame.where(condition)) == list(filter(keep, rows)), condition
        assert collected(frame.select("key", "st.a", "the v")) == [(r[0], r[4] and r[4]["a"], r[2]) for r in rows]
    if merger == "event-time":
        assert files_of(table.to_df().where("key = 14")) < files_of(table.to_df())
    with settings(spark, READERS["rows"]):
        assert collected(table.to_df()) == rows


def files_of(frame: DataFrame) -> int:
    """How many files a frame's scan reads."""
    [number] = re.findall(r"BatchScan .* \((\d+) files", plan_of(frame))
    return int(number)


def test_what_the_optimizer_knows(spark: SparkSession, tmp_path: Path) -> None:
    """A small table is broadcast, equal scans are one, and a limit reads few files."""
    table, rows = played(spark, tmp_path / "t", "event-time", "minor and pending")
    frame = table.to_df()
    other = spark.range(10_000).selectExpr("id", "id * 2 AS twice")
    assert "BroadcastHashJoin" in plan_of(other.join(frame, "id"))
    with settings(spark, {"spark.sql.autoBroadcastJoinThreshold": "4"}):
        assert "SortMergeJoin" in plan_of(other.join(frame, "id"))
        counts = frame.groupBy("at").count()
        both = counts.join(counts.withColumnRenamed("count", "again"), "at")
        assert {(row["count"], row.again) for row in both.collect()} == {
            (n, n) for n in (sum(row[1] == at for row in rows.values()) for at in {row[1] for row in rows.values()})
        }
        assert "ReusedExchange" in plan_of(both)
    for few in (each.limit(3) for each in (frame, *by_name_and_by_format(spark, table))):
        assert files_of(few) == 1
        assert few.count() == 3


def test_the_scans_of_a_catalog_and_of_the_format_skip_file_slices(spark: SparkSession, tmp_path: Path) -> None:
    table, _ = played(spark, tmp_path / "a=1 %41{b} [t]*", "event-time", "compacted")
    for frame in by_name_and_by_format(spark, table):
        for condition, most in (("id = 14", 1), ("id IN (14, 21) AND n > 0", 2), ("at > 100", 0)):
            assert files_of(frame.where(condition)) <= most, condition
        assert frame.where("id = 14").count() == 1
        assert frame.where("at > 100").count() == 0


@pytest.mark.long
def test_a_build_of_spark_that_is_not_known(spark: SparkSession, tmp_path: Path) -> None:
    gateway: Any = spark.sparkContext._gateway
    jvm, name = gateway.jvm, "org/apache/spark/sql/execution/datasources/RecordReaderIterator.class"
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    jar_class(spark, "lakemerge.spark.NativeFrames")
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    kind = gateway.new_array(jvm.java.lang.Class, 1)
    kind[0] = jvm.java.lang.Class.forName("java.lang.ClassLoader")
    refusal = jvm.java.lang.Class.forName("lakemerge.spark.KnownReaders", True, loader).getDeclaredMethod(
        "refusal", kind
    )
    refusal.setAccessible(True)

    def why(*places: Path) -> str:
        urls = gateway.new_array(jvm.java.net.URL, len(places))
        for at, place in enumerate(places):
            urls[at] = jvm.java.io.File(str(place)).toURI().toURL()
        given = gateway.new_array(jvm.java.lang.Object, 1)
        given[0] = jvm.java.net.URLClassLoader(urls, None)
        return str(refusal.invoke(None, given).toString())

    assert why(*jars) == "Optional.empty"
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(changed(jars, name))
    assert "does not know the Parquet reader of this build" in why(tmp_path, *jars)
    assert "lacks classes" in why(tmp_path)


def changed(jars: Sequence[Path], name: str) -> bytes:
    """A class of Spark with another name of its source file, which changes nothing else."""
    for path in jars:
        with zipfile.ZipFile(path) as jar:
            if name in jar.namelist():
                found = jar.read(name)
                assert found.count(b"RecordReaderIterator.scala") == 1
                return found.replace(b"RecordReaderIterator.scala", b"RecordReaderIterator.SCALA")
    raise AssertionError(name)


def found_afterwards(spark: SparkSession, path: str, name: str) -> list[bool]:
    """For another application: whether its thread finds a file of a user's jar, at each step of its first read."""
    thread: Any = spark.sparkContext._jvm.java.lang.Thread.currentThread()  # type: ignore[union-attr]
    found = [thread.getContextClassLoader().getResource(name) is not None]
    frame = LakeTable.open(path, spark=spark).to_df()
    found.append(thread.getContextClassLoader().getResource(name) is not None)
    assert "BatchScan" in plan_of(frame)
    assert len(frame.collect()) == 3
    return [*found, spark._jsparkSession.sharedState().jarClassLoader().getResource(name) is not None]


@pytest.mark.long
def test_users_jars_stay_visible(tmp_path: Path) -> None:
    """The first thing that the application does is to open a table."""
    table = LakeTable.create(tmp_path / "t", "id BIGINT", key=["id"])
    table.upsert(pa.table({"id": [1, 2, 3]}))
    with zipfile.ZipFile(tmp_path / "users.jar", "w") as jar:
        jar.writestr("users-file", "here")
    with Application(tmp_path / "application", config={"spark.jars": str(tmp_path / "users.jar")}) as application:
        assert application.run(found_afterwards, table.url, "users-file") == [True, True, True]


def rows_and_routes(spark: SparkSession, path: str) -> tuple[list[tuple[int, int]], str | None, str]:
    """For another application: the rows, why they are not read natively, and the plan of a catalog's read."""
    lakemerge.catalog(spark, "lake", warehouse=path + "-warehouse")
    table, named = LakeTable.open(path, spark=spark), spark.table(f"lakemerge.`{path}`")
    frames = [table.to_df(columns=["id", "n"]), named.select("id", "n")]
    first, second = (sorted((row.id, row.n) for row in frame.collect()) for frame in frames)
    assert first == second
    return first, table.explain_read().not_native, plan_of(named)


@pytest.mark.long
def test_an_application_with_another_reader(spark: SparkSession, tmp_path: Path) -> None:
    """It reads the same rows, in another way."""
    table, rows = played(spark, tmp_path / "t", "event-time", "minor and pending")
    name = "org/apache/spark/sql/execution/datasources/RecordReaderIterator.class"
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(changed(sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar")), name))
    config = {"spark.driver.extraClassPath": str(tmp_path)}
    with Application(tmp_path / "application", config=config) as application:
        found, why, plan = application.run(rows_and_routes, table.url)
    assert found == sorted((row[0], row[3]) for row in rows.values())
    assert why is not None
    assert "does not know the Parquet reader" in why
    assert " files" not in plan
