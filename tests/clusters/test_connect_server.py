"""A table's life in a client of a Connect server that somebody else started, on a cluster."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from tests.spark.application import QUICK_JAVA, daemon, printed
from tests.spark.applications.test_connect import check_round

pytestmark = [pytest.mark.serial, pytest.mark.cluster]

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def test_a_round_with_a_connect_server_in_another_process(master: str, tmp_path: Path) -> None:
    port = free_port()
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Dderby.system.home={tmp_path}",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.sql.artifact.isolation.enabled": "true",
    }
    settings = [argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")]
    with contextlib.ExitStack() as stack:
        server = daemon(
            stack, tmp_path / "server", "org.apache.spark.deploy.SparkSubmit",
            "--master", master, *settings, "--class", SERVER, "spark-internal",
        )  # fmt: skip
        printed(server, r"Spark Connect server started at|SparkConnectServer: .*started")
        check_round(f"sc://127.0.0.1:{port}", tmp_path)
