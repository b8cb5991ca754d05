"""The project in ``examples/dbt`` under dbt-spark's session method: ``make test-dbt``.

dbt has an environment of its own, because it takes other versions of some packages than ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lakemerge import LakeTable
from lakemerge.connector.jar import jar_path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("LAKEMERGE_DBT")
"""The interpreter of dbt's environment."""

pytestmark = pytest.mark.skipif(PYTHON is None, reason="make test-dbt makes dbt's environment and names it")


def _ran(steps: str, folder: Path, models: Path | None = None) -> Callable[..., list[tuple[object, ...]]]:
    """Run steps on a copy of the project, with other models if there are any. Returns a look at the rows of a table."""
    project = folder / "project"
    shutil.copytree(ROOT / "examples" / "dbt", project)
    if models is not None:
        shutil.rmtree(project / "models")
        shutil.rmtree(project / "snapshots")
        shutil.copytree(models, project / "models")
    environment = {
        **os.environ,
        "LAKEMERGE_JAR": str(jar_path()),
        "LAKE_WAREHOUSE": str(folder / "lake"),
        "PYSPARK_PYTHON": str(PYTHON),
        "PYSPARK_DRIVER_PYTHON": str(PYTHON),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        "DO_NOT_TRACK": "1",
    }
    command = [str(PYTHON), str(ROOT / "tests" / "dbt" / "steps.py"), steps, str(project)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    def rows(name: str, *columns: str, version: int | None = None) -> list[tuple[object, ...]]:
        table = LakeTable.open(folder / "lake" / "shop" / name, version=version)
        return sorted(tuple(row.values()) for row in table.to_arrow(columns=list(columns) or None).to_pylist())

    return rows


def test_the_project_that_is_shipped(tmp_path: Path) -> None:
    rows = _ran("life", tmp_path)
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


def test_other_kinds_of_models(tmp_path: Path) -> None:
    rows = _ran("kinds", tmp_path, ROOT / "tests" / "dbt" / "models")
    # The first run made decades 1 and 2; the second one overwrote 2 alone.
    assert rows("orders_by_decade", "id", "state", "at", "decade") == [
        (1, "new", 10, 1), (1, "packed", 20, 2), (2, "new", 10, 1), (3, "new", 15, 1), (4, "new", 25, 2),
    ]  # fmt: skip
    assert rows("orders_anew") == [(1, "packed", 20), (4, "new", 25)], "without partitions the whole table is replaced"
    # The second run's batch was the second of November.
    assert rows("events_by_day", "id", "n") == [(1, 1), (2, 20), (3, 3), (4, 4)]
    assert sorted(LakeTable.open(tmp_path / "lake" / "shop" / "orders_that_grow").schema.names) == ["at", "id", "state"]
    assert rows("orders_that_grow", "id", "at", "state") == [
        (1, 20, "packed"), (2, 12, "gone"), (3, 15, None), (4, 25, "new"),
    ]  # fmt: skip
    # dbt adds the constraint once the rows are there. So the run that broke it failed, and its row is in the table.
    holds = LakeTable.open(tmp_path / "lake" / "shop" / "orders_that_hold")
    assert rows("orders_that_hold") == [(1, 0)]
    made, constrained = "CREATE OR REPLACE TABLE AS SELECT", "ADD CONSTRAINT"
    operations = [entry.operation for entry in holds.history() if entry.operation != "RESERVE FILE NUMBERS"]
    assert operations[::-1] == [made, constrained, made, constrained, made]
    assert not (tmp_path / "lake" / "shop" / "recent").exists()
