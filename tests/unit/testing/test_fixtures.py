"""The fixture for tests of users' jobs: its guide runs as it stands, and its stores are those that a job gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakemerge import LakeTable, StoreError
from lakemerge.table import opening
from lakemerge.testing.faults import Fault, Throttle
from lakemerge.testing.fixtures import Lake
from tests.guides import blocks, count_of_blocks
from tests.unit.faults import create, frame, state_of


def test_the_guide_runs_as_it_stands(tmp_path: Path) -> None:
    job, conftest, tests = blocks("testing.md")
    assert count_of_blocks("testing.md") == 3
    for name, code in (("job.py", job), ("conftest.py", conftest), ("test_job.py", tests)):
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_only_the_named_table_has_the_store_and_only_meanwhile(tmp_path: Path) -> None:
    lake, real = Lake(tmp_path), vars(opening)["open_store"]
    create(lake.path("orders"))
    create(lake.path("items"))
    refusing = Fault(action=Throttle(), method="list", lasting=True)
    with lake.failing("orders", refusing) as store:
        with pytest.raises(StoreError, match="SlowDown"):
            LakeTable.open(f"file:{lake.path('orders')}")
        LakeTable.open(lake.path("items")).upsert(frame([(1, 1, "a")]))
        assert store.injected["list"] == 1
    assert vars(opening)["open_store"] is real
    LakeTable.open(lake.path("orders")).upsert(frame([(1, 1, "a")]))
    assert state_of(Path(lake.path("orders"))) == state_of(Path(lake.path("items"))) == [(1, 1, "a")]


def test_stores_lie_one_around_the_other(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    create(lake.path("orders"))
    with lake.failing("orders") as failing, lake.counting("orders") as counting:
        LakeTable.open(lake.path("orders"))
    assert sum(counting.counts().calls.values()) == len(failing.calls) > 0
