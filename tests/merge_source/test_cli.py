"""``lakemerge merge-source``: what each command does and shows, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable
from lakemerge.cli import main
from tests.merge_source.world import World

ROOT = Path(__file__).resolve().parents[2]
Captured = pytest.CaptureFixture[str]
SOURCE = {"type": "merge", "version": 2, "datasets": ["A a", "B b"], "equality": ["a.x = b.x"]}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("A", "_id STRING, x BIGINT", [{"_id": "a1", "x": 1}, {"_id": "a2", "x": 2}])
    world.create("B", "_id STRING, x BIGINT, is_gone BOOLEAN", [{"_id": "b1", "x": 1}])
    return world


def job(world: World, **source: Any) -> str:
    tables = {"A": world.paths["A"], "B": {"table": world.paths["B"], "deleted": "is_gone"}}
    told = {"output": str(world.folder / "out"), "tables": tables, "source": {"source": {**SOURCE, **source}}}
    path = world.folder / "job.json"
    path.write_text(json.dumps(told))
    return str(path)


def test_run_explain_report_check(world: World, capsys: Captured) -> None:
    path = job(world)
    assert main(["merge-source", "run", path]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("run 1 emitted 2 entities (0 replaced, 0 deleted) of 2 clusters, everything looked at")
    assert shown.endswith("A at version 1, B at version 1\n")
    assert main(["merge-source", "explain", path, "0|a1|1|b1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0|a1|1|b1 is merged of",
        "  A 'a1'",
        "  B 'b1'",
        "  by a.x = b.x: 1 holds A 'a1', B 'b1'",
    ]
    assert main(["merge-source", "report", path, "--top", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "entities: A 2, B 1; 0 of them deleted",
        "clusters: 2, 1 of more than one entity",
        "  2 entities: 0|a1|1|b1",
        "values:",
        "  1: 1 by a.x, 1 by b.x, merged",
    ]
    assert main(["merge-source", "check", path]) == 0
    LakeTable.open(world.folder / "out").delete(pa.table({"_id": ["0|a2"]}))
    assert main(["merge-source", "check", path]) == 4
    assert "the output lacks 1 row(s): '0|a2'. Run with full=True." in capsys.readouterr().out


def test_the_file_is_the_configuration_from_then_on(world: World, capsys: Captured) -> None:
    assert main(["merge-source", "run", job(world)]) == 0
    world.put("B", [{"_id": "b1", "x": 1, "is_gone": True}])
    assert main(["merge-source", "run", job(world, strategy="compact"), "--dry-run"]) == 0
    assert "a run would emit 3 entities (1 replaced, 1 deleted)" in capsys.readouterr().out
    assert main(["merge-source", "run", job(world, strategy="compact"), "--full"]) == 0
    assert "run 2 emitted 3 entities" in capsys.readouterr().out


def test_failures_are_one_line_and_a_code(world: World, capsys: Captured) -> None:
    path = job(world)
    assert main(["merge-source", "check", path]) == 2
    assert "there is no merge source at" in capsys.readouterr().err
    assert main(["merge-source", "run", str(world.folder / "nothing.json")]) == 2
    assert main(["merge-source", "run", job(world, identity="last")]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith(
            "lakemerge: the merge source cannot be configured that way: identity must be 'composite' or 'first' or "
            "'stable'"
        )
    )
    assert main(["merge-source", "run", job(world, max_merged=1, oversize="fail")]) == 2
    assert "2 entities would be merged into one, and max_merged is 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([], "must have the entries output"),
        ({"output": "o", "tables": {}, "source": {}, "more": 1}, "must have the entries output"),
        ({"output": "o", "tables": [], "source": {}}, "must be objects"),
        ({"output": "o", "tables": {"A": {"table": "a", "key": "k"}}, "source": {}}, "tables: 'A' must be a path"),
        ({"output": "o", "tables": {"A": 7}, "source": {}}, "tables: 'A' must be a path"),
    ],
)
def test_files_that_say_something_else(told: object, why: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "job.json").write_text(json.dumps(told))
    assert main(["merge-source", "run", str(tmp_path / "job.json")]) == 2
    assert why in capsys.readouterr().err


def test_follow_ends_when_it_is_told_to(world: World) -> None:
    command = [sys.executable, "-m", "lakemerge", "merge-source", "follow", job(world), "--every", "0.05s"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("run 1 emitted 2 entities")
        world.put("A", [{"_id": "a3", "x": 1}])
        assert process.stdout.readline().startswith("run 2 emitted 2 entities (1 replaced, 0 deleted)")
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.returncode == 0


def test_overrides_and_stable_ids_in_a_file(world: World, capsys: Captured) -> None:
    """A dry run lists ids; a run tells how many findings there are, and explain tells them."""
    columns = ("left_dataset", "left_id", "right_dataset", "right_id", "verdict")
    world.create("O", f"_id STRING, {', '.join(f'{name} STRING' for name in columns)}")
    told = json.loads(Path(job(world, identity="stable", overrides="O", survivorship={"x": "first"})).read_text())
    told["tables"]["O"] = world.paths["O"]
    path = world.folder / "job.json"
    path.write_text(json.dumps(told))
    assert main(["merge-source", "run", str(path), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  1 would appear", "  2 would appear"]
    assert main(["merge-source", "run", str(path)]) == 0
    world.put("O", [dict(zip(("_id", *columns), ("o1", "A", "a1", "B", "b1", "different"), strict=True))])
    capsys.readouterr()
    assert main(["merge-source", "run", str(path), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ids"] == {"appear": ["3"], "join": {}, "split": {"1": ["1", "3"]}, "go": []}
    assert [one["kind"] for one in found["findings"]] == ["cut"]
    assert main(["merge-source", "run", str(path)]) == 0
    assert "; 1 findings" in capsys.readouterr().out
    assert main(["merge-source", "explain", str(path), "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        (
            "  cut: A 'a1' and B 'b1' are not joined by a.x = b.x with the value 1, because of override 'o1' "
            "(A 'a1' and B 'b1' are different)"
        ),
        "  x: 1 from B 'b1' (first: the first of 1 row with a value)",
    ]
    told["source"]["source"]["overrides"] = "P"
    path.write_text(json.dumps(told))
    assert main(["merge-source", "run", str(path)]) != 0
    assert "overrides: no table is given for 'P'; name it in tables" in capsys.readouterr().err
