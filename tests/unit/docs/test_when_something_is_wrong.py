"""The guide for trouble tells every remedy that a check gives, every exit code, and only metrics that there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lakemerge import LakeTable
from lakemerge.cli import EXIT_CODES
from tests.guides import text_of
from tests.unit.faults import create, frame

GUIDE = text_of("when-something-is-wrong.md")
CHECK = Path(__file__).resolve().parents[3] / "lakemerge" / "check"


def remedies(path: Path) -> Iterator[str]:
    """Texts that a file gives to findings as their remedies, directly or by the name of a constant."""
    tree = ast.parse(path.read_text())
    constants = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) == 3:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            remedy = node.args[2]
            if name in ("add", "Finding") and isinstance(remedy, ast.Constant):
                yield str(remedy.value)
            elif name in ("add", "Finding") and isinstance(remedy, ast.Name) and remedy.id.isupper():
                yield constants[remedy.id]
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "remedy":
            yield ast.literal_eval(node.value)


def test_each_remedy_of_a_check_is_told() -> None:
    told = [row.split(" | ")[0].removeprefix("| ") for row in GUIDE.splitlines() if row.startswith("| ")]
    given = {remedy for path in CHECK.glob("*.py") for remedy in remedies(path)}
    assert len(given) >= 9
    assert given <= set(told)


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
