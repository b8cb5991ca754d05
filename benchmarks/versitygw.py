"""Servers of object stores as long as a block runs; and versitygw, one of S3 over a folder."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["free_port", "running", "versitygw"]


@contextmanager
def versitygw(program: str, folder: Path, *, key: str, secret: str) -> Iterator[int]:
    """The port of the server that ``program`` is. Its buckets are folders below ``folder / "buckets"``."""
    for name in ("buckets", "attributes"):
        (folder / name).mkdir()
    port = free_port()
    # Attributes in files of their own: not every file system has extended ones.
    command = [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", "--sidecar", str(folder / "attributes")]
    environment = {"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}
    with running([*command, str(folder / "buckets")], port, folder / "log", environment):
        yield port


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def running(
    command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A process that listens on the port, until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        _await_port(port, process, log)
        yield
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
    raise AssertionError(f"{process.args!r} did not start:\n{log.read_text()}")
