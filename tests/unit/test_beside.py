"""Logs that are merged first: which of their files a scan can tell apart, and a merger that breaks its word. What
comes out right is compared in tests/property/test_beside.py and tests/spark/test_beside_spark.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import Settings
from lakemerge.errors import MergerContractError
from lakemerge.layout.view import FileSlice
from lakemerge.read import premerge as beside
from lakemerge.read.merge import MergeSpec
from lakemerge.read.premerge import are_few, due_first, merge_beside, pays_first
from mergers.builtin.commit_time import CommitTime
from mergers.contract import Groups, Merged
from tests.unit.faults import create, frame


@pytest.fixture
def file_slice(tmp_path: Path) -> FileSlice:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "base")]))
    for number in range(3):
        table.upsert(frame([(1, number, "log")]))
    (file_slice,) = table.view.file_slices
    return file_slice


def renamed(file_slice: FileSlice, *paths: str) -> FileSlice:
    blocks = [
        replace(block, file=replace(block.file, path=path))
        for block, path in zip(file_slice.blocks, paths, strict=True)
    ]
    return replace(file_slice, blocks=tuple(blocks))


def test_log_files_have_names_of_their_own(file_slice: FileSlice) -> None:
    assert are_few([file_slice, file_slice])
    assert are_few([renamed(file_slice, "a/1.parquet", "a/2.parquet", "b/3.parquet")])
    assert are_few([renamed(file_slice, "a/1.parquet", "a/1.parquet", "b/3.parquet")]), "one file, twice"
    assert not are_few([renamed(file_slice, "a/1.parquet", "a/2.parquet", "b/1.parquet")])
    assert not are_few([renamed(file_slice, "a/1 .parquet", "a/2.parquet", "b/3.parquet")]), (
        "Spark may write it another way"
    )
    assert not are_few([renamed(file_slice, "a/%31.parquet", "a/2.parquet", "b/3.parquet")])


def test_there_are_not_too_many(file_slice: FileSlice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_MOST_LOGS", 3)
    assert are_few([file_slice])
    monkeypatch.setattr(beside, "_MOST_LOGS", 2)
    assert not are_few([file_slice])


def test_what_may_come_as_rows_is_bounded_as_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of key and ordering may hold upserts, which are found out when it is merged."""
    monkeypatch.setattr(beside, "_LEAST_BYTES", 0)
    table = create(tmp_path / "t", settings=Settings(merge_first_bytes=600))
    handle = table.handle

    def ways() -> tuple[bool, bool]:
        file_slices = table.view.file_slices
        spec = MergeSpec(handle.store, table.view.config, handle.merger(table.view), handle.settings)
        due = due_first(file_slices, spec)
        return bool(due), pays_first(due, spec, asked=1)

    table.upsert(frame([(k, 1, "base") for k in range(100)]))
    table.upsert(frame([(k, 2, "a longer value") for k in range(40)]))
    assert table.view.file_slices[0].log_bytes > 600
    assert ways() == (True, True), "places of 160 bytes"
    with monkeypatch.context() as patch:
        patch.setattr(beside, "_MOST_LOGS", 0)
        assert ways() == (False, True), "as rows they are more than a quarter"
        patch.setattr(beside, "_STORED_PER_RECORD", 1)
        assert ways() == (True, False), "and more than the driver may hold"
    table.upsert(frame([(3, 3)], ["k", "o"]))
    assert ways() == (False, True)
    monkeypatch.setattr(beside, "_STORED_PER_RECORD", 1)
    assert ways() == (True, False)


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
    (file_slice,) = table.view.file_slices
    handle = table.handle
    spec = MergeSpec(handle.store, table.view.config, handle.merger(table.view), handle.settings)
    with pytest.raises(MergerContractError, match="'later' declares that it is selective, but made"):
        merge_beside(file_slice, spec, ["k", "o", "v"], pick=pick)
