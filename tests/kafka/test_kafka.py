"""Change events of Debezium through a real broker into a table, and a query that is started again.

``make test-kafka`` fetches the broker and says where it is in ``LAKEMERGE_KAFKA``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.kafka.broker import broker

ROOT = Path(__file__).resolve().parents[2]
JARS = os.environ.get("LAKEMERGE_KAFKA")
NEEDS_BROKER = pytest.mark.skipif(
    JARS is None, reason="needs a broker, which make test-kafka fetches: LAKEMERGE_KAFKA names its jars"
)
SCRIPT = """
import json, sys
from pyspark.sql import SparkSession, functions as F
from lakemerge import LakeTable

address, folder, connector = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.jars.packages", connector).getOrCreate()
row = "STRUCT<id: BIGINT, name: STRING>"
envelope = f"before {row}, after {row}, op STRING, source STRUCT<lsn: BIGINT>"

def produce(*events):
    lines = [(str((e["after"] or e["before"])["id"]), json.dumps(e)) for e in events]
    frame = spark.createDataFrame(lines, "key STRING, value STRING")
    frame.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", "customers").save()

def event(op, lsn, before, after):
    return {"before": before, "after": after, "op": op, "source": {"connector": "postgresql", "lsn": lsn}}

table = LakeTable.create(
    folder + "/t", "id BIGINT, name STRING, lsn BIGINT, op STRING", key=["id"], ordering=["lsn"],
    merger="debezium-postgres", options={"op_column": "op"}, spark=spark,
)

def follow():
    topic = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", "customers")
    values = topic.option("startingOffsets", "earliest").load().selectExpr("CAST(value AS STRING) AS value")
    told = values.select(F.from_json("value", envelope).alias("e")).selectExpr(
        "coalesce(e.after.id, e.before.id) AS id", "e.after.name AS name", "e.source.lsn AS lsn", "e.op AS op"
    )
    table.write_stream(told, checkpoint=folder + "/checkpoint").awaitTermination()
    return sorted((r["id"], r["name"]) for r in table.to_arrow(columns=["id", "name"]).to_pylist())

anne, bob = {"id": 1, "name": "Anne"}, {"id": 2, "name": "Bob"}
produce(event("r", 10, None, anne), event("c", 20, None, bob))
said = [follow()]
produce(event("u", 40, anne, {"id": 1, "name": "Marie"}), event("u", 30, anne, {"id": 1, "name": "late"}))
produce(event("d", 50, bob, None))
said.append(follow())
before = table.version
said.append(follow())
said.append(table.version - before)
spark.stop()
print(json.dumps(said))
"""

GUIDE = """
import json, sys
from pyspark.sql import SparkSession
from tests.guides import blocks, run

address, folder, connector = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.jars.packages", connector).getOrCreate()

def produce(*messages):
    lines = [(str(key), None if event is None else json.dumps(event)) for key, event in messages]
    frame = spark.createDataFrame(lines, "key STRING, value STRING").write.format("kafka")
    frame.option("kafka.bootstrap.servers", address).option("topic", "shop.public.customers").save()

def event(op, lsn, before, after):
    return {"before": before, "after": after, "op": op, "source": {"connector": "postgresql", "lsn": lsn}}

anne, bob = {"id": 1, "name": "Anne", "email": None}, {"id": 2, "name": "Bob", "email": None}
produce((1, {"schema": {}, "payload": event("r", 10, None, anne)}), (2, event("c", 20, None, bob)))
produce((1, event("u", 30, anne, {**anne, "name": "Marie"})), (2, event("d", 40, bob, None)), (2, None))
names = run("cdc-from-kafka.md", blocks("cdc-from-kafka.md"), folder=folder, spark=spark, broker=address)
rows = names["table"].to_arrow(columns=["id", "name", "email", "phone"]).to_pylist()
spark.stop()
print(json.dumps(rows))
"""


def told(script: str, folder: Path) -> object:
    """What a script prints last, as JSON. It gets the address of a broker, the folder and the name of the connector."""
    assert JARS is not None
    connector = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment = plain | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with broker(Path(JARS), folder) as address:
        ran = subprocess.run(
            [sys.executable, "-c", script, address, str(folder), connector],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            cwd=folder,
        )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


@NEEDS_BROKER
def test_debezium_through_a_broker(tmp_path: Path) -> None:
    said = told(SCRIPT, tmp_path)
    assert isinstance(said, list)
    first, second, third, commits = said
    assert first == [[1, "Anne"], [2, "Bob"]]
    assert second == third == [[1, "Marie"]]
    assert commits == 0


@NEEDS_BROKER
def test_the_guide_runs(tmp_path: Path) -> None:
    assert told(GUIDE, tmp_path) == [{"id": 1, "name": "Marie", "email": None, "phone": None}]
