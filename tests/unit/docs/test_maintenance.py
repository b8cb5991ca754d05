"""The guide on maintenance runs as it stands: its Python, its commands, and its table of properties."""

from __future__ import annotations

import ast
import datetime as dt
import re
import shlex
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import LakeTable
from lakemerge.cli import EXIT_CODES, main
from lakemerge.cli.app import app
from lakemerge.format.schedule import SCHEDULE_DEFAULTS
from tests import guides
from tests.guides import run, text_of
from tests.unit.faults import create, frame, state_of

GUIDE = text_of("maintenance.md")
blocks = partial(guides.blocks, "maintenance.md")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    table = create(
        tmp_path / "t", schema="day DATE, k BIGINT, o BIGINT, v STRING", key=["day", "k"], partition_by=["day"]
    )
    day = dt.date(2026, 7, 2)
    for number in range(3):
        rows = [(day, k, number, "x") for k in range(10)]
        table.upsert(frame(rows, ["day", "k", "o", "v"], day=pa.date32()))
    return tmp_path / "t"


def test_the_python_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = state_of(path)
    run("maintenance.md", (code for code in blocks("python") if "airflow" not in code), path=path)
    assert state_of(path) == expected
    configuration = LakeTable.open(path).opened.view.snapshot.metadata.configuration
    assert configuration["lakemerge.minorCompaction.afterCommits"] == "5"
    assert "MaintenanceResult(version=" in capsys.readouterr().out


def test_the_airflow_example_is_python_and_calls_what_there_is() -> None:
    (code,) = (code for code in blocks("python") if "airflow" in code)
    calls = {
        node.func.attr
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert calls & {"open", "maintain"} == {"open", "maintain"}
    assert all(hasattr(LakeTable, name) for name in calls & {"open", "maintain"})


def test_the_commands_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("lakemerge ")]
    commands = [shlex.split(line)[1:] for line in lines]
    known = {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    # Those of docs/guides/provenance.md, monitoring.md, backup.md, bring-a-delta-table.md and command-line.md look at
    # tables, that of stores.md at a store, and keep no table healthy.
    by_hand = {"demo", "init", "upsert", "get", "query", "diff", "jar", "metrics"}
    assert {command[0] for command in commands} == known - by_hand - {
        "explain", "lineage", "what_if", "verify", "replay", "report", "failed_keys", "associate", "record_send",
        "probe", "copy", "convert", "unconvert", "forget",
    }  # fmt: skip
    for command in commands:
        if "--every" not in command:  # which ends by a signal alone
            assert main([str(path) if word == "TABLE" else word for word in command]) == 0
    assert capsys.readouterr().out


def test_every_property_is_listed_with_its_default() -> None:
    rows = re.findall(r"^\| `(lakemerge\.[A-Za-z.]+)` \| `([^`]+)` \|", GUIDE, flags=re.MULTILINE)
    assert dict(rows) == dict(SCHEDULE_DEFAULTS)


def test_every_exit_code_is_told() -> None:
    sentence = GUIDE[GUIDE.index("an exit code:") :]
    assert {int(code) for code in re.findall(r"\b(\d) ", sentence)} == {code for _, code in EXIT_CODES}
