"""Streams on a cluster whose driver is killed in the middle of a batch, and which start again in another application.

Both tables add up what they get, so a batch that is written twice shows, and so does a lost one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakemerge import LakeTable
from tests.clusters.settings import CONFIG
from tests.clusters.test_failures import LoseExecutor, StallAll, opening, publishing, until
from tests.spark.application import Application, Signals
from tests.unit.faults import open_over

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.serial, pytest.mark.cluster]

DDL = "k BIGINT, n BIGINT"
SUMS: dict[str, Any] = {"merger": "aggregate", "options": {"aggregates": {"n": "sum"}}}


def put(folder: Path, name: str, rows: dict[int, int]) -> None:
    """A file of rows, which appears at once."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("\n".join(json.dumps({"k": k, "n": n}) for k, n in rows.items()))
    hidden.rename(folder / f"{name}.json")


def sums(path: Path) -> dict[int, int]:
    return {row["k"]: row["n"] for row in LakeTable.open(path).to_arrow().to_pylist()}


def stalling(spark: SparkSession, folder: Path, signals: Signals) -> tuple[int, int]:
    """Start a stream whose tasks stall. The processes of the driver."""
    table = open_over(folder / "t", opening(StallAll(signals)), spark=spark)[0]
    source = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    table.write_stream(source.repartition(2), checkpoint=str(folder / "checkpoint"))
    for task in (0, 1):
        signals.wait(f"begun {task}")
    jvm: Any = spark.sparkContext._jvm
    return os.getpid(), jvm.java.lang.ProcessHandle.current().pid()


def go_on(spark: SparkSession, folder: Path, signals: Signals) -> None:
    """All files that came, and then their changes into another table. A batch loses an executor."""
    table = open_over(folder / "t", publishing(LoseExecutor(signals)), spark=spark)[0]
    source = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    table.write_stream(source.repartition(2), checkpoint=str(folder / "checkpoint")).awaitTermination()
    changes = spark.readStream.format("lakemerge").option("readChangeFeed", "true").load(str(folder / "t"))
    newest = changes.where("_change_type IN ('insert', 'update_postimage')").select("k", "n", "_commit_version")
    copy = LakeTable.open(folder / "copy", spark=spark)
    copy.write_stream(newest, checkpoint=str(folder / "copied")).awaitTermination()


def test_a_stream_whose_driver_is_killed(
    master: str, application: Application, signals: Signals, tmp_path: Path
) -> None:
    LakeTable.create(tmp_path / "t", DDL, key=["k"], buckets=2, **SUMS)
    LakeTable.create(tmp_path / "copy", f"{DDL}, _commit_version BIGINT", key=["k"], ordering=["_commit_version"])
    put(tmp_path / "in", "1", {1: 1, 2: 10})
    with Application(tmp_path / "victim", master=master, config=CONFIG) as victim:
        for process in reversed(victim.run(stalling, tmp_path, signals)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    signals.set("over")  # its tasks may still write: nothing names their files
    assert LakeTable.open(tmp_path / "t").version == 0
    put(tmp_path / "in", "2", {1: 100, 3: 1000})
    application.run(go_on, tmp_path, signals)
    assert not signals.set("killed")
    put(tmp_path / "in", "3", {3: 1, 4: 2})
    application.run(go_on, tmp_path, signals)
    expected = {1: 101, 2: 10, 3: 1001, 4: 2}
    assert sums(tmp_path / "t") == sums(tmp_path / "copy") == expected
    until(lambda: LakeTable.check(tmp_path / "t").ok)
    assert LakeTable.open(tmp_path / "t").version == 3, "a commit for each file"
