"""What a process keeps of the reads of a version: no file slice is merged or looked into twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable
from lakemerge.read.filter.filter import parse_filter
from lakemerge.read.filter.prune import prune_file_slices
from lakemerge.read.merge import MergeSpec
from lakemerge.read.premerge import premerge
from lakemerge.read.stored_rows import StoredRows, merged_files
from lakemerge.spark import native
from lakemerge.spark.native import kept_rows

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int32())])


def found(path: Path, filter: str | None = None) -> StoredRows:
    """As a table object that is made anew finds it."""
    opened = LakeTable.open(path).opened
    view, handle = opened.view, opened.handle
    spec = MergeSpec.of(handle, view)
    return kept_rows(handle, view, spec, prune_file_slices(view, parse_filter(filter, SCHEMA)), None)


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The buckets of the file slices that are premerged, or whose superseded rows are read."""
    buckets: list[int] = []

    def counted(work: Any, place: int) -> Any:
        def run(*arguments: Any, **named: Any) -> Any:
            buckets.append(arguments[place].bucket_id.bucket)
            return work(*arguments, **named)

        return run

    monkeypatch.setattr(native, "premerge", counted(premerge, 0))
    monkeypatch.setattr(native, "merged_files", counted(merged_files, 1))
    return buckets


@pytest.mark.parametrize("minor", [False, True], ids=["pending", "minor-compacted"])
def test_each_file_slice_of_a_version_once(tmp_path: Path, merged: list[int], minor: bool) -> None:
    table = LakeTable.create(
        tmp_path / "t",
        SCHEMA,
        key=["id"],
        ordering=["at"],
        buckets=4,
        properties={"lakemerge.maintenance": "off"},
    )
    write = [pa.table([list(range(0, 200, step)), [step] * (200 // step)], schema=SCHEMA) for step in (1, 2, 4)]
    table.upsert(write[0])
    table.compact()
    table.upsert(write[1])
    if minor:
        table.compact(minor=True)
    one = found(tmp_path / "t", "at = 2")
    assert sorted(merged) == [0, 1, 2, 3]
    assert sum(file.wanted for file in one.files) == 200
    everything = found(tmp_path / "t")
    assert len(merged) == 4, "a read with another filter, by another object"
    assert sum(file.wanted for file in everything.files) == 200
    table.upsert(write[2])
    assert sum(file.wanted for file in found(tmp_path / "t").files) == 200
    assert len(merged) == 8, "each once more for the new version"
