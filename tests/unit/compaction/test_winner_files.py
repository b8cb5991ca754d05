"""Winner files stay few: what a minor compaction takes along, what that costs, and what it leaves to others.

Expected rows are kept in a dictionary beside the table. Files are counted in the folder, bytes by the store.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.run import file_slice as service
from lakemerge import LakeTable, Settings
from lakemerge.format.minor import Minor
from lakemerge.testing.counting import CountingStore, Counts
from lakemerge.testing.faults import Call, Fault
from tests.packages import needs_newer_arrow
from tests.unit.faults import Row, create, frame, listing, open_over, rows_of, state_of

ROWS = 20_000
CHANGED = 200
"""Rows of each commit: one of a hundred."""

Rows = dict[int, Row]


def spread(number: int) -> list[int]:
    """Keys all over the table, other ones in each commit."""
    return random.Random(0).sample(range(ROWS), ROWS)[number * CHANGED : (number + 1) * CHANGED]


def recent(number: int) -> list[int]:
    return random.Random(number).sample(range(ROWS * 19 // 20, ROWS), CHANGED)


def hot(number: int) -> list[int]:
    return list(range(0, ROWS, ROWS // CHANGED))


def appended(number: int) -> list[int]:
    return list(range(ROWS + number * CHANGED, ROWS + (number + 1) * CHANGED))


WORKLOADS = [spread, recent, hot, appended]


def row(key: int, order: int) -> Row:
    return (key, order, random.Random(key * 1009 + order).randbytes(40).hex())


def loaded(path: Path, *, settings: Settings | None = None, buckets: int = 1) -> tuple[LakeTable, Rows]:
    table = create(path, settings=settings, buckets=buckets)
    state = {key: row(key, 0) for key in range(ROWS)}
    table.upsert(frame(list(state.values())))
    return table, state


def minor_of(table: LakeTable) -> Minor:
    (file_slice,) = table.opened.view.file_slices
    assert file_slice.minor is not None
    return file_slice.minor


def counted(table: LakeTable) -> tuple[LakeTable, CountingStore]:
    """The same table over a store that counts."""
    store = CountingStore(table.opened.handle.store)
    return LakeTable(
        replace(table.opened.handle, store=store), table.opened.view.snapshot, pinned=False, spark=None
    ), store


def steps(table: LakeTable, state: Rows, keys: Callable[[int], list[int]], commits: int) -> Iterator[int]:
    """After each commit and its minor compaction, the bytes that this wrote."""
    for number in range(commits):
        rows = [row(key, number + 1) for key in keys(number)]
        table.upsert(frame(rows))
        state.update((changed[0], changed) for changed in rows)
        yield table.compact(minor=True).bytes


@pytest.mark.parametrize("keys", WORKLOADS)
def test_files_stay_few_and_rows_right(tmp_path: Path, keys: Callable[[int], list[int]]) -> None:
    table, state = loaded(tmp_path / "t")
    for _ in steps(table, state, keys, 16):
        minor = minor_of(table)
        assert len(minor.winners) <= 4
        assert sum(winner.rows for winner in minor.winners) <= len(state)
        assert state_of(tmp_path / "t") == rows_of(frame(list(state.values())))


@pytest.mark.long
def test_files_stay_few_where_a_commit_divides_unevenly_among_buckets(tmp_path: Path) -> None:
    table, state = loaded(tmp_path / "t", buckets=4)
    for _ in steps(table, state, spread, 16):
        assert max(len(part.minor.winners) for part in table.opened.view.file_slices if part.minor is not None) <= 4
    assert state_of(tmp_path / "t") == rows_of(frame(list(state.values())))


@pytest.mark.long
def test_files_grow_with_the_logarithm_of_commits(tmp_path: Path) -> None:
    table, state = loaded(tmp_path / "t")
    few = 5
    sizes = [
        len(minor_of(table).winners)
        for _ in steps(table, state, lambda number: list(range(number * few, (number + 1) * few)), 64)
    ]
    assert max(sizes[:16]) <= 4
    assert max(sizes) <= 6, "log2 of 64"


@pytest.mark.long
@pytest.mark.parametrize("keys", WORKLOADS)
def test_bytes_written_are_at_most_three_times_those_of_the_changes(
    tmp_path: Path, keys: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = sum(steps(*loaded(tmp_path / "together"), keys, 16))
    monkeypatch.setattr(service, "_TIMES_NEWER", 0)
    table, state = loaded(tmp_path / "apart")
    apart = sum(steps(table, state, keys, 16))
    if keys is not hot:
        assert len(minor_of(table).winners) == 16, "nothing was taken along"
    assert together <= 3 * apart


def test_large_files_are_left_to_a_full_compaction(tmp_path: Path) -> None:
    table, state = loaded(tmp_path / "t")
    eighth = ROWS // 8
    for _ in steps(table, state, lambda n: list(range(n * (eighth + 1), (n + 1) * (eighth + 1))), 3):
        pass
    assert [winner.rows for winner in minor_of(table).winners] == [eighth + 1] * 3
    table.compact()
    assert state_of(tmp_path / "t") == rows_of(frame(list(state.values())))


def test_deletes_take_files_along_too(tmp_path: Path) -> None:
    table, state = loaded(tmp_path / "t")
    for _ in steps(table, state, spread, 1):
        pass
    first, second, third = spread(0)[:170], spread(0)[170:180], spread(1)[:50]
    table.delete(frame([(key, 9) for key in first], ["k", "o"]))
    table.compact(minor=True)
    assert [winner.rows for winner in minor_of(table).winners] == [CHANGED - 170]
    table.delete(frame([(key, 9) for key in [*second, *third]], ["k", "o"]))
    table.upsert(frame([(first[0], 5, "late"), (first[1], 10, "back")]))
    table.compact(minor=True)
    assert [winner.rows for winner in minor_of(table).winners] == [CHANGED - 180 + 1]
    for key in [*first, *second, *third]:
        del state[key]
    state[first[1]] = (first[1], 10, "back")
    assert state_of(tmp_path / "t") == rows_of(frame(list(state.values())))


def test_partial_records_fold_onto_rows_that_come_along(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, schema="k BIGINT, o BIGINT, v STRING, w STRING", merger="partial-update")
    names = ("k", "o", "v", "w")
    table.upsert(frame([(k, 0, "v", "w") for k in range(1000)], names, w=table.to_arrow().schema.field("w").type))
    table.upsert(frame([(k, 1, "v1") for k in (1, 2, 3)]))
    table.compact(minor=True)
    table.upsert(frame([(k, 2, "w2") for k in (2, 3, 4)], ("k", "o", "w"), w=table.to_arrow().schema.field("w").type))
    table.compact(minor=True)
    assert [winner.rows for winner in minor_of(table).winners] == [4]
    changed = {r["k"]: (r["v"], r["w"]) for r in table.to_arrow().to_pylist() if r["k"] in range(6)}
    assert changed == {0: ("v", "w"), 1: ("v1", "w"), 2: ("v1", "w2"), 3: ("v1", "w2"), 4: ("v", "w2"), 5: ("v", "w")}


@pytest.mark.parametrize("other", [True, False], ids=["minor", "full"])
@pytest.mark.parametrize("mine", [True, False], ids=["minor", "full"])
def test_of_two_that_take_the_same_file_up_the_later_gives_up(tmp_path: Path, mine: bool, other: bool) -> None:
    path = tmp_path / "t"
    first, state = loaded(path)
    for _ in steps(first, state, spread, 1):
        pass
    (taken,) = minor_of(first).winners
    mine_rows, others = [row(key, 5) for key in spread(1)], [row(key, 6) for key in spread(2)]
    first.upsert(frame(mine_rows))

    def overtake(call: Call) -> None:
        table = LakeTable.open(path)
        table.upsert(frame(others))
        table.compact(minor=other)

    folder = "_lakemerge/merged/" if mine else "base/"
    table, _ = open_over(path, Fault(action=overtake, method="open_output", path=folder))
    (lost,) = table.compact(minor=mine).lost
    assert "nothing is lost" in lost.reason
    state |= {changed[0]: changed for changed in [*mine_rows, *others]}
    assert state_of(path) == rows_of(frame(list(state.values())))
    tip = LakeTable.open(path)
    (file_slice,) = tip.opened.view.file_slices
    named = frozenset() if file_slice.minor is None else file_slice.minor.paths
    assert taken.path not in named
    at_hand = {name for name in listing(path) if name.startswith("_lakemerge/merged/")}
    assert {name for name in at_hand if name.rpartition("/")[0] in {path.rpartition("/")[0] for path in named}} == named


def test_vacuum_keeps_files_while_a_version_names_them_and_drops_them_later(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, state = loaded(path)
    for _ in steps(table, state, spread, 1):
        pass
    (old,) = minor_of(table).winners
    before, rows = table.version, state_of(path)
    for _ in steps(table, state, lambda number: spread(number + 1), 1):
        pass
    assert old not in minor_of(table).winners
    table.vacuum(dry_run=False)
    assert (path / old.path).exists(), "the retention is seven days"
    assert rows_of(LakeTable.open(path, version=before).to_arrow()) == rows
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert not (path / old.path).exists()
    assert all((path / name).exists() for name in minor_of(table).paths)
    assert state_of(path) == rows_of(frame(list(state.values())))
    assert not LakeTable.check(path).findings


def test_a_reader_of_an_earlier_version_reads_the_files_of_that_version(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table, state = loaded(path)
    seen = {}
    for _ in steps(table, state, spread, 4):
        seen[table.version] = dict(state)
    for version, rows in seen.items():
        assert rows_of(LakeTable.open(path, version=version).to_arrow()) == rows_of(frame(list(rows.values())))


def probed(path: Path, keys: list[int], *, groups: int) -> Counts:
    """What a minor compaction of one commit asks of the store, in a table whose base file has so many row groups."""
    table, _ = loaded(path, settings=Settings(row_group_rows=ROWS // groups))
    table.upsert(frame([row(key, 1) for key in keys]))
    counting, store = counted(table)
    counting.compact(minor=True)
    return store.counts()


@needs_newer_arrow("reads the columns of a local file one by one")
def test_row_groups_without_a_changed_key_are_not_read(tmp_path: Path) -> None:
    groups = 16
    recent = probed(tmp_path / "recent", list(range(ROWS - 100, ROWS)), groups=groups)
    evenly = probed(tmp_path / "evenly", list(range(0, ROWS, ROWS // 100)), groups=groups)
    beyond = probed(tmp_path / "beyond", list(range(ROWS, ROWS + 100)), groups=groups)
    assert evenly.calls["read"] - recent.calls["read"] == groups - 1
    assert recent.calls["read"] - beyond.calls["read"] == 1
    assert (evenly.bytes_read - beyond.bytes_read) / groups == pytest.approx(
        recent.bytes_read - beyond.bytes_read, rel=0.1
    )
    assert beyond.calls["open_input"] == recent.calls["open_input"] == evenly.calls["open_input"] == 2
