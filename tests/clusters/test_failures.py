"""What fails on Spark in the middle of a write leaves one commit or none, and a table that reads right.

The applications run on a standalone cluster of two hosts, since local mode retries nothing, speculates about
nothing and has no executor to lose. What lost attempts wrote is of no version, and goes with a vacuum.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from lakemerge import LakeTable, RowMerger, Settings
from lakemerge.testing.faults import Call, Fault
from tests.clusters.life import DELETED, LOADED, NEWEST, ROUTES, upserted
from tests.clusters.life import opened as route_to
from tests.clusters.settings import CONFIG
from tests.spark.application import Application, Signals
from tests.unit.faults import create, frame, open_over, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakemerge import UpsertResult

pytestmark = [pytest.mark.serial, pytest.mark.cluster]

BASE = [(k, 0, "base") for k in range(10)]
CHANGES = [(k, 1, "new") for k in range(5, 15)]
UPSERTED = BASE[:5] + CHANGES
LOG = "_lakemerge/log"
IN_TASKS = Settings(driver_bytes=1)
"""A compaction of a few rows has tasks, too."""


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    # As soon as the other task is done, however long that took.
    "spark.speculation.multiplier": "0.01",
    "spark.speculation.efficiency.enabled": "false",
}


@pytest.fixture(scope="module")
def speculating(master: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    config = CONFIG | SPECULATION
    with Application(tmp_path_factory.mktemp("run") / "spark", master=master, config=config) as application:
        yield application


@dataclass(frozen=True)
class Deed(ABC):
    """Something that a store does for a task."""

    signals: Signals

    def __call__(self, call: Call) -> None:
        context = TaskContext.get()
        if context is not None:
            self.act(context)

    @abstractmethod
    def act(self, context: TaskContext) -> None:
        """What it does, in the process of the task."""


class StallFirstAttempt(Deed):
    """Stalls the first attempt of the second task until everything is over."""

    def act(self, context: TaskContext) -> None:
        if context.partitionId() == 1 and self.signals.set("stalled"):
            self.signals.wait("over")


class FailFirstAttempt(Deed):
    def act(self, context: TaskContext) -> None:
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            self.signals.set("failed")
            raise RuntimeError("boom")


class LoseExecutor(Deed):
    """The first time that the second task gets here, the executor that it runs on is gone."""

    def act(self, context: TaskContext) -> None:
        if context.partitionId() == 1 and self.signals.set("killed"):
            kill_executor()


class LoseAnyExecutor(Deed):
    """The first executor whose task gets here is gone."""

    def act(self, context: TaskContext) -> None:
        if self.signals.set("killed"):
            kill_executor()


class FailWhileAnotherWrites(Deed):
    """The second task fails for good; the first writes its file when the write has failed and cleaned up."""

    def act(self, context: TaskContext) -> None:
        if context.partitionId() == 1:
            self.signals.wait("begun")
            raise RuntimeError("boom")
        self.signals.set("begun")
        self.signals.wait("over")


class StallAll(Deed):
    """Until the write has failed and cleaned up."""

    def act(self, context: TaskContext) -> None:
        self.signals.set(f"begun {context.partitionId()}")
        self.signals.wait("over")


def kill_executor() -> None:
    """The JVM that started the daemon that started this Python worker."""
    daemon = os.getppid()
    jvm = int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(daemon)]))  # noqa: S607
    command = subprocess.check_output(["ps", "-o", "command=", "-ww", "-p", str(jvm)], text=True)  # noqa: S607
    assert "CoarseGrainedExecutorBackend" in command
    os.kill(jvm, signal.SIGKILL)
    signal.pause()


def changes(spark: SparkSession) -> DataFrame:
    """:data:`CHANGES` in two partitions."""
    return spark.range(5, 15, 1, 2).selectExpr("id AS k", "1L AS o", "'new' AS v")


def opened(spark: SparkSession, path: Path, fault: Fault | None) -> LakeTable:
    table = LakeTable.open(path, settings=IN_TASKS) if fault is None else open_over(path, fault, settings=IN_TASKS)[0]
    return LakeTable(table.opened.handle, table.opened.view.snapshot, pinned=False, spark=spark)


def upsert(spark: SparkSession, path: Path, fault: Fault | None = None) -> UpsertResult:
    return opened(spark, path, fault).upsert(changes(spark))


def compact(spark: SparkSession, path: Path, fault: Fault | None = None) -> int:
    return opened(spark, path, fault).compact().file_slices


def failing(spark: SparkSession, path: Path, fault: Fault) -> str:
    """The error of an upsert."""
    try:
        upsert(spark, path, fault)
    except Exception as error:  # noqa: BLE001 - Spark's
        return str(error)
    raise AssertionError("the upsert came to an end")


def cancelled(spark: SparkSession, path: Path, fault: Fault, how: str) -> str:
    """The error of an upsert, cancelled once both tasks have begun to write."""
    deed = fault.action
    assert isinstance(deed, Deed)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_failing_in_a_group, spark, path, fault)
        for task in (0, 1):
            deed.signals.wait(f"begun {task}")
        if how == "group":
            spark.sparkContext.cancelJobGroup("nightly")
        elif how == "all jobs":
            spark.sparkContext.cancelAllJobs()
        else:
            spark.interruptAll()
        return running.result()


def _failing_in_a_group(spark: SparkSession, path: Path, fault: Fault) -> str:
    spark.sparkContext.setJobGroup("nightly", "an upsert")
    return failing(spark, path, fault)


def publishing(deed: Deed, path: str = LOG, *, after: bool = True) -> Fault:
    """The deed is done whenever a file below the folder has been written, or is about to appear."""
    return Fault(action=deed, method="publish", path=path, after=after, lasting=True)


def opening(deed: Deed) -> Fault:
    """The deed is done whenever a log file is about to be written."""
    return Fault(action=deed, method="open_output", path=LOG, lasting=True)


def until(happened: Callable[[], bool]) -> None:
    """Wait for what a task that was let go does."""
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline, "the task did not do what it was let go for"
        time.sleep(0.1)


def table_at(path: Path) -> Path:
    """With two buckets and :data:`BASE` in base files."""
    create(path, buckets=2).upsert(frame(BASE))
    return path


def files_of(path: Path) -> set[str]:
    """Every data file below the table's folder. A checkpoint of the log is none."""
    found = (stat.path for stat in LakeTable.open(path).opened.handle.store.list(""))
    return {name for name in found if name.endswith(".parquet") and not name.startswith("_delta_log/")}


def files_named(path: Path) -> set[str]:
    """Data files that the latest version names."""
    view = LakeTable.open(path).opened.view
    logs = {block.file.path for commit in view.log_commits for block in commit.blocks}
    return logs | set(view.snapshot.files)


def check_and_clean(path: Path, expected: list[tuple[Any, ...]], *, orphans: int, vacuums: int = 1) -> None:
    """The rows are right, before and after what lost attempts left is vacuumed; then nothing else is there."""
    assert state_of(path) == sorted(expected, key=repr)
    assert LakeTable.check(path).ok
    assert len(files_of(path) - files_named(path)) == orphans
    for _ in range(vacuums):
        LakeTable.open(path).vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert files_of(path) == files_named(path)
    assert state_of(path) == sorted(expected, key=repr)


def test_a_task_that_is_tried_again(application: Application, signals: Signals, tmp_path: Path) -> None:
    path = table_at(tmp_path / "t")
    result = application.run(upsert, path, publishing(FailFirstAttempt(signals)))
    assert not signals.set("failed"), "it did not fail"
    assert (result.version, result.rows, result.files) == (2, 10, 3)
    check_and_clean(path, UPSERTED, orphans=1)


def test_two_attempts_of_a_task_both_write(speculating: Application, signals: Signals, tmp_path: Path) -> None:
    """The first is slow, Spark starts another on the other host, and that one ends."""
    path = table_at(tmp_path / "t")
    result = speculating.run(upsert, path, publishing(StallFirstAttempt(signals)))
    signals.set("over")
    assert not signals.set("stalled")
    assert (result.version, result.rows, result.files) == (2, 10, 3)
    assert len({name for name in files_of(path) if LOG in name and "-00001-00000-" in name}) == 2
    check_and_clean(path, UPSERTED, orphans=1)


@pytest.mark.parametrize("loaded", [False, True], ids=["load", "append"])
def test_an_executor_is_lost(application: Application, signals: Signals, tmp_path: Path, loaded: bool) -> None:
    path = table_at(tmp_path / "t") if loaded else tmp_path / "t"
    if not loaded:
        create(path, buckets=2)
    result = application.run(upsert, path, publishing(LoseExecutor(signals)))
    assert not signals.set("killed")
    assert (result.rows, result.mode) == (10, "append" if loaded else "load")
    # A load deletes its logs, those of lost attempts included.
    check_and_clean(path, UPSERTED if loaded else CHANGES, orphans=1 if loaded else 0)


def test_an_executor_of_a_compaction_is_lost(application: Application, signals: Signals, tmp_path: Path) -> None:
    path = table_at(tmp_path / "t")
    LakeTable.open(path).upsert(frame(CHANGES))
    assert application.run(compact, path, publishing(LoseExecutor(signals), "base/")) == 2
    assert not signals.set("killed")
    assert not LakeTable.open(path).opened.view.log_commits
    # Two base files and a log that are replaced. The file of the lost attempt has the name of the other's.
    check_and_clean(path, UPSERTED, orphans=3)


def test_two_attempts_of_a_compaction_write_one_file(
    speculating: Application, signals: Signals, tmp_path: Path
) -> None:
    """The slow one replaces the other's file after that is committed, with the same bytes."""
    path = table_at(tmp_path / "t")
    LakeTable.open(path).upsert(frame(CHANGES))
    assert speculating.run(compact, path, publishing(StallFirstAttempt(signals), "base/", after=False)) == 2
    names = files_named(path)
    before = {name: (path / name).read_bytes() for name in names}
    written = {(path / name).stat().st_ino for name in names}
    signals.set("over")
    until(lambda: {(path / name).stat().st_ino for name in names} != written)
    assert {name: (path / name).read_bytes() for name in names} == before
    check_and_clean(path, UPSERTED, orphans=3)


def _losing_its_executor(signals: Signals) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        LoseExecutor(signals)(Call("frame", ""))

    return rows


def load_in_the_jvm(spark: SparkSession, path: Path, signals: Signals) -> UpsertResult:
    """The frame's own Python, before Spark shuffles and writes it, kills the executor."""
    given = changes(spark).mapInArrow(_losing_its_executor(signals), "k BIGINT, o BIGINT, v STRING")
    return LakeTable.open(path, spark=spark).upsert(given)


def test_an_executor_of_a_load_in_the_jvm_is_lost(application: Application, signals: Signals, tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path, buckets=2)
    result = application.run(load_in_the_jvm, path, signals)
    assert not signals.set("killed")
    assert (result.mode, result.rows, result.files) == ("load", 10, 3)
    assert all(name.rpartition("/")[2].startswith("part-") for name in files_of(path))
    check_and_clean(path, CHANGES, orphans=0)


def newest_here(path: Path) -> LakeTable:
    """The table of :func:`tests.clusters.life.newest_table`, written by this process, which is quicker."""
    table = create(path, buckets=4)
    for rows in (LOADED, upserted(2, range(350, 450)), upserted(3, range(100, 200))):
        table.upsert(frame(rows))
    table.delete(frame([(k, 4) for k in DELETED], ("k", "o")))
    return table


def read_losing(spark: SparkSession, path: Path, signals: Signals, route: str) -> list[Any]:
    """The rows of the table. The executor of a task goes when the task has read them."""
    table = route_to(spark, path, route)
    rows = table.to_df().repartition(2, "k").mapInArrow(_losing_its_executor(signals), table.to_df().schema)
    return sorted(tuple(row) for row in rows.collect())


@pytest.mark.parametrize("route", ["compacted", "native, kernel", "union, premerged", "union, kernel"])
def test_an_executor_of_a_read_is_lost(application: Application, signals: Signals, tmp_path: Path, route: str) -> None:
    """With what it had read and shuffled: the read begins again elsewhere, at the same version."""
    path = tmp_path / "t"
    table = newest_here(path)
    if route == "compacted":
        assert table.compact().file_slices == 4
    assert application.run(read_losing, path, signals, "native, kernel" if route == "compacted" else route) == NEWEST
    assert not signals.set("killed")


def merge_losing(spark: SparkSession, path: Path, signals: Signals, route: str) -> list[Any]:
    """The rows of a table whose own merger kills its executor once, while a read merges or premerges."""

    class Killing(RowMerger):
        id = "7d0c4a52-6f7e-4d53-9a43-000000000002"
        name = "killing"

        def merge(self, older: Any, newer: Any) -> Any:
            LoseAnyExecutor(signals)(Call("merge", ""))
            return {**newer, "v": older["v"] + newer["v"]}

    made = create(path, buckets=4, merger="killing", mergers=[Killing])
    for rows in (BASE, CHANGES):  # by this process, whose tasks are none of Spark's
        made.upsert(frame(rows))
    _, reads = ROUTES[route]
    spark.conf.set("spark.lakemerge.nativeReads", "off")
    settings = Settings(driver_bytes=1, reads=reads)
    table = LakeTable.open(path, mergers=[Killing], settings=settings, spark=spark)
    return sorted(tuple(row) for row in table.to_df().collect())


@pytest.mark.parametrize("route", ["union, premerged", "union, kernel"])
def test_an_executor_of_a_merge_is_lost(application: Application, signals: Signals, tmp_path: Path, route: str) -> None:
    both = [(k, 1, "basenew") if k < 10 else (k, 1, "new") for k in range(5, 15)]
    assert application.run(merge_losing, tmp_path / "t", signals, route) == BASE[:5] + both
    assert not signals.set("killed")


@pytest.mark.parametrize("deed", [FailFirstAttempt, LoseExecutor])
def test_a_task_that_has_one_try(one_try: Application, signals: Signals, tmp_path: Path, deed: type[Deed]) -> None:
    """With ``spark.task.maxFailures`` of 1 the write fails with its first task. The next write finds the executors that
    are left or come anew."""
    path = table_at(tmp_path / "t")
    assert one_try.run(failing, path, publishing(deed(signals)))
    assert not signals.set("failed" if deed is FailFirstAttempt else "killed")
    assert LakeTable.open(path).version == 1
    assert state_of(path) == BASE
    assert one_try.run(upsert, path).version == 2
    assert state_of(path) == sorted(UPSERTED, key=repr)
    assert LakeTable.check(path).ok


def test_a_task_that_fails_for_good(application: Application, signals: Signals, tmp_path: Path) -> None:
    path = table_at(tmp_path / "t")
    assert "boom" in application.run(failing, path, opening(FailWhileAnotherWrites(signals)))
    check_none_landed(path, signals, late=1)


@pytest.mark.parametrize("how", ["group", "all jobs", "all of the session"])
def test_a_job_that_is_cancelled(application: Application, signals: Signals, tmp_path: Path, how: str) -> None:
    path = table_at(tmp_path / "t")
    assert "cancel" in application.run(cancelled, path, opening(StallAll(signals)), how).lower()
    check_none_landed(path, signals, late=2)


def check_none_landed(path: Path, signals: Signals, *, late: int) -> None:
    """No commit, and no file but those that tasks which still run write once they are let go."""
    assert LakeTable.open(path).version == 1
    assert files_of(path) == files_named(path)
    signals.set("over")
    until(lambda: len(files_of(path) - files_named(path)) == late)
    # They began at the latest version, where a write that is under way may have begun: the first vacuum adds one.
    check_and_clean(path, BASE, orphans=late, vacuums=2)
