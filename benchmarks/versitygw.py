"""versitygw, a real S3 server over a folder, as long as a block runs."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["versitygw"]


@contextmanager
def versitygw(program: str, folder: Path, *, key: str, secret: str) -> Iterator[int]:
    """The port of the server that ``program`` is. Its buckets are folders below ``folder / "buckets"``."""
    for name in ("buckets", "attributes"):
        (folder / name).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    # Attributes in files of their own: not every file system has extended ones.
    command = [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", "--sidecar", str(folder / "attributes")]
    environment = {**os.environ, "ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(folder / "buckets")], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _await_port(port, process, folder / "log")
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"versitygw did not start:\n{log.read_text()}")
