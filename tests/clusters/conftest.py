"""One standalone cluster with two workers, started by ``spark-class`` of pip's pyspark, and one application on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.settings import CONFIG
from tests.spark.application import Application, Signals, cluster


@pytest.fixture(scope="session")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.fixture(scope="session")
def application(master: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Two executors, one on each worker. A task may fail once."""
    with Application(tmp_path_factory.mktemp("run") / "spark", master=master, config=CONFIG) as application:
        yield application


@pytest.fixture(scope="session")
def one_try(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """On a cluster that its driver starts, and no task may fail."""
    config = {"spark.executor.memory": "1g", "spark.task.maxFailures": "1", "spark.python.task.killTimeout": "600s"}
    scratch = tmp_path_factory.mktemp("local") / "spark"
    with Application(scratch, master="local-cluster[2,1,1024]", config=config) as application:
        yield application


@pytest.fixture
def signals(tmp_path: Path) -> Signals:
    folder = tmp_path / "signals"
    folder.mkdir()
    return Signals(folder)
