"""Sessions that end and begin while a table is open, and the Python that their workers run.

Each test has an application of its own, since it stops the session.
"""

from __future__ import annotations

import math
import os
import pickle
import stat
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable, ReadPolicy, Settings
from lakemerge.errors import LakeMergeError
from tests.spark.application import Application, start_session

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Told = dict[str, Any]
IN_TASKS = Settings(driver_bytes=1)


def rows(ids: range, at: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "at": pa.array([at] * len(ids), pa.int32())})


def refused(work: Callable[[], object]) -> str:
    try:
        return f"nothing was refused: {work()}"
    except LakeMergeError as error:
        return f"{type(error).__name__}: {error}"


def dirty_table(path: Path, spark: SparkSession | None, settings: Settings = IN_TASKS) -> LakeTable:
    """Ids 0 to 119. The ids from 100 to 119 are in a log."""
    table = LakeTable.create(
        path,
        "id BIGINT NOT NULL, at INT",
        key=["id"],
        ordering=["at"],
        buckets=2,
        settings=settings,
        spark=spark,
    )
    table.upsert(rows(range(100), 1))
    table.upsert(rows(range(90, 120), 2))
    return table


def a_life(table: LakeTable) -> list[object]:
    """What each step came to, from 120 rows on."""
    steps: list[object] = [table.to_df().count(), table.delete_where("id = 5").rows, table.to_df().count()]
    steps += [table.compact(minor=True).file_slices, table.to_df(filter="at = 2").count()]
    table.upsert(table.to_df().where("id < 10").selectExpr("id", "3 AS at"))
    table.delete(rows(range(7, 8), 4))
    steps += [table.compact_logs(size_ratio=math.inf).commits, table.explain_read().log_blocks]
    steps += [table.compact().file_slices, table.to_df().count(), table.to_df(filter="at = 3").count()]
    return steps


LIFE = [120, 1, 119, 2, 30, 2, 2, 2, 118, 8]


def restart(spark: SparkSession, folder: Path) -> Told:
    """Tables that were read in a session, in a later one and between the two."""
    keeping = replace(IN_TASKS, reads=ReadPolicy(premerge_from_bytes=0))  # what reads premerge, and then keep
    tables = {
        "found": dirty_table(folder / "found", None, keeping),
        "given": dirty_table(folder / "given", spark, keeping),
        "pickled": dirty_table(folder / "pickled", spark, keeping),
    }
    told: Told = {name: [table.to_df().count()] for name, table in tables.items()}
    stale = tables["given"].to_df()
    sent = pickle.dumps(tables["pickled"])
    spark.stop()

    told["no session"] = refused(tables["found"].to_df)
    told["stopped"] = [refused(tables["given"].to_df), refused(lambda: tables["given"].delete_where("id = 1"))]
    told["without one"] = [
        tables["found"].explain_read().merged,
        tables["found"].to_arrow().num_rows,
        tables["given"].to_arrow().num_rows,
        pickle.loads(sent).compact(minor=True).file_slices,
    ]

    again = start_session(folder / "again", "local[2]", {})
    told["frame"] = refused(lambda: tables["given"].upsert(stale))
    tables["pickled"] = pickle.loads(sent)
    tables["pickled"].compact()
    told |= {name: told[name] + a_life(table) for name, table in tables.items() if name != "pickled"}
    told["pickled"] += [tables["pickled"].to_df().count(), tables["pickled"].delete_where("id = 5").rows]
    in_thread: list[int] = []
    thread = threading.Thread(target=lambda: in_thread.append(tables["found"].to_df().count()))
    thread.start()
    thread.join()
    told["in a thread"] = in_thread
    again._sc._jsc.stop()  # in the JVM alone, as when an application is killed there
    told["ended in the JVM"] = refused(tables["given"].to_df)
    return told


def test_a_table_outlives_its_session(tmp_path: Path) -> None:
    with Application(tmp_path / "application") as application:
        told = application.run(restart, tmp_path)
    assert told["found"] == told["given"] == [120, *LIFE]
    assert told["pickled"] == [120, 120, 1]
    assert "there is no active Spark session; start one" in told["no session"]
    for message in (*told["stopped"], told["ended in the JVM"]):
        assert "InputError" in message
        assert "the Spark session that this table was opened with was stopped, and no other one is active" in message
    assert told["without one"] == [2, 120, 120, 2]
    assert "FrameError" in told["frame"]
    assert "the frame belongs to a Spark session that was stopped" in told["frame"]
    assert told["in a thread"] == [118]


def newer_package(folder: Path) -> Path:
    """A folder that tells Python of a later version of this package."""
    told = folder / "packages" / "lakemerge-99.1.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: lakemerge\nVersion: 99.1\n")
    return told.parent


def python_of(folder: Path, name: str, *options: str, packages: Path | None = None) -> Path:
    """A Python with these options, and with a folder of packages before all others."""
    path = folder / name
    first = "" if packages is None else f'PYTHONPATH="{packages}:$PYTHONPATH"; export PYTHONPATH\n'
    path.write_text(f'#!/bin/sh\n{first}exec "{sys.executable}" {" ".join(options)} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run_pythons(spark: SparkSession, folder: Path) -> Told:
    context: Any = spark.sparkContext
    spark.conf.set("spark.lakemerge.nativeReads", "off")  # LakeMerge's own scan needs no Python for these tables
    table = dirty_table(folder / "table", spark)
    # It is premerged on the driver, and the rows are sent to tasks.
    sent = LakeTable.create(
        folder / "sent",
        "id BIGINT NOT NULL, at INT",
        key=["id"],
        merger="aggregate",
        options={"aggregates": {"at": "sum"}},
        settings=Settings(reads=ReadPolicy(premerge_from_bytes=0)),
        spark=spark,
    )
    sent.upsert(rows(range(100), 1))
    sent.upsert(rows(range(10), 2))
    assert sent.explain_read().first == 1
    # LakeMerge's own scan gives logs to the kernel, in tasks that open the table anew.
    kernel = LakeTable.open(folder / "sent", spark=spark, settings=Settings(reads=ReadPolicy(premerge=False)))
    others = {"bare": python_of(folder, "bare", "-S"), "missing": folder / "missing", "same": python_of(folder, "same")}
    others["newer"] = python_of(folder, "newer", packages=newer_package(folder))
    told: Told = {}

    def jobs_of(work: Callable[[], object]) -> int:
        before = set(context.statusTracker().getJobIdsForGroup(None))
        work()
        return len(set(context.statusTracker().getJobIdsForGroup(None)) - before)

    def by_own_scan() -> object:
        spark.conf.set("spark.lakemerge.nativeReads", "on")
        try:
            return kernel.to_df().count()
        finally:
            spark.conf.set("spark.lakemerge.nativeReads", "off")

    def write() -> object:
        return table.upsert(spark.range(10).selectExpr("id", "9 AS at"))

    for name in ("bare", "missing", "newer"):
        context.pythonExec = str(others[name])
        told[name] = [refused(write), refused(table.to_df), table.version, refused(sent.to_df), refused(by_own_scan)]
    context.pythonExec = str(others["same"])
    told["jobs"] = [jobs_of(write), jobs_of(write), jobs_of(lambda: table.to_df().collect())]
    spark.stop()

    from pyspark.sql import SparkSession

    said = os.environ.pop("PYSPARK_PYTHON")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.lakemerge.nativeReads", "off")
    unsaid: Any = builder.getOrCreate()
    unsaid_before = unsaid.sparkContext.pythonExec
    told["unsaid"] = [unsaid_before, table.to_df().count(), unsaid.sparkContext.pythonExec == sys.executable]
    unsaid.stop()
    os.environ["PYSPARK_PYTHON"] = str(others["bare"])
    bare: Any = builder.getOrCreate()
    told["said"] = [refused(table.to_df), bare.sparkContext.pythonExec == str(others["bare"])]
    bare.stop()
    os.environ["PYSPARK_PYTHON"] = said
    return told


def test_the_workers_python(tmp_path: Path) -> None:
    """Workers run the driver's Python unless somebody chose another. If it lacks the package, an error says so."""
    with Application(tmp_path / "application") as application:
        told = application.run(run_pythons, tmp_path)
    for message in (*told["bare"][:2], *told["bare"][3:], told["said"][0]):
        assert "DependencyMissingError" in message
        assert "Spark's Python workers cannot run LakeMerge: they lack" in message
        assert "fsspec, numpy, orjson, pyarrow, sqlglot (in" in message
        assert "set PYSPARK_PYTHON for this program, before Spark starts" in message
    assert "Cannot run program" in told["missing"][0]
    for message in (*told["newer"][:2], *told["newer"][3:]):
        assert "Spark's Python workers cannot run LakeMerge: they have lakemerge 99.1, and this program has" in message
    assert told["bare"][2] == told["missing"][2] == told["newer"][2] == 2
    assert told["jobs"] == [2, 1, 1]
    assert told["unsaid"] == ["python3", 120, True]
    assert told["said"][1]
