"""The guides on streams run as they stand, but for what needs Spark (``spark/test_docs_streaming_spark.py``)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


def blocks(name: str) -> list[str]:
    text = (GUIDES / name).read_text()
    found = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == text.count("\n```\n") > 1
    return found


@pytest.mark.parametrize(("name", "count"), [("cdc-from-postgres.md", 2), ("following.md", 3), ("history.md", 5)])
def test_a_guide_runs(tmp_path: Path, name: str, count: int) -> None:
    names: dict[str, object] = {"folder": str(tmp_path)}
    plain = [code for code in blocks(name) if "spark" not in code]
    assert len(plain) == count
    for code in plain:
        exec(compile(code, name, "exec"), names)  # noqa: S102 - the guide's own code
