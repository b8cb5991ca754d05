"""The project in ``examples/dbt`` under dbt-spark's session method: ``make test-dbt``.

dbt has an environment of its own, because it takes other versions of some packages than ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lakemerge import LakeTable
from lakemerge.connector.jar import jar_path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("LAKEMERGE_DBT")
"""The interpreter of dbt's environment."""

pytestmark = pytest.mark.skipif(PYTHON is None, reason="make test-dbt makes dbt's environment and names it")


def test_the_project_that_is_shipped(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "dbt", project)
    environment = {
        **os.environ,
        "LAKEMERGE_JAR": str(jar_path()),
        "LAKE_WAREHOUSE": str(tmp_path / "lake"),
        "PYSPARK_PYTHON": str(PYTHON),
        "PYSPARK_DRIVER_PYTHON": str(PYTHON),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        "DO_NOT_TRACK": "1",
    }
    steps = [str(PYTHON), str(ROOT / "tests" / "dbt" / "steps.py"), str(project)]
    done = subprocess.run(steps, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    def rows(name: str, *columns: str, version: int | None = None) -> list[tuple[object, ...]]:
        table = LakeTable.open(tmp_path / "lake" / "shop" / name, version=version)
        return sorted(tuple(row.values()) for row in table.to_arrow(columns=list(columns) or None).to_pylist())

    newest = [(1, "paid", 20), (2, "paid", 30), (3, "new", 15), (4, "new", 40)]
    assert rows("orders") == newest
    assert rows("newest_orders") == newest
    assert rows("orders_by_state") == [("new", 2), ("paid", 2)]
    first = [(1, "paid", 20), (2, "new", 10), (3, "new", 15)]
    assert rows("orders", version=0) == first
    assert rows("newest_orders", version=0) == first
    assert rows("orders_by_state", version=0) == [("new", 2), ("paid", 1)]
    history = rows("orders_history", "id", "state", "dbt_valid_from", "dbt_valid_to")
    assert [row[:2] for row in history] == [(1, "paid"), (2, "new"), (2, "paid"), (3, "new"), (4, "new")]
    assert [row[:2] for row in history if row[3] is not None] == [(2, "new")]
    orders = LakeTable.open(tmp_path / "lake" / "shop" / "orders")
    operations = [entry.operation for entry in orders.history()][::-1]
    # The full refresh reserves numbers for its files, and replaces the table in one commit. The one that failed did
    # nothing.
    made = "CREATE OR REPLACE TABLE AS SELECT"
    assert operations == [made, "MERGE", "RESERVE FILE NUMBERS", made]
    assert (orders.key, orders.ordering) == (("id",), ("at",))
    assert LakeTable.check(tmp_path / "lake" / "shop" / "orders").ok
