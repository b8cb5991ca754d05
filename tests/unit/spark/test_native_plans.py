"""What a process keeps of the reads of a version: no file slice is merged or looked into twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


def rows_of(path: Path, rows: StoredRows) -> list[tuple[int, int]]:
    """What pyarrow reads of the files."""
    found: list[tuple[int, int]] = []
    for file in rows.files:
        table = pq.read_table(path / file.path, columns=["id", "at"], partitioning=None)
        bits = np.zeros(table.num_rows, dtype=np.bool_)
        if file.words is not None:
            told = np.unpackbits(file.words.view(np.uint8), bitorder="little")
            start = file.skipped * 64
            part = told[: table.num_rows - start]
            bits[start : start + len(part)] = part
        kept = table.filter(pa.array(bits if file.keeps else ~bits))
        assert kept.num_rows == file.wanted
        found += zip(kept["id"].to_pylist(), kept["at"].to_pylist(), strict=True)
    return sorted(found)


def test_look_ups_of_a_table_with_pending_commits(
    tmp_path: Path, merged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is merged once, and only logs with its rows are read: also after a read of all rows."""
    monkeypatch.setattr(native, "merged_files", merged_files)  # only merges count
    table = LakeTable.create(
        tmp_path / "t", SCHEMA, key=["id"], ordering=["at"], buckets=2, properties={"lakemerge.maintenance": "off"}
    )
    expected = {}
    for at, keys in ((1, range(1000)), (2, range(0, 300, 2)), (3, range(200, 500, 3)), (4, range(700, 1000, 5))):
        table.upsert(pa.table([list(keys), [at] * len(keys)], schema=SCHEMA))
        expected.update(dict.fromkeys(keys, at))
        if at == 1:
            table.compact()
    assert rows_of(tmp_path / "t", found(tmp_path / "t")) == sorted(expected.items())
    for turn in range(2):
        merged.clear()
        for condition, sought in (("id = 250", [250]), ("id IN (10, 203, 900)", [10, 203, 900]), ("id = 701", [701])):
            looked = found(tmp_path / "t", condition)
            rows = rows_of(tmp_path / "t", looked)
            assert [row for row in rows if row[0] in sought] == [(key, expected[key]) for key in sought]
            if len(sought) == 1:
                assert len(looked.files) <= 2, "the base file, and the log with the row"
        assert (len(merged) > 0) == (turn == 0)
