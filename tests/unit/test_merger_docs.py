"""Every merger has a page, and every example in it runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mergers import default_registry

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "mergers").glob("*.md"))


def test_every_builtin_has_a_page() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    builtin = [m.name for m in default_registry() if m.__module__.startswith("mergers.builtin.")]
    assert [name for name in builtin if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_example_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        assert "assert " in block
        exec(compile(block, str(page), "exec"), {})  # noqa: S102 - our own pages
