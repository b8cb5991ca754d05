"""Every built-in merger has a page with its id, options, what it replaces, and an example that runs."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import MergerConfigurationError
from mergers import Merger, TableShape, default_registry

PAGES = sorted((Path(__file__).resolve().parents[3] / "docs" / "mergers").glob("*.md"))
BUILTINS = [merger for merger in default_registry() if merger.__module__.startswith("mergers.builtin.")]
DEFAULTS = {"event-time": 'ordering=["ts"]', "commit-time": 'key=["id"]'}
"""What an example creates a table with where the merger is the default."""


def section_of(merger: type[Merger]) -> str:
    """The part of the pages under a heading that is the merger's name."""
    (found,) = (
        part
        for page in PAGES
        for part in re.split(r"^(?=#+ )", page.read_text(), flags=re.MULTILINE)
        if re.match(rf"#+ `{re.escape(merger.name)}`$", part, flags=re.MULTILINE)
    )
    return found


def page_of(merger: type[Merger]) -> str:
    (text,) = (page.read_text() for page in PAGES if section_of(merger) in page.read_text())
    return text


@pytest.mark.parametrize("merger", BUILTINS, ids=lambda merger: merger.name)
def test_every_builtin_has_a_page(merger: type[Merger]) -> None:
    section, page = section_of(merger), page_of(merger)
    assert f"`{merger.id}`" in page
    assert re.search(r"\*\*Replaces\*\*.*(Hudi|Paimon)", section)
    (example, *_) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert (DEFAULTS.get(merger.name) or f'merger="{merger.name}"') in example


@pytest.mark.parametrize("merger", BUILTINS, ids=lambda merger: merger.name)
def test_every_option_is_explained(merger: type[Merger]) -> None:
    """A merger names its options where it refuses another one."""
    shape = TableShape(pa.schema([("id", pa.int64()), ("v", pa.int64())]), ("id",), ())
    with pytest.raises(MergerConfigurationError) as refused:
        merger.from_options({"no_such": 1}, shape)
    found = re.search(rf"unknown option 'no_such'; {merger.name} has: ([\w, ]+)", str(refused.value))
    assert found is not None
    names = found[1].split(", ")
    table = "\n".join(line for line in page_of(merger).splitlines() if line.startswith("| `"))
    assert [name for name in names if f"`{name}`" not in table] == []


def test_the_page_of_all_options_lists_those_that_are_taken() -> None:
    """An option of the page is taken, and one that is taken is on the page: a merger names its own in its refusal."""
    text = (PAGES[0].parents[1] / "reference" / "options.md").read_text()
    listed: dict[str, set[str]] = {}
    for name, option in re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| ", text, re.MULTILINE):
        listed.setdefault(name, set()).add(option)
    shape = TableShape(pa.schema([("id", pa.int64()), ("v", pa.int64())]), ("id",), ())
    for merger in BUILTINS:
        with pytest.raises(MergerConfigurationError) as refused:
            merger.from_options({"no_such": 1}, shape)
        found = re.search(rf"unknown option 'no_such'; {merger.name} has: ([\w, ]+)", str(refused.value))
        assert found is not None
        assert listed[merger.name] == set(found[1].split(", ")) == merger.known_options().keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_example_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        assert "assert " in block
        exec(compile(block, str(page), "exec"), {})  # noqa: S102 - our own pages
