"""The guides on streams run as they stand, but for what needs Spark (``spark/docs/test_streaming.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guides import blocks, count_of_blocks, run


@pytest.mark.parametrize(("name", "count"), [("cdc-from-postgres.md", 2), ("following.md", 3), ("history.md", 6)])
def test_a_guide_runs(tmp_path: Path, name: str, count: int) -> None:
    code = blocks(name)
    assert len(code) == count_of_blocks(name)
    plain = [block for block in code if "spark" not in block]
    assert len(plain) == count
    run(name, plain, folder=str(tmp_path))
