"""Which rows of which files a version has: read with plain pyarrow, they are the table."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, ReadPolicy, Settings, TableDamagedError
from lakemerge.format.minor import write_positions
from lakemerge.layout.view import FileSlice
from lakemerge.read.filter.filter import parse_filter
from lakemerge.read.filter.prune import prune_file_slices
from lakemerge.read.merge import MergeSpec
from lakemerge.read.premerge import Premerged, premerge
from lakemerge.read.stored_rows import SelectedFile, StoredRows, merged_files, stored_rows

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int32()), ("v", pa.string())])


def made(path: Path, merger: str = "event-time", *, publishes: bool = False, **arguments: Any) -> LakeTable:
    return LakeTable.create(
        path,
        SCHEMA,
        key=["id"],
        ordering=["at"],
        merger=merger,
        buckets=4,
        properties={"lakemerge.maintenance": "off", "lakemerge.publish": "deletionVectors" if publishes else "off"},
        **arguments,
    )


def frame(keys: Sequence[int], at: int, word: str) -> pa.Table:
    return pa.table([list(keys), [at] * len(keys), [f"{word}{key}" for key in keys]], schema=SCHEMA)


def found(table: LakeTable, filter: str | None = None, *, first: bool = False) -> StoredRows:
    view, handle = table.opened.view, table.opened.handle
    spec = MergeSpec.of(handle, view)

    def premerged(due: Sequence[FileSlice], *, only_places: bool) -> Sequence[Premerged]:
        own = partial(premerge, spec=spec, columns=SCHEMA.names, pick=only_places, only_places=only_places)
        return list(map(partial(own, compressed=False), due))

    file_slices = prune_file_slices(view, parse_filter(filter, SCHEMA))
    return stored_rows(
        handle, spec, file_slices, premerged, [each for each in file_slices if first and not each.is_merged]
    )


def rows_of(folder: Path, file: SelectedFile) -> pa.Table:
    stored = pq.read_table(folder / file.path, columns=SCHEMA.names).cast(SCHEMA)
    assert file.rows in (None, stored.num_rows)
    assert file.size_bytes == (folder / file.path).stat().st_size
    if file.words is None:
        assert file.wanted == stored.num_rows
        return stored
    bits = np.unpackbits(file.words.view(np.uint8), bitorder="little").astype(bool)
    bits = np.pad(bits, (64 * file.skipped, 0))[: stored.num_rows]
    bits = np.pad(bits, (0, stored.num_rows - len(bits)))
    wanted = stored.filter(pa.array(bits if file.keeps else ~bits))
    assert file.wanted == wanted.num_rows
    return wanted


@pytest.mark.parametrize("publishes", [False, True], ids=["positions files", "deletion vectors"])
def test_the_files_have_the_rows_of_the_table(tmp_path: Path, publishes: bool) -> None:
    """Through pending, packed and minor-compacted logs, deletes, and keys that come again."""
    draw, words, vectors = random.Random(3), 0, 0
    table = made(tmp_path / "t", publishes=publishes, settings=Settings(row_group_rows=64))
    for step in range(24):
        keys = sorted(draw.sample(range(900), draw.choice([1, 40, 300])))
        if draw.random() < 0.2:
            table.delete(pa.table({"id": keys, "at": pa.array([step] * len(keys), pa.int32())}))
        else:
            table.upsert(frame(keys, step - draw.choice([0, 0, 6]), f"s{step}-"))
        action = draw.choice(["", "", "", "minor", "full", "pack"])
        if action in ("minor", "full"):
            table.compact(minor=action == "minor")
        elif action == "pack":
            table.compact_logs()
        rows = found(table)
        assert rows.kernel == []
        vectors += sum(len(minor.vectors) for minor in table.opened.view.minors.values())
        words += sum(file.words is not None for file in rows.files)
        mine = pa.concat_tables([SCHEMA.empty_table(), *(rows_of(tmp_path / "t", file) for file in rows.files)])
        expected = table.to_arrow().cast(SCHEMA).sort_by("id")
        assert mine.sort_by("id").equals(expected), step
        assert sum(file.wanted for file in rows.files) == expected.num_rows
        wanted = draw.sample(range(900), 3)
        listed = f"id IN ({', '.join(map(str, wanted))})"
        some = [rows_of(tmp_path / "t", file) for file in found(table, listed).files]
        mine = pa.concat_tables([SCHEMA.empty_table(), *some]).filter(parse_filter(listed, SCHEMA).expression)  # type: ignore[union-attr]
        assert mine.sort_by("id").equals(table.to_arrow(filter=listed).cast(SCHEMA).sort_by("id")), step
    assert words > 20
    assert (vectors > 20) == publishes


def test_computed_rows_need_the_kernel(tmp_path: Path) -> None:
    table = made(tmp_path / "t", merger="partial-update")
    table.upsert(frame(range(300), 1, "a"))
    table.compact()
    assert found(table).kernel == []
    table.upsert(frame([5], 2, "b"))
    rows = found(table)
    [one] = rows.kernel
    assert one.blocks
    assert len(rows.files) == 3
    rows = found(table, first=True)
    assert (rows.kernel, rows.stream_rows, sum(file.wanted for file in rows.files)) == ([], 1, 299)
    streams = [pa.ipc.open_stream(stream).read_all().cast(SCHEMA) for stream in rows.streams]
    mine = pa.concat_tables([*streams, *(rows_of(tmp_path / "t", file) for file in rows.files)])
    assert mine.sort_by("id").equals(table.to_arrow().cast(SCHEMA).sort_by("id"))


def test_a_log_that_lacks_columns(tmp_path: Path) -> None:
    """Only its statistics tell whether it has nothing but deletes."""
    table = made(tmp_path / "t", merger="commit-time")
    table.upsert(frame(range(300), 1, "a"))
    table.compact()
    table.delete(pa.table({"id": [7]}))
    rows = found(table)
    assert rows.kernel == []
    assert sum(file.wanted for file in rows.files) == 299


def test_premerges_that_are_not_wanted(tmp_path: Path) -> None:
    policies = (ReadPolicy(premerge=False), ReadPolicy(premerge_rows=10), ReadPolicy(premerge_slices=3))
    for number, policy in enumerate(policies):
        table = made(tmp_path / str(number), settings=Settings(reads=policy))
        table.upsert(frame(range(300), 1, "a"))
        table.compact()
        table.upsert(frame(range(30), 2, "b"))
        assert len(found(table).kernel) == 4


def test_a_few_file_slices_are_still_premerged(tmp_path: Path) -> None:
    """A filter leaves few enough of many."""
    table = made(tmp_path / "t", settings=Settings(reads=ReadPolicy(premerge_slices=1)))
    table.upsert(frame(range(300), 1, "a"))
    table.compact()
    table.upsert(frame(range(30), 2, "b"))
    assert len(found(table).kernel) == 4
    rows = found(table, "id = 7")
    assert (rows.kernel, sum(file.wanted for file in rows.files if file.keeps)) == ([], 1)


def test_only_superseded_rows_are_read(tmp_path: Path) -> None:
    """Files of which the log tells all cost no task of a thread."""
    table = made(tmp_path / "t")
    table.upsert(frame(range(300), 1, "a"))
    table.compact()
    view, handle = table.opened.view, table.opened.handle
    asked: list[FileSlice] = []

    def files_of(file_slice: FileSlice) -> Sequence[SelectedFile]:
        asked.append(file_slice)
        return merged_files(handle, file_slice)

    def wanted() -> int:
        view = table.opened.view
        rows = stored_rows(
            handle, MergeSpec.of(handle, view), view.file_slices, lambda _, only_places: [], (), files_of
        )
        assert rows.kernel == []
        return sum(file.wanted for file in rows.files)

    assert (wanted(), asked, len(view.file_slices)) == (300, [], 4)
    table.upsert(frame([7], 2, "b"))
    table.compact(minor=True)
    assert wanted() == 300
    assert [each.minor is not None for each in asked] == [True]


def test_positions_of_another_file_slice(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    table.upsert(frame(range(300), 1, "a"))
    table.compact()
    table.upsert(frame(range(30), 2, "b"))
    table.compact(minor=True)
    view, handle = table.opened.view, table.opened.handle
    one = next(each for each in view.file_slices if each.minor is not None and each.minor.positions is not None)
    assert one.minor is not None
    write_positions(handle.store, "strange", {99: np.ones(4, dtype=np.bool_)})
    strange = replace(one, minor=replace(one.minor, positions="strange"))
    with pytest.raises(TableDamagedError, match="of another file slice's files"):
        stored_rows(handle, MergeSpec.of(handle, view), [strange], lambda _, only_places: [])
