"""Spark's declarative pipelines fill a table through ``create_sink``, as docs/streaming.md says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lakemerge import LakeTable
from tests.spark.application import QUICK_JAVA
from tests.unit.faults import create

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "docs" / "streaming.md"
SPEC = """name: orders
storage: file://{folder}/state
libraries:
  - glob:
      include: transformations/**
"""


def recipe() -> str:
    (found,) = re.findall(
        r"^```python\n(from pyspark import pipelines.*?)^```$", RECIPE.read_text(), re.MULTILINE | re.DOTALL
    )
    return str(found)


def run_pipeline(folder: Path) -> None:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    python = os.pathsep.join([str(ROOT), str(home / "python"), *map(str, (home / "python" / "lib").glob("py4j-*.zip"))])
    environment = plain | {
        "PYTHONPATH": python,
        "PYSPARK_PYTHON": sys.executable,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }
    command = [str(home / "bin" / "spark-pipelines"), "run", "--spec", "spark-pipeline.yml"]
    ran = subprocess.run(
        [*command, "--conf", "spark.ui.enabled=false"],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-6000:]


def test_a_pipeline_fills_a_table(tmp_path: Path) -> None:
    create(tmp_path / "orders", schema="id BIGINT, at BIGINT, v STRING", key=["id"], ordering=["at"])
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "1.json").write_text('{"id": 1, "at": 1, "v": "a"}\n{"id": 2, "at": 1, "v": "b"}\n')
    (tmp_path / "transformations").mkdir()
    code = recipe().replace("/lake/orders", str(tmp_path / "orders")).replace("/landing/orders", str(landing))
    session = "from pyspark.sql import SparkSession\n\nspark = SparkSession.active()\n"
    (tmp_path / "transformations" / "orders.py").write_text(session + code)
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    run_pipeline(tmp_path)
    table = LakeTable.open(tmp_path / "orders")
    assert sorted(row["v"] for row in table.to_arrow().to_pylist()) == ["a", "b"]
    apps = sorted(table.opened.view.snapshot.txns)
    assert apps[0].startswith("lakemerge.stream.")
    assert all(mark.startswith(f"{apps[0]}.") for mark in apps[1:]), "all other transactions are marks of this one"
