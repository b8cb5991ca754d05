"""Merges without Spark; :mod:`tests.unit.transactions.merging` holds what Spark has to do, too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import FilterError, FrameError, InputError, LakeMergeError, LakeTable, TransactionPlan
from lakemerge.read.scan import scan
from tests.unit.faults import frame, listing, open_over
from tests.unit.transactions.merging import MERGES, REFUSALS, ROWS, SAME, SOURCE, made, state, table_of_key, with_holes

WRITES = ("put_if_absent", "put", "delete", "delete_exact", "replace_exact", "open_output", "sync", "publish")


def expected(name: str) -> list[tuple[Any, ...]]:
    rows = {row["k"]: tuple(row.values()) for row in ROWS}
    for key, values in MERGES[name].after.items():
        rows.pop(key, None)
        if values is not None:
            rows[key] = (key, *values)
    return sorted(rows.values(), key=repr)


@pytest.mark.parametrize("name", MERGES)
def test_what_a_merge_leaves_and_explains(name: str, tmp_path: Path) -> None:
    case = MERGES[name]
    made(tmp_path / "t")
    table, counting = open_over(tmp_path / "t")
    before = listing(tmp_path / "t")
    merge = case.build(table.merge(case.source.select(case.columns), case.on, **case.how))
    plan = merge.execute(explain=True)
    assert (plan.matched, plan.updated, plan.deleted, plan.inserted) == case.counts
    assert not [call for call in counting.calls if call.method in WRITES]
    assert listing(tmp_path / "t") == before
    result = merge.execute()
    assert state(table) == expected(name)
    assert (result.rows, result.files, result.bytes) == (plan.keys, plan.files, plan.bytes)
    table.compact()
    assert state(table) == expected(name)


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str, tmp_path: Path) -> None:
    case = REFUSALS[name]
    table = made(tmp_path / "t")
    before = listing(tmp_path / "t")
    for explain in (True, False):
        with pytest.raises(case.error, match=case.text):
            case.build(table.merge(case.source.select(case.columns), case.on)).execute(explain=explain)
    assert listing(tmp_path / "t") == before


CALLS: dict[str, tuple[Callable[..., Any], tuple[int, int, int, int], int]] = {
    "update": (lambda table, **how: table.update_where("n > 10", {"g": "'z'"}, **how), (2, 2, 0, 0), 2),
    "delete": (lambda table, **how: table.delete_where("n > 10", **how), (2, 0, 2, 0), 2),
    "delete of none": (lambda table, **how: table.delete_where("false", **how), (0, 0, 0, 0), 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_updates_and_deletes_explain(name: str, tmp_path: Path) -> None:
    call, counts, keys = CALLS[name]
    made(tmp_path / "t")
    table, counting = open_over(tmp_path / "t")
    before = listing(tmp_path / "t")
    plan = call(table, explain=True)
    assert isinstance(plan, TransactionPlan)
    assert (plan.matched, plan.updated, plan.deleted, plan.inserted, plan.keys) == (*counts, keys)
    assert plan.version == table.version == 2
    assert not [one for one in counting.calls if one.method in WRITES]
    assert listing(tmp_path / "t") == before
    result = call(table)
    assert (result.rows, result.files, result.bytes) == (plan.keys, plan.files, plan.bytes)
    assert min(1, keys) <= plan.buckets <= min(2, keys)
    assert plan.partitions == (1 if keys else 0)


def test_explain_says_whether_it_is_allowed(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "k BIGINT, v STRING NOT NULL", key=["k"], merger="commit-time", buckets=1)
    table.upsert(frame([(1, "a")], ("k", "v")))
    with pytest.raises(FrameError, match="NOT NULL"):
        table.update_where("true", {"v": None}, explain=True)


def test_explain_is_no_use_of_a_txn(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    table.update_where("k = 1", {"n": 0}, txn=("job", 1))
    assert table.update_where("k = 1", {"n": 0}, txn=("job", 1)).mode == "repeated"
    assert table.update_where("k = 1", {"n": 0}, txn=("job", 1), explain=True).updated == 1
    merge = table.merge(SOURCE, SAME, txn=("job", 1)).whenMatchedDelete()
    assert merge.execute().mode == "repeated"
    assert len(state(table)) == 4


@pytest.mark.parametrize("how", ["argument", "call"])
def test_all_columns_evolve_the_schema(how: str, tmp_path: Path) -> None:
    """The update leaves the column that the source lacks, the insert makes it null."""
    table = made(tmp_path / "t")
    merge = table.merge(SOURCE, SAME, merge_schema=how == "argument")
    merge = (merge if how == "argument" else merge.withSchemaEvolution()).whenMatchedUpdateAll("source.k < 3")
    merge = merge.whenNotMatchedInsertAll("source.k = 8")
    assert merge.execute(explain=True).keys == 3
    assert "extra" not in table.schema.names
    merge.execute()
    assert table.schema.names == ["k", "g", "n", "s", "extra"]
    assert state(table) == [
        (1, "a", 100, {"a": 1, "b": "p"}, "e1"),
        (2, "b", None, None, "e2"),
        (3, "y", None, {"a": 3, "b": None}, None),
        (4, "y", 40, {"a": 4, "b": "q"}, None),
        (8, "d", 800, None, "e8"),
    ]
    assert table.history()[0].operation == "MERGE"


def test_only_assigned_columns_evolve_the_schema(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    wide = SOURCE.append_column("other", SOURCE.column("n"))
    table.merge(wide, SAME).withSchemaEvolution().whenMatchedUpdate("source.k = 1", {"extra": "source.extra"}).execute()
    assert table.schema.names == ["k", "g", "n", "s", "extra"]
    with pytest.raises(FrameError, match="unknown column 'more'"):
        table.merge(wide, SAME).withSchemaEvolution().whenMatchedUpdate(set={"more": "source.other"}).execute()
    table.merge(wide, SAME).withSchemaEvolution().whenMatchedDelete("source.k = 1").execute()
    assert table.schema.names == ["k", "g", "n", "s", "extra"]


def test_fields_of_structs_evolve(tmp_path: Path) -> None:
    """A struct is replaced as a whole, by the names of its fields."""
    table = made(tmp_path / "t")
    source = pa.table({"k": pa.array([1], pa.int64()), "s": [{"c": 2.5, "a": 7}]})
    merge = table.merge(source, SAME).whenMatchedUpdate(set={"s": "source.s"})
    with pytest.raises((FilterError, FrameError)):
        merge.execute()
    merge.withSchemaEvolution().execute()
    assert state(table)[0] == (1, "x", 10, {"a": 7, "b": None, "c": 2.5})
    assert state(table)[3] == (4, "y", 40, {"a": 4, "b": "q", "c": None})


def test_evolution_stops_at_the_cap(tmp_path: Path) -> None:
    table = made(tmp_path / "t", max_columns=5)
    before = listing(tmp_path / "t")
    merge = table.merge(SOURCE, SAME).withSchemaEvolution().whenMatchedUpdateAll()
    for explain in (True, False):
        with pytest.raises(FrameError, match=r"would have 6 columns .* at most 5: .*Settings.max_columns"):
            merge.execute(explain=explain)
    assert listing(tmp_path / "t") == before


def test_only_files_of_the_source_keys_are_read(tmp_path: Path) -> None:
    table = with_holes(tmp_path / "t")
    merge = table.merge(table_of_key("a", 1), "target.p = source.p AND target.k = source.k")
    plan = merge.whenMatchedUpdate(set={"n": 5}).whenNotMatchedInsert(values={}).execute(explain=True)
    assert (plan.matched, plan.updated, plan.inserted, plan.partitions, plan.buckets) == (1, 1, 0, 1, 1)
    with pytest.raises(LakeMergeError):
        merge.whenNotMatchedBySourceDelete().execute(explain=True)


def test_a_set_of_a_partition_column(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path / "t", "p STRING, k BIGINT, n INT", key=["p", "k"], partition_by=["p"], buckets=1
    )  # fmt: skip
    table.upsert(pa.table({"p": ["a", "b"], "k": [1, 1], "n": [1, 1]}))
    source = pa.table({"k": pa.array([1, 2], pa.int64())})
    merge = table.merge(source, "target.p = 'a' AND target.k = source.k")
    with pytest.raises(FrameError, match="'p' is a partition column, which stays"):
        merge.whenMatchedUpdate(set={"p": "'b'"}).execute()
    merge.whenMatchedUpdate(set={"n": 5}).whenNotMatchedInsert(values={"n": 6}).execute()
    assert state(table) == [("a", 1, 5), ("a", 2, 6), ("b", 1, 1)]


@pytest.mark.parametrize("names", [("t", "T"), ("a.b", "s"), ("", "s")])
def test_aliases_are_words(names: tuple[str, str], tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    with pytest.raises(InputError, match="alias"):
        table.merge(SOURCE, SAME, target_alias=names[0], source_alias=names[1]).whenMatchedDelete().execute()


def test_a_source_column_twice(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    twice = pa.table([SOURCE.column("k"), SOURCE.column("n"), SOURCE.column("n")], names=["k", "n", "N"])
    with pytest.raises(FrameError, match="several columns 'n'"):
        table.merge(twice, SAME).whenMatchedDelete().execute()


def test_rows_that_are_read_ahead(tmp_path: Path) -> None:
    """All rows, once each; an error of a thread is raised, and a reader that stops leaves no thread."""
    table = LakeTable.create(tmp_path / "t", "k BIGINT, n BIGINT", key=["k"], merger="commit-time", buckets=16)
    table.upsert(pa.table({"k": range(5000), "n": range(5000)}))
    table.upsert(pa.table({"k": range(0, 5000, 7), "n": [-1] * 715}))
    handle, view = table.opened.handle, table.opened.view
    found = scan(handle, view, columns=None, filter="n < 4000", ordered=False).read_all()
    expected = scan(handle, view, columns=None, filter="n < 4000").read_all()
    assert found.sort_by("k").equals(expected.sort_by("k"))
    before = threading.active_count()
    reader = scan(handle, view, columns=None, filter=None, ordered=False)
    reader.read_next_batch()
    reader.close()
    del reader
    until = time.monotonic() + 60
    while threading.active_count() > before:  # nobody waits for what threads have begun
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(FilterError, match="by zero"):
        table.update_where("1 / (n - 3000) > 0", {"n": 0})
    assert table.version == view.version
