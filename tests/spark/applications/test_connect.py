"""A table's life in a Spark Connect session, in a process of its own: a process has one kind of session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.application import QUICK_JAVA

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json, os, sys
import lakemerge
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession, functions
from pyspark.sql.connect.session import SparkSession as ConnectSession
from lakemerge import FrameError, InputError, LakeMergeError, LakeTable, ReadPolicy, Settings
from lakemerge.spark.access import why_through_arrow
from lakemerge.spark.transport.jobs import map_evenly
from lakemerge.storage import open_store

path = sys.argv[1]
spark = SparkSession.builder.remote(sys.argv[2]).getOrCreate()
assert isinstance(spark, ConnectSession)
said = {}

table = LakeTable.create(path, "id BIGINT, at INT, v STRING", key=["id"], ordering=["at"], spark=spark)
load = table.upsert(spark.sql("SELECT id, 1 AS at, concat('v', id) AS v FROM range(100)"))
said["load"] = [load.mode, load.version, load.rows]
append = table.upsert(spark.sql("SELECT id, int(id - 49) AS at, NULL AS v FROM range(45, 55)"))
said["append"] = [append.mode, append.version, append.rows]
try:
    table.upsert(spark.sql("SELECT bigint(null) AS id, 1 AS at, 'v' AS v"))
except FrameError as error:
    said["refused"] = str(error)
table.delete(spark.sql("SELECT 0L AS id"))

def look():
    rows = sorted(tuple(row) for row in table.to_df(filter="id < 3 OR id BETWEEN 48 AND 51").collect())
    table.create_temp_view("t")
    counted = spark.sql("SELECT count(*), count(v) FROM t").collect()[0]
    loaded = spark.read.format("lakemerge").load(path).where("v IS NULL").count()
    return [rows, list(counted), loaded, table.to_arrow().num_rows]

said["dirty"] = look()
table = LakeTable.open(path, spark=spark, settings=Settings(reads=ReadPolicy(premerge_from_bytes=0)))
said["premerged"] = [table.explain_read().first > 0, table.explain_read().merged]
said["places"] = look()
twice = table.to_df(columns=["id", "at"])
said["joined"] = twice.join(table.to_df(), "id").count()
said["minor compaction"] = [table.compact(minor=True).file_slices > 0, table.explain_read().merged]
said["minor"] = look()
process = map_evenly(spark, lambda _: os.getpid(), [None], sizes=[1], settings=Settings())
said["by the cluster"] = [process != [os.getpid()]]
said["compacted"] = [table.compact().file_slices > 0, table.compact().file_slices]
said["clean"] = look()
door = spark.createDataFrame([(1, 9, "door")], "id BIGINT, at INT, v STRING")
door.write.format("lakemerge").mode("append").save(path)
said["through arrow"] = [table.explain_read().through_arrow, why_through_arrow(spark, open_store("s3://bucket/t"), [])]
said["door"] = [tuple(row) for row in table.to_df(filter="id = 1").collect()]
changes = table.changes_df(table.version - 1).select("id", "_change_type")
said["changes"] = sorted(tuple(row) for row in changes.collect())
stream = spark.readStream.format("lakemerge").option("readChangeFeed", "true").load(path)
for refused in (lambda: table.write_stream(stream, checkpoint=path + "-cp"), lambda: table.batch_writer()(door, 0)):
    try:
        refused()
    except InputError as error:
        said.setdefault("streams", []).append(str(error))
table.batch_writer("mine")(door, 0)
version = table.version
table.batch_writer("mine")(door, 0)
said["once"] = [table.version == version]
copied = stream.select("id", "_change_type").writeStream.format("memory").queryName("copied")
query = copied.option("checkpointLocation", path + "-cp").trigger(availableNow=True).start()
query.awaitTermination()
said["streamed"] = spark.table("copied").count()
pairs = spark.createDataFrame([(1, 7, "m"), (900, 7, None)], "id BIGINT, at INT, v STRING").alias("s")
merge = table.merge(pairs, "t.id = s.id", target_alias="t").whenMatchedUpdate(set={"v": functions.col("s.v")})
merge = merge.whenNotMatchedInsert(values={"at": "at", "v": "concat('new', id)"})
plan = merge.execute(explain=True)
said["explained"] = [plan.matched, plan.updated, plan.inserted]
said["merged"] = merge.execute().rows
table.update_where(functions.col("id") == 900, {"v": functions.upper("v")})
table.delete_where("id = 50")
said["transactions"] = [tuple(row) for row in table.to_df(filter="id IN (1, 50, 900)").orderBy("id").collect()]
try:
    merge.whenMatchedDelete().whenMatchedDelete("nope > 1").execute()
except LakeMergeError as error:
    said["merge refused"] = type(error).__name__
try:
    table.merge(pairs, "t.id = s.id", target_alias="t").whenMatchedDelete("nope > 1").execute()
except LakeMergeError as error:
    said["condition refused"] = type(error).__name__

lakemerge.catalog(spark, "lake", warehouse=path + "-lake")
def sql(text):
    return sorted(tuple(row) for row in spark.sql(text).collect())
def condition(text):
    try:
        spark.sql(text).collect()
    except AnalysisException as error:
        return error.getCondition()
sql("CREATE NAMESPACE lake.db")
sql("CREATE TABLE lake.db.t (id BIGINT, v STRING, at BIGINT) TBLPROPERTIES ('key' = 'id', 'ordering' = 'at')")
sql("INSERT INTO lake.db.t VALUES (1, 'a', 10), (2, 'b', 10), (3, 'c', 10)")
sql("UPDATE lake.db.t SET v = upper(v), at = 20 WHERE id = 1")
sql("DELETE FROM lake.db.t WHERE id = 2")
sql("MERGE INTO lake.db.t t USING (SELECT 3L AS id, 'm' AS v, 30L AS at UNION ALL SELECT 4L, 'n', 30L) s "
    "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")
sql("CREATE TABLE lake.db.copy TBLPROPERTIES ('key' = 'id') AS SELECT id, v FROM lake.db.t WHERE at > 10")
spark.sql("SELECT 9L AS id, 'nine' AS v").writeTo("lake.db.copy").append()
said["sql"] = [
    sql("SELECT * FROM lake.db.t"), sql("SELECT * FROM lake.db.t VERSION AS OF 1"), sql("SELECT * FROM lake.db.copy"),
    sql("SELECT count(*) FROM lakemerge.`" + path + "-lake/db/t`"), sql("SHOW TABLES IN lake.db"),
    sql("SELECT version, operation FROM lake.db.`t$history` WHERE version < 3"),
]
said["called"] = "file_slices" in dict(sql("CALL lake.system.compact(table => 'db.t')"))
said["conditions"] = [condition(text) for text in (
    "UPDATE lake.db.t SET id = 7 WHERE id = 1", "SELECT * FROM lake.db.gone", "CREATE TABLE lake.db.t (id BIGINT)",
    "CREATE TABLE of_session (id BIGINT) USING lakemerge",
)]
said["by python"] = sorted(tuple(row) for row in LakeTable.open(path + "-lake/db/t", spark=spark).to_df().collect())
spark.stop()
print(json.dumps(said))
"""


READS = """
import json, os, sys
import lakemerge
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from lakemerge import LakeTable

path = sys.argv[1] + " x"
spark = SparkSession.builder.remote("local[2]").getOrCreate()
said = {}

def made(at):
    key = {"key": ["part", "id"], "partition_by": ["part"], "buckets": 2}
    table = LakeTable.create(path, "part STRING, id BIGINT, n BIGINT", **key)
    for step in range(at):
        keys = range(0, 60, step + 1)
        table.upsert(pa.table({"part": [f"p{key % 3}" for key in keys], "id": keys, "n": [key + step for key in keys]}))

made(2)
said["before"] = LakeTable.open(path, spark=spark).explain_read().not_native
lakemerge.catalog(spark, "lake", warehouse=sys.argv[1] + "-lake")
table = LakeTable.open(path, spark=spark)
said["after"] = table.explain_read().not_native
frame = table.to_df()
said["plan"] = "BatchScan" in frame._explain_string() and "MapInArrow" not in frame._explain_string()
said["rows"] = sorted((row.id, row.n) for row in frame.collect())
said["some"] = sorted(tuple(row) for row in table.to_df(columns=["n", "part"], filter="id IN (7, 8)").collect())
said["counts"] = [table.to_df(columns=[]).count(), frame.where("part = 'p1'").count()]
first = LakeTable.open(path, spark=spark, version=1)
said["first"] = sum(row.n for row in first.to_df().collect())
said["base"] = table.to_df(mode="base").count()
spark.conf.set("spark.lakemerge.nativeReads", "off")
said["off"] = table.explain_read().not_native
said["united"] = sorted((row.id, row.n) for row in table.to_df().collect()) == said["rows"]
spark.conf.unset("spark.lakemerge.nativeReads")
again = table.to_df()
os.rename(path, path + "-away")
made(3)
try:
    said["replaced"] = again.count()
except AnalysisException as error:
    said["replaced"] = error.getCondition()
spark.stop()
print(json.dumps(said))
"""


def told(script: str, tmp_path: Path, remote: str = "local[2]") -> dict[str, Any]:
    """What a script says, in a process of its own.

    :param remote: the server, or where a session of the script starts one for itself.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t"), remote],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_a_round_in_a_connect_session(tmp_path: Path) -> None:
    check_round("local[2]", tmp_path)


def check_round(remote: str, tmp_path: Path) -> None:
    """A table's life in a client of this server, or in one that starts a server for itself."""
    said = told(SCRIPT, tmp_path, remote)
    assert said["load"] == ["load", 1, 100]
    assert said["append"] == ["append", 2, 10]
    assert "key column 'id' is null in 1 row(s)" in said["refused"]
    # The appended records of ids 45 to 49 are older, those of ids 50 to 54 are not; key 0 is deleted.
    rows = [[1, 1, "v1"], [2, 1, "v2"], [48, 1, "v48"], [49, 1, "v49"], [50, 1, None], [51, 2, None]]
    assert said["premerged"] == [True, 0]
    assert said["joined"] == 99
    assert said["dirty"] == said["places"] == said["minor"] == said["clean"] == [rows, [99, 94], 5, 99]
    assert said["minor compaction"] == [True, 0]
    assert said["by the cluster"] == [True], "the client may be far from the table"
    assert said["compacted"] == [True, 0]
    assert said["through arrow"] == [None, "Spark Connect logs a read's options, and those for S3 hold credentials"]
    assert said["door"] == [[1, 9, "door"]]
    assert said["changes"] == [[1, "update_postimage"], [1, "update_preimage"]]
    assert ["app=..." in message for message in said["streams"]] == [True, True]
    assert said["once"] == [True]
    assert said["streamed"] == said["dirty"][3]
    assert (said["explained"], said["merged"]) == ([1, 1, 1], 2)
    assert said["transactions"] == [[1, 9, "m"], [900, 7, "NEW900"]]
    assert (said["merge refused"], said["condition refused"]) == ("InputError", "FilterError")
    # A catalog
    rows_now = [[1, "A", 20], [3, "m", 30], [4, "n", 30]]
    assert said["sql"] == [
        rows_now,
        [[1, "a", 10], [2, "b", 10], [3, "c", 10]],
        [[1, "A"], [3, "m"], [4, "n"], [9, "nine"]],
        [[3]],
        [["db", "copy", False], ["db", "t", False]],
        [[0, "CREATE TABLE"], [1, "UPSERT"], [2, "UPDATE"]],
    ]
    assert said["called"]
    assert said["conditions"] == [
        "LAKEMERGE_KEY_ASSIGNED",
        "TABLE_OR_VIEW_NOT_FOUND",
        "TABLE_OR_VIEW_ALREADY_EXISTS",
        "LAKEMERGE_UNSUPPORTED",
    ]
    assert said["by python"] == rows_now


def test_reads_by_the_scan_of_the_server(tmp_path: Path) -> None:
    """Once the session has LakeMerge's catalogs. The table is the one that the client has opened."""
    said = told(READS, tmp_path)
    rows = [[key, key + (key % 2 == 0)] for key in range(60)]
    assert "call lakemerge.catalog" in said["before"]
    assert (said["after"], said["plan"]) == (None, True)
    assert said["rows"] == rows
    assert said["some"] == [[7, "p1"], [9, "p2"]]
    assert said["counts"] == [60, 20]
    assert said["first"] == sum(range(60))
    assert said["base"] == 60
    assert said["off"] == "spark.lakemerge.nativeReads=off in the session"
    assert said["united"]
    assert said["replaced"] == "LAKEMERGE_TABLE_REPLACED"
