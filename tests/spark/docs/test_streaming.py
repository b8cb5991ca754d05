"""The guides on streams run as they stand, with Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from tests.guides import blocks, count_of_blocks, run


@pytest.mark.parametrize("name", ["cdc-from-postgres.md", "following.md"])
def test_a_guide_runs(spark: SparkSession, tmp_path: Path, name: str) -> None:
    run(name, blocks(name), folder=str(tmp_path), spark=spark)


def event(op: str, lsn: int, before: object, after: object) -> dict[str, object]:
    return {"before": before, "after": after, "op": op, "source": {"connector": "postgresql", "lsn": lsn}}


def test_the_guide_to_kafka_runs(spark: SparkSession, tmp_path: Path) -> None:
    """All but the lines that need a broker, which ``tests/kafka`` runs: here files hold a topic's messages."""
    code = blocks("cdc-from-kafka.md")
    assert len(code) + 1 == count_of_blocks("cdc-from-kafka.md")
    without_broker = [block for block in code if "broker" not in block]
    assert len(without_broker) == len(code) - 1
    anne, bob = {"id": 1, "name": "Anne", "email": "a@example.org"}, {"id": 2, "name": "Bob", "email": None}
    messages: list[object] = [
        {"schema": {"type": "struct"}, "payload": event("r", 100, None, anne)},
        event("c", 110, None, bob),
        event("u", 130, anne, {**anne, "name": "Anne Marie"}),
        {"schema": None, "payload": event("u", 120, anne, {**anne, "name": "comes late"})},
        event("d", 140, bob, None),
        {"op": "t", "source": {"lsn": 150}},
    ]
    landing = tmp_path / "topic"
    landing.mkdir()
    lines = [json.dumps({"value": json.dumps(message)}) for message in messages]
    lines += [json.dumps({"value": None}), json.dumps({"value": "no JSON"})]
    (landing / "1.json").write_text("\n".join(lines))
    topic = spark.readStream.schema("value STRING").json(str(landing)).selectExpr("CAST(value AS BINARY) AS value")
    names = run("cdc-from-kafka.md", without_broker, folder=str(tmp_path), spark=spark, topic=topic)
    table = names["table"]
    assert isinstance(table, LakeTable)
    rows = table.to_arrow(columns=["id", "name", "email", "phone"]).to_pylist()
    assert rows == [{"id": 1, "name": "Anne Marie", "email": "a@example.org", "phone": None}]
