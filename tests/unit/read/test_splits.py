"""Splits: how file slices become parts, which rows and files each part reads, how parts become tasks."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.format.keys import KeySpan
from lakemerge.layout.view import FileSlice
from lakemerge.layout.xxhash64 import buckets as bucket_numbers
from lakemerge.read.merge import MergeSpec
from lakemerge.read.scan import scan_part
from lakemerge.read.splits import Part, split_file_slices
from lakemerge.spark.transport.jobs import even_tasks
from lakemerge.spark.transport.sending import pickled
from tests.unit.faults import Row, create, frame, open_over
from tests.unit.read.test_lookup import touched

TENS = Settings(row_group_rows=10)


def spec_of(table: LakeTable) -> MergeSpec:
    view = table.opened.view
    return MergeSpec(
        table.opened.handle.store, view.config, table.opened.handle.merger(view), table.opened.handle.settings
    )


def in_parts(file_slice: FileSlice, count: int) -> list[Part]:
    return [Part(file_slice, number, count, 0) for number in range(count)]


def read(table: LakeTable, part: Part, names: Sequence[str] = ("k", "o", "v")) -> list[Row]:
    """The rows of a part, in the order they come in."""
    found = scan_part(spec_of(table), part, names, None)
    return [tuple(row.values()) for rows in found for row in rows.to_pylist()]


def only_tile(table: LakeTable) -> FileSlice:
    (file_slice,) = table.opened.view.file_slices
    return file_slice


def hundred(path: Path) -> LakeTable:
    """One bucket of keys 0 to 99 in ten row groups."""
    table = create(path, settings=TENS)
    table.upsert(frame([(k, 1, f"v{k}") for k in range(100)]))
    return table


def log_only(path: Path) -> tuple[LakeTable, list[int]]:
    """A table whose first write deleted nobody, which leaves a base file in one of two buckets, and 100 keys that a
    log holds in the other."""
    table = create(path, settings=TENS, buckets=2)
    table.delete(frame([(0, 1)], ["k", "o"]))
    numbers = bucket_numbers([pa.array(range(1000))], 2).tolist()
    keys = [k for k in range(1000) if numbers[k] != numbers[0]][:100]
    table.upsert(frame([(k, 1, f"v{k}") for k in keys]))
    return table, keys


@pytest.mark.parametrize("state", ["clean", "dirty", "minor", "logs alone"])
@pytest.mark.parametrize("count", [2, 3, 7, 10, 25])
def test_parts_are_key_ranges_that_begin_at_row_groups(tmp_path: Path, state: str, count: int) -> None:
    table, keys = log_only(tmp_path / "t") if state == "logs alone" else (hundred(tmp_path / "t"), list(range(100)))
    rows = {k: (k, 1, f"v{k}") for k in keys}
    if state in ("dirty", "minor"):
        table.upsert(frame([(k, 2, "new") for k in range(5, 100, 10)]))
        table.delete(frame([(k, 2) for k in range(0, 100, 10)], ["k", "o"]))
        rows |= {k: (k, 2, "new") for k in range(5, 100, 10)}
        rows = {k: row for k, row in rows.items() if k % 10}
    if state == "minor":
        table.compact(minor=True)
    (file_slice,) = [file_slice for file_slice in table.opened.view.file_slices if not file_slice.is_empty]
    assert (file_slice.base is None) == (state == "logs alone")
    parts = [read(table, part) for part in in_parts(file_slice, count)]
    assert sorted(row for part in parts for row in part) == sorted(rows.values())
    filled = [sorted(part) for part in parts if part]
    assert all(part[-1] < following[0] for part, following in pairwise(filled))
    # Ten row groups of ten keys: each part begins with that nearest to its share.
    begins = [keys.index(part[0][0]) // 10 for part in filled]
    assert begins == sorted({round(number * 10 / count) for number in range(count)} - {10})
    # Without the key among the columns asked for, too.
    values = [read(table, part, ["v"]) for part in in_parts(file_slice, count)]
    assert sorted(value for part in values for value in part) == sorted((row[2],) for row in rows.values())


def test_a_part_opens_only_the_logs_of_its_range(tmp_path: Path) -> None:
    hundred(tmp_path / "t")
    for k in (3, 93):
        LakeTable.open(tmp_path / "t").upsert(frame([(k, 2, "new")]))
    table = LakeTable.open(tmp_path / "t")
    base = only_tile(table).base
    assert base is not None
    logs = [block.file.path for block in only_tile(table).blocks]
    opened = []
    for part in in_parts(only_tile(table), 3):
        reader, store = open_over(tmp_path / "t")
        assert len(read(reader, part)) in (30, 40)
        opened.append(touched(store))
    assert opened == [{base.add.path, logs[0]}, {base.add.path}, {base.add.path, logs[1]}]


@pytest.mark.parametrize("firsts", ["one value", "two values", "many values"])
def test_keys_of_several_columns(tmp_path: Path, firsts: str) -> None:
    """A cut is told by the first column that varies within a row group, and never parts a key's records."""
    names = ["p", "k", "o", "v"]
    spread = {"one value": 1, "two values": 2, "many values": 13}[firsts]
    table = create(tmp_path / "t", schema="p STRING, k BIGINT, o BIGINT, v STRING", key=["p", "k"], settings=TENS)
    base = [(f"p{k % spread:02}", k, 1, "base") for k in range(100)]
    table.upsert(frame(base, names, p=None))
    changes = [(p, k, 2, "new") for p, k, _, _ in base if k % 7 == 0]
    table.upsert(frame(changes, names, p=None))
    expected = sorted({(p, k): (p, k, o, v) for p, k, o, v in [*base, *changes]}.values())
    parts = [read(table, part, names) for part in in_parts(only_tile(table), 4)]
    assert sorted(row for part in parts for row in part) == expected
    assert sum(map(bool, parts)) >= 2
    if firsts == "one value":
        assert sorted(map(len, parts)) == [20, 20, 30, 30]


def test_an_expired_tombstone_and_late_records_in_parts(tmp_path: Path) -> None:
    """Tombstones are cut as all streams are, so that a late record meets the delete of its key."""
    table = hundred(tmp_path / "t")
    table.delete(frame([(k, 5) for k in range(100)], ["k", "o"]))
    table.compact()
    table.upsert(frame([(k, 4 + k % 3, "late?") for k in range(100)]))
    expected = [(k, 4 + k % 3, "late?") for k in range(100) if k % 3]
    for count in (1, 2, 5, 9):
        found = [row for part in in_parts(only_tile(table), count) for row in read(table, part)]
        assert sorted(found) == expected


def sized(table: LakeTable, sizes: Sequence[int], **changes: Any) -> list[FileSlice]:
    """File slices as that of the table, of other sizes."""
    file_slice = only_tile(table)
    assert file_slice.base is not None
    return [
        replace(file_slice, base=replace(file_slice.base, add=replace(file_slice.base.add, size_bytes=size)), **changes)
        for size in sizes
    ]


def test_only_what_is_larger_than_the_target_is_split(tmp_path: Path) -> None:
    file_slices = sized(hundred(tmp_path / "t"), [1, 100, 101, 950])
    parts = split_file_slices(file_slices, 100)
    counts = [(file_slices.index(part.file_slice), part.number, part.count, part.stored_bytes) for part in parts]
    assert counts == [
        (0, 0, 1, 1),
        (1, 0, 1, 100),
        (2, 0, 2, 50),
        (2, 1, 2, 50),
        *[(3, number, 10, 95) for number in range(10)],
    ]


def test_there_are_no_more_parts_than_rows(tmp_path: Path) -> None:
    """However small the target is. Cuts are at row groups, and there are ten of them."""
    table = hundred(tmp_path / "t")
    parts = split_file_slices(table.opened.view.file_slices, 1)
    assert len(parts) == 100
    assert sum(part.count for part in parts) == 100 * 100
    found = [rows for part in parts if (rows := read(table, part, ["k"]))]
    assert found == [[(k,) for k in range(start, start + 10)] for start in range(0, 100, 10)]


def test_a_log_over_many_file_slices_counts_once(tmp_path: Path) -> None:
    table = hundred(tmp_path / "t")
    table.upsert(frame([(1, 2, "new")]))
    block = replace(only_tile(table).blocks[0], data_bytes=1000)
    file_slices = sized(table, [100] * 20, blocks=(block,))
    assert [part.count for part in split_file_slices(file_slices, 120)] == [2] * 40
    assert [part.count for part in split_file_slices(file_slices[:1], 120)] == [10] * 10


def test_what_is_asked_for_by_key_is_not_split(tmp_path: Path) -> None:
    hundred(tmp_path / "t")
    table, store = open_over(tmp_path / "t", settings=Settings(target_task_bytes=1))
    assert table.to_arrow(filter="k in (3, 97)").num_rows == 2
    assert [call.method for call in store.calls if call.path.startswith("base/")] == ["open_input"]


def test_tasks_are_even(tmp_path: Path) -> None:
    file_slices = sized(hundred(tmp_path / "t"), [1000, 10, 10, 10, 10, 10, 10, 130, 70])
    settings = Settings(target_task_bytes=100)
    tasks = even_tasks(file_slices, settings, at_least=1)
    sizes = [sum(part.stored_bytes for part in parts) for parts in tasks]
    assert len(sizes) == 13  # 1,260 bytes
    assert sum(sizes) == 1260
    assert max(sizes) <= 130
    assert min(sizes) >= 60


def test_tasks_are_sent_what_they_read_and_no_statistics(tmp_path: Path) -> None:
    table = hundred(tmp_path / "t")
    table.upsert(frame([(1, 2, "a")]))
    table.compact(minor=True)
    table.delete(frame([(2, 9)], ["k", "o"]))
    file_slice = only_tile(table)
    assert file_slice.base is not None
    assert file_slice.base.add.stats is not None
    parts = in_parts(replace(file_slice, wanted=KeySpan((1,), None)), 2)
    file_slice = parts[0].file_slice
    assert file_slice.base is not None
    add = replace(file_slice.base.add, stats=None, tags={})
    lean = replace(file_slice, base=replace(file_slice.base, add=add))
    assert pickle.loads(pickled(parts)) == [replace(part, file_slice=lean) for part in parts]
    assert pickle.loads(pickled(file_slice)) == lean
    assert file_slice.minor is not None
    assert file_slice.blocks
