"""A user's own ``mergers`` or ``compaction`` must not surface as a riddle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["mergers", "compaction"])
@pytest.mark.parametrize("as_folder", [True, False])
def test_a_module_that_hides_ours_is_named(tmp_path: Path, name: str, *, as_folder: bool) -> None:
    if as_folder:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    else:
        (tmp_path / f"{name}.py").write_text("")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-c", "import lakemerge"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: lakemerge needs its own package")
    assert str(tmp_path / name) in last
