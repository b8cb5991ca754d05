"""Premerges: which log files a scan can tell apart, the read policy, and a merger that breaks its word. Rows are
compared in tests/property/test_premerge.py and tests/spark/read/test_premerge.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable, ReadPolicy, Settings
from lakemerge.errors import InputError, MergerContractError
from lakemerge.layout.view import FileSlice
from lakemerge.read.merge import MergeSpec
from lakemerge.read.premerge import can_scan_logs, may_premerge, premerge, premerge_pays, premerged_bytes
from mergers.builtin.commit_time import CommitTime
from mergers.contract import Groups, Merged
from tests.unit.faults import create, frame

POLICY = ReadPolicy()


@pytest.fixture
def file_slice(tmp_path: Path) -> FileSlice:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "base")]))
    for number in range(3):
        table.upsert(frame([(1, number, "log")]))
    (file_slice,) = table.opened.view.file_slices
    return file_slice


def renamed(file_slice: FileSlice, *paths: str) -> FileSlice:
    blocks = [
        replace(block, file=replace(block.file, path=path))
        for block, path in zip(file_slice.blocks, paths, strict=True)
    ]
    return replace(file_slice, blocks=tuple(blocks))


def test_log_files_have_names_of_their_own(file_slice: FileSlice) -> None:
    assert can_scan_logs([file_slice, file_slice], POLICY)
    assert can_scan_logs([renamed(file_slice, "a/1.parquet", "a/2.parquet", "b/3.parquet")], POLICY)
    assert can_scan_logs([renamed(file_slice, "a/1.parquet", "a/1.parquet", "b/3.parquet")], POLICY), "one file, twice"
    assert not can_scan_logs([renamed(file_slice, "a/1.parquet", "a/2.parquet", "b/1.parquet")], POLICY)
    assert not can_scan_logs([renamed(file_slice, "a/1 .parquet", "a/2.parquet", "b/3.parquet")], POLICY), (
        "Spark may write it another way"
    )
    assert not can_scan_logs([renamed(file_slice, "a/%31.parquet", "a/2.parquet", "b/3.parquet")], POLICY)


def test_there_are_not_too_many(file_slice: FileSlice) -> None:
    assert can_scan_logs([file_slice], ReadPolicy(premerge_log_files=3))
    assert not can_scan_logs([file_slice], ReadPolicy(premerge_log_files=2))


def test_what_may_come_as_rows_is_bounded_as_rows(tmp_path: Path) -> None:
    """A block of key and ordering may hold upserts, which are found out when it is merged."""
    policy = ReadPolicy(premerge_from_bytes=0)
    table = create(tmp_path / "t")
    handle = table.opened.handle

    def ways(policy: ReadPolicy) -> tuple[bool, bool]:
        file_slices = table.opened.view.file_slices
        settings = Settings(merge_first_bytes=600, reads=policy)
        spec = MergeSpec(handle.store, table.opened.view.config, handle.merger(table.opened.view), settings)
        due = may_premerge(file_slices, spec)
        return bool(due), premerge_pays(due, spec, asked=1)

    table.upsert(frame([(k, 1, "base") for k in range(100)]))
    table.upsert(frame([(k, 2, "a longer value") for k in range(40)]))
    assert table.opened.view.file_slices[0].log_bytes > 600
    assert ways(policy) == (True, True), "places of 160 bytes"
    assert ways(replace(policy, premerge=False))[0] is False
    as_rows = replace(policy, premerge_log_files=0)
    assert ways(as_rows) == (False, True), "as rows they are more than a quarter"
    assert ways(replace(as_rows, premerge_stored_per_record=1)) == (True, False), "and more than the driver may hold"
    table.upsert(frame([(3, 3)], ["k", "o"]))
    assert ways(policy) == (False, True)
    assert ways(replace(policy, premerge_stored_per_record=1)) == (True, False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"premerge": 1}, "ReadPolicy.premerge must be True or False, not 1"),
        ({"premerge_rows": -1}, "ReadPolicy.premerge_rows must be a number that is not negative, not -1"),
        ({"driver_files": True}, "ReadPolicy.driver_files must be a number that is not negative, not True"),
    ],
)
def test_a_policy_that_is_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReadPolicy(**given)
    with pytest.raises(InputError, match=r"Settings\.reads must be a ReadPolicy"):
        Settings(reads=given)  # type: ignore[arg-type]


class Later(CommitTime):
    """Says that it gives back one of its inputs, and makes a column."""

    id = "8a6e2a4b-6f0f-4d55-9a0e-0f1f9a3a7f11"
    name = "later"

    def merge_groups(self, groups: Groups) -> Merged:
        merged = super().merge_groups(groups)
        return replace(merged, columns={"o": pa.array([9] * len(merged.status), pa.int64())})


@pytest.mark.parametrize("pick", [False, True])
def test_a_merger_that_is_not_what_it_says_is_named(tmp_path: Path, pick: bool) -> None:
    table = create(tmp_path / "t", merger="later", mergers=[Later])
    table.upsert(frame([(1, 1, "base"), (2, 1, "base")]))
    table.upsert(frame([(1, 2, "log")]))
    (file_slice,) = table.opened.view.file_slices
    handle = table.opened.handle
    spec = MergeSpec(handle.store, table.opened.view.config, handle.merger(table.opened.view), handle.settings)
    with pytest.raises(MergerContractError, match="'later' declares that it is selective, but made"):
        premerge(file_slice, spec, ["k", "o", "v"], pick=pick)


@pytest.mark.parametrize(("others", "share"), [(1, 2 / 3), (18, 1 / 4)])
def test_bytes_of_a_premerge_of_places(tmp_path: Path, others: int, share: float) -> None:
    """Key and ordering decide. They count by their number and a quarter at least, and tombstones count whole."""
    columns = [f"c{number}" for number in range(others)]
    schema = ", ".join(f"{name} BIGINT" for name in ("k", "o", *columns))
    table = LakeTable.create(tmp_path, schema, key=["k"], ordering=["o"], buckets=1)
    rows = pa.table({"k": range(100), "o": [1] * 100, **{name: range(100) for name in columns}})
    table.upsert(rows)
    table.delete(pa.table({"k": [1], "o": [2]}))
    table.compact()
    table.upsert(rows)
    (found,) = table.opened.view.file_slices
    spec = MergeSpec.of(table.opened.handle, table.opened.view)
    assert found.tombstone_bytes > 0
    expected = found.tombstone_bytes + (found.file_bytes + found.log_bytes) * share
    assert premerged_bytes(found, spec, only_places=True) == int(expected)
    assert premerged_bytes(found, spec, only_places=False) == found.stored_bytes
