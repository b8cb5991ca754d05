"""Mistakes that people make on Spark: the text of each error names the problem, the place and the remedy.

Each error is one of this library, raised as such by calls of a table. Where Spark calls us, it is in an exception of
Spark's, from which ``unwrap_errors`` raises it. Elsewhere are those about Python workers and stopped sessions
(``tests/spark/applications/test_sessions.py``) and about Spark Connect (``tests/spark/applications/test_connect.py``).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from pyspark.errors import PySparkException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions

from lakemerge import LakeTable, unwrap_error, unwrap_errors
from lakemerge.errors import (
    DependencyMissingError,
    FilterError,
    FrameError,
    InputError,
    LakeMergeError,
    MergeOverflowError,
    NotATableError,
    TableReplacedError,
    VersionNotFoundError,
)
from lakemerge.spark.installed import check_version

DDL = "id BIGINT, at INT, v STRING"


class World(NamedTuple):
    spark: SparkSession
    folder: Path
    """It holds the table ``t``, with one row."""

    @property
    def path(self) -> str:
        return str(self.folder / "t")

    @property
    def table(self) -> LakeTable:
        return LakeTable.open(self.path, spark=self.spark)

    def frame(self, *columns: str) -> DataFrame:
        """A row that fits, with other columns if they are given."""
        return self.spark.sql("SELECT 1L AS id, 2 AS at, 'a' AS v").selectExpr(*(columns or ("*",)))

    def save(self, frame: DataFrame, path: str | None = None, mode: str = "append", **options: Any) -> None:
        frame.write.format("lakemerge").mode(mode).options(**options).save(path or self.path)

    def load(self, **options: Any) -> DataFrame:
        return self.spark.read.format("lakemerge").options(**options).load(self.path)

    def stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.format("lakemerge").options(**options).load(self.path)

    def landed(self, number: int) -> DataFrame:
        """A stream of files. One more file has landed."""
        source = self.folder / "source"
        source.mkdir(exist_ok=True)
        (source / f"{number}.json").write_text(f'{{"id":1,"at":{number},"v":"s"}}\n')
        return self.spark.readStream.schema(DDL).json(str(source))


class Mistake(NamedTuple):
    what: str
    make: Callable[[World], object]
    error: type[LakeMergeError]
    problem: str
    place: str
    remedy: str
    is_spark: bool = False
    """Whether Spark's own call raises it."""


def plain_delta(world: World) -> object:
    write_deltalake(world.folder / "plain", pa.table({"k": [1]}))
    return world.spark.read.format("lakemerge").load(str(world.folder / "plain"))


def old_checkpoint(world: World) -> object:
    """A query goes on from a copy of its checkpoint that is two batches old."""
    checkpoint, copy = world.folder / "checkpoint", world.folder / "copy"
    world.table.write_stream(world.landed(1), checkpoint=str(checkpoint)).awaitTermination()
    shutil.copytree(checkpoint, copy)
    for number in (2, 3):
        world.table.write_stream(world.landed(number), checkpoint=str(checkpoint)).awaitTermination()
    return world.table.write_stream(world.landed(4), checkpoint=str(copy)).awaitTermination()


def another_table(world: World) -> None:
    """A query goes on after the table that it reads was made anew."""

    def follow() -> None:
        query = world.stream(readChangeFeed="true").writeStream.format("noop")
        query.option("checkpointLocation", str(world.folder / "followed")).trigger(availableNow=True).start(
        ).awaitTermination()  # fmt: skip

    follow()
    shutil.rmtree(world.path)
    LakeTable.create(world.path, DDL, key=["id"], ordering=["at"], spark=world.spark).upsert(world.frame())
    follow()


def run(query: Any) -> object:
    return query.trigger(availableNow=True).start().awaitTermination()


WRITING = [
    Mistake("no key column", lambda w: w.table.upsert(w.frame("at", "v")), FrameError,
        "key column 'id' is missing", "the frame", "the frame has at, v"),
    Mistake("a wrong type", lambda w: w.table.upsert(w.frame("'x' AS id", "at", "v")), FrameError,
        "is STRING, the table's is BIGINT", "column 'id'", "cast it first"),
    Mistake("a value that does not fit", lambda w: w.table.upsert(w.frame("id", "99999999999 AS at", "v")), FrameError,
        "99999999999 in row 0 does not fit", "partition 0 of the frame: columns do not fit the table: 'at'",
        "give the column a wider type"),
    Mistake("a key that a function left out",
        lambda w: w.table.upsert(w.frame().withColumn("id", functions.udf(lambda _: None, "bigint")("id"))), FrameError,
        "is null in 1 row(s)", "key column 'id'", "give them a key"),
    Mistake("a misspelt kind column", lambda w: w.table.upsert(w.frame(), kind_column="opp"), FrameError,
        "not in the frame", "kind column 'opp'", "the frame has id, at, v"),
    Mistake("a stream for upsert", lambda w: w.table.upsert(w.landed(1)), FrameError,
        "is a stream", "the frame", "table.write_stream(frame, checkpoint=...)"),
    Mistake("a frame for write_stream", lambda w: w.table.write_stream(w.frame(), checkpoint="c"), InputError,
        "no stream", "the frame", "write it with table.upsert(frame)"),
    Mistake("pandas-on-Spark", lambda w: w.table.upsert(w.frame().pandas_api()), FrameError,
        "pandas-on-Spark", "the frame", "pass frame.to_spark()"),
    Mistake("an RDD", lambda w: w.table.upsert(w.frame().rdd), FrameError,
        "cannot write", "RDD", "give a Spark DataFrame"),
    Mistake("another schema by overwrite",
        lambda w: w.save(w.frame(), mode="overwrite", overwriteSchema=True), InputError,
        "keeps the table's definition", "overwriteSchema", "mergeSchema adds columns", True),
    Mistake("a write to a path that is no table", lambda w: w.save(w.frame(), w.path + "x"), NotATableError,
        "no Delta log", "/tx", "make a table there with LakeTable.create", True),
    Mistake("a null key, by the data source", lambda w: w.save(w.frame("bigint(NULL) AS id", "at", "v")), FrameError,
        "is null in 1 row(s)", "key column 'id'", "give them a key", True),
]  # fmt: skip

READING = [
    Mistake("a path that is no table", lambda w: w.spark.read.format("lakemerge").load(w.path + "x"), NotATableError,
        "no Delta log", "/tx", "check the path and its spelling", True),
    Mistake("a plain Delta table", plain_delta, NotATableError,
        "not a LakeMerge table", "/plain", "LakeTable.convert", True),
    Mistake("no path", lambda w: w.spark.read.format("lakemerge").load(), InputError,
        "give the table's path", ".load(path)", "table.create_temp_view(name)", True),
    Mistake("a view without a path",
        lambda w: w.spark.sql("CREATE TEMPORARY VIEW pathless USING lakemerge"), InputError,
        "give the table's path", "catalog (CREATE TABLE ... USING lakemerge", "OPTIONS (path '...')", True),
    Mistake("a misspelt option", lambda w: w.load(versionAsOff=1), InputError,
        "no option", "'versionasoff'", "did you mean 'versionAsOf'?", True),
    Mistake("a version to come", lambda w: w.load(versionAsOf=77), VersionNotFoundError,
        "not in the table's history", "version 77", "reaches from 0 to 1", True),
    Mistake("an unknown column", lambda w: w.load(columns="id,zz"), InputError,
        "unknown column", "'zz'", "the table has id, at, v", True),
    Mistake("columns as a text", lambda w: w.table.to_df(columns="id"), InputError,
        "must be a list", "columns", "did you mean ['id']?"),
    Mistake("a filter of pyarrow", lambda w: w.table.to_df(filter=pc.field("id") == 1), FilterError,
        "not Expression", "to_df", "SQL text or a Spark Column"),
    Mistake("no session", lambda w: LakeTable.open(w.path, spark=w.spark.sparkContext), InputError,  # type: ignore[arg-type]
        "not SparkContext", "spark=...", "SparkSession.builder.getOrCreate()"),
    Mistake("an old Spark", lambda w: check_version("3.5.4"), DependencyMissingError,
        "too old", "PySpark 3.5.4", "pip install 'lakemerge[spark]'"),
]  # fmt: skip

STREAMING = [
    Mistake("a stream of rows", lambda w: run(w.stream().writeStream.format("noop")), InputError,
        "shows changes", "a stream of a LakeMerge table", ".option('readChangeFeed', 'true')", True),
    Mistake("a start that is no version", lambda w: w.stream(readChangeFeed="true", startingVersion="x"), InputError,
        "not 'x'", "option startingVersion", "a whole number", True),
    Mistake("the sink's complete mode",
        lambda w: run(w.landed(1).groupBy("id", "v").agg(functions.max("at").alias("at")).writeStream
            .format("lakemerge").outputMode("complete").option("checkpointLocation", str(w.folder / "c"))
            .option("path", w.path)),
        InputError, 'takes outputMode("append")', "a LakeMerge table", "output_mode='complete'", True),
    Mistake("a stream without the key",
        lambda w: w.table.write_stream(w.landed(1).select("at"), checkpoint=str(w.folder / "c")).awaitTermination(),
        FrameError, "key column 'id' is missing", "the frame", "the frame has at", True),
    Mistake("a checkpoint of a while ago", old_checkpoint, InputError,
        "an earlier state of the checkpoint", "batch 1 of 'lakemerge.stream.",
        "start the other one with a new checkpoint", True),
    Mistake("a checkpoint of another table", another_table, TableReplacedError,
        "the checkpoint is of another table", "/t now", "a new checkpoint", True),
]  # fmt: skip

MISTAKES = [
    pytest.param(mistake, id=f"{name}: {mistake.what}")
    for name, group in (("writing", WRITING), ("reading", READING), ("streaming", STREAMING))
    for mistake in group
]


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    table = LakeTable.create(tmp_path / "t", DDL, key=["id"], ordering=["at"], buckets=1, spark=spark)
    table.upsert(pa.table({"id": [1], "at": pa.array([1], pa.int32()), "v": ["a"]}))
    return World(spark, tmp_path)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_text_names_problem_place_and_remedy(mistake: Mistake, world: World) -> None:
    with pytest.raises(mistake.error) as caught, unwrap_errors():
        mistake.make(world)
    error = caught.value
    assert type(error) is mistake.error
    for part in (mistake.problem, mistake.place, mistake.remedy):
        assert part in error.message
    for noise in ("<class", "object at 0x", "Traceback", "\x1b", "facts:", "SQLSTATE"):
        assert noise not in error.message
    if mistake.is_spark:
        assert isinstance(error.__cause__, PySparkException)
        assert str(error) in str(error.__cause__), "Spark's own text has ours"


ACTIONS: dict[str, Callable[[DataFrame], object]] = {
    "collect": DataFrame.collect,
    "count by value": lambda frame: frame.groupBy("n").count().collect(),
    "toPandas": lambda frame: frame.toPandas(),
    "toArrow": lambda frame: frame.toArrow(),
    "show": DataFrame.show,
    "write": lambda frame: frame.write.format("noop").mode("overwrite").save(),
}


@pytest.fixture(scope="module")
def overflown(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LakeTable:
    """A table with a sum that does not fit."""
    table = LakeTable.create(
        tmp_path_factory.mktemp("overflown") / "t",
        "id BIGINT, at INT, n TINYINT",
        key=["id"],
        ordering=["at"],
        merger="aggregate",
        options={"aggregates": {"n": "sum"}},
        spark=spark,
    )
    table.upsert(spark.sql("SELECT 7L AS id, explode(sequence(1, 2)) AS at, tinyint(100) AS n"))
    return table


@pytest.mark.filterwarnings("ignore:toPandas attempted Arrow optimization:UserWarning")  # Spark's words for a failure
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("way", ["to_df", "load"])
def test_an_error_of_a_task_keeps_its_attributes(
    action: str, way: str, overflown: LakeTable, spark: SparkSession
) -> None:
    frame = overflown.to_df() if way == "to_df" else spark.read.format("lakemerge").load(overflown.url)
    with pytest.raises(PythonException) as raised:
        ACTIONS[action](frame)
    found = unwrap_error(raised.value)
    assert isinstance(found, MergeOverflowError)
    assert (found.key, found.column) == ({"id": 7}, "n")
    assert "a record that brings the total back into range" in found.message


def test_a_call_of_a_table_raises_it_itself(overflown: LakeTable, spark: SparkSession, tmp_path: Path) -> None:
    """The rows of an upsert come from a frame whose tasks fail with an error of ours."""
    other = LakeTable.create(tmp_path, "id BIGINT, at INT, n TINYINT", key=["id"], spark=spark)
    with pytest.raises(MergeOverflowError) as caught:
        other.upsert(overflown.to_df())
    assert caught.value.key == {"id": 7}
    assert isinstance(caught.value.__cause__, PySparkException)


def test_the_error_of_a_query(overflown: LakeTable, world: World) -> None:
    """It is the same at ``awaitTermination`` and at ``exception``."""
    query = world.table.write_stream(
        world.landed(1).selectExpr("bigint(NULL) AS id", "at", "v"), checkpoint=f"{world.folder}/c"
    )
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    raised = query.exception()
    assert raised is not None
    found = unwrap_error(raised)
    assert isinstance(found, FrameError)
    assert found.column == "id"


def test_an_error_of_the_users_own_function_stays_that(world: World) -> None:
    divided = world.frame().withColumn("v", functions.udf(lambda _: str(1 / 0))("id"))
    with pytest.raises(PythonException, match="ZeroDivisionError"):
        world.table.upsert(divided)
