"""``lakemerge demo``: it needs no Spark, shows the same every time, and notices a wrong answer."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lakemerge import LakeTable
from lakemerge.cli import demo_orders, main

ROOT = Path(__file__).resolve().parents[3]
Captured = pytest.CaptureFixture[str]


@pytest.mark.long
def test_a_new_process_shows_it_without_spark(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pyspark'] = None; from lakemerge.cli import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "demo"], check=False, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    for words in ("An upsert reads nothing", "Why does order 1042", "ignored: updated_at", "The change feed"):
        assert words in done.stdout
    assert re.search(r"^before +16 ", done.stdout, re.MULTILINE)
    assert re.search(r"^after +0 +1\.00", done.stdout, re.MULTILINE)
    assert "Each of the 7 answers was compared with a plain computation, and is right." in done.stdout
    (path,) = tmp_path.glob("lakemerge-demo-*/orders")
    assert f"The table is {path}." in done.stdout
    following = [line.partition("#")[0] for line in done.stdout.splitlines() if line.startswith("  lakemerge ")]
    assert [shlex.split(line)[1] for line in following] == [
        "show", "history", "get", "explain", "query", "diff", "changes",
    ]  # fmt: skip
    for line in following:
        assert main(shlex.split(line)[1:]) == 0
    assert LakeTable.open(path).key == ("order_id",)


def test_it_is_the_same_every_time(tmp_path: Path, capsys: Captured) -> None:
    told = []
    for name in ("a", "b"):
        assert main(["demo", str(tmp_path / name), "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    steps = [{step["step"]: step for step in run["steps"]} for run in told]
    for name in ("read", "explain", "changes"):
        assert steps[0][name] == steps[1][name], name
    assert [commit["events"] for commit in steps[0]["upsert"]["commits"]] == [2107, 2118, 2104, 2101]
    assert told[0]["checked"] == 7


def test_a_wrong_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """The plain computation takes late events; the table does not."""
    monkeypatch.setattr(
        demo_orders,
        "merged",
        lambda events, start=None: {**(start or {}), **{event.order_id: event for event in events}},
    )
    assert main(["demo", str(tmp_path / "t")]) == 1
    assert "the merged rows differ from the plain computation" in capsys.readouterr().err


def test_it_takes_no_place_that_is_taken(tmp_path: Path, capsys: Captured) -> None:
    LakeTable.create(tmp_path / "t", "id BIGINT", key=["id"])
    assert main(["demo", str(tmp_path / "t")]) == 2
    assert "there is already a table at" in capsys.readouterr().err


def test_events_are_late_repeated_and_cancelled_without_the_help_of_a_table() -> None:
    state = demo_orders.merged(demo_orders.first_load())
    for number in range(1, demo_orders.BATCHES + 1):
        events = demo_orders.batch(number)
        assert any(event.updated_at < state[event.order_id].updated_at for event in events)
        assert len(set(events)) < len(events)
        assert any(event.kind == "-D" for event in events)
        state = demo_orders.merged(events, state)
    assert state[demo_orders.STORY].state == "delivered"
