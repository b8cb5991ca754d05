"""The guide for trouble tells every exit code, and only metrics that there are. Its table of findings is held by
``tests/unit/check/test_repair.py``."""

from __future__ import annotations

import re
from pathlib import Path

from lakemerge import LakeTable
from lakemerge.cli import EXIT_CODES
from tests.guides import text_of
from tests.unit.faults import create, frame

GUIDE = text_of("when-something-is-wrong.md")


def test_each_exit_code_is_told() -> None:
    assert {int(code) for code in re.findall(r"^\| (\d) \|", GUIDE, flags=re.MULTILINE)} == {
        code for _, code in EXIT_CODES
    }


def test_the_metrics_of_alarms_are_there(tmp_path: Path) -> None:
    table: LakeTable = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    for number in range(3):
        table.upsert(frame([(1, number, "a")]))
    table.consumers.register("reader")
    table.maintain()
    table.upsert(frame([(2, 1, "a")]))
    there = set(re.findall(r"^(lakemerge_\w+)\{", str(table.gauges()), flags=re.MULTILINE))
    named = set(re.findall(r"\blakemerge_\w+", GUIDE))
    assert len(named) >= 6
    assert named <= there
