"""A program that runs by the path of its environment's Python, so that ``python3`` is another one.

A process of its own: the JVM's environment is that of the process that starts it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.application import QUICK_JAVA

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json, sys
import lakemerge
from pyspark.sql import SparkSession, functions
from lakemerge import LakeTable

path, ddl = sys.argv[1], "id BIGINT, at INT"
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
said = {"before": spark.sparkContext.pythonExec}
table = LakeTable.create(path, ddl, key=["id"], ordering=["at"], spark=spark)
rows = spark.createDataFrame([(1, 1), (2, 1), (1, 3), (1, 2)], ddl)  # plain rows go through Python workers
said["collected"] = sorted(map(tuple, rows.collect()))
table.upsert(rows)
said["merged"] = sorted(map(tuple, table.to_df().collect()))
spark.createDataFrame([(3, 1)], ddl).write.format("lakemerge").mode("append").save(path)
said["loaded"] = sorted(map(tuple, spark.read.format("lakemerge").load(path).collect()))
said["opened"] = LakeTable.open(path, spark=spark.newSession()).to_df().count()
sessions, counts = spark._jvm.org.apache.spark.sql.classic.SparkSession, []
for is_active in (True, False):
    if not is_active:
        sessions.clearActiveSession()
    other = spark.newSession()
    lakemerge.register(other)
    lakemerge.catalog(other, "lake", warehouse=path + "-lake")
    assert sessions.getActiveSession().isDefined() == is_active
    if is_active:
        assert sessions.getActiveSession().get().sessionUUID() == spark._jsparkSession.sessionUUID()
    counts.append(other.read.format("lakemerge").load(path).count())
said["registered"] = counts
here = functions.udf(lambda _: sys.executable)
said["workers"] = spark.range(1).select(here("id")).collect()[0][0]
spark.stop()

chosen = SparkSession.builder.master("local[2]").config("spark.pyspark.python", "python3").getOrCreate()
LakeTable.open(path, spark=chosen)
said["chosen"] = chosen.sparkContext.pythonExec
chosen.stop()
print(json.dumps(said))
"""


def test_workers_run_the_python_of_the_program(tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'the Python of somebody else' >&2\nexit 3\n")
    other.chmod(0o755)
    unset = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in unset},
        "PATH": f"{other.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "t")],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["before"] == "python3"
    assert said["collected"] == [[1, 1], [1, 2], [1, 3], [2, 1]]
    assert said["merged"] == [[1, 3], [2, 1]]
    assert said["loaded"] == [[1, 3], [2, 1], [3, 1]]
    assert said["opened"] == 3
    assert said["registered"] == [3, 3], "where another session, which is active or not, has registered it"
    assert said["workers"] == sys.executable
    assert said["chosen"] == "python3", "what the user chose stays"
