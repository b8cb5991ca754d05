"""A key whose merge fails stops no other key: reads skip it where they are asked to, compaction leaves it as it is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import (
    FailedRecord,
    InputError,
    LakeTable,
    MergeOverflowError,
    MergerContractError,
    RowMerger,
    Settings,
)
from lakemerge.cli import main
from tests.unit.faults import rows_of

OFF = {"lakemerge.maintenance": "off"}


class Grumpy(RowMerger):
    """Fails for rows that it does not like."""

    id = "d2c0a6c8-6a37-4a0b-8c55-1c8a7f1d0e01"
    name = "grumpy"

    def merge(self, older: Any, newer: Any) -> Any:
        if newer["n"] < 0:
            raise ArithmeticError("below zero")
        return {**newer, "n": older["n"] + newer["n"]}


def summed(path: Path, **options: Any) -> LakeTable:
    arguments: dict[str, Any] = {
        "merger": "aggregate",
        "options": {"aggregates": {"n": "sum"}},
        "buckets": 1,
        **options,
    }
    return LakeTable.create(path, "k BIGINT, n TINYINT", key=["k"], properties=OFF, **arguments)


def put(table: LakeTable, *rows: tuple[int, int], op: str = "+U") -> None:
    keys, numbers = zip(*rows, strict=True)
    frame = {"k": list(keys), "n": pa.array(numbers, pa.int8()), "op": [op] * len(rows)}
    table.upsert(pa.table(frame), kind_column="op")


def busy(path: Path, **options: Any) -> LakeTable:
    """Of ten keys, 3 and 7 do not fit."""
    table = summed(path, **options)
    put(table, *((k, 100) for k in range(10)))
    put(table, *((k, 1) for k in range(10)))
    put(table, (3, 100), (7, 27))
    return table


FITTING = [(k, 101) for k in range(10) if k not in (3, 7)]


def test_reads_skip_them_where_they_are_asked_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = busy(tmp_path)
    with pytest.raises(MergeOverflowError) as caught:
        table.to_arrow()
    assert caught.value.facts["key"] == {"k": 3}
    with caplog.at_level(logging.WARNING):
        assert rows_of(table.to_arrow(failed_keys="skip")) == FITTING
    assert [f"key {{'k': {k}}}" in caplog.text for k in (3, 7, 5)] == [True, True, False]
    assert rows_of(table.scan(failed_keys="skip").read_all()) == FITTING
    assert rows_of(table.to_arrow(failed_keys="skip", filter="k > 6")) == [(8, 101), (9, 101)]
    assert table.get({"k": 3}, failed_keys="skip") is None
    assert table.get({"k": 4}) == {"k": 4, "n": 101}, "a look-up merges the key alone"
    assert table.query("SELECT count(*) AS c FROM self WHERE n > 0", failed_keys="skip").to_pylist() == [{"c": 8}]
    assert rows_of(table.to_arrow(columns=["k"])) == [(k,) for k in range(10)], "the total is not asked for"
    reads: list[Any] = [table.to_arrow, table.scan]
    for read in (*reads, lambda **how: table.get({"k": 1}, **how)):
        with pytest.raises(InputError, match="failed_keys must be"):
            read(failed_keys="hide")


def test_they_are_listed_with_their_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = busy(tmp_path)
    found = table.failed_keys()
    assert [(failed.key, failed.code, failed.column) for failed in found] == [
        ({"k": 3}, "merge-overflow", "n"),
        ({"k": 7}, "merge-overflow", "n"),
    ]
    assert found[0].records == (
        FailedRecord(version=2, kind="+U", values={"k": 3, "n": 1}),
        FailedRecord(version=3, kind="+U", values={"k": 3, "n": 100}),
    )
    assert found.to_arrow().num_rows == 4
    assert "2 keys of version 3 cannot be merged" in repr(found)
    assert "does not fit TINYINT" in found._repr_html_()
    assert len(LakeTable.open(tmp_path, version=2).failed_keys()) == 0
    assert main(["failed-keys", str(tmp_path)]) == 0
    assert "{'k': 7}" in capsys.readouterr().out
    assert main(["get", str(tmp_path), "k=3"]) != 0
    assert main(["get", str(tmp_path), "k=3", "--failed-keys", "skip"]) == 0
    told = table.explain({"k": 3}, since=0)
    assert told.failed is not None
    assert "cannot be read: the sum of column 'n'" in repr(told)
    assert (told.row, table.explain({"k": 4}).failed) == (None, None)


@pytest.mark.parametrize("minor", [False, True])
def test_a_compaction_takes_up_all_others(minor: bool, tmp_path: Path) -> None:
    table = busy(tmp_path)
    result = table.compact(minor=minor)
    assert [skipped.key for skipped in result.skipped] == [{"k": 3}, {"k": 7}]
    assert [record.values["n"] for record in result.skipped[1].records] == [1, 27]
    assert rows_of(table.to_arrow(failed_keys="skip")) == FITTING
    assert rows_of(table.to_arrow(filter="k IN (0, 1, 8)")) == [FITTING[0], FITTING[1], FITTING[6]]
    assert rows_of(table.to_arrow(mode="base")) == sorted([*FITTING, (3, 100), (7, 100)]), "as they were stored"
    assert [len(failed.records) for failed in table.failed_keys()] == [2, 2], "their records are there"
    version = table.version
    again = table.compact(minor=minor)
    assert (again.commits, len(again.skipped)) == (0, 2)
    # Another key between the two is written, and then one of them is healed.
    put(table, (5, 1), (3, -100))
    assert rows_of(table.to_arrow(failed_keys="skip")) == sorted([(3, 101), *FITTING[:4], (5, 102), *FITTING[5:]])
    assert [skipped.key for skipped in table.compact().skipped] == [{"k": 7}]
    put(table, (7, -1))
    assert table.compact().skipped == ()
    assert rows_of(table.to_arrow()) == sorted([(3, 101), *FITTING[:4], (5, 102), *FITTING[5:], (7, 127)])
    assert all(file_slice.is_clean for file_slice in table.opened.view.file_slices)
    assert table.version > version
    assert LakeTable.check(tmp_path).findings == ()


def test_large_parts_and_deleted_keys_beside_them(tmp_path: Path) -> None:
    """Every row is a range and a file of its own, and tombstones stand between the keys that fail."""
    tiny = Settings(merge_budget_bytes=1, row_group_rows=1, target_file_bytes=1, threads=1)
    options = {"aggregates": {"n": "sum"}, "remove_record_on_delete": True}
    table = LakeTable.create(
        tmp_path, "k BIGINT, n TINYINT, o BIGINT", key=["k"], ordering=["o"], merger="aggregate", options=options,
        buckets=1, properties=OFF, settings=tiny,
    )  # fmt: skip

    def write(*rows: tuple[int, int, int]) -> None:
        k, n, o = zip(*rows, strict=True)
        table.upsert(pa.table({"k": k, "n": pa.array(n, pa.int8()), "o": o}))

    write(*((k, 100, 1) for k in range(8)))
    write(*((k, 1, 2) for k in range(8)), (2, 100, 2), (3, 100, 2), (7, 100, 2), (9, 100, 1), (9, 100, 1))
    table.delete(pa.table({"k": [1, 4, 8], "o": [5, 5, 5]}))
    result = table.compact()
    assert [skipped.key["k"] for skipped in result.skipped] == [2, 3, 7, 9]
    left = [(0, 101, 2), (5, 101, 2), (6, 101, 2)]
    assert rows_of(table.to_arrow(failed_keys="skip")) == left
    write((4, 1, 4), (8, 1, 4), (1, 1, 5))
    assert rows_of(table.to_arrow(failed_keys="skip")) == sorted([*left, (1, 1, 5)]), "deletes are remembered"
    write((2, -100, 3), (3, -100, 3), (7, -100, 3), (9, -100, 3))
    assert table.compact().skipped == ()
    healed = [(2, 101, 3), (3, 101, 3), (7, 101, 3), (9, 100, 3)]
    assert rows_of(table.to_arrow()) == sorted([*left, (1, 1, 5), *healed])
    problems = [finding.problem for finding in LakeTable.check(tmp_path).findings]
    assert problems == []


def test_a_part_with_too_many_of_them_is_left(tmp_path: Path) -> None:
    table = summed(tmp_path)
    put(table, *((k, 100) for k in range(40)))
    put(table, *((k, 100 if k < 20 else 1) for k in range(40)))
    result = table.compact()
    assert (result.file_slices, len(result.skipped)) == (0, 20)
    assert len(table.to_arrow(failed_keys="skip")) == 20


def test_errors_of_a_merger_are_of_their_keys(tmp_path: Path) -> None:
    table = summed(tmp_path, merger="grumpy", options=None, mergers=[Grumpy])
    put(table, (1, 1), (2, 2), (3, 3))
    put(table, (1, 1), (2, -1), (3, 1))
    with pytest.raises(MergerContractError, match=r"at key \{'k': 2\}: raised ArithmeticError"):
        table.to_arrow()
    assert rows_of(table.to_arrow(failed_keys="skip")) == [(1, 2), (3, 4)]
    assert [skipped.key for skipped in table.compact().skipped] == [{"k": 2}]
    told = table.explain({"k": 2}, since=0)
    assert told.failed is not None
    assert "below zero" in told.failed
    table.delete(pa.table({"k": [2]}))
    assert table.get({"k": 2}, failed_keys="skip") is None, "the fold still meets the record that fails"


def test_the_feed_goes_on_without_them(tmp_path: Path) -> None:
    table = busy(tmp_path)
    put(table, (3, -100), (7, -100))
    with pytest.raises(MergeOverflowError):
        table.changes(2).read_all()
    found = table.changes(0, failed_keys="skip").read_all().select(["k", "n", "_row_kind", "_commit_version"])
    of_three = [tuple(row.values())[1:] for row in found.to_pylist() if row["k"] == 3]
    assert of_three == [(100, "+I", 1), (100, "-U", 2), (101, "+U", 2), (101, "-D", 3), (101, "+I", 4)]
    assert found.num_rows == 10 + 20 + 2 + 2
    net = table.changes(1, failed_keys="skip", net=True).read_all()
    assert net.num_rows == 20
    batches = table.follow(poll=None, since=0, failed_keys="skip")
    assert sum(batch.num_rows for batch in batches) == found.num_rows
