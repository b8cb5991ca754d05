"""The guide on log compaction and buckets runs as it stands, and changes no answer."""

from __future__ import annotations

from pathlib import Path

from tests.guides import blocks, run
from tests.unit.faults import create, frame, state_of

GUIDE = "logs-and-buckets.md"


def test_the_python_runs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, buckets=2)
    for number in range(6):
        table.upsert(frame([(k, number, f"{number}") for k in range(20)]))
    expected = state_of(path)
    code = blocks(GUIDE)
    assert len(code) == 3
    names: dict[str, object] = {"path": path}
    seen = []
    for block in code:
        names = run(GUIDE, [block], **names)
        seen.append((table.opened.view.config.buckets, len(table.opened.view.log_commits)))
    assert seen == [(2, 1), (8, 0), (2, 0)]
    assert state_of(path) == expected
