"""Spark applications in processes of their own, and a cluster for them, for what one shared session cannot show."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

__all__ = [
    "QUICK_JAVA",
    "ROOT",
    "Application",
    "Signals",
    "cluster",
    "daemon",
    "printed",
    "spark_home",
    "start_session",
]

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Spark runs most of its code a few times in a test: what the optimising compiler and threads for garbage collection
gain there is less than they cost, which was two fifths of all processor time of Spark tests."""

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ROOT / "tests" / "spark" / "workers"
_SPAWN = multiprocessing.get_context("spawn")
_DEADLINE_S = 850
_DEPLOY = "org.apache.spark.deploy"
_NO_PAGE = ("--webui-port", "0")


class Application:
    """A process with a Spark session, which runs functions of importable modules: ``function(spark, *arguments)``.

    What the process and its JVM print is in :attr:`output`.
    """

    def __init__(self, scratch: Path, *, master: str = "local[2]", config: Mapping[str, str] | None = None) -> None:
        scratch.mkdir()
        self.output = scratch / "output"
        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, scratch, master, dict(config or {})), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._connection.close()
        self._process.join(60)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def start(self, function: Callable[..., Any], *arguments: object) -> None:
        """Begin to run the function; :meth:`result` waits for it."""
        self._connection.send((function, arguments))

    def result(self) -> Any:
        """What the function returned. Fails with the traceback of what it raised."""
        try:
            assert self._connection.poll(_DEADLINE_S), "no answer"
            failure, value = self._connection.recv()
        except (AssertionError, EOFError, ConnectionResetError) as error:
            tail = self.output.read_text(errors="replace")[-5_000:]
            raise AssertionError(f"{error!r} from the application; it printed last:\n{tail}") from error
        assert failure is None, failure
        return value

    def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        self.start(function, *arguments)
        return self.result()


@dataclass(frozen=True)
class Signals:
    """Processes wait for each other by files in a folder."""

    folder: Path

    def set(self, name: str) -> bool:
        """Whether nobody had set it before."""
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def wait(self, name: str) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"nobody set {name!r}"
            time.sleep(0.02)


@contextlib.contextmanager
def cluster(scratch: Path) -> Iterator[str]:
    """A standalone cluster with two workers; its URL. To Spark they are on two hosts, which it wants of speculative
    attempts. They offer cores for several applications, which do not all work at a time."""
    with contextlib.ExitStack() as stack:
        master = daemon(
            stack, scratch / "master", f"{_DEPLOY}.master.Master", *_NO_PAGE, "--host", "127.0.0.1", "--port", "0"
        )
        url = printed(master, r"spark://127\.0\.0\.1:\d+")
        for host in ("127.0.0.1", "localhost"):
            sizes = ("--cores", "8", "--memory", "8g", "--work-dir", str(scratch / f"work-{host}"))
            worker = daemon(
                stack, scratch / f"worker-{host}", f"{_DEPLOY}.worker.Worker", *_NO_PAGE, "--host", host, *sizes, url
            )
            printed(worker, "Successfully registered with master")
        yield url


def _serve(connection: Connection, scratch: Path, master: str, config: dict[str, str]) -> None:
    descriptor = os.open(scratch / "output", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    spark = start_session(scratch, master, config)
    with contextlib.suppress(EOFError):
        while True:
            function, arguments = connection.recv()
            try:
                answer: tuple[str | None, object] = (None, function(spark, *arguments))
            except Exception:  # noqa: BLE001 - told to the test
                answer = (traceback.format_exc(), None)
            connection.send(answer)
    spark.stop()


def start_session(scratch: Path, master: str, config: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    os.environ.update(_environment())
    if master.startswith("local-cluster"):
        os.environ["SPARK_HOME"] = str(spark_home(scratch))
    builder = SparkSession.builder.master(master).appName("lakemerge-tests")
    options = {
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Dderby.system.home={scratch}",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **config,
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def spark_home(scratch: Path) -> Path:
    """A home of Spark's own files in a new folder: a local cluster keeps in its home what its workers write."""
    home = scratch / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


def _environment() -> dict[str, str]:
    """What processes of Spark need to run this tree with this Python."""
    # Workers unpickle functions by their module: they must find the tree as this process does.
    path = os.pathsep.join(filter(None, (str(WORKERS), str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": path,
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def daemon(stack: contextlib.ExitStack, log: Path, name: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
    """A program of Spark's, which ends with the stack; with the file that it prints to."""
    given = {**os.environ, **_environment()}
    command = [f"{given['SPARK_HOME']}/bin/spark-class", name]
    printed = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(
        [*command, *arguments], env=given, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed
    )
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)
    return process, log


def printed(daemon: tuple[subprocess.Popen[bytes], Path], pattern: str) -> str:
    """What a daemon printed that matches, once it did."""
    process, log = daemon
    deadline = time.monotonic() + _DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text()):
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"Spark's daemon did not print {pattern!r}:\n{log.read_text()[-5_000:]}")
