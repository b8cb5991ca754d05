"""What a table says of itself: buckets, totals and the plan of a read. Counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemerge import FilterError, InputError, LakeTable
from tests.unit.faults import create, frame


def loaded(path: Path) -> LakeTable:
    table = create(path, schema="p STRING, k BIGINT, o BIGINT, v STRING", key=["p", "k"], partition_by=["p"])
    table.upsert(frame([(p, k, 1, "x") for p in "ab" for k in range(10)], ["p", "k", "o", "v"]))
    return table


def test_slices_and_totals_through_a_tables_life(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    first, second = table.buckets()
    assert (first.partition, second.partition) == ({"p": "a"}, {"p": "b"})
    assert (first.base_files, first.base_rows, first.log_blocks, first.winner_files) == (1, 10, 0, 0)
    sizes = {add.path: add.size_bytes for add in table.opened.view.snapshot.files.values()}
    assert first.base_bytes + second.base_bytes == sum(sizes.values())
    assert first.read_amplification == 1

    table.upsert(frame([("a", 1, 2, "y"), ("a", 77, 2, "y")], ["p", "k", "o", "v"]))
    table.upsert(frame([("a", 2, 2, "y")], ["p", "k", "o", "v"]))
    first, second = table.buckets()
    assert (first.log_blocks, first.log_rows, second.log_blocks) == (2, 3, 0)
    assert first.read_amplification == 1 + first.log_bytes / first.base_bytes > second.read_amplification == 1
    detail = table.detail()
    assert (detail.filled_buckets, detail.dirty_buckets, detail.log_commits, detail.log_rows) == (2, 1, 2, 3)
    assert (detail.base_files, detail.base_rows, detail.merger, detail.key) == (2, 20, "event-time", ("p", "k"))
    assert (detail.url, detail.version, detail.partition_by) == (table.url, table.version, ("p",))

    table.compact(minor=True)
    first, _ = table.buckets()
    assert (first.log_blocks, first.winner_files, first.winner_rows, first.base_rows) == (0, 1, 3, 10)
    assert table.detail().log_commits == 0
    table.compact()
    first, _ = table.buckets()
    assert (first.winner_files, first.base_rows, first.read_amplification) == (0, 11, 1)


def test_an_empty_table_has_no_slices(tmp_path: Path) -> None:
    table = create(tmp_path / "t", buckets=None)
    assert table.buckets() == []
    assert (table.detail().buckets, table.detail().read_amplification) == (None, 1)
    assert table.explain_read().file_slices == 0


def test_the_plan_of_a_read(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    table.upsert(frame([("a", 1, 2, "y")], ["p", "k", "o", "v"]))
    plan = table.explain_read()
    assert (plan.file_slices, plan.pruned, plan.clean, plan.minor, plan.merged, plan.log_blocks) == (2, 0, 1, 0, 1, 1)
    assert "1 merged while reading: 1 log blocks" in str(plan)
    plan = table.explain_read(filter="p = 'b'", columns=["v"])
    assert (plan.pruned, plan.clean, plan.merged) == (1, 1, 0)
    plan = table.explain_read(filter="p = 'a' and k = 5")
    assert (plan.pruned, plan.clean, plan.merged) == (1, 1, 0), "no log record has the key"
    table.compact(minor=True)
    plan = table.explain_read()
    assert (plan.clean, plan.minor, plan.merged) == (1, 1, 0)
    assert plan.bytes == sum(part.base_bytes + part.winner_bytes for part in table.buckets())
    assert "1 without a merge" in str(plan)
    with pytest.raises(InputError):
        table.explain_read(columns=["nope"])
    with pytest.raises(FilterError):
        table.explain_read(filter="nope = 1")
