"""The guide on log compaction and buckets runs as it stands, and changes no answer."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.faults import create, frame, state_of

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "logs-and-buckets.md").read_text()


def test_the_python_runs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, buckets=2)
    for number in range(6):
        table.upsert(frame([(k, number, f"{number}") for k in range(20)]))
    expected = state_of(path)
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {"path": path}
    seen = []
    for code in blocks:
        exec(compile(code, "logs-and-buckets.md", "exec"), names)  # noqa: S102 - the guide's own
        seen.append((table.view.config.buckets, len(table.view.log_commits)))
    assert seen == [(2, 1), (8, 0), (2, 0)]
    assert state_of(path) == expected
