"""Another writer commits at each point of a statement: the outcome is serial, or nothing and a conflict."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lakemerge
from lakemerge import LakeTable
from tests.conftest import ROOT, WORKERS
from tests.property.effort import some
from tests.spark.connector.lake import Lake, new_name
from tests.spark.connector.meddling import Meddler

OTHER = {"id": 1, "state": "other", "at": 90, "n": 500}
BEGIN = [(1, "a", 10, 1), (2, "b", 20, 2)]
MET = (1, "other", 90, 500)
STATEMENTS: dict[str, tuple[str, list[Any], list[Any]]] = {
    "update": ("UPDATE {}.db.t SET n = n + 1 WHERE id = 1", [MET, BEGIN[1]], [(1, "other", 90, 501), BEGIN[1]]),
    "delete": ("DELETE FROM {}.db.t WHERE n < 5", [MET], [MET]),
    "delete all": ("DELETE FROM {}.db.t", [MET], []),
    "merge": (
        "MERGE INTO {}.db.t t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = t.n + 1",
        [MET, BEGIN[1]],
        [(1, "other", 90, 501), BEGIN[1]],
    ),
    "insert from itself": (
        "INSERT INTO {}.db.t SELECT id, state, at + 100, n + 1 FROM {}.db.t WHERE id = 1",
        [(1, "a", 110, 2), BEGIN[1]],
        [(1, "other", 190, 501), BEGIN[1]],
    ),
    "overwrite from itself": (
        "INSERT OVERWRITE {}.db.t SELECT id, state, at, n + 1 FROM {}.db.t",
        [(1, "other", 90, 500), (2, "b", 20, 3)],
        [(1, "other", 90, 501), (2, "b", 20, 3)],
    ),
}
"""Each statement with the rows that there are if the other writer's row comes after it, and before it."""
INSERT_ONLY = (
    "MERGE INTO {}.db.t t USING (SELECT 7L AS id, 200L AS at) s ON t.id = s.id "
    "WHEN NOT MATCHED THEN INSERT (id, at, n) VALUES (s.id, s.at, 0)"
)


@pytest.fixture
def meddled(spark: SparkSession, tmp_path: Path) -> tuple[Lake, Meddler]:
    """A catalog in a session of its own, whose tables have a meddler."""
    session, name = spark.newSession(), new_name("meddled")
    lakemerge.catalog(session, name, warehouse=tmp_path / "lake")
    lake = Lake(session, name, tmp_path / "lake")
    lake("CREATE NAMESPACE {}.db")
    return lake, Meddler(session, tmp_path / "lake" / "db")


def check_each_point(
    lake: Lake, meddler: Meddler, statement: str, row: dict[str, Any], after: list[Any], before: list[Any], most: int
) -> None:
    """Run a statement once for each of ``most`` calls of the store, spread over all that it makes."""
    lake.made(", ".join(str(values) for values in BEGIN))
    folder, kept = lake.folder / "db" / "t", lake.folder.parent / "kept"
    shutil.copytree(folder, kept)
    meddler.begin(0, row)
    lake(statement)
    calls = meddler.end()
    assert len(calls) > 5
    conflicts = 0
    for number in sorted({1 + round(place * (len(calls) - 1) / (most - 1)) for place in range(most)}):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        lake(f"REFRESH TABLE {lake.name}.db.t")
        meddler.begin(number, row)
        try:
            lake(statement)
        except PySparkException as error:
            if error.getCondition() != "LAKEMERGE_CONFLICT":
                raise
            conflicts += 1
            expected = [[values for values in BEGIN if values[0] != row["id"]] + [tuple(row.values())]]
        else:
            expected = [after, before]
        made = meddler.end()
        about = f"{number} of {len(calls)}, before {made[number - 1] if number <= len(made) else 'nothing'}"
        if number > len(made):
            continue  # the statement asks its store for less once it has run
        found = lake("SELECT * FROM {}.db.t ORDER BY id")
        assert found in [sorted(rows) for rows in expected], f"{about}: {found}"
        assert LakeTable.check(folder).ok, about
    assert conflicts


@pytest.mark.parametrize("what", STATEMENTS)
def test_another_writer_at_each_point(what: str, meddled: tuple[Lake, Meddler]) -> None:
    statement, after, before = STATEMENTS[what]
    check_each_point(*meddled, statement, OTHER, after, before, len(some(range(15))) + 1)


@pytest.mark.long
def test_another_writer_at_each_point_of_a_merge_that_inserts(meddled: tuple[Lake, Meddler]) -> None:
    row = {"id": 7, "state": "other", "at": 90, "n": 500}
    came = tuple(row.values())
    # If the other row is there first, nothing is inserted. If it comes later, the merger takes the newer record.
    serial = [*BEGIN, came]
    check_each_point(*meddled, INSERT_ONLY, row, [*BEGIN, (7, None, 200, 0)], serial, len(some(range(15))) + 1)


@pytest.mark.long
def test_each_increment_that_succeeds_counts(lake: Lake, spark: SparkSession) -> None:
    """Threads of two sessions increase one row. Those that come too late fail, and do nothing."""
    lake.made()
    other = spark.newSession()
    lakemerge.catalog(other, lake.name, warehouse=lake.folder)
    done: list[bool] = []

    def increase(session: SparkSession) -> None:
        for _ in range(2):
            try:
                session.sql(f"UPDATE {lake.name}.db.t SET n = n + 1 WHERE id = 1").collect()
            except PySparkException as error:
                assert error.getCondition() == "LAKEMERGE_CONFLICT", error  # noqa: PT017 - in a thread
                done.append(False)
            else:
                done.append(True)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(increase, session) for session in (lake.spark, other, lake.spark, other)]:
            each.result()
    assert len(done) == 8
    assert sum(done) >= 1
    [[n]] = lake("SELECT n FROM {}.db.t WHERE id = 1")
    assert n == 1 + sum(done)
    assert lake.table.version == 1 + sum(done)


@pytest.mark.long
def test_a_statement_that_is_cancelled_leaves_nothing_visible(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    table, marker = lake.made(), str(tmp_path / "begun")

    def wait(value: int) -> int:
        Path(marker).touch()
        time.sleep(600)
        return value

    slow = new_name("slow")
    spark.udf.register(slow, wait, "bigint")
    for statement in (
        f"UPDATE {{}}.db.t SET n = {slow}(n)",
        f"INSERT INTO {{}}.db.t SELECT id, state, 99L, {slow}(n) FROM {{}}.db.t",
        f"CREATE OR REPLACE TABLE {{}}.db.t TBLPROPERTIES ('key' = 'id') AS SELECT id, {slow}(n) AS n FROM {{}}.db.t",
    ):
        Path(marker).unlink(missing_ok=True)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(lake, statement)
            while not Path(marker).exists() and not running.done():
                time.sleep(0.01)
            spark.sparkContext.cancelAllJobs()
            with pytest.raises(Exception, match="cancelled"):  # Py4J's, which has no types
                running.result(60)
        assert table.version == 1
        assert [row[3] for row in lake.rows] == [1, 2, 3]
    lake("UPDATE {}.db.t SET n = 0")
    assert [row[3] for row in lake.rows] == [0, 0, 0]


@pytest.mark.long
def test_a_task_that_spark_repeats_writes_once(tmp_path: Path) -> None:
    """An application whose tasks may fail twice: the Python of some is killed when it has written half of its rows.
    Another thread has added the jar, and ended, before any class of it is needed."""
    script = """
import os, sys, threading
from pathlib import Path
from pyspark.sql import SparkSession
import lakemerge
folder = Path(sys.argv[1])
spark = (
    SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
thread = threading.Thread(target=lambda: lakemerge.catalog(spark, "lake", warehouse=folder / "lake"))
thread.start()
thread.join()
spark.sql("CREATE NAMESPACE lake.db")
spark.sql("CREATE TABLE lake.db.t (id BIGINT, n BIGINT) TBLPROPERTIES ('key' = 'id')")
spark.range(0, 20_000, 1, 2).selectExpr("id", "id AS n").writeTo("lake.db.t").append()

def dies_once(value):
    if value % 9_000 == 8_999:
        try:
            open(folder / f"died{value}", "x").close()
        except FileExistsError:
            return value
        os._exit(1)
    return value

spark.udf.register("dies_once", dies_once, "bigint")
spark.sql("UPDATE lake.db.t SET n = dies_once(n) + 1")
spark.sql("MERGE INTO lake.db.t t USING (SELECT id, id + 1 AS n FROM range(20000)) s ON t.id = s.id "
          "WHEN MATCHED AND dies_once(s.n + 100000) > 0 THEN UPDATE SET n = t.n + 1")
[row] = spark.sql("SELECT count(*) AS rows, sum(n) AS n, count(DISTINCT id) AS keys FROM lake.db.t").collect()
print("FOUND", row.rows, row.n, row.keys, len(list(folder.glob("died*"))))
spark.stop()
"""
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(WORKERS), str(ROOT)]),
    }
    run = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    rows, total, keys, deaths = map(int, found.split()[1:])
    assert (rows, keys) == (20_000, 20_000)
    assert total == sum(range(20_000)) + 2 * 20_000
    assert deaths >= 2
    assert LakeTable.open(tmp_path / "lake" / "db" / "t").version == 3
