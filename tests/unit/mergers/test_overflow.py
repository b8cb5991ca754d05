"""Totals that do not fit their column: no write fails for them, compaction goes around them, reads of
their keys say so, and records that bring them back into range heal everything."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import CompactFirstError, FailedRecord, LakeTable, MergeOverflowError, Settings, SkippedFileSlice
from lakemerge.layout.xxhash64 import buckets as buckets_of
from tests.unit.faults import listing, rows_of

DDL = "k BIGINT, n TINYINT, s STRING"
SUM = {"aggregates": {"n": "sum", "s": "last_value"}}
TINY = Settings(merge_budget_bytes=1, row_group_rows=2, target_file_bytes=1, threads=1)
"""Every row is a range of its own, and every range may begin a new base file."""


def create(path: Path, *, settings: Settings | None = None, **options: Any) -> LakeTable:
    arguments: dict[str, Any] = {"key": ["k"], "merger": "aggregate", "options": SUM, "buckets": 2, **options}
    return LakeTable.create(path, arguments.pop("schema", DDL), settings=settings, **arguments)


def frame(*rows: tuple[Any, ...], op: str = "+U") -> pa.Table:
    names = ["k", "n", "s"][: len(rows[0])]
    types = {"k": pa.int64(), "n": pa.int8(), "s": pa.string()}
    columns = {name: pa.array([row[i] for row in rows], types[name]) for i, name in enumerate(names)}
    return pa.table({**columns, "op": pa.array([op] * len(rows))})


def write(table: LakeTable, *rows: tuple[Any, ...], op: str = "+U") -> Any:
    return table.upsert(frame(*rows, op=op), kind_column="op")


def keys_by_bucket(count: int, buckets: int = 2) -> dict[int, list[int]]:
    numbers = buckets_of([pa.array(range(count), pa.int64())], buckets).tolist()
    return {bucket: [key for key in range(count) if numbers[key] == bucket] for bucket in range(buckets)}


def data_files(path: Path) -> set[str]:
    return {file for file in listing(path) if file.startswith(("base/", "_lakemerge/tombstones"))}


def referred(table: LakeTable) -> set[str]:
    bases = table.opened.view.base_files
    return {path for base in bases for path in (base.add.path, base.tombstones) if path is not None}


def test_compaction_skips_the_slice_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t"
    table = create(path)
    keys = keys_by_bucket(8)
    (wide, beside), other = keys[0][:2], keys[1][0]
    write(table, (wide, 100, "a"), (beside, 1, "a"), (other, 1, "a"))
    # A frame that overflows by itself, and one that overflows onto the base: neither is refused.
    assert write(table, (wide, 100, "b"), (wide, 100, "c"), (beside, 2, "b"), (other, 2, "b")).rows == 4
    before, files = table.version, data_files(path)
    with caplog.at_level(logging.WARNING):
        result = table.compact()
    assert (result.file_slices, result.rows, result.replaced_files) == (2, 3, 2), "of the wide key, the stored row"
    [skipped] = result.skipped
    assert (skipped.partition, skipped.bucket, skipped.key, skipped.column) == ((), 0, {"k": wide}, "n")
    assert f"the sum of column 'n' for key {{'k': {wide}}} does not fit TINYINT" in skipped.reason
    assert repr(result).endswith(", skipped=1)")
    [warning] = [record.getMessage() for record in caplog.records if record.name == "compaction.run.group"]
    assert f"left key {{'k': {wide}}} of bucket 0 as it is: {skipped.reason}" in warning
    assert [(record.version, record.values["n"]) for record in skipped.records] == [(2, 100), (2, 100)]
    assert table.version == before + 3, "ordinals, more of them for the key, and the compaction"
    entry = table.history(limit=1)[0]
    assert (entry.parameters["fileSlices"], entry.metrics["numSkippedFileSlices"]) == ("2", "1")

    dirty = [file_slice for file_slice in table.opened.view.file_slices if not file_slice.is_clean]
    assert [(file_slice.bucket_id.bucket, [block.rows for block in file_slice.blocks]) for file_slice in dirty] == [
        (0, [3])
    ]
    assert data_files(path) == files | referred(table)
    again = table.compact()
    assert (again.commits, [each.key for each in again.skipped]) == (0, [{"k": wide}]), "nothing is written anew"
    reads: list[Callable[[], object]] = [table.to_arrow, lambda: LakeTable.open(path).scan().read_all()]
    for read in reads:
        with pytest.raises(MergeOverflowError, match="'n'") as caught:
            read()
        assert (caught.value.facts["key"], caught.value.facts["column"]) == ({"k": wide}, "n")
    assert rows_of(table.to_arrow(columns=["k", "s"])) == sorted([(wide, "c"), (beside, "b"), (other, "b")])
    assert rows_of(LakeTable.open(path, version=1).to_arrow()) == sorted(
        [(wide, 100, "a"), (beside, 1, "a"), (other, 1, "a")]
    )

    with pytest.raises(CompactFirstError):
        table.alter(merger="commit-time")
    write(table, (wide, 100, "x"), (wide, 100, "x"), op="-U")
    healed = sorted([(wide, 100, None), (beside, 3, "b"), (other, 3, "b")])
    assert rows_of(table.to_arrow()) == healed
    result = table.compact()
    assert (result.file_slices, result.skipped) == (2, ()), "the parts of the bucket are joined again"
    assert rows_of(table.to_arrow()) == healed
    assert not table.opened.view.log_commits
    assert all(file_slice.is_clean for file_slice in table.opened.view.file_slices)


def test_where_every_dirty_slice_is_skipped_nothing_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, buckets=1, settings=TINY)
    write(table, *((key, 1, "a") for key in range(4)))
    write(table, *((key, 127, "b") for key in range(4)))
    files, live = data_files(path), table.opened.view.log_commits
    result = table.compact()
    assert (result.file_slices, result.rows, result.files, result.bytes, result.replaced_files) == (0, 0, 0, 0, 0)
    assert {skipped.key["k"] for skipped in result.skipped} == set(range(4))
    assert table.opened.view.log_commits == live
    assert data_files(path) == files
    assert [entry.operation for entry in table.history()].count("COMPACT") == 0


def test_files_that_a_skipped_tile_wrote_are_deleted(tmp_path: Path) -> None:
    """The file slice is large: ranges before the key that overflows are in closed files, tombstones with them."""
    path = tmp_path / "t"
    settings = Settings(merge_budget_bytes=1, target_file_bytes=600, row_group_rows=2, threads=1)
    ordered = {"ordering": ["o"], "schema": "k BIGINT, o BIGINT, n TINYINT", "buckets": 1}
    table = create(
        path, **ordered, options={"aggregates": {"n": "sum"}, "remove_record_on_delete": True}, settings=settings
    )
    table.delete(pa.table({"k": [-1], "o": [9]}))
    rows = pa.table({"k": range(40), "o": [1] * 40, "n": pa.array([1] * 39 + [127], pa.int8())})
    table.upsert(rows)
    table.delete(pa.table({"k": [0, 1], "o": [9, 9]}))
    table.upsert(pa.table({"k": [39], "o": [1], "n": pa.array([127], pa.int8())}))
    assert len(table.opened.view.file_slices) == 1
    before = data_files(path)
    result = LakeTable.open(path, settings=settings).compact()
    assert [skipped.key for skipped in result.skipped] == [{"k": 39}]
    assert data_files(path) == before | referred(table)
    [finding] = LakeTable.check(path).findings
    assert "for key {'k': 39} does not fit" in finding.problem, "the files divide the keys, and nothing else is wrong"


def test_only_the_tile_of_the_key_stays(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, buckets=1, settings=TINY)
    write(table, *((key, 100, "a") for key in range(6)))
    assert len(table.opened.view.file_slices) > 3
    write(table, *((key, 1, "b") for key in range(5)))
    write(table, (3, 100, "b"))
    result = table.compact()
    assert (result.file_slices, [skipped.key for skipped in result.skipped]) == (4, [{"k": 3}])
    write(table, (3, 100, None), op="-U")
    assert rows_of(table.to_arrow()) == [(key, 101, None if key == 3 else "b") for key in range(5)] + [(5, 100, "a")]
    assert table.compact().skipped == ()
    assert not table.opened.view.log_commits


@pytest.mark.parametrize(
    "settings", [Settings(threads=1), Settings(target_file_bytes=1, threads=1)], ids=["in memory", "packed"]
)
def test_the_first_write_of_a_table_takes_them_too(tmp_path: Path, settings: Settings) -> None:
    """It cannot become base files, so it stays a log, and no base file of it is left; and a later load merges it with
    what heals it. The other bucket comes first, so it has a file by then."""
    path = tmp_path / "t"
    table = create(path, settings=settings)
    result = write(table, (2, 100, "a"), (2, 100, "b"), (1, 5, "c"))
    assert (result.mode, result.rows, table.version) == ("append", 3, 1)
    assert data_files(path) == set()
    with pytest.raises(MergeOverflowError):
        table.to_arrow()
    assert table.compact().skipped != ()
    write(table, (2, 100, None), op="-U")
    assert table.compact().skipped == ()
    assert rows_of(table.to_arrow()) == [(1, 5, "c"), (2, 100, None)]


@pytest.mark.parametrize(
    ("kind", "function", "start", "step", "back"),
    [
        ("TINYINT", "count", 1, 1, 1),
        ("SMALLINT", "product", 200, 200, 200),
        ("BIGINT", "sum", 2**63 - 1, 1, 1),
    ],
)
def test_every_total_that_can_leave_its_range(
    kind: str, function: str, start: int, step: int, back: int, tmp_path: Path
) -> None:
    table = create(tmp_path, schema=f"k BIGINT, n {kind}", options={"aggregates": {"n": function}}, buckets=1)
    more = 127 if function == "count" else 1
    one = {"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "BIGINT": pa.int64()}[kind]
    table.upsert(pa.table({"k": [1], "n": pa.array([start], one)}))
    table.upsert(pa.table({"k": [1] * more, "n": pa.array([step] * more, one)}))
    [skipped] = table.compact().skipped
    assert (skipped.column, function in skipped.reason) == ("n", True)
    taken = pa.table({"k": [1], "n": pa.array([back], one), "op": ["-U"]})
    table.upsert(taken, kind_column="op")
    assert table.compact().skipped == ()
    assert rows_of(table.to_arrow()) == [(1, 127 if function == "count" else start)]


def test_partial_update_groups_and_partitions(tmp_path: Path) -> None:
    options = {"sequence_groups": {"g": ["n"]}, "aggregates": {"n": "sum"}}
    table = create(
        tmp_path,
        schema="p STRING, k BIGINT, g BIGINT, n TINYINT",
        key=["p", "k"],
        partition_by=["p"],
        merger="partial-update",
        options=options,
        buckets=1,
    )

    def rows(*given: tuple[str, int, int, int]) -> pa.Table:
        p, k, g, n = zip(*given, strict=True)
        return pa.table({"p": p, "k": k, "g": g, "n": pa.array(n, pa.int8())})

    table.upsert(rows(("x", 1, 1, 100), ("y", 1, 1, 1)))
    table.upsert(rows(("x", 1, 2, 100), ("y", 1, 2, 1)))
    result = table.compact()
    assert result.file_slices == 1
    assert result.skipped == (
        SkippedFileSlice(
            partition=("x",),
            bucket=0,
            key={"p": "x", "k": 1},
            column="n",
            reason=result.skipped[0].reason,
            records=(FailedRecord(version=2, kind="+U", values={"p": "x", "k": 1, "g": 2, "n": 100}),),
        ),
    )
    assert rows_of(table.to_arrow(filter="p = 'y'")) == [("y", 1, 2, 2)], "pruned: the other partition is not read"
