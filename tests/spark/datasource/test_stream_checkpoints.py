"""Several queries with one checkpoint, or with copies of it: nothing is lost, and nothing counts twice.

The tables add up what they get (``aggregate``), so a batch that is written twice shows, and so does a lost one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakemerge import LakeTable
from tests.spark.application import QUICK_JAVA

ROOT = Path(__file__).resolve().parents[3]
DDL = "k BIGINT, n BIGINT"
Start = Callable[[DataFrame, Path, Path], Any]


def made(path: Path, spark: SparkSession) -> LakeTable:
    options = {"aggregates": {"n": "sum"}}
    return LakeTable.create(path, DDL, key=["k"], buckets=1, merger="aggregate", options=options, spark=spark)


def put(folder: Path, name: str, n: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f".{name}").write_text(json.dumps({"k": 1, "n": n}))
    (folder / f".{name}").rename(folder / name)
    # Files are taken by their times.
    moment = time.time() - 1000 + int(name)
    os.utime(folder / name, (moment, moment))


def files(spark: SparkSession, folder: Path, at_once: int = 1) -> DataFrame:
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", at_once).json(str(folder))


def total(path: Path) -> int:
    row = LakeTable.open(path).get({"k": 1})
    assert row is not None
    return int(row["n"])


def by_foreach_batch(stream: DataFrame, table: Path, checkpoint: Path) -> Any:
    return LakeTable.open(table, spark=stream.sparkSession).write_stream(stream, checkpoint=str(checkpoint))


def by_format(stream: DataFrame, table: Path, checkpoint: Path) -> Any:
    writer = stream.writeStream.format("lakemerge").option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start(str(table))


@pytest.mark.parametrize("start", [by_foreach_batch, by_format])
def test_copies_of_a_checkpoint(spark: SparkSession, tmp_path: Path, start: Start) -> None:
    source, table, mine, copy = (tmp_path / name for name in ("in", "t", "checkpoint", "copy"))
    made(table, spark)
    put(source, "1", 1)
    start(files(spark, source), table, mine).awaitTermination()
    shutil.copytree(mine, copy)
    put(source, "2", 10)
    start(files(spark, source), table, mine).awaitTermination()
    assert total(table) == 11
    # The copy reads the same file as batch 1, and goes on: its batch 2 is new to the table.
    same = tmp_path / "same"
    shutil.copytree(copy, same)
    put(source, "3", 100)
    start(files(spark, source), table, same).awaitTermination()
    assert total(table) == 111
    # The first query finds batch 2 in the table, with the rows that it has read itself.
    start(files(spark, source), table, mine).awaitTermination()
    assert total(table) == 111
    # A copy that reads more files as batch 1. Its number is in the table, its rows are not all there.
    version = LakeTable.open(table).version
    query = start(files(spark, source, at_once=9), table, copy)
    with pytest.raises(PySparkException, match=rf"comes after batch 2.*the checkpoint (file:)?{copy}.*new checkpoint"):
        query.awaitTermination()
    assert LakeTable.open(table).version == version


@pytest.mark.parametrize("start", [by_foreach_batch, by_format])
def test_another_batch_of_the_last_number(spark: SparkSession, tmp_path: Path, start: Start) -> None:
    source, table, mine, copy = (tmp_path / name for name in ("in", "t", "checkpoint", "copy"))
    made(table, spark)
    put(source, "1", 1)
    start(files(spark, source), table, mine).awaitTermination()
    shutil.copytree(mine, copy)
    put(source, "2", 10)
    start(files(spark, source), table, mine).awaitTermination()
    put(source, "3", 100)
    query = start(files(spark, source, at_once=9), table, copy)
    named = rf"batch 1 .*has other rows than batch 1.*query {query.id} .*the checkpoint (file:)?{copy} .*new checkpoint"
    with pytest.raises(PySparkException, match=named):
        query.awaitTermination()
    assert total(table) == 11
    start(files(spark, source), table, mine).awaitTermination()
    assert total(table) == 111, "the other query goes on"


@pytest.mark.long
def test_a_checkpoint_that_another_query_wrote_over(spark: SparkSession, tmp_path: Path) -> None:
    """On a store where the last writer wins, the loser's offsets may be what the checkpoint keeps of a batch."""
    table, mine = tmp_path / "t", tmp_path / "checkpoint"
    made(table, spark)

    def rates(count: int) -> DataFrame:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", count).load()
        return source.selectExpr("1L AS k", "value AS n")

    def run(count: int, checkpoint: Path, batches: int) -> None:
        query = (
            rates(count)
            .writeStream.foreachBatch(LakeTable.open(table, spark=spark).batch_writer())
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        try:
            while query.isActive and len(list((checkpoint / "commits").glob("[0-9]*"))) < batches:
                time.sleep(0.1)
        finally:
            query.stop()
        error: Any = query.exception()
        if error is not None:
            raise error

    run(10, mine, 2)
    run(10, mine, 5)  # the query alone goes on, from wherever it was stopped
    ((_, number),) = _numbers(table)
    assert total(table) == sum(range(10 * (number + 1)))
    offsets = (mine / "offsets" / str(number)).read_text().splitlines()
    told = json.dumps({**json.loads(offsets[-1]), "offset": 10**6})
    (mine / "offsets" / str(number)).write_text("\n".join([*offsets[:-1], told]))
    (mine / "commits" / str(number)).write_text((mine / "commits" / "0").read_text())
    for file in [*(mine / "offsets").iterdir(), *(mine / "commits").iterdir()]:
        if file.name.startswith(".") or int(file.name) > number:  # Spark's own hidden files, and later batches
            file.unlink()
    before = LakeTable.open(table).version
    with pytest.raises(PySparkException, match=r"begins elsewhere than batch \d+ ended.*the checkpoint file:"):
        run(10, mine, number + 2)
    assert LakeTable.open(table).version == before


def _numbers(table: Path) -> list[tuple[str, int]]:
    """The last batch of each query in the table."""
    txns = LakeTable.open(table).opened.view.snapshot.txns
    return [(app, txn.version) for app, txn in txns.items() if app.count(".") == 2]


OTHER = """
import shutil, sys
from pathlib import Path
from pyspark.sql import SparkSession
from lakemerge import LakeTable

folder = Path(sys.argv[1])
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for name in ("same", "over"):
    if name == "over":
        # As if both queries had looked for the offsets of batch 0 before one of them wrote these.
        for file in ("offsets/0", "offsets/.0.crc", "sources/0/0", "sources/0/.0.crc"):
            (folder / f"checkpoint-{name}" / file).unlink(missing_ok=True)
    table = LakeTable.open(folder / f"t-{name}", spark=spark)
    stream = spark.readStream.schema("k BIGINT, n BIGINT").json(str(folder / f"in-{name}"))
    table.write_stream(stream, checkpoint=str(folder / f"checkpoint-{name}")).awaitTermination()
spark.stop()
"""


@pytest.mark.long
def test_two_queries_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Two applications begin batch 0 of one checkpoint. The first is slow, the second one commits it meanwhile."""
    go, queries = tmp_path / "go", {}
    for name in ("same", "over"):
        made(tmp_path / f"t-{name}", spark)
        put(tmp_path / f"in-{name}", "1", 1)
        queries[name] = _slow(spark, tmp_path, name, go)
    for name in queries:
        _wait(lambda name=name: (tmp_path / f"began-{name}").exists())  # type: ignore[misc]
    put(tmp_path / "in-over", "2", 10)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = plain | {
        "PYTHONPATH": found,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert [total(tmp_path / f"t-{name}") for name in queries] == [1, 11]
    go.touch()
    ended = {}
    for name, query in queries.items():
        with pytest.raises(PySparkException) as raised:
            query.awaitTermination()
        ended[name] = str(raised.value)
    # The table has the rows of this batch already. Spark itself sees that somebody else ended the batch.
    assert "oncurrent" in ended["same"], ended["same"]
    assert "comes after batch" not in ended["same"]
    assert "other rows" in ended["over"], ended["over"]
    assert str(tmp_path / "checkpoint-over") in ended["over"]
    assert [total(tmp_path / f"t-{name}") for name in queries] == [1, 11]


def _slow(spark: SparkSession, folder: Path, name: str, go: Path) -> Any:
    write = LakeTable.open(folder / f"t-{name}", spark=spark).batch_writer()

    def slowly(batch: DataFrame, number: int) -> None:
        (folder / f"began-{name}").touch()
        _wait(go.exists)
        write(batch, number)

    stream = spark.readStream.schema(DDL).json(str(folder / f"in-{name}"))
    writer = stream.writeStream.foreachBatch(slowly).option("checkpointLocation", str(folder / f"checkpoint-{name}"))
    return writer.trigger(availableNow=True).start()


def _wait(done: Callable[[], bool]) -> None:
    for _ in range(1200):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError("this takes too long")
