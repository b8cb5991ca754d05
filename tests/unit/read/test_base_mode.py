"""``mode="base"``: the read-optimised view, as other Delta readers see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable
from tests.unit.faults import Row, create, frame, rows_of

LOADED = [(k, 5, f"v{k}") for k in range(8)]


def seen_by_delta(path: Path, version: int | None = None) -> list[Row]:
    return rows_of(pa.table(deltalake.DeltaTable(path, version=version).to_pyarrow_table()))


def base_rows(path: Path, **options: Any) -> list[Row]:
    table = LakeTable.open(path, **options)
    rows = rows_of(table.to_arrow(mode="base"))
    assert rows_of(table.scan(mode="base").read_all()) == rows
    return rows


def test_base_files_alone_are_read(tmp_path: Path) -> None:
    """With minor entries and logs pending."""
    table = create(tmp_path, buckets=4)
    table.upsert(frame(LOADED))
    assert table.to_arrow(mode="base").equals(table.to_arrow(mode="merged")) is True
    table.upsert(frame([(1, 6, "minor"), (20, 6, "new")]))
    table.delete(frame([(2, 6)], ["k", "o"]))
    table.compact(minor=True)
    table.upsert(frame([(3, 6, "log"), (21, 6, "new")]))
    table.delete(frame([(4, 6)], ["k", "o"]))
    assert base_rows(tmp_path) == LOADED == seen_by_delta(tmp_path)
    assert len(rows_of(table.to_arrow())) == 8
    asked = table.to_arrow(columns=["v"], filter="k IN (1, 3, 20)", mode="base")
    assert sorted(asked.column("v").to_pylist()) == ["v1", "v3"]
    assert table.to_arrow(filter="v = 'log'", mode="base").num_rows == 0
    assert table.to_arrow(filter="v = 'v3'", mode="base").num_rows == 1

    pending = table.version
    table.compact()
    assert base_rows(tmp_path, version=pending) == LOADED
    assert base_rows(tmp_path) == rows_of(table.to_arrow()) == seen_by_delta(tmp_path)
    assert base_rows(tmp_path, version=0) == []


def test_slices_may_stand_at_different_versions(tmp_path: Path) -> None:
    table = create(tmp_path, partition_by=["k"])
    table.upsert(frame(LOADED[:3]))
    table.upsert(frame([(0, 6, "x"), (1, 6, "y"), (9, 6, "z")]))
    table.compact(where="k = 1")
    assert base_rows(tmp_path) == [(0, 5, "v0"), (1, 6, "y"), (2, 5, "v2")] == seen_by_delta(tmp_path)


def test_only_base_files_are_opened(tmp_path: Path) -> None:
    """Logs and winners may even be gone."""
    table = create(tmp_path, buckets=1)
    table.upsert(frame(LOADED))
    table.upsert(frame([(1, 6, "minor")]))
    table.compact(minor=True)
    table.upsert(frame([(3, 6, "log")]))
    for file in (tmp_path / "_lakemerge").rglob("*.parquet"):
        file.unlink()
    assert base_rows(tmp_path) == LOADED


@pytest.mark.parametrize("mode", ["optimised", "", None])
def test_an_unknown_mode_is_refused(mode: Any, tmp_path: Path) -> None:
    table = create(tmp_path)
    for read in (table.to_arrow, table.scan):
        with pytest.raises(InputError, match="mode must be one of 'merged', 'base', not"):
            read(mode=mode)
