"""A Kafka broker of one process, from the jars that ``make test-kafka`` fetches."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["broker"]

_SECONDS = 120
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
offsets.topic.replication.factor=1
num.partitions=2
log.dirs={folder}/logs
"""


@contextmanager
def broker(jars: Path, folder: Path) -> Iterator[str]:
    """Gives its address; the broker ends with the context."""
    port, controller = _free_port(), _free_port()
    config = folder / "server.properties"
    config.write_text(_PROPERTIES.format(port=port, controller=controller, folder=folder))
    java = [shutil.which("java") or "java", "-Xmx512m", "-cp", f"{jars}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    subprocess.run([*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)], check=True)
    with (folder / "broker.txt").open("w") as log:
        running = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=log, stderr=log, env=dict(os.environ))
        try:
            _wait(running, port, folder / "broker.txt")
            yield f"127.0.0.1:{port}"
        finally:
            running.terminate()
            running.wait(30)


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def _wait(running: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(_SECONDS * 4):
        if running.poll() is not None:
            break
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.25)
    raise AssertionError(f"the broker did not start:\n{log.read_text()}")
