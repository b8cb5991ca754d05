"""The guides in ``docs/guides``, whose code tests run as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["blocks", "count_of_blocks", "run", "text_of"]

GUIDES = Path(__file__).resolve().parents[1] / "docs" / "guides"


def text_of(guide: str) -> str:
    """:param guide: its file's name."""
    return (GUIDES / guide).read_text()


def blocks(guide: str, language: str = "python") -> list[str]:
    """The blocks of code in a language. There must be at least one."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", text_of(guide), flags=re.MULTILINE | re.DOTALL)
    assert found
    return found


def count_of_blocks(guide: str) -> int:
    """In any language, or in none."""
    fences = re.findall(r"^```", text_of(guide), flags=re.MULTILINE)
    assert len(fences) % 2 == 0
    return len(fences) // 2


def run(guide: str, code: Iterable[str], **names: object) -> dict[str, object]:
    """Run blocks of a guide one after the other; the names that are known afterwards.

    :param names: what the guide takes for granted, such as a ``path``.
    """
    for block in code:
        exec(compile(block, guide, "exec"), names)  # noqa: S102 - the guide's own code
    return names
