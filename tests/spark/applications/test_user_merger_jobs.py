"""User mergers in jobs of their own, with executors that are processes of their own.

Executors find this project on ``PYTHONPATH``, as if it were installed there, and nothing of what the
job brings: that comes by ``--py-files``, with the job, or from an environment that has it installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.spark.application import QUICK_JAVA, spark_home

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
SPARK = Path(pyspark.__file__).parent
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}

MERGER = """
    from dataclasses import dataclass

    from lakemerge import RowMerger
    {imports}

    @dataclass(frozen=True)
    class {cls}(RowMerger):
        id = "{id}"
        name = "{name}"

        factor: int = 1

        def merge(self, older, newer):
            return {{**newer, "total": older["total"] + {added}}}
"""


def merger(cls: str, number: int, added: str, imports: str = "") -> str:
    """The source of a merger named after its class that adds ``added`` to the total."""
    uuid = f"3c0a4a52-6f7e-4d53-9a43-00000000000{number}"
    source = textwrap.dedent(MERGER)
    return source.format(cls=cls, id=uuid, name=cls.lower(), added=added, imports=imports)


# What every job does with a table: load with a repeated key, append, read, compact.
PLAY = """
import json, os, sys
from lakemerge import LakeTable, Settings, register
from pyspark.sql import SparkSession

DDL = "id BIGINT, total BIGINT"
spark = SparkSession.builder.getOrCreate()
said = {"driver": os.getpid()}


def rows(frame):
    return sorted(list(row) for row in frame.collect())


def play(name, mergers):
    path = f"{sys.argv[1]}/{name}"
    table = LakeTable.create(
        path, DDL, key=["id"], merger=name, mergers=mergers, options={"factor": 2}, buckets=2, spark=spark,
        settings=Settings(driver_bytes=1),
    )
    table.upsert(spark.createDataFrame([(1, 1), (1, 10), (2, 5)], DDL).coalesce(1))
    table.upsert(spark.createDataFrame([(1, 100), (2, 50)], DDL).coalesce(1))
    found = rows(table.to_df())
    table.compact()
    compacted = table.to_arrow().to_pydict()
    return path, [found, sorted(map(list, zip(compacted["id"], compacted["total"])))]


def through_the_format(path):
    try:
        spark.createDataFrame([(2, 1000)], DDL).write.format("lakemerge").mode("append").save(path)
        return rows(spark.read.format("lakemerge").load(path))
    except Exception as error:
        return str(error)
"""


def run(command: list[str], tmp_path: Path, *, python: str = sys.executable) -> dict[str, Any]:
    """Run a job that prints JSON in its last line."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYTHON"))},
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(spark_home(tmp_path)),
    }
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    ran = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=folder)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-200000:]
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return said


def submit(master: str, job: Path, tables: Path, *more: str) -> list[str]:
    conf = [argument for name, value in CONF.items() for argument in ("--conf", f"{name}={value}")]
    return [
        str(SPARK / "bin" / "spark-submit"),
        "--master",
        "local-cluster[1,1,1024]",
        *conf,
        *more,
        str(job),
        str(tables),
    ]


def test_py_files_and_the_job_itself(tmp_path: Path) -> None:
    """Three classes: one in the job; one in a zip that uses another module of the zip; one whose module holds
    a lock, so that it can only travel by name."""
    archive = tmp_path / "shipped.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("shipped_helper.py", "def scaled(value):\n    return value * 10\n")
        file.writestr(
            "shipped_merger.py",
            merger("Shipped", 1, "self.factor * shipped_helper.scaled(newer['total'])", "import shipped_helper"),
        )
        file.writestr(
            "shipped_lock.py",
            merger("Locking", 2, "locked(newer['total'])", "import threading")
            + "\n_LOCK = threading.Lock()\n\n\ndef locked(value):\n    with _LOCK:\n        return value\n",
        )
    job = tmp_path / "job.py"
    job.write_text(
        PLAY
        + merger("Inline", 3, "self.factor * newer['total']")
        + textwrap.dedent("""
        from shipped_lock import Locking
        from shipped_merger import Shipped

        MERGERS = (Inline, Shipped, Locking)
        paths = []
        for cls in MERGERS:
            path, said[cls.name] = play(cls.name, [cls])
            paths.append(path)
        said["refused"] = through_the_format(paths[1])
        register(spark, mergers=MERGERS)
        said["registered"] = [through_the_format(path) for path in paths[:2]]
        workers = spark.range(0, 4, 1, 4).mapInArrow(worker_of, "id BIGINT, helper BOOLEAN")
        said["workers"] = rows(workers)
        print(json.dumps(said))
        """).replace("MERGERS = ", WORKER + "\n\nMERGERS = ", 1)
    )
    said = run(submit("local-cluster[1,1,1024]", job, tmp_path, "--py-files", str(archive)), tmp_path)
    assert said["inline"] == [[[1, 221], [2, 105]]] * 2  # 1 + 2*10 + 2*100; 5 + 2*50
    assert said["shipped"] == [[[1, 2201], [2, 1005]]] * 2
    assert said["locking"] == [[[1, 111], [2, 55]]] * 2
    for part in ("'shipped'", "which nobody registered here", "lakemerge.register(spark, mergers=[TheClass])"):
        assert part in said["refused"]
    assert said["registered"] == [[[1, 221], [2, 2105]], [[1, 2201], [2, 21005]]]
    assert said["driver"] not in [number for number, _ in said["workers"]]
    assert {found for _, found in said["workers"]} == {True}


# The process of each task; a job's module has to be importable there only if --py-files brought it.
WORKER = """
def worker_of(batches):
    import importlib.util

    import pyarrow as pa

    for batch in batches:
        found = importlib.util.find_spec("shipped_helper") is not None
        count = batch.num_rows
        yield pa.RecordBatch.from_pydict({"id": [os.getpid()] * count, "helper": [found] * count})
"""


@pytest.fixture
def environment(tmp_path: Path) -> str:
    """The interpreter of an environment where a package of mergers is installed from a wheel, beside all that
    this one has."""
    home = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = str(home / "bin" / "python")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (home / "lib" / f"python{version}" / "site-packages" / "all.pth").write_text(sysconfig.get_path("purelib") + "\n")
    project = tmp_path / "project"
    (project / "team_mergers").mkdir(parents=True)
    (project / "team_mergers" / "__init__.py").write_text(
        merger("Installed", 4, "self.factor * newer['total']") + "\n\nHERE = __file__\n"
    )
    (project / "pyproject.toml").write_text(
        textwrap.dedent("""
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"

        [project]
        name = "team-mergers"
        version = "1.0"

        [project.entry-points."lakemerge.mergers"]
        installed = "team_mergers:Installed"
        """)
    )
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(project), str(project)]
    subprocess.run(build, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    (wheel,) = project.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    return python


def test_an_installed_wheel(environment: str, tmp_path: Path) -> None:
    """Its entry point registers the class, for the table and for the data source, with nothing said in the job."""
    job = tmp_path / "job.py"
    job.write_text(
        PLAY
        + textwrap.dedent("""
        from mergers import default_registry

        path, said["installed"] = play("installed", [])
        said["format"] = through_the_format(path)
        said["module"] = sys.modules[default_registry().resolve("installed").__module__].HERE
        print(json.dumps(said))
        """)
    )
    said = run(submit("local[2]", job, tmp_path), tmp_path, python=environment)
    assert said["installed"] == [[[1, 221], [2, 105]]] * 2
    assert said["format"] == [[1, 221], [2, 2105]]
    assert Path(said["module"]).is_relative_to(Path(environment).parents[1])
