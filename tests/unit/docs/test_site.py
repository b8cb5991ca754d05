"""The documentation site: its navigation, the pages generated from code, and the snippets of its own pages.

`make docs` builds it, and fails for dead links and empty pages. These tests need no mkdocs.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from typer.testing import CliRunner

import lakemerge
from compaction import retention
from lakemerge import LakeTable, Settings, errors, options
from lakemerge.cli.app import app
from lakemerge.datasource import source
from lakemerge.format.config import TableConfig
from lakemerge.format.schedule import SCHEDULE_DEFAULTS
from lakemerge.storage import s3_options
from lakemerge.table.create import property_problems
from mergers import default_registry
from scripts.docs import api_pages, cli_page, generate, options_page
from scripts.docs.errors import REMEDIES
from tests.guides import blocks, count_of_blocks, run, text_of

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = dict(generate.pages())


def nav() -> list[str]:
    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        else:
            for child in node if isinstance(node, list) else node.values():
                yield from walk(child)

    return list(walk(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))


def first_column(page: str, heading: str) -> list[str]:
    """The code in the first cells of the tables below a heading, down to the next heading of its level."""
    level = heading.partition(" ")[0]
    start = page.index(f"{heading}\n")
    rest = page[start + len(heading) :]
    end = re.search(rf"^#{{1,{len(level)}}} ", rest, flags=re.MULTILINE)
    return re.findall(r"^\| `([^`]+)`", rest[: end.start() if end else None], flags=re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    generated = {f"reference/{name}" for name in PAGES if f"reference/{name}" not in written}
    assert sorted(nav()) == sorted(written | generated)


def test_each_page_begins_with_a_sentence_that_says_what_it_is_for() -> None:
    """No page begins with a heading, a table, a list or code."""
    begins = ("This page ", "This guide ", "This document ", "This is ", "These presets ", "With `", "LakeMerge makes ")
    for page in [*DOCS.rglob("*.md")]:
        lines = page.read_text().splitlines()
        title = next(place for place, line in enumerate(lines) if line.startswith("# "))
        first = next(line for line in lines[title + 1 :] if line.strip())
        assert first.startswith(begins), (page.name, first)


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 79
    assert len(text.split()) <= 670
    links = re.findall(r"\]\(([^)#]+)", text)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert len(re.findall(r"^!\[", text, flags=re.MULTILINE)) == 1, "one plot"


@pytest.mark.parametrize(("page", "count"), [("../../README.md", 1), ("../index.md", 3)])
def test_the_first_example_prints_what_stands_below_it(
    page: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block of code is followed by its output."""
    monkeypatch.chdir(tmp_path)
    shown = blocks(page, "text")
    code = [block for block in blocks(page) if "spark" not in block]
    assert len(code) == len(shown) == count
    names: dict[str, object] = {"folder": str(tmp_path)}
    for block, output in zip(code, shown, strict=True):
        names = run(page, [block], **names)
        assert capsys.readouterr().out == output


def test_the_readmes_commands_are_commands() -> None:
    (block,) = blocks("../../README.md", "sh")
    known = {name for name, _ in cli_page.commands()}
    named = [line.partition("#")[0].strip() for line in block.splitlines() if line.startswith("lakemerge ")]
    assert named
    assert set(named) <= known


def test_warnings_fail_the_build() -> None:
    """With `--quiet` mkdocs drops warnings before `--strict` counts them, and a dead link passes."""
    (command,) = re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text())
    assert command == "mkdocs build --strict"


def test_the_generated_pages_of_the_repository_say_what_the_code_says() -> None:
    """`make docs` writes them anew."""
    kept = {path.name: path.read_text() for path in (ROOT / generate.KEPT).glob("*")}
    assert kept == dict(generate.kept_pages())


def test_generated_pages_hold_no_markup_of_docstrings() -> None:
    for name, text in PAGES.items():
        assert not re.search(r":(class|meth|func|mod):`|``[^`]", text.replace("```", "")), name
        assert text.startswith("# "), name


def test_every_schedule_property_is_told_with_its_default() -> None:
    page = PAGES["options.md"]
    assert set(options_page.SCHEDULE) == set(SCHEDULE_DEFAULTS)
    rows = re.findall(r"^\| `(lakemerge\.[A-Za-z.]+)` \| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert {name: value for name, value in rows if name in SCHEDULE_DEFAULTS} == dict(SCHEDULE_DEFAULTS)


def test_every_property_that_can_be_set_is_told(tmp_path: Path) -> None:
    told = set(first_column(PAGES["options.md"], "## Table properties"))
    # Every text of the product that could be the name of a property, and that the table takes.
    texts = {
        text
        for package in ("lakemerge", "compaction")
        for path in (ROOT / package).rglob("*.py")
        for text in re.findall(r'"((?:lakemerge|delta)\.[A-Za-z.]+)"', path.read_text())
    }
    settable = {
        name for name in texts if not any("not one that users set" in one for one in property_problems({name: ""}))
    }
    assert len(settable) > 15
    assert settable <= told
    table = LakeTable.create(tmp_path / "t", "id BIGINT", key=["id"], buckets=1)
    own = {
        *table.opened.view.snapshot.metadata.configuration,
        *TableConfig.of(table.opened.view.snapshot.metadata, url="").configuration(),
    }
    assert own <= told


def test_retention_is_told_with_its_defaults() -> None:
    page = PAGES["options.md"]
    for name, milliseconds in retention._DEFAULTS_MS.items():
        assert f"| `{name}` | `interval {milliseconds // 86_400_000} days` |" in page


def test_every_setting_is_told() -> None:
    page = PAGES["options.md"]
    for name in options.__all__:
        kind: Any = getattr(options, name)
        if dataclasses.is_dataclass(kind):
            assert first_column(page, f"## {name}") == [field.name for field in dataclasses.fields(kind)]
    assert f"`{Settings().row_group_rows}`" in page


def test_every_option_of_the_source_is_told() -> None:
    told = [*options_page.READS, *options_page.WRITES, *options_page.FEED]
    internal = {name.lower() for name in source._INTERNAL}
    assert sorted(name.lower() for name in told) == sorted(source._OWN_OPTIONS - internal)
    assert first_column(PAGES["options.md"], "## Options of Spark's source") == told


def test_every_storage_option_is_told() -> None:
    assert set(options_page.STORAGE) == s3_options._FLAGS | s3_options._MAPPINGS | s3_options._TEXTS
    told = first_column(PAGES["options.md"], "## Storage options")
    assert set(told) == {*options_page.STORAGE, *s3_options._AWS_NAMES}


def test_every_merger_and_its_options_are_told() -> None:
    page, choice = PAGES["options.md"], text_of("../which-merger.md")
    for merger in default_registry():
        assert f"`{merger.name}`" in choice
        for option in merger.known_options():
            assert f"| `{merger.name}` | `{option}` |" in page


def test_every_error_has_a_cause_and_a_remedy() -> None:
    page = PAGES["errors.md"]
    assert set(REMEDIES) == set(errors.__all__)
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert page.count(f"| `{name}` | `{kind.code}` |") == 1, name


def test_every_command_and_option_is_told() -> None:
    page, runner = PAGES["command-line.md"], CliRunner()
    for name, command in cli_page.commands():
        assert f"# `{name}`" in page
        helped = runner.invoke(app, [*name.split()[1:], "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        assert helped.exit_code == 0
        part = page[page.index(f"# `{name}`\n") :]
        for option in set(re.findall(r"--[a-z][a-z-]+", helped.output)) - {"--help"}:
            assert option in part.split("\n## `lakemerge")[0], (name, option)
        kinds = {} if hasattr(command, "commands") else get_type_hints(command.callback)
        assert all(
            f"`{one}`" in part for one in (p.opts[0] for p in command.params if p.name in kinds) if one[0] == "-"
        )


def test_every_public_name_is_told() -> None:
    text = "\n".join(PAGES.values())
    told = re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
    names = {f"lakemerge.{name}" for name in lakemerge.__all__ if name not in errors.__all__}
    names |= {f"{module}.{name}" for module in api_pages.MODULES for name in __import__(module, fromlist=["x"]).__all__}
    assert sorted(told) == sorted(names)


@pytest.mark.parametrize(
    "guide",
    [
        "../getting-started/without-spark.md",
        "../which-merger.md",
        "backfill.md",
        "backup.md",
        "bring-a-delta-table.md",
        "costs.md",
        "deletes.md",
        "erase.md",
        "failed-keys.md",
        "late-events.md",
        "migration.md",
        "monitoring.md",
        "other-engines.md",
        "partial-updates.md",
        "rename-and-drop.md",
    ],
)
def test_a_guide_runs_as_it_stands(guide: str, tmp_path: Path) -> None:
    code = blocks(guide)
    shell = len(re.findall(r"^```sh$", text_of(guide), flags=re.MULTILINE))
    assert len(code) + shell == count_of_blocks(guide)
    run(guide, code, folder=str(tmp_path))


class Tasks:
    """Stands in for the decorators of schedulers: a task runs when it is called."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def task(self, **_: object) -> Callable[[Callable[[], None]], Callable[[], Tasks]]:
        def decorated(function: Callable[[], None]) -> Callable[[], Tasks]:
            def call() -> Tasks:
                function()
                self.ran.append(function.__name__)
                return self

            return call

        return decorated

    def __rshift__(self, other: Tasks) -> Tasks:
        return other


@pytest.mark.parametrize(
    ("scheduler", "names"), [("airflow", ["landed", "kept"]), ("dagster", ["orders_table", "orders_upkeep"])]
)
def test_the_tasks_of_schedulers_run(
    scheduler: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LakeTable.create(tmp_path / "orders", "id BIGINT, at BIGINT", key=["id"], ordering=["at"])
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "1.json").write_text('{"id": 1, "at": 2}\n')
    tasks, code = Tasks(), blocks("scheduling.md")
    assert len(code) == count_of_blocks("scheduling.md") == 3
    module: Any = types.ModuleType(scheduler)
    module.task, module.dag = tasks.task, lambda **_: lambda function: function
    module.asset = tasks.task
    module.RetryPolicy = module.ScheduleDefinition = module.Definitions = lambda **given: given
    module.AssetSelection = types.SimpleNamespace(assets=lambda *assets: assets)
    module.sdk = module
    monkeypatch.setitem(sys.modules, scheduler, module)
    monkeypatch.setitem(sys.modules, f"{scheduler}.sdk", module)
    places = {"s3://bucket/landing/orders": str(tmp_path / "landing"), "s3://bucket/orders": str(tmp_path / "orders")}
    (shown,) = (block for block in code if scheduler in block)
    for place, local in places.items():
        shown = shown.replace(place, local)
    known = run("scheduling.md", [code[0], shown])
    if scheduler == "dagster":  # which runs assets later; a DAG of Airflow's calls its tasks
        for name in names:
            asset: Any = known[name]
            asset()
    assert tasks.ran == names
    assert table.to_arrow().to_pylist() == [{"id": 1, "at": 2}]
    load: Any = known["load"]
    for _ in range(2):
        load(str(tmp_path / "orders"), 1, [{"id": 2, "at": 1}])
    assert [entry.operation for entry in table.history()].count("UPSERT") == 1, table.history()


def test_commands_of_the_start_are_commands() -> None:
    known = {name for name, _ in cli_page.commands()}
    lines = [line for block in blocks("../getting-started/without-spark.md", "sh") for line in block.splitlines()]
    assert {" ".join(line.split()[:2]) for line in lines if line.startswith("lakemerge ")} <= known
