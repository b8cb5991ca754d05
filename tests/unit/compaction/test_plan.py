"""Compaction plans: what is due and why, order, bounds, groups, and counts that agree with the file slices."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.plan.loads import FileSliceLoad, file_slice_loads
from lakemerge import (
    CompactionPlan,
    CompactionStrategy,
    FilterError,
    InputError,
    LakeTable,
    OutcomeUnknownError,
    Settings,
    StoreError,
)
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice
from lakemerge.testing.faults import Call, Fault
from lakemerge.write import start
from tests.unit.faults import create, frame, listing, open_over, state_of

TINY = Settings(merge_budget_bytes=1, row_group_rows=2, target_file_bytes=1, inline_blocks=2, threads=1)
"""Every row may be a base file of its own; commits of three blocks have a block index."""


def partitioned(path: Path, **options: Any) -> LakeTable:
    """Partitions p0 to p3 of one bucket and ten keys each."""
    table = create(path, schema="p STRING, k BIGINT, o BIGINT, v STRING", key=["p", "k"], partition_by=["p"], **options)
    load = [(f"p{n}", k, 0, "base") for n in range(4) for k in range(10)]
    table.upsert(frame(load, ["p", "k", "o", "v"]))
    return table


def write(path: Path, partition: str, keys: range, ordering: int = 1) -> None:
    rows = [(partition, k, ordering, f"{k:03d}" * 500) for k in keys]
    LakeTable.open(path).upsert(frame(rows, ["p", "k", "o", "v"]))


def partitions_of(plan: CompactionPlan) -> list[str | None]:
    """In the order of the plan."""
    return [part.partition[0] for group in plan.groups for part in group.buckets]


def dirty(path: Path) -> LakeTable:
    """p0: one old commit of ten rows; p1: three of one row; p2: one of one row, not one of its base file; p3: none."""
    partitioned(path)
    write(path, "p0", range(10))
    for n in range(3):
        write(path, "p1", range(1), ordering=n)
    write(path, "p2", range(20, 21))
    return LakeTable.open(path)


def test_everything_with_logs_is_due_by_default(tmp_path: Path) -> None:
    table = dirty(tmp_path / "t")
    before = listing(tmp_path / "t")
    plan = table.compact(dry_run=True)
    assert partitions_of(plan) == ["p0", "p1", "p2"], "oldest first"
    assert (plan.version, plan.mode, plan.buckets, plan.file_slices, plan.postponed) == (6, "full", 3, 3, 0)
    file_slices = [file_slice for file_slice in table.opened.view.file_slices if file_slice.blocks]
    assert plan.bytes_read == sum(file_slice.stored_bytes for file_slice in file_slices)
    assert plan.merged_bytes == sum(file_slice.log_bytes for file_slice in file_slices)
    assert plan.amplification_before == pytest.approx(table.detail().read_amplification)
    assert plan.amplification_after == 1
    assert listing(tmp_path / "t") == before, "a plan changes nothing"
    text = str(plan)
    assert "3 buckets (3 base files) in 1 commit\n" in text
    assert "not merged yet (3 buckets)" in text


@pytest.mark.parametrize(
    ("order", "first"),
    [("oldest", "p0"), ("log-bytes", "p0"), ("log-count", "p1"), ("read-amplification", "p0")],
)
def test_orders(
    tmp_path: Path, order: Literal["oldest", "log-bytes", "log-count", "read-amplification"], first: str
) -> None:
    plan = dirty(tmp_path / "t").compact(dry_run=True, strategy=order)
    parts = [part for group in plan.groups for part in group.buckets]
    assert parts[0].partition == (first,)
    ranks: dict[str, list[float]] = {
        "oldest": [part.oldest_version for part in parts],
        "log-bytes": [-part.log_bytes for part in parts],
        "log-count": [-part.log_blocks for part in parts],
        "read-amplification": [-part.log_bytes / part.base_bytes for part in parts],
    }
    assert ranks[order] == sorted(ranks[order])


@pytest.mark.parametrize(
    ("strategy", "due"),
    [
        (CompactionStrategy(after_commits=3), ["p1"]),
        (CompactionStrategy(after_commits=1), ["p0", "p1", "p2"]),
        (CompactionStrategy(after_commits=4), []),
        (CompactionStrategy(after_bytes=10**9), []),
        (CompactionStrategy(ratio=10**6), []),
        (CompactionStrategy(ratio=0), ["p0", "p1", "p2"]),
        (CompactionStrategy(after_minutes=0), ["p0", "p1", "p2"]),
        (CompactionStrategy(after_minutes=600), []),
        (CompactionStrategy(after_commits=3, after_minutes=600), ["p1"]),
    ],
    ids=str,
)
def test_any_threshold_makes_a_base_file_due(tmp_path: Path, strategy: CompactionStrategy, due: list[str]) -> None:
    table = dirty(tmp_path / "t")
    plan = table.compact(dry_run=True, strategy=strategy)
    assert partitions_of(plan) == due
    if due == ["p1"]:
        assert plan.reasons == ("logs of at least 3 commits (1 bucket)",)
    result = table.compact(strategy=strategy)
    assert (result.file_slices, result.plan) == (len(due), plan)
    assert {file_slice.bucket_id.partition[0] for file_slice in table.opened.view.file_slices if file_slice.blocks} == {
        "p0",
        "p1",
        "p2",
    } - {*due}


def test_bytes_and_ratio_are_of_one_base_file(tmp_path: Path) -> None:
    table = dirty(tmp_path / "t")
    by_partition = {file_slice.bucket_id.partition[0]: file_slice for file_slice in table.opened.view.file_slices}
    heavy = by_partition["p0"]
    assert heavy.base is not None
    bytes_due = table.compact(dry_run=True, strategy=CompactionStrategy(after_bytes=heavy.log_bytes))
    ratio = heavy.log_bytes / heavy.base.add.size_bytes
    ratio_due = table.compact(dry_run=True, strategy=CompactionStrategy(ratio=ratio))
    expected = [name for name in ("p0", "p1", "p2") if by_partition[name].log_bytes >= heavy.log_bytes]
    assert expected != ["p0", "p1", "p2"]
    assert partitions_of(bytes_due) == expected
    assert partitions_of(ratio_due) == [
        name
        for name in ("p0", "p1", "p2")
        if (file_slice := by_partition[name]).base and file_slice.log_bytes / file_slice.base.add.size_bytes >= ratio
    ]


def test_age_is_that_of_the_oldest_commit_not_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """p0 was last written in version 2, p1 in 3 to 5, p2 in 6: an hour after version 3 only the first two are old."""
    table = dirty(tmp_path / "t")
    written_ms = {entry.version: 1_700_000_000_000 + 1000 * entry.version for entry in table.history()}
    for version, time_ms in written_ms.items():
        os.utime(tmp_path / "t" / "_delta_log" / f"{version:020d}.json", ns=(time_ms * 1_000_000,) * 2)
    strategy = CompactionStrategy(after_minutes=60)
    hour_ms = 3_600_000
    due = {}
    for version in (1, 2, 3, 5, 6):
        monkeypatch.setattr(Handle, "now_ms", staticmethod(lambda now=written_ms[version] + hour_ms: now))
        due[version] = partitions_of(table.compact(dry_run=True, strategy=strategy))
    assert due == {1: [], 2: ["p0"], 3: ["p0", "p1"], 5: ["p0", "p1"], 6: ["p0", "p1", "p2"]}
    (tmp_path / "t" / "_delta_log" / f"{2:020d}.json").unlink()
    monkeypatch.setattr(Handle, "now_ms", staticmethod(lambda: written_ms[1] + hour_ms))
    assert partitions_of(table.compact(dry_run=True, strategy=strategy)) == ["p0"], "what was cleaned up is old"


def test_partitions_are_chosen_by_a_condition(tmp_path: Path) -> None:
    table = dirty(tmp_path / "t")
    assert partitions_of(table.compact(dry_run=True, where="p IN ('p1', 'p3') OR p > 'p1'")) == ["p1", "p2"]
    assert table.compact(where="p = 'p3'").commits == 0
    assert table.compact(where="p = 'p0'").file_slices == 1
    assert partitions_of(table.compact(dry_run=True)) == ["p1", "p2"]
    with pytest.raises(FilterError, match=r"names k, and the table's partition columns are: p"):
        table.compact(where="k = 1")


def test_partitions_of_other_types_and_null(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="d DATE, k BIGINT, v STRING", key=["d", "k"], ordering=[], partition_by=["d"])
    days = [dt.date(2026, 1, 30), dt.date(2026, 2, 1), dt.date(2026, 10, 5)]
    for _ in range(2):
        table.upsert(frame([(day, 1, "x") for day in days], ["d", "k", "v"], d=pa.date32()))
    assert partitions_of(table.compact(dry_run=True, where="d >= DATE '2026-02-01'")) == ["2026-02-01", "2026-10-05"]


def test_a_run_is_bounded_and_the_next_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = dirty(path)
    expected = state_of(path)
    whole = table.compact(dry_run=True)
    first_two = sum(2 * part.bytes_read for part in whole.groups[0].buckets[:2])
    bounded = table.compact(dry_run=True, max_bytes=first_two)
    assert (partitions_of(bounded), bounded.postponed) == (["p0", "p1"], 1)
    assert "left for the next run, because of max_bytes: 1 bucket" in str(bounded)
    assert bounded.bytes_read + bounded.bytes_written == first_two
    tiny = table.compact(max_bytes=1)
    assert (tiny.file_slices, tiny.plan.postponed) == (1, 2), "the first is taken even if it needs more"
    assert [table.compact(max_bytes=1).file_slices for _ in range(3)] == [1, 1, 0]
    assert state_of(path) == expected
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(InputError, match="max_bytes"):
            table.compact(max_bytes=wrong)  # type: ignore[arg-type]


def test_one_commit_for_each_group_of_slices(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dirty(path)
    expected = state_of(path)
    table = LakeTable.open(path, settings=Settings(target_commit_bytes=1))
    plan = table.compact(dry_run=True)
    assert [(len(group.buckets), group.closed) for group in plan.groups] == [(1, "full")] * 3
    before = table.version
    result = table.compact()
    assert (result.commits, result.file_slices, result.version) == (3, 3, before + 4), "one more reserves the ordinals"
    entries = table.history(limit=3)
    assert [entry.parameters["group"] for entry in reversed(entries)] == ["1 of 3", "2 of 3", "3 of 3"]
    assert state_of(path) == expected
    assert not table.opened.view.log_commits


def test_a_minor_plan_and_what_a_full_one_finds_after_it(tmp_path: Path) -> None:
    table = dirty(tmp_path / "t")
    minor = table.compact(minor=True, dry_run=True)
    assert (minor.mode, minor.bytes_written) == ("minor", minor.merged_bytes)
    assert minor.amplification_after == minor.amplification_before, "winner files are read, too"
    table.compact(minor=True)
    assert not table.compact(minor=True, dry_run=True).groups
    full = table.compact(dry_run=True)
    assert (full.buckets, full.merged_bytes) == (3, 0)
    assert full.winner_bytes == sum(
        w.size_bytes for t in table.opened.view.file_slices if t.minor for w in t.minor.winners
    )
    assert {part.oldest_version for group in full.groups for part in group.buckets} == {1}
    assert partitions_of(table.compact(dry_run=True, strategy=CompactionStrategy(after_commits=1))) == []
    assert len(partitions_of(table.compact(dry_run=True, strategy=CompactionStrategy(after_bytes=1)))) == 3


def test_a_minor_plan_goes_by_the_logs_that_wait(tmp_path: Path) -> None:
    """So a bucket whose base file is older than another's does not always come first."""
    table = dirty(tmp_path / "t")
    table.compact(minor=True, where="p = 'p0'")
    again = LakeTable.open(tmp_path / "t")
    (row,) = again.to_arrow(filter="p = 'p0'").slice(0, 1).to_pylist()
    again.upsert(pa.Table.from_pylist([row], schema=again.schema))
    parts = [part for group in again.compact(minor=True, dry_run=True).groups for part in group.buckets]
    assert [part.partition for part in parts] == [("p1",), ("p2",), ("p0",)]
    assert parts[-1].oldest_version == again.version
    assert again.compact(dry_run=True).groups[0].buckets[0].oldest_version == 1


def test_a_table_without_anything_to_do(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    plan = table.compact(dry_run=True)
    assert (plan.groups, plan.bytes_read, plan.amplification_before) == ((), 0, 1)
    assert str(plan) == "nothing to compact at version 0: a full compaction takes everything, oldest first"


@pytest.mark.parametrize(
    "wrong", [{"after_commits": -1}, {"after_bytes": 1.5}, {"ratio": "x"}, {"after_minutes": True}, {"order": "size"}]
)
def test_strategies_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        CompactionStrategy(**wrong)


def counted(file_slice: FileSlice) -> FileSliceLoad:
    """What :func:`file_slice_loads` should say of a file slice, from its blocks one by one."""
    versions = [
        block.version if block.packed_from is None else max(block.packed_from, file_slice.merged_through + 1)
        for block in file_slice.blocks
    ]
    if file_slice.base is not None and file_slice.minor is not None:
        versions.append(file_slice.base.merged_through + 1)
    winners = () if file_slice.minor is None else file_slice.minor.winners
    tombstones = 0
    if file_slice.base is not None and file_slice.minor is not None:
        tombstones = file_slice.minor.tombstone_bytes - file_slice.base.tombstone_bytes
    return FileSliceLoad(
        bucket_id=file_slice.bucket_id,
        file=None if file_slice.base is None else file_slice.base.add.path,
        base_bytes=0 if file_slice.base is None else file_slice.base.add.size_bytes,
        base_rows=0 if file_slice.base is None else file_slice.base.rows,
        winner_bytes=sum(winner.size_bytes for winner in winners),
        winner_files=len(winners),
        new_tombstone_bytes=max(0, tombstones),
        log_blocks=len(file_slice.blocks),
        log_commits=len({block.version for block in file_slice.blocks}),
        log_rows=sum(block.rows for block in file_slice.blocks),
        log_bytes=sum(block.data_bytes for block in file_slice.blocks),
        oldest_version=min(versions, default=None),
        oldest_live=file_slice.oldest_live,
        is_hidden=file_slice.minor is not None and not file_slice.minor.published,
    )


STEP = st.sampled_from(["narrow", "narrow", "wide", "minor", "full", "part", "pack", "split", "join"])


@settings(max_examples=12, deadline=None)
@given(st.lists(STEP, max_size=6), st.booleans(), st.integers(0, 9))
def test_loads_are_those_of_the_file_slices(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], loaded: bool, key: int
) -> None:
    path = tmp_path_factory.mktemp("loads") / "t"
    table = create(
        path, schema="p STRING, k BIGINT, o BIGINT, v STRING", key=["p", "k"], partition_by=["p"], buckets=2,
        settings=TINY,
    )  # fmt: skip
    names = ["p", "k", "o", "v"]
    if loaded:
        table.upsert(frame([("a", k, 0, "base") for k in range(10)] + [("b", k, 0, "base") for k in range(4)], names))
    for number, step in enumerate(steps):
        if step in ("narrow", "wide"):
            keys = range(-1, 12) if step == "wide" else [(key + number) % 10]
            table.upsert(frame([(p, k, number, step) for p in "abc" for k in keys], names))
        elif step == "part":
            table.compact(where="p = 'b'")
        elif step == "pack":
            table.compact_logs()
        elif step in ("split", "join"):
            table.rescale(buckets=4 if step == "split" else 2)
        else:
            table.compact(minor=step == "minor")
        found = file_slice_loads(table.opened.view)
        expected = [counted(file_slice) for file_slice in table.opened.view.file_slices]
        assert sorted(found, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("mine", [1, 8])
def test_blocks_of_other_bucket_counts_are_counted_where_they_may_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: int
) -> None:
    """Two first writers choose different counts; the first to commit sets them."""
    path = tmp_path / "t"
    create(path, buckets=None)
    rows = [(k, 1, "x") for k in range(40)]

    def overtake(call: Call) -> None:
        with monkeypatch.context() as other:
            other.setattr(start, "choose_buckets", lambda size: 9 - mine)
            LakeTable.open(path).upsert(frame(rows))

    monkeypatch.setattr(start, "choose_buckets", lambda size: mine)
    table, _ = open_over(path, Fault(action=overtake, method="put_if_absent"))
    assert table.upsert(frame(rows)).mode == "append"
    view = LakeTable.open(path).opened.view
    assert {block.buckets for file_slice in view.file_slices for block in file_slice.blocks} == {mine}
    assert sorted(file_slice_loads(view), key=repr) == sorted(
        (counted(file_slice) for file_slice in view.file_slices), key=repr
    )


def test_slices_that_a_rescale_has_yet_to_come_to_are_counted_once(tmp_path: Path) -> None:
    """A rescale from 2 to 4 buckets that failed half-way, with logs of both counts."""
    path = tmp_path / "t"
    table = create(path, buckets=2, settings=TINY)
    rows = [(k, 1, "x") for k in range(40)]
    table.upsert(frame(rows))
    table.upsert(frame(rows))

    def fail(call: Call) -> None:
        raise StoreError("out of order")

    fault = Fault(action=fail, method="put_if_absent", at=2, lasting=True)
    halfway, _ = open_over(path, fault, settings=Settings(target_commit_bytes=1, target_task_bytes=1, threads=1))
    with pytest.raises(OutcomeUnknownError, match="out of order"):
        halfway.rescale(buckets=4)
    view = LakeTable.open(path).opened.view
    assert view.layout.counts == (2,)
    assert sorted(file_slice_loads(view), key=repr) == sorted(
        (counted(file_slice) for file_slice in view.file_slices), key=repr
    )
    LakeTable.open(path).upsert(frame(rows))
    view = LakeTable.open(path).opened.view
    assert {block.buckets for file_slice in view.file_slices for block in file_slice.blocks} >= {4}
    assert sorted(file_slice_loads(view), key=repr) == sorted(
        (counted(file_slice) for file_slice in view.file_slices), key=repr
    )
