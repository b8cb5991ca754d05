"""The Python of the workers: an environment that a job sends, as docs/guides/platforms.md says, or one without us."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.clusters.life import COMPUTED, NEWEST
from tests.spark.application import QUICK_JAVA, ROOT, spark_home

pytestmark = [pytest.mark.serial, pytest.mark.cluster]

OURS = ("mergers", "lakemerge", "compaction", "pyspark_lakemerge.py", "pyspark_lakemerge_catalog.py")
NEEDED = ("pyarrow", "numpy", "fsspec", "orjson", "sqlglot")
_LEFT_OUT = re.compile(r"/__pycache__(/|$)|/pyarrow/(include|src)/|/tests/")
JOB = """
    import json, sys, tarfile
    from pathlib import Path

    sys.path.insert(0, sys.argv[2])
    from pyspark.sql import SparkSession

    from lakemerge import DependencyMissingError, LakeTable
    from tests.clusters import life

    spark = SparkSession.builder.getOrCreate()
    folder = Path(sys.argv[1])

    def where(batches):
        import lakemerge, pyarrow, sys

        for batch in batches:
            text = " ".join((sys.executable, lakemerge.__file__, pyarrow.__file__))
            yield pyarrow.RecordBatch.from_pydict({"text": [text] * batch.num_rows})

    found = spark.range(0, 2, 1, 2).mapInArrow(where, "text STRING").collect()
    said = {"python": spark.sparkContext.pythonExec, "workers": [row[0].split() for row in found]}
    # The worker has the table's files by the path, and the code of the merger by the job.
    said["modes"] = life.newest_table(spark, folder / "newest")
    said["rows"] = {}
    table = life.opened(spark, folder / "newest", "native, kernel")
    said["unplanned"] = table.explain_read().not_native
    said["rows"]["without the workers' Python on the driver"] = life.look(table)
    with tarfile.open(sys.argv[4]) as archive:
        archive.extractall("packed", filter="fully_trusted")
    told = spark.read.format("lakemerge").load(str(folder / "newest")).collect()
    said["rows"]["format() with the workers' Python on the driver"] = sorted(tuple(row) for row in told)
    said["planned"] = []
    for route in ("native, kernel", "native, premerged", "union, kernel"):
        table = life.opened(spark, folder / "newest", route)
        said["planned"].append(table.explain_read().not_native)
        said["rows"][route] = life.look(table)
    said["compacted"] = table.compact().file_slices
    said["rows"]["compacted"] = life.look(table)
    life.computed_table(spark, folder / "joined")
    said["joined"] = life.look(life._joined[str(folder / "joined")])

    said["versions"] = [LakeTable.open(folder / "newest").version]
    spark.sparkContext.pythonExec = sys.argv[3]
    said["refused"] = []
    upsert = lambda: table.upsert(life.frame(spark, 9, range(4)))
    for deed in (upsert, table.compact_logs, lambda: table.to_df().count()):
        try:
            deed()
        except DependencyMissingError as error:
            said["refused"].append(str(error))
    said["versions"].append(LakeTable.open(folder / "newest").version)
    print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of an environment that has this package and what it always needs."""
    home = tmp_path_factory.mktemp("environment") / "packed"
    bare(home)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    for name in OURS:
        (site / name).symlink_to(ROOT / name)
    for name in NEEDED:
        of = distribution(name)
        tops = {Path(str(file)).parts[0] for file in of.files or [] if not str(file).startswith("..")}
        for top in tops - {"__pycache__"}:
            (site / top).symlink_to(Path(str(of.locate_file(top))).resolve())
    # A .tar.gz: Spark unpacks a .tar without the permission to run anything. It refuses an entry ".", so the archive
    # has the names in the folder. Nothing is compressed here, since that takes time.
    archive = home.parent / "packed.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=0, dereference=True) as tar:
        for path in sorted(home.iterdir()):
            tar.add(path, path.name, filter=lambda entry: None if _LEFT_OUT.search(entry.name) else entry)
    return archive


def bare(home: Path) -> Path:
    """A new environment without packages; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    return home / "bin" / "python"


def test_an_environment_that_the_job_sends(packed: Path, tmp_path: Path) -> None:
    """The executors unpack it where they run. Without it, the error names all that a worker misses."""
    job = tmp_path / "job.py"
    job.write_text(textwrap.dedent(JOB))
    without = bare(tmp_path / "without")
    conf = {
        "spark.archives": f"{packed}#packed",
        "spark.pyspark.python": "./packed/bin/python",
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    settings = [argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    # What the driver finds by its environment, executors on this machine would find, too.
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYTHON", "PYSPARK"))},
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Spark's look-up of installed data sources reads this, and no setting.
        "PYSPARK_DRIVER_PYTHON": "./packed/bin/python",
        "SPARK_HOME": str(spark_home(tmp_path)),
    }
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    command = [str(submit), "--master", "local-cluster[2,1,1024]", *settings]
    ran = subprocess.run(
        [*command, str(job), str(tmp_path), str(ROOT), str(without), str(packed)],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-20000:]
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert said["python"] == "./packed/bin/python"
    for python, ours, pyarrow in said["workers"]:
        assert Path(python).is_relative_to(tmp_path / "spark" / "work"), "where an executor runs"
        for file in (ours, pyarrow):
            assert Path(file).is_relative_to(Path(python).parents[1])
    assert said["modes"] == ["load", "append", "append", "append"]
    for way, rows in said["rows"].items():
        assert [tuple(row) for row in rows] == NEWEST, way
    assert said["compacted"] == 4
    assert [tuple(row) for row in said["joined"]] == COMPUTED
    assert "the driver has no ./packed/bin/python" in said["unplanned"]
    assert said["planned"][:2] == [None, None]
    everything = "lakemerge, mergers, compaction, fsspec, numpy, orjson, pyarrow, sqlglot"
    assert len(said["refused"]) == 1, "what needs no worker goes on"
    assert f"they lack {everything} (in {without}" in said["refused"][0]
    assert "send an environment with the job (spark.archives)" in said["refused"][0]
    assert said["versions"][0] == said["versions"][1]
