"""docs/architecture.md and CONTRIBUTING.md are true of the code: folders, paths, calls and commands are there."""

from __future__ import annotations

import re
from pathlib import Path

import lakemerge
from lakemerge import LakeTable
from scripts.docs import cli_page

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PRODUCTS = ("build/", ".demo/")
"""What commands make."""
QUESTIONS = [
    "Where is it decided that an older record loses?",
    "Where are files of a failed write deleted?",
    "What happens to a row of a CSV file that does not parse?",
    "Which settings choose the route of a read on Spark?",
    "What is decided about a write before a row is read?",
    "How does a key find its bucket?",
]


def paths(text: str) -> list[str]:
    return re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text)


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_each_folder_of_the_packages_is_named_once() -> None:
    folders = {
        f"{path.parent.relative_to(ROOT)}/"
        for package in ("lakemerge", "mergers", "compaction")
        for path in (ROOT / package).rglob("*.py")
    }
    named = re.findall(r"^\| `([\w/]+/)` \|", section("Folders"), flags=re.MULTILINE)
    assert len(named) == len(set(named))
    assert folders - {"lakemerge/"} <= set(named)


def test_each_path_is_there() -> None:
    found = [*paths(PAGE), *paths(CONTRIBUTING)]
    assert len(found) > 60
    assert [path for path in found if not (path.startswith(PRODUCTS) or (ROOT / path).exists())] == []


def test_commands_for_contributors_are_there() -> None:
    targets = re.findall(r"^([a-z-][a-z0-9 -]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    known = {name for line in targets for name in line.split()}
    code = re.findall(r"`([^`\n]+)`|^(make .*)$", CONTRIBUTING, flags=re.MULTILINE)
    named = [
        word
        for quoted, line in code
        if re.match(r"(\w+=\S+ )*make ", text := re.sub(r"='[^']*'", "=", (quoted or line).partition("#")[0]))
        for word in text.partition("make ")[2].split()
        if re.fullmatch(r"[a-z][a-z0-9-]*", word)
    ]
    assert len(named) > 10
    assert set(named) <= known


def test_all_folders_of_tests_are_named() -> None:
    """But for data that tests read."""
    tests = ROOT / "tests"
    folders = {f"tests/{path.relative_to(tests).parts[0]}/" for path in tests.glob("*/**/test_*.py")}
    assert len(folders) > 5
    assert folders <= set(paths(section("Folders")))


def test_tests_lie_in_folders_that_are_named_as_the_packages() -> None:
    packages = {path.parent.name for path in (ROOT / "lakemerge").glob("*/__init__.py")} | {"compaction", "mergers"}
    for top in ("unit", "spark"):
        (own,) = re.findall(rf"`tests/{top}/` has also ([^;.|]*)", section("Folders"))
        folders = {path.relative_to(ROOT / "tests" / top).parent for path in (ROOT / "tests" / top).rglob("test_*.py")}
        assert {str(folder) for folder in folders} <= packages | set(re.findall(r"`(\w+)`", own))


def test_each_question_has_one_file_as_its_answer() -> None:
    rows = re.findall(r"^\| (.*\?) \| (.*) \|$", section("Where is it decided?"), flags=re.MULTILINE)
    assert [question for question, _ in rows] == QUESTIONS
    for _, answer in rows:
        (path,) = paths(answer)
        assert (ROOT / path).is_file()


def test_calls_and_commands_are_there() -> None:
    code = section("Public API")
    for name in re.findall(r"(?:table|LakeTable)\.(\w+)", code):
        assert hasattr(LakeTable, name), name
    for name in re.findall(r"from lakemerge import (.*)", code)[0].split(", "):
        assert hasattr(lakemerge, name)
    (line,) = re.findall(r"^`lakemerge` on the command line: (.*)$", code, flags=re.MULTILINE)
    commands = {name.split()[1] for name, _ in cli_page.commands() if len(name.split()) > 1}
    assert set(re.findall(r"`([\w-]+)`", line)) == commands
