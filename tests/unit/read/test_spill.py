"""Log records that wait in a temporary file, since their files would be too much to hold at once."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.read import merge
from lakemerge.read.spill import Spill, needs_spill
from tests.unit.faults import create
from tests.unit.pools import counted

MIB = 1 << 20
COMMITS, KEYS, LENGTH = 28, 20, 64_000


def _written(path: Path) -> dict[int, str]:
    """Commits that all update the same keys, with values that do not compress."""
    lots, rows = random.Random(7), dict[int, str]()
    table = create(path, properties={"lakemerge.maintenance": "off"}, settings=Settings(threads=1))
    for at in range(COMMITS):
        rows = {key: lots.randbytes(LENGTH // 2).hex() for key in range(KEYS)}
        table.upsert(pa.table({"k": list(rows), "o": [at] * KEYS, "v": list(rows.values())}))
    return rows


def _peak_and_rows(path: Path) -> tuple[int, dict[int, str]]:
    table = LakeTable.open(path, settings=Settings(threads=1, merge_budget_bytes=MIB))
    rows: dict[int, str] = {}
    with counted() as pool:
        for batch in table.scan():
            rows.update(zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True))
            del batch
    return int(pool.max_memory()), rows


def test_files_of_many_commits_are_not_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit has 1.3 MB in one page of one file, and the budget is 1 MiB."""
    expected = _written(tmp_path / "t")
    peak, rows = _peak_and_rows(tmp_path / "t")
    assert rows == expected
    assert peak < 8 * MIB, f"{peak / MIB:.0f} MiB"
    # The same without the temporary file: more is held, and the rows are the same.
    monkeypatch.setattr(merge, "needs_spill", lambda blocks, budget: False)
    more, rows = _peak_and_rows(tmp_path / "t")
    assert rows == expected
    assert more > 16 * MIB, f"{more / MIB:.0f} MiB"


def test_a_few_files_need_no_spill(tmp_path: Path) -> None:
    _written(tmp_path / "t")
    view = LakeTable.open(tmp_path / "t").opened.view
    (blocks,) = [file_slice.blocks for file_slice in view.file_slices if file_slice.blocks]
    size = sum(block.data_bytes for block in blocks)
    assert size > (COMMITS - 1) * KEYS * LENGTH  # the first commit is a base file
    assert needs_spill(blocks, size // 2 - 1)
    assert not needs_spill(blocks, size // 2 + 1)


def test_the_file_goes_with_its_merge() -> None:
    class Files:
        def __init__(self) -> None:
            self.released: list[str] = []

        def release(self, path: str) -> None:
            self.released.append(path)

    tables = [pa.table({"k": [n]}) for n in range(3)]
    files = Files()
    with Spill(is_needed=True) as spill:
        found = spill.through(((table, at == 2) for at, table in enumerate(tables)), files, "f")  # type: ignore[arg-type]
        assert files.released == []  # nothing is read before it is asked for
        assert next(found) == (tables[0], False)
        assert files.released == ["f"]
        assert list(found) == [(tables[1], False), (tables[2], True)]
    assert spill._file is not None
    assert spill._file.closed
