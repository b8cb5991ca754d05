"""Minor compaction: what it writes, what it leaves, and how it lives with full ones and with writers.

Expected rows are written by hand; what is in a file is read with pyarrow alone.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import CompactFirstError, LakeTable, TableDamagedError
from lakemerge.delta import DomainMetadata
from lakemerge.format.minor import Minor, RowFile, read_positions, write_positions
from lakemerge.layout.view import FileSlice
from lakemerge.storage.local import LocalStore
from lakemerge.testing.counting import CountingStore
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, listing, open_over, rows_of, state_of

BASE = [(k, 10, f"base{k}") for k in range(6)]


def loaded(path: Path) -> LakeTable:
    table = create(path)
    assert table.upsert(frame(BASE)).mode == "load"
    return table


def only_tile(table: LakeTable) -> FileSlice:
    (file_slice,) = table.opened.view.file_slices
    return file_slice


def minor_of(table: LakeTable) -> Minor:
    minor = only_tile(table).minor
    assert minor is not None
    return minor


def superseded(path: Path, minor: Minor) -> dict[int, list[int]]:
    """By file ordinal, the positions in the positions file, bit by bit."""
    if minor.positions is None:
        return {}
    rows = pq.read_table(path / minor.positions).to_pylist()
    return {
        row["file"]: [64 * i + b for i, word in enumerate(row["bits"]) for b in range(64) if word >> b & 1]
        for row in rows
    }


def winners(path: Path, file: RowFile) -> list[tuple[Any, ...]]:
    rows = pq.read_table(path / file.path)
    assert rows.column_names == ["k", "o", "v", "_lm_file"]
    assert set(rows.column("_lm_file").to_pylist()) == {file.ordinal}
    assert (path / file.path).stat().st_size == file.size_bytes
    return [tuple(row.values()) for row in rows.select(["k", "o", "v"]).to_pylist()]


def test_changed_rows_stand_beside_the_base_file(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    before = only_tile(table).base
    assert before is not None
    table.upsert(frame([(1, 20, "new"), (9, 20, "added"), (4, 5, "late")]))
    table.delete(frame([(3, 20)], ["k", "o"]))
    result = table.compact(minor=True)
    file_slice, minor = only_tile(table), minor_of(table)
    assert (result.file_slices, result.rows, result.files, result.replaced_files) == (1, 2, 1, 0)
    assert file_slice.base == before, "the base file stays"
    assert file_slice.is_merged
    assert not file_slice.is_clean
    assert minor.through == table.version - 2, "the version read: then came the ordinal and this commit"
    assert superseded(tmp_path / "t", minor) == {before.ordinal: [1, 3]}, "the late record changed nothing"
    assert [winners(tmp_path / "t", file) for file in minor.winners] == [[(1, 20, "new"), (9, 20, "added")]]
    assert minor.tombstones is not None
    assert pq.read_table(tmp_path / "t" / minor.tombstones).select(["k", "o"]).to_pylist() == [{"k": 3, "o": 20}]
    assert not table.opened.view.log_commits
    rest = [row for row in BASE if row[0] not in (1, 3)]
    assert state_of(tmp_path / "t") == sorted([*rest, (1, 20, "new"), (9, 20, "added")])


@pytest.mark.parametrize("names", [("k",), ("k", "o")], ids=["for any ordering", "of an ordering"])
@pytest.mark.parametrize("packed", [False, True], ids=["as committed", "packed"])
def test_a_delete_reads_of_the_rows_what_decides(tmp_path: Path, names: tuple[str, ...], packed: bool) -> None:
    path = tmp_path / "t"
    base = [(k, 10, random.Random(k).randbytes(100).hex()) for k in range(3000)]
    table = create(path)
    table.upsert(frame(base))
    table.upsert(frame([(7, 20, "new"), (5000, 20, "added")]))
    table.delete(frame([(k, 20)[: len(names)] for k in range(0, 3000, 3)], names))
    table.upsert(frame([(3, 15, "late or not"), (6, 25, "again")]))
    if packed:
        table.compact_logs()
    store = CountingStore(LocalStore(path))
    counted = LakeTable(replace(table.opened.handle, store=store), table.opened.view.snapshot, pinned=False, spark=None)
    counted.compact(minor=True)
    base_file = only_tile(counted).base
    assert base_file is not None
    assert store.counts().bytes_read < base_file.add.size_bytes / 4
    expected = {row[0]: row for row in base if row[0] % 3} | {6: (6, 25, "again"), 7: (7, 20, "new")}
    expected |= {5000: (5000, 20, "added")} | ({3: (3, 15, "late or not")} if names == ("k",) else {})
    assert state_of(path) == rows_of(frame(list(expected.values())))


def test_an_upsert_of_key_and_ordering_keeps_the_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    table.upsert(frame([(1, 20), (8, 20)], ["k", "o"]))
    table.upsert(frame([(2, 20, "-D"), (3, 20, "+U")], ["k", "o", "op"]), kind_column="op")
    table.compact(minor=True)
    changed = [(1, 20, "base1"), (8, 20, None), (3, 20, "base3")]
    assert state_of(path) == rows_of(frame([*changed, BASE[0], BASE[4], BASE[5]]))


def test_a_second_one_merges_only_what_came_since(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    base = only_tile(table).base
    assert base is not None
    table.upsert(frame([(1, 20, "first"), (2, 20, "first")]))
    table.compact(minor=True)
    (first,) = minor_of(table).winners
    table.upsert(frame([(2, 30, "second"), (5, 30, "second")]))
    assert table.compact(minor=True).rows == 2
    minor = minor_of(table)
    assert minor.winners[0] == first, "an earlier winner file stays"
    assert winners(path, minor.winners[1]) == [(2, 30, "second"), (5, 30, "second")]
    assert superseded(path, minor) == {base.ordinal: [1, 2, 5], first.ordinal: [1]}
    table.upsert(frame([(1, 40, "third"), (2, 40, "third")]))
    table.compact(minor=True)
    assert first not in minor_of(table).winners, "a file without a row left is not named any more"
    assert superseded(path, minor_of(table)).keys() == {base.ordinal, minor.winners[1].ordinal}
    expected = {**{row[0]: row for row in BASE}, 1: (1, 40, "third"), 2: (2, 40, "third"), 5: (5, 30, "second")}
    assert state_of(path) == sorted(expected.values())


def test_later_records_fold_onto_winners_and_tombstones(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    table.upsert(frame([(1, 20, "winner")]))
    table.delete(frame([(2, 20)], ["k", "o"]))
    table.compact(minor=True)
    table.upsert(frame([(1, 15, "late"), (2, 15, "late"), (0, 30, "new")]))
    expected = {row[0]: row for row in BASE} | {1: (1, 20, "winner"), 0: (0, 30, "new")}
    del expected[2]
    for minor in (True, False):
        assert state_of(path) == sorted(expected.values())
        table.compact(minor=minor)
        assert not table.opened.view.log_commits
    table.upsert(frame([(2, 15, "later")]))
    assert state_of(path) == sorted(expected.values()), "still deleted after full compaction"


def test_records_that_change_nothing_move_only_the_watermark(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    before = set(listing(tmp_path / "t"))
    table.upsert(frame([(1, 5, "late")]))
    result = table.compact(minor=True)
    assert (result.file_slices, result.rows, result.files, result.bytes) == (1, 0, 0, 0)
    minor = minor_of(table)
    assert (minor.positions, minor.winners, minor.tombstones) == (None, (), None)
    assert not [name for name in set(listing(tmp_path / "t")) - before if "_lakemerge/merged" in name]
    assert state_of(tmp_path / "t") == sorted(BASE)


def test_a_full_one_takes_up_what_minor_ones_merged(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    table.upsert(frame([(1, 20, "new")]))
    table.compact(minor=True)
    expected = state_of(path)
    assert table.compact().file_slices == 1, "although no log is live"
    assert only_tile(table).is_clean
    assert not [name for name in table.opened.view.snapshot.domains if name.startswith("lakemerge.minor.")]
    assert state_of(path) == expected
    assert table.compact().file_slices == 0


def test_with_nothing_to_merge_there_is_no_version(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    version = table.version
    assert table.compact(minor=True).file_slices == 0
    table.upsert(frame([(1, 20, "new")]))
    table.compact(minor=True)
    assert table.compact(minor=True).file_slices == 0
    assert table.version == version + 3


def test_a_slice_without_a_base_file_gets_one(tmp_path: Path) -> None:
    table = create(tmp_path / "t", buckets=4)
    table.upsert(frame([(0, 1, "a")]))
    table.upsert(frame([(k, 2, "b") for k in range(20)]))
    bare = [file_slice for file_slice in table.opened.view.file_slices if file_slice.base is None]
    assert bare
    table.compact(minor=True)
    assert all(file_slice.base is not None and file_slice.is_merged for file_slice in table.opened.view.file_slices)
    assert state_of(tmp_path / "t") == sorted([(k, 2, "b") for k in range(20)], key=repr)


def test_every_version_reads_as_it_did(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    seen = {table.version: rows_of(table.to_arrow())}
    for number in range(4):
        table.upsert(frame([(number, 20 + number, "u"), (number + 10, 1, "i")]))
        seen[table.version] = rows_of(table.to_arrow())
        table.compact(minor=number != 2)
        seen[table.version] = rows_of(table.to_arrow())
    for version, rows in seen.items():
        assert rows_of(LakeTable.open(path, version=version).to_arrow()) == rows


@pytest.mark.parametrize("other", [True, False], ids=["minor", "full"])
@pytest.mark.parametrize("mine", [True, False], ids=["minor", "full"])
def test_of_two_compactions_the_later_gives_up(tmp_path: Path, mine: bool, other: bool) -> None:
    path = tmp_path / "t"
    loaded(path)
    LakeTable.open(path).upsert(frame([(1, 20, "new")]))
    expected = state_of(path)

    def overtake(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(2, 20, "between")]))
        LakeTable.open(path).compact(minor=other)

    folder = "_lakemerge/merged/" if mine else "base/"
    table, _ = open_over(path, Fault(action=overtake, method="open_output", path=folder))
    (lost,) = table.compact(minor=mine).lost
    assert "nothing is lost" in lost.reason
    after = {row[0]: row for row in expected} | {2: (2, 20, "between")}
    assert state_of(path) == sorted(after.values())
    named = {*LakeTable.open(path).opened.view.snapshot.files}
    for file_slice in LakeTable.open(path).opened.view.file_slices:
        named |= set() if file_slice.minor is None else file_slice.minor.paths
    at_base = {name for name in listing(path) if name.startswith(("base/", "_lakemerge/merged/"))}
    first = {name for name in at_base if name.startswith("base/00000000000000000000")}
    assert at_base - first == named - first, "the loser's files are gone"


def test_appends_that_land_meanwhile_stay_live(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)
    LakeTable.open(path).upsert(frame([(1, 20, "early")]))

    def append(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(1, 30, "late"), (2, 30, "late")]))

    table, _ = open_over(path, Fault(action=append, method="open_output", path="_lakemerge/merged/"))
    table.compact(minor=True)
    assert [len(file_slice.blocks) for file_slice in table.opened.view.file_slices] == [1]
    after = {row[0]: row for row in BASE} | {1: (1, 30, "late"), 2: (2, 30, "late")}
    assert state_of(path) == sorted(after.values())


def test_delete_where_sees_that_logs_were_merged_meanwhile(tmp_path: Path) -> None:
    """The rows it judged are no longer those of the table, although no log is left to tell."""
    path = tmp_path / "t"
    loaded(path)

    def overtake(call: Call) -> None:
        other = LakeTable.open(path)
        other.upsert(frame([(1, 20, "spared")]))
        other.compact(minor=True)

    table, _ = open_over(path, Fault(action=overtake, method="open_output", path="_lakemerge/log/"))
    table.delete_where("v = 'base1' or v = 'base2'")
    after = {row[0]: row for row in BASE if row[0] != 2} | {1: (1, 20, "spared")}
    assert state_of(path) == sorted(after.values())


def test_merged_rows_do_not_hold_back_another_merger(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    table.upsert(frame([(1, 20, "new")]))
    with pytest.raises(CompactFirstError):
        table.alter(merger="commit-time")
    table.compact(minor=True)
    table.alter(merger="commit-time")
    table.upsert(frame([(1, 1, "last")]))
    after = {row[0]: row for row in BASE} | {1: (1, 1, "last")}
    assert state_of(tmp_path / "t") == sorted(after.values())


def test_bits_survive_at_every_length(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for rows in (1, 63, 64, 65, 127, 128, 1000):
        bits = np.random.default_rng(rows).random(rows) < 0.3
        bits[-1] = True
        write_positions(store, f"p{rows}", {3: bits, 7: np.zeros(5, dtype=np.bool_)})
        found = read_positions(store, f"p{rows}")
        assert found.keys() == {3}, "a file without superseded rows is left out"
        assert found[3][:rows].tolist() == bits.tolist()
        assert not found[3][rows:].any()


def test_an_entry_survives_the_log(tmp_path: Path) -> None:
    minor = Minor("base/x", 4, 9, "p", (RowFile("w", 10, 5, 3),), None)
    assert Minor.of(minor.domain()) == minor
    assert minor.paths == {"p", "w"}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"base": "b", "ordinal": "x"}'])
def test_a_damaged_entry_is_named(text: str) -> None:
    with pytest.raises(TableDamagedError, match=r"lakemerge\.minor\.4"):
        Minor.of(DomainMetadata("lakemerge.minor.4", text, False))


def test_missing_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    table.upsert(frame([(1, 20, "new")]))
    table.compact(minor=True)
    minor = minor_of(table)
    assert minor.positions is not None
    for lost in (minor.positions, minor.winners[0].path):
        hidden = (path / lost).rename(path / "hidden")
        with pytest.raises(TableDamagedError, match=lost.rsplit("/", maxsplit=1)[-1]):
            LakeTable.open(path).to_arrow()
        hidden.rename(path / lost)
    assert pa.table(LakeTable.open(path).to_arrow()).num_rows == len(BASE)
