"""Under every built-in merger, and with each part of the format: the changes of each commit are the difference of the
two versions, read whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakemerge import LakeTable
from tests.golden.test_golden import GOLDEN, Golden


def rows(table: LakeTable, key: tuple[str, ...]) -> dict[tuple[Any, ...], str]:
    return {tuple(row[k] for k in key): repr(row) for row in table.to_arrow().to_pylist()}


def difference(table: LakeTable, version: int, key: tuple[str, ...]) -> set[tuple[str, str]]:
    before, after = (rows(LakeTable.open(table.url, version=v), key) for v in (version - 1, version))
    found = set()
    for one in before.keys() | after.keys():
        old, new = before.get(one), after.get(one)
        if old is not None and old != new:
            found.add(("-D" if new is None else "-U", old))
        if new is not None and old != new:
            found.add(("+I" if old is None else "+U", new))
    return found


@pytest.mark.parametrize("name", GOLDEN)
def test_changes_are_the_difference(name: str, tmp_path: Path) -> None:
    golden = Golden(name, tmp_path)
    table = LakeTable.open(golden.path)
    seen = 0
    for version in range(table.opened.view.state.oldest_version + 1, table.version + 1):
        later = LakeTable.open(golden.path, version=version)
        if later.schema != LakeTable.open(golden.path, version=version - 1).schema:
            continue  # an old row has other columns then, which the feed shows as null
        told = table.changes(version - 1, version).read_all()
        kinds = told.column("_row_kind").to_pylist()
        shown = told.select(later.schema.names).to_pylist()
        assert set(zip(kinds, map(repr, shown), strict=True)) == difference(later, version, later.key), f"at {version}"
        seen += len(kinds)
    assert seen
