"""What all tests share: one Spark session that also reads and writes Delta tables."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemerge import ReadPolicy, Settings
from tests.spark.application import QUICK_JAVA

ROOT = Path(__file__).resolve().parent.parent
WORKERS = ROOT / "tests" / "spark" / "workers"
LEFT_ALONE = ("spark.databricks.delta.lastCommit", "spark.sql.catalog.", "spark.sql.parquet.fieldId.")
"""Settings that Delta makes itself, when it first writes or maps columns, and catalogs that are loaded."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from tests.workers import Scheduler

    return Scheduler(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-in",
        type=int,
        default=1,
        help="of the variants of a test run the first and every N-th after it; `make test` takes one in 12",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.one_in > 1:
        from tests.variants import sample

        items[:], others = sample(items, config.option.one_in)
        config.hook.pytest_deselected(items=others)
    if hasattr(config, "workerinput"):
        from tests.workers import sort

        sort(items)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """No test cuts the power, so none learns more when a disk holds what was written; it must only be an open file."""
    with pytest.MonkeyPatch.context() as system:
        system.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def _loggers() -> Iterator[None]:
    """A command sends the log of services to its error stream, which is closed when its test ends."""
    loggers = [logging.getLogger(name) for name in ("compaction", "lakemerge")]
    before = [(logger.handlers, logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers = handlers
        logger.setLevel(level)


def _with_delta(builder: Any) -> Any:
    from delta import configure_spark_with_delta_pip

    return configure_spark_with_delta_pip(
        builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "2")
    )


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores, in UTC, quiet, with Delta's extension, catalog and jars.

    Ends the whole run at once where Java is missing: every Spark test would fail with the same cause.
    """
    java = subprocess.run(
        ["/bin/sh", str(ROOT / "scripts" / "check_java.sh")], check=False, capture_output=True, text=True
    )
    if java.returncode != 0:
        request.session.shouldstop = java.stderr  # a worker passes it on, where the message of pytest.exit is lost
        pytest.fail("no Java", pytrace=False)

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers unpickle functions by their module: they must find the tree as this process does.
        path = os.pathsep.join(filter(None, (str(WORKERS), str(ROOT), os.environ.get("PYTHONPATH"))))
        environment.setenv("PYTHONPATH", path)
        scratch = tmp_path_factory.mktemp("spark")
        builder = (
            SparkSession.builder.appName("lakemerge-tests")
            .master("local[2]")
            .config("spark.driver.memory", "4g")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", f"{QUICK_JAVA} -Dderby.system.home={scratch}")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        )
        if find_spec("delta") is not None:  # there is none for each Spark of `make matrix`
            builder = _with_delta(builder)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def _settings_of_the_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """All tests share one session. What one of them sets does not change what the next one sees."""
    if "spark" not in request.fixturenames:
        yield
        return
    session = request.getfixturevalue("spark")
    before = _settings(session)
    yield
    after = _settings(session)
    for name in {name for name, _ in before.items() ^ after.items()}:
        if not name.startswith(LEFT_ALONE) and session.conf.isModifiable(name):
            session.conf.set(name, before[name]) if name in before else session.conf.unset(name)


def _settings(session: SparkSession) -> dict[str, str]:
    text: str = session._jsparkSession.sessionState().conf().getAllConfs().mkString("\x00")
    return dict(pair.split(" -> ", 1) for pair in text.split("\x00"))


@pytest.fixture(params=[False, True], ids=["merged while reading", "premerged"])
def reads(request: pytest.FixtureRequest) -> Settings:
    """Both ways to read logs on Spark. The second premerges tables of a few rows, too."""
    policy = ReadPolicy(premerge=request.param, premerge_from_bytes=0, premerge_stored_per_place=0.1)
    return Settings(reads=policy)


@pytest.fixture
def by_unions(spark: SparkSession) -> Iterator[None]:
    """Tables are read by unions of Spark's scans, as where LakeMerge's own scan cannot be used."""
    spark.conf.set("spark.lakemerge.nativeReads", "off")
    yield
    spark.conf.unset("spark.lakemerge.nativeReads")
