"""The recipes of docs/guides/scheduling.md under the schedulers themselves: ``make test-schedulers``.

Each scheduler has an environment of its own, because it takes other versions of some packages than ours.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lakemerge import LakeTable
from tests.guides import blocks

ROOT = Path(__file__).resolve().parents[2]
AIRFLOW, DAGSTER = os.environ.get("LAKEMERGE_AIRFLOW"), os.environ.get("LAKEMERGE_DAGSTER")
"""The interpreters of the schedulers' environments."""
RUN_ASSETS = """

if __name__ == "__main__":
    # As a daemon of Dagster runs what the schedule is due for.
    job = definitions.resolve_job_def(hourly.job_name)
    assert job.execute_in_process().success
"""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A table, and a file that was landed for it."""
    LakeTable.create(
        tmp_path / "orders", "id BIGINT, n BIGINT", key=["id"], merger="aggregate", options={"aggregates": {"n": "sum"}}
    )
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "1.json").write_text('{"id": 1, "n": 2}\n{"id": 2, "n": 5}\n')
    return tmp_path


def recipe(scheduler: str, lake: Path) -> str:
    """The code of the guide, with places that are here."""
    tasks, *recipes = blocks("scheduling.md")
    (shown,) = (code for code in recipes if scheduler in code)
    for place, here in (("s3://bucket/landing/orders", lake / "landing"), ("s3://bucket/orders", lake / "orders")):
        assert place in shown
        shown = shown.replace(place, str(here))
    return f"{tasks}\n\n{shown}"


def run(command: list[str], folder: Path, **more: str) -> str:
    environment = {
        **os.environ,
        **more,
        "PATH": os.pathsep.join((str(Path(command[0]).parent), os.environ["PATH"])),
        "PYTHONPATH": str(ROOT),
        "DO_NOT_TRACK": "1",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-10_000:]
    return done.stdout + done.stderr


def check(lake: Path, rows: dict[int, int], *, loads: int) -> None:
    table = LakeTable.open(lake / "orders")
    assert {row["id"]: row["n"] for row in table.to_arrow().to_pylist()} == rows
    assert sum(bool(entry.metrics.get("numSourceRows")) for entry in table.history()) == loads
    assert LakeTable.check(lake / "orders").ok


def land_more(lake: Path) -> None:
    (lake / "landing" / "2.json").write_text('{"id": 1, "n": 100}\n')


@pytest.mark.skipif(AIRFLOW is None, reason="make test-schedulers makes Airflow's environment and names it")
def test_the_recipe_under_airflow(lake: Path, tmp_path: Path) -> None:
    """Runs of the DAG by Airflow's own command. A run that finds nothing new writes nothing."""
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "orders.py").write_text(recipe("airflow", lake))
    command = str(Path(str(AIRFLOW)).parent / "airflow")
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    }
    run([command, "db", "migrate"], tmp_path, **settings)
    for day, rows in ((1, {1: 2, 2: 5}), (2, {1: 2, 2: 5}), (3, {1: 102, 2: 5})):
        if day == 3:
            land_more(lake)
        run([command, "dags", "test", "orders", f"2026-01-0{day}"], tmp_path, **settings)
        check(lake, rows, loads=1 if day < 3 else 2)


@pytest.mark.skipif(DAGSTER is None, reason="make test-schedulers makes Dagster's environment and names it")
def test_the_recipe_under_dagster(lake: Path, tmp_path: Path) -> None:
    """The job of the schedule, run by Dagster. A run that finds nothing new writes nothing."""
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "orders.py").write_text(recipe("dagster", lake) + RUN_ASSETS)
    for number, rows in ((1, {1: 2, 2: 5}), (2, {1: 2, 2: 5}), (3, {1: 102, 2: 5})):
        if number == 3:
            land_more(lake)
        said = run([str(DAGSTER), str(home / "orders.py")], tmp_path, DAGSTER_HOME=str(home))
        for asset in ("orders_table", "orders_upkeep"):
            assert f"{asset} - STEP_SUCCESS" in said
        check(lake, rows, loads=1 if number < 3 else 2)
