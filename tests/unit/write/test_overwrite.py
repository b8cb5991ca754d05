"""Overwrites: what is replaced, who conflicts, what the format, the feed and the history say.

Expected rows are written by hand.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from compaction.plan.loads import file_slice_loads
from lakemerge import (
    CommitConflictError,
    FilterError,
    FrameError,
    InputError,
    LakeTable,
    Settings,
    TableDamagedError,
)
from lakemerge.commits.base import FileSlicesChangedError
from lakemerge.commits.footprint import RowsChangedError
from lakemerge.delta import Attempt, DomainMetadata
from lakemerge.format.names import LOG_DOMAIN_PREFIX, RESET_DOMAIN
from lakemerge.format.operations import Operation
from lakemerge.format.reset import Reset, Resets
from lakemerge.ingest import Files
from lakemerge.layout.references import snapshot_references
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, listing, open_over, rows_of, state_of
from tests.unit.ingest.landing import FEED, landed

PARTS = "k BIGINT, p STRING, o BIGINT, v STRING"
Part = tuple[int, str, int, str]


def parted(path: Path, **options: Any) -> LakeTable:
    """Rows in base files and logs of partitions a and b."""
    given = {"schema": PARTS, "key": ["k", "p"], "partition_by": ["p"], "buckets": 2, **options}
    table = create(path, **given)
    table.upsert(of([(1, "a", 5, "x"), (2, "a", 5, "x"), (1, "b", 5, "x"), (4, "b", 5, "x")]))
    table.upsert(of([(1, "a", 6, "y"), (3, "a", 6, "y"), (1, "b", 6, "y")]))
    return table


def of(rows: Sequence[tuple[Any, ...]], names: Sequence[str] = ("k", "p", "o", "v")) -> pa.Table:
    return frame(rows, names, p=pa.string())


def told(table: LakeTable, since: int) -> list[tuple[Any, ...]]:
    """The changes, sorted, without the time."""
    changes = table.changes(since).read_all().drop_columns(["_commit_timestamp"])
    return rows_of(changes)


B_ROWS = [(1, "b", 6, "y"), (4, "b", 5, "x")]


# Rows


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(lambda rows: rows, id="arrow"),
        pytest.param(lambda rows: rows.to_pandas(), id="pandas"),
        pytest.param(pl.from_arrow, id="polars"),
        pytest.param(lambda rows: rows.to_reader(), id="a stream"),
        pytest.param(lambda rows: rows.combine_chunks().to_batches()[0], id="a batch"),
    ],
)
def test_rows_of_any_frame(given: Callable[[pa.Table], Any], tmp_path: Path) -> None:
    table = create(tmp_path / "t", buckets=None)
    table.upsert(frame([(1, 9, "a"), (2, 9, "b")]))
    result = table.overwrite(given(frame([(1, 1, "n"), (3, 1, "m")])))
    assert (result.rows, result.mode) == (2, "overwrite")
    assert state_of(tmp_path / "t") == [(1, 1, "n"), (3, 1, "m")]
    assert LakeTable.check(tmp_path / "t").ok


@pytest.mark.parametrize("budget", [1, None])
def test_rows_in_many_buckets_and_files(budget: int | None, tmp_path: Path) -> None:
    """More than may be held is packed and merged, in the same way."""
    settings = Settings() if budget is None else Settings(write_budget_bytes=4096, target_file_bytes=2048)
    create(tmp_path / "t", buckets=4, settings=settings).upsert(frame([(-1, 9, "old"), (5, 9, "old")]))
    table = LakeTable.open(tmp_path / "t", settings=settings)
    rows = [(number, number % 7, f"v{number}") for number in range(2000)]
    batches = frame(rows).to_batches(max_chunksize=100)
    assert table.overwrite(pa.RecordBatchReader.from_batches(batches[0].schema, batches)).rows == 2000
    assert state_of(tmp_path / "t") == sorted(rows, key=repr)
    assert LakeTable.check(tmp_path / "t").ok
    assert not [path for path in listing(tmp_path / "t") if "/log/" in path], "what was packed is deleted"


def test_columns_that_a_frame_lacks_are_null_and_names_match_in_any_case(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 9, "a")]))
    table.overwrite(pa.table({"K": [1, 2]}))
    assert state_of(tmp_path / "t") == [(1, None, None), (2, None, None)]


def test_a_frame_may_bring_columns(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 9, "a")]))
    with pytest.raises(FrameError, match="unknown column 'w'"):
        table.overwrite(pa.table({"k": [1], "w": [7]}))
    table.overwrite(pa.table({"k": [1], "w": [7]}), merge_schema=True)
    assert state_of(tmp_path / "t") == [(1, None, None, 7)]


def test_numbers_are_cast_as_those_of_an_upsert(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.overwrite(pa.table({"k": pa.array([1], pa.int8()), "o": pa.array([2], pa.uint64())}))
    assert state_of(tmp_path / "t") == [(1, 2, None)]
    with pytest.raises(FrameError):
        table.overwrite(pa.table({"k": [1], "o": pa.array([2**64 - 1], pa.uint64())}))
    assert state_of(tmp_path / "t") == [(1, 2, None)]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("given", "options", "error", "match"),
    [
        ([(1, "a", 1, "n"), (2, "a", 1, "n"), (1, "a", 2, "m")], {}, FrameError, r"key \{'k': 1, 'p': 'a'\} twice"),
        ([(1, "a", 1, "n"), (1, "b", 1, "n")], {"where": "p = 'a'"}, FrameError, r"rows of partition \{'p': 'b'\}"),
        ([(None, "a", 1, "n")], {}, FrameError, "key column 'k' is null"),
        ([(1, "", 1, "n")], {}, FrameError, "an empty string cannot be a partition value"),
        ([(1, "a", 1, "n")], {"where": "v = 'x'"}, FilterError, "reads partition columns alone"),
        ([(1, "a", 1, "n")], {"where": "nonsense"}, FilterError, "nonsense"),
        ([(1, "a", 1, "n")], {"where": ""}, FilterError, "a condition on partition columns"),
        ([(1, "a", 1, "n")], {"where": "p = 'a'", "partition_mode": "dynamic"}, InputError, "give one of them"),
        ([(1, "a", 1, "n")], {"partition_mode": "some"}, InputError, "partition_mode"),
    ],
)
def test_what_is_refused_commits_nothing(
    given: list[Any], options: Mapping[str, Any], error: type[Exception], match: str, streamed: bool, tmp_path: Path
) -> None:
    table = parted(tmp_path / "t")
    before, version = listing(tmp_path / "t"), table.version
    rows = of(given)
    batches = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=1))
    over = LakeTable.open(tmp_path / "t", settings=Settings(write_budget_bytes=1)) if streamed else table
    with pytest.raises(error, match=match):
        over.overwrite(batches if streamed else rows, **options)
    assert (LakeTable.open(tmp_path / "t").version, listing(tmp_path / "t")) == (version, before)


def test_columns_that_are_not_null_need_values(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT, v STRING NOT NULL")
    with pytest.raises(FrameError, match="column 'v' is NOT NULL and null in 1 row"):
        table.overwrite(pa.table({"k": [1], "o": [1]}))
    with pytest.raises(FrameError, match="column 'v' is NOT NULL"):
        table.overwrite(frame([(1, 1, None)]))
    with pytest.raises(FrameError, match="key column 'k' is missing"):
        table.overwrite(pa.table({"v": ["x"]}))
    with pytest.raises(FrameError, match="unknown column '_lm_kind'"):
        table.overwrite(pa.table({"k": [1], "_lm_kind": [4]}))
    assert table.version == 0


# Scope


@pytest.mark.parametrize("compacted", ["no", "minor", "full", "logs"])
@pytest.mark.parametrize("how", ["where", "dynamic"])
def test_other_partitions_stay(how: str, compacted: str, tmp_path: Path) -> None:
    table = parted(tmp_path / "t")
    if compacted == "logs":
        table.compact_logs(size_ratio=float("inf"))
    elif compacted != "no":
        table.compact(minor=compacted == "minor")
    options = {"where": "p = 'a'"} if how == "where" else {"partition_mode": "dynamic"}
    table.overwrite(of([(1, "a", 1, "n"), (9, "a", 1, "n")]), **options)  # type: ignore[arg-type]
    wanted = [(1, "a", 1, "n"), (9, "a", 1, "n"), *B_ROWS]
    assert state_of(tmp_path / "t") == sorted(wanted, key=repr)
    table.upsert(of([(1, "a", 2, "later"), (2, "a", 0, "again"), (4, "b", 4, "too old")]))
    wanted = [(1, "a", 2, "later"), (2, "a", 0, "again"), (9, "a", 1, "n"), *B_ROWS]
    assert state_of(tmp_path / "t") == sorted(wanted, key=repr)
    count = table.query("SELECT count(*) AS n, sum(o) AS o FROM self").to_pylist()
    assert count == [{"n": len(wanted), "o": sum(row[2] for row in wanted)}]
    assert table.get({"k": 3, "p": "a"}) is None
    assert rows_of(table.to_arrow(filter="o < 3")) == [row for row in sorted(wanted, key=repr) if row[2] < 3]
    for compact in (table.compact_logs, lambda: table.compact(minor=True), table.compact):
        compact()
        assert state_of(tmp_path / "t") == sorted(wanted, key=repr)
        assert LakeTable.check(tmp_path / "t").ok


@pytest.mark.parametrize(
    ("kind", "condition", "kept"),
    [
        ("INT", "p >= 2", [1]),
        ("INT", "p IN (1, 3)", [2]),
        ("INT", "true", []),
        ("INT", "false", [1, 2, 3]),
        ("INT", "p IS NULL", [1, 2, 3]),
        ("INT", "p + 1 = 2", [2, 3]),
        ("DATE", "p < '2024-01-02'", [dt.date(2024, 1, 2), dt.date(2024, 1, 3)]),
        ("BOOLEAN", "p", [False]),
        ("DECIMAL(5,2)", "p = 1.5", []),
        ("TIMESTAMP", "p > '2024-01-01 00:00:00'", [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    ],
)
def test_conditions_on_partition_columns(kind: str, condition: str, kept: list[Any], tmp_path: Path) -> None:
    values: Mapping[str, list[Any]] = {
        "INT": [1, 2, 3],
        "DATE": [dt.date(2024, 1, day) for day in (1, 2, 3)],
        "BOOLEAN": [True, False],
        "DECIMAL(5,2)": [pa.scalar("1.50").cast(pa.decimal128(5, 2)).as_py()],
        "TIMESTAMP": [dt.datetime(2024, 1, day, tzinfo=dt.UTC) for day in (1, 2)],
    }
    table = LakeTable.create(tmp_path / "t", f"k INT, p {kind}", key=["k", "p"], partition_by=["p"], buckets=1)
    schema = pa.schema([field.with_nullable(True) for field in table.schema])
    table.upsert(pa.table([pa.array([1] * len(values[kind]), pa.int32()), values[kind]], schema=schema))
    table.overwrite(schema.empty_table(), condition)
    assert sorted(table.to_arrow()["p"].to_pylist()) == kept


def test_a_table_without_partitions_and_a_condition(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 9, "a")]))
    with pytest.raises(FilterError, match="the table has none"):
        table.overwrite(frame([(1, 1, "n")]), where="k = 1")
    table.overwrite(frame([(2, 1, "n")]), where="true")
    assert state_of(tmp_path / "t") == [(2, 1, "n")]


def test_the_same_transaction_twice(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.overwrite(frame([(1, 1, "a")]), txn=("load", 1))
    table.upsert(frame([(2, 1, "b")]))
    assert table.overwrite(frame([(9, 9, "z")]), txn=("load", 1)).mode == "repeated"
    assert state_of(tmp_path / "t") == [(1, 1, "a"), (2, 1, "b")]


def test_the_same_transaction_twice_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path).upsert(frame([(1, 9, "a")]))

    def same(call: Call) -> None:
        LakeTable.open(path).overwrite(frame([(2, 1, "first")]), txn=("load", 1))

    table, _ = open_over(path, Fault(action=same, method="put_if_absent"))
    assert table.overwrite(frame([(2, 1, "second")]), txn=("load", 1)).mode == "repeated"
    assert state_of(path) == [(2, 1, "first")]
    names = snapshot_references(LakeTable.open(path).opened.view.snapshot, LakeTable.open(path).opened.handle.store)
    assert {file for file in listing(path) if file.startswith("base/")} - names == {
        *LakeTable.open(path, version=1).opened.view.snapshot.files
    }


# Format


def test_each_version_is_a_delta_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = parted(path)
    seen = []
    for step in (
        lambda: table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'"),
        lambda: table.upsert(of([(1, "a", 2, "m")])),
        lambda: table.overwrite(of([(7, "c", 1, "n")]), partition_mode="dynamic"),
        table.compact,
        lambda: table.overwrite(of([(8, "b", 1, "n")])),
    ):
        step()
        delta = deltalake.DeltaTable(path)
        assert delta.version() == table.version
        seen.append(rows_of(delta.to_pyarrow_table().select(["k", "p", "o", "v"])))
        files = [str(path / add.path) for add in table.opened.view.snapshot.files.values()]
        assert rows_of(duckdb.read_parquet(files).select("k, p, o, v").to_arrow_table()) == seen[-1]
    first = [(1, "b", 5, "x"), (4, "b", 5, "x")]
    assert seen == [
        sorted([(1, "a", 1, "n"), *first], key=repr),
        sorted([(1, "a", 1, "n"), *first], key=repr),
        sorted([(1, "a", 1, "n"), *first, (7, "c", 1, "n")], key=repr),
        sorted([(1, "a", 2, "m"), *B_ROWS, (7, "c", 1, "n")], key=repr),
        [(8, "b", 1, "n")],
    ]


def commit_of(path: Path, version: int) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (path / f"_delta_log/{version:020d}.json").read_bytes().splitlines()]


def test_what_the_commit_says(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = parted(path)
    ordinals = table.opened.view.state.next_ordinal
    version = table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'", info={"job": "nightly"}).version
    lines = commit_of(path, version)
    about = lines[0]["commitInfo"]
    assert (about["operation"], about["job"]) == (Operation.OVERWRITE, "nightly")
    assert about["operationParameters"]["predicate"] == "p = 'a'"
    removed = [line["remove"] for line in lines if "remove" in line]
    assert {line["partitionValues"]["p"] for line in removed} == {"a"}
    (tag,) = [orjson.loads(line["add"]["tags"]["lakemerge.slice"]) for line in lines if "add" in line]
    assert (tag["through"], tag["ordinal"], tag["rows"]) == (version - 1, ordinals, 1)
    domains = {line["domainMetadata"]["domain"]: line["domainMetadata"] for line in lines if "domainMetadata" in line}
    assert orjson.loads(domains[RESET_DOMAIN]["configuration"]) == {"resets": [[version, ["a"]]]}
    assert orjson.loads(domains["lakemerge.state"]["configuration"])["overwriteEpoch"] == 1
    whole = table.overwrite(of([(1, "a", 1, "n")])).version
    assert table.opened.view.resets == Resets((Reset(whole, None),))
    assert table.opened.view.state.overwrite_epoch == 2


def test_a_bucket_without_new_rows_gets_no_file(tmp_path: Path) -> None:
    table = create(tmp_path / "t", buckets=8)
    table.upsert(frame([(number, 1, "x") for number in range(64)]))
    assert len(table.opened.view.snapshot.files) == 8
    table.overwrite(frame([(1, 1, "n")]))
    assert len(table.opened.view.snapshot.files) == 1
    table.upsert(frame([(number, 0, "late") for number in range(64)]))
    assert len(state_of(tmp_path / "t")) == 64
    table.compact()
    assert table.get({"k": 1}) == {"k": 1, "o": 1, "v": "n"}


def test_logs_of_other_partitions_stay(tmp_path: Path) -> None:
    """A log domain with records of both stays, and its records of the overwritten partition are dead."""
    table = parted(tmp_path / "t")
    (log,) = [name for name in table.opened.view.snapshot.domains if name.startswith(LOG_DOMAIN_PREFIX)]
    table.overwrite(of([]), "p = 'a'")
    assert log in table.opened.view.snapshot.domains
    assert state_of(tmp_path / "t") == B_ROWS
    live = {block.bucket_id.partition for part in table.opened.view.file_slices for block in part.blocks}
    assert live == {("b",)}
    loads = {(load.bucket_id, load.log_blocks, load.oldest_version) for load in file_slice_loads(table.opened.view)}
    assert loads == {
        (part.bucket_id, len(part.blocks), 2 if part.blocks else None) for part in table.opened.view.file_slices
    }
    assert table.detail().log_blocks == sum(len(part.blocks) for part in table.opened.view.file_slices)


def test_a_reset_goes_when_no_log_needs_it(tmp_path: Path) -> None:
    table = parted(tmp_path / "t")
    version = table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'").version
    table.upsert(of([(1, "a", 2, "m")]))
    table.compact(where="p = 'a'")
    assert table.opened.view.resets == Resets((Reset(version, ("a",)),)), "the log of b has dead records of a"
    table.compact(where="p = 'b'")
    assert table.opened.view.resets == Resets()
    assert RESET_DOMAIN not in table.opened.view.snapshot.domains
    assert state_of(tmp_path / "t") == sorted([(1, "a", 2, "m"), *B_ROWS], key=repr)


def test_resets_that_cover_others(tmp_path: Path) -> None:
    first = Resets().with_entries([Reset(3, ("a",)), Reset(3, (None,))])
    assert first.with_entries([Reset(5, ("a",))]).entries == (Reset(3, (None,)), Reset(5, ("a",)))
    assert first.with_entries([Reset(6, None)]).entries == (Reset(6, None),)
    later = first.with_entries([Reset(6, None), Reset(7, ("b",))])
    assert [later.through(part) for part in (("a",), ("b",), (None,))] == [5, 6, 5]
    assert later.needed({("a",): 6, ("b",): 8}).entries == (Reset(6, None),)
    assert later.needed({("a",): 7, ("b",): 7}).entries == (Reset(7, ("b",)),)
    assert later.needed({}).entries == ()
    assert Resets.of({RESET_DOMAIN: later.domain()}) == later


@pytest.mark.parametrize(
    "body", ["", "{}", '{"resets": 1}', '{"resets": [[1]]}', '{"resets": [[-1, null]]}', '{"resets": [[1, [2]]]}']
)
def test_a_damaged_reset_is_named(body: str, tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    domain = DomainMetadata(RESET_DOMAIN, body, False)
    table.opened.handle.log.commit(
        table.opened.view.snapshot, lambda tip: Attempt([domain]), operation="DAMAGE", parameters={}
    )
    with pytest.raises(TableDamagedError, match=r"lakemerge\.reset"):
        LakeTable.open(tmp_path / "t").to_arrow()
    assert not LakeTable.check(tmp_path / "t").ok


# Writers at the same time


def test_an_append_that_lands_before_it_is_overwritten(tmp_path: Path) -> None:
    """In its scope, whatever the overwrite has seen."""
    path = tmp_path / "t"
    parted(path)

    def append(call: Call) -> None:
        LakeTable.open(path).upsert(of([(1, "a", 99, "lost"), (8, "a", 99, "lost"), (8, "b", 99, "kept")]))

    table, _ = open_over(path, Fault(action=append, method="put_if_absent", at=2))  # at 1 ordinals are reserved
    version = table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'").version
    assert version == 5
    assert state_of(path) == sorted([(1, "a", 1, "n"), *B_ROWS, (8, "b", 99, "kept")], key=repr)


def test_an_append_that_lands_after_it_is_newer(tmp_path: Path) -> None:
    """Whatever the append has seen."""
    path = tmp_path / "t"
    parted(path)

    def overwrite(call: Call) -> None:
        LakeTable.open(path).overwrite(of([(1, "a", 7, "n"), (2, "a", 7, "n")]), "p = 'a'")

    table, _ = open_over(path, Fault(action=overwrite, method="put_if_absent"))
    table.upsert(of([(1, "a", 8, "newer"), (2, "a", 6, "older"), (8, "a", 0, "alone")]))
    wanted = [(1, "a", 8, "newer"), (2, "a", 7, "n"), (8, "a", 0, "alone"), *B_ROWS]
    assert state_of(path) == sorted(wanted, key=repr)


def test_a_first_load_meanwhile_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path, buckets=2)

    def load(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(1, 99, "lost")]))

    table, _ = open_over(path, Fault(action=load, method="put_if_absent", at=2))
    table.overwrite(frame([(2, 1, "n")]))
    assert state_of(path) == [(2, 1, "n")]


def test_a_first_load_after_an_overwrite_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path, buckets=2)

    def overwrite(call: Call) -> None:
        LakeTable.open(path).overwrite(frame([(5, 1, "n")]))
        LakeTable.open(path).overwrite(frame([]))

    table, _ = open_over(path, Fault(action=overwrite, method="put_if_absent"))
    table.upsert(frame([(1, 9, "a")]))
    assert state_of(path) == [(1, 9, "a")]
    assert LakeTable.check(path).ok


COMPACTIONS: Mapping[str, Callable[[LakeTable], object]] = {
    "full": lambda table: table.compact(),
    "minor": lambda table: table.compact(minor=True),
    "logs": lambda table: table.compact_logs(size_ratio=float("inf")),
    "rescale": lambda table: table.rescale(buckets=4),
    "fewer": lambda table: table.rescale(buckets=1),
}


@pytest.mark.parametrize("rows", [[], [(1, "a", 1, "n")], [(1, "c", 1, "n")]])
@pytest.mark.parametrize("name", COMPACTIONS)
def test_a_compaction_begun_before_it_is_void(name: str, rows: list[Part], tmp_path: Path) -> None:
    """Also where the overwrite left no file in a bucket, and where only logs were there."""
    path = tmp_path / "t"
    table = create(path, schema=PARTS, key=["k", "p"], partition_by=["p"], buckets=2)
    table.upsert(of([(1, "b", 5, "x")]))
    table.upsert(of([(1, "a", 5, "x"), (2, "a", 5, "x"), (1, "b", 6, "x")]))
    table.upsert(of([(1, "a", 6, "x"), (3, "a", 6, "x"), (1, "b", 7, "x")]))
    done = False

    def overwrite(call: Call) -> None:
        nonlocal done
        if not done and call.path.startswith(("base/", "_lakemerge/log/", "_lakemerge/merged/")):
            done = True
            LakeTable.open(path).overwrite(of(rows), None if rows else "p = 'a'", partition_mode="static")

    table, _ = open_over(path, Fault(action=overwrite, method="open_output", at=1))
    try:
        COMPACTIONS[name](table)
    except CommitConflictError:
        assert name == "logs"
    assert done
    wanted = sorted(rows or [(1, "b", 7, "x")], key=repr)
    assert state_of(path) == wanted
    LakeTable.open(path).compact()
    assert state_of(path) == wanted
    assert LakeTable.check(path).ok


def test_a_log_compaction_begun_before_it_is_void(tmp_path: Path) -> None:
    """Even if all logs that it replaces are still there."""
    path = tmp_path / "t"
    table = parted(path)
    table.upsert(of([(1, "a", 7, "z"), (1, "b", 7, "z")]))

    def overwrite(call: Call) -> None:
        LakeTable.open(path).overwrite(of([]), "p = 'a'")

    table, _ = open_over(path, Fault(action=overwrite, method="put_if_absent"))
    with pytest.raises(FileSlicesChangedError, match="overwritten"):
        table.compact_logs(size_ratio=float("inf"))
    assert state_of(path) == [(1, "b", 7, "z"), (4, "b", 5, "x")]


DEFINITIONS: Mapping[str, Callable[[LakeTable], object]] = {
    "schema": lambda table: table.alter(add_columns="w INT"),
    "merger": lambda table: (table.compact(), table.alter(merger="commit-time")),
    "rescale": lambda table: table.rescale(buckets=4),
    "restore": lambda table: table.restore(version=1),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_changed_definition_is_a_conflict(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    parted(path)

    def change(call: Call) -> None:
        DEFINITIONS[name](LakeTable.open(path))

    table, _ = open_over(path, Fault(action=change, method="put_if_absent", at=2))
    with pytest.raises(CommitConflictError):
        table.overwrite(of([(1, "a", 1, "n")]))
    assert (1, "a", 1, "n") not in state_of(path)
    own = f"{table.opened.view.snapshot.version:020d}-"
    assert not [file for file in listing(path) if file.startswith("base/") and own in file and name == "schema"]


def test_a_transaction_conflicts_with_it(tmp_path: Path) -> None:
    """Even if it is of another partition: a transaction runs again, and judges the new rows."""
    path = tmp_path / "t"
    parted(path)

    def overwrite(call: Call) -> None:
        LakeTable.open(path).overwrite(of([(1, "a", 1, "x"), (5, "a", 1, "x")]), "p = 'a'")

    table, _ = open_over(path, Fault(action=overwrite, method="put_if_absent"))
    assert table.update_where("v = 'x'", {"v": "concat(v, '!')"}).rows == 3
    wanted = [(1, "a", 1, "x!"), (5, "a", 1, "x!"), (1, "b", 6, "y"), (4, "b", 5, "x!")]
    assert state_of(path) == sorted(wanted, key=repr)
    table, _ = open_over(path, Fault(action=overwrite, method="put_if_absent"))
    with pytest.raises(CommitConflictError) as refused:
        table.delete_where("p = 'b'", retries=0)
    assert isinstance(refused.value.__cause__, RowsChangedError)


def test_a_restore_does_not_give_up_an_overwrite_that_its_caller_did_not_see(tmp_path: Path) -> None:
    path = tmp_path / "t"
    parted(path)

    def overwrite(call: Call) -> None:
        LakeTable.open(path).overwrite(of([(1, "a", 1, "x")]))

    table, _ = open_over(path, Fault(action=overwrite, method="put_if_absent"))
    with pytest.raises(CommitConflictError):
        table.restore(version=1)
    assert state_of(path) == [(1, "a", 1, "x")]


# Versions


def test_a_restore_brings_back_what_was_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = parted(path)
    before, old = state_of(path), table.version
    first = table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'").version
    middle = state_of(path)
    table.upsert(of([(2, "a", 1, "m")]))
    table.savepoint("middle", version=first)
    table.overwrite(of([(7, "z", 1, "n")]))
    table.compact()
    table.restore(version=old)
    assert state_of(path) == before
    assert table.opened.view.resets == Resets()
    assert table.opened.view.state.overwrite_epoch == 2
    table.upsert(of([(4, "b", 4, "too old"), (9, "a", 1, "new")]))
    assert state_of(path) == sorted([*before, (9, "a", 1, "new")], key=repr)
    table.restore(savepoint="middle")
    assert state_of(path) == middle
    assert table.opened.view.resets == Resets((Reset(first, ("a",)),))
    assert table.opened.view.state.overwrite_epoch == 2
    table.upsert(of([(3, "a", 0, "again")]))
    table.compact()
    assert state_of(path) == sorted([*middle, (3, "a", 0, "again")], key=repr)
    assert rows_of(LakeTable.open(path, version=old).to_arrow()) == before


def test_vacuum_keeps_what_versions_need(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = parted(path)
    table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'")
    table.upsert(of([(2, "a", 1, "m"), (1, "b", 9, "z")]))
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    wanted = [(1, "a", 1, "n"), (2, "a", 1, "m"), (1, "b", 9, "z"), (4, "b", 5, "x")]
    assert state_of(path) == sorted(wanted, key=repr)
    table.compact()
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert state_of(path) == sorted(wanted, key=repr)
    assert LakeTable.check(path).ok


def test_a_replacement_removes_resets(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = parted(path)
    table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'")
    LakeTable.create(path, "id STRING", key=["id"], replace=True)
    assert RESET_DOMAIN not in LakeTable.open(path).opened.view.snapshot.domains
    assert LakeTable.open(path).opened.view.state.overwrite_epoch == 2


def test_an_expiry_forgets_deletes_from_after_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path)
    table.upsert(frame([(1, 5, "a")]))
    table.delete(frame([(1, 6)], ["k", "o"]))
    table.overwrite(frame([(1, 9, "n")]))
    table.delete(frame([(1, 10)], ["k", "o"]))
    table.compact()
    table.upsert(frame([(1, 8, "late")]))
    assert state_of(path) == []
    table.compact()
    table.expire_tombstones(retention=dt.timedelta(0))
    table.upsert(frame([(1, 8, "late")]))
    assert state_of(path) == [(1, 8, "late")]


# Feed


def test_the_change_feed_tells_the_difference(tmp_path: Path) -> None:
    table = parted(tmp_path / "t")
    version = table.overwrite(of([(1, "a", 1, "n"), (2, "a", 5, "x"), (9, "a", 1, "n")]), "p = 'a'").version
    changes = [
        (1, "a", 6, "y", "-U", version),
        (1, "a", 1, "n", "+U", version),
        (3, "a", 6, "y", "-D", version),
        (9, "a", 1, "n", "+I", version),
    ]
    assert told(table, version - 1) == sorted(changes, key=repr)
    after = table.upsert(of([(9, "a", 2, "m")])).version
    table.compact()
    later = [(9, "a", 1, "n", "-U", after), (9, "a", 2, "m", "+U", after)]
    assert told(table, version - 1) == sorted([*changes, *later], key=repr)
    net = table.changes(version - 1, net=True).read_all()
    kinds = {(row["k"], row["_row_kind"]) for row in net.to_pylist()}
    assert kinds == {(1, "-U"), (1, "+U"), (3, "-D"), (9, "+I")}
    batches = [row for batch in table.follow(since=version - 1, poll=None) for row in batch.to_pylist()]
    assert len(batches) == 6


def test_an_overwrite_with_the_same_rows_changes_nothing(tmp_path: Path) -> None:
    table = parted(tmp_path / "t")
    version = table.overwrite(table.to_arrow()).version
    assert told(table, version - 1) == []


def test_the_change_feed_reads_the_scope_alone(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = parted(path)
    version = table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'").version
    read, store = open_over(path)
    assert len(told(read, version - 1)) == 4
    opened = {call.path for call in store.calls if call.method.startswith("open_input") or call.method == "get"}
    others = {path for path, add in table.opened.view.snapshot.files.items() if add.partition_values["p"] == "b"}
    assert others
    assert not others & opened


# History


def test_history_begins_at_it(tmp_path: Path) -> None:
    """For keys in its scope. Those of other partitions have theirs."""
    table = parted(tmp_path / "t")
    version = table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'").version
    table.upsert(of([(1, "a", 2, "m"), (1, "b", 7, "z")]))
    told = table.explain({"k": 1, "p": "a"}, since=0)
    assert [(step.version, step.kind, step.verdict) for step in told.steps] == [
        (version, "set", "applied"),
        (version + 1, "+U", "applied"),
    ]
    assert told.begins == version
    assert told.row == {"k": 1, "p": "a", "o": 2, "v": "m"}
    other = table.explain({"k": 1, "p": "b"}, since=0)
    assert [step.version for step in other.steps] == [1, 2, version + 1]
    gone = table.explain({"k": 3, "p": "a"}, since=0)
    assert (gone.steps, gone.row) == ((), None)
    assert rows_of(table.what_if("event-time", since=0).to_arrow()) == state_of(tmp_path / "t")
    assert any(f"overwritten at version {version}" in note for note in table.what_if("commit-time", since=0).notes)
    kinds = {(event.version, event.kind) for event in table.lineage(key={"k": 1, "p": "a"})}
    assert (version, "CREATE") in kinds
    assert version not in {event.version for event in table.lineage(key={"k": 1, "p": "b"})}


def test_consolidated_logs_of_before_are_not_taken_for_live(tmp_path: Path) -> None:
    """The original logs are looked at for an explanation; their records of the scope stay dead."""
    path = tmp_path / "t"
    table = create(path, schema=PARTS, key=["k", "p"], partition_by=["p"], buckets=1)
    table.upsert(of([(1, "b", 5, "x")]))
    table.upsert(of([(1, "a", 5, "x"), (1, "b", 6, "x")]))
    table.upsert(of([(1, "a", 6, "x"), (1, "b", 7, "x")]))
    table.overwrite(of([]), "p = 'a'")
    table.compact_logs(size_ratio=float("inf"))
    table.upsert(of([(1, "a", 1, "n")]))
    assert table.explain({"k": 1, "p": "a"}).row == {"k": 1, "p": "a", "o": 1, "v": "n"}
    assert table.explain({"k": 1, "p": "a"}, since=0).row == {"k": 1, "p": "a", "o": 1, "v": "n"}
    assert rows_of(table.what_if("commit-time").to_arrow()) == [(1, "a", 1, "n"), (1, "b", 7, "x")]


def test_an_overwrite_with_new_columns_is_explained_with_them(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 9, "a")]))
    table.overwrite(pa.table({"k": [1], "o": [1], "w": [7]}), merge_schema=True)
    table.upsert(frame([(1, 2, "b")]))
    assert table.explain({"k": 1}, since=0).row == {"k": 1, "o": 2, "v": "b", "w": 7}
    assert table.what_if("event-time", since=0).get({"k": 1}) == {"k": 1, "o": 2, "v": "b", "w": 7}


def test_records_are_kept_with_what_they_stand_on(tmp_path: Path) -> None:
    """The base files of an overwrite stay as long as the records that were folded onto them."""
    path = tmp_path / "t"
    table = parted(path, properties={"lakemerge.recordRetention": "interval 100 days"})
    table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'")
    table.upsert(of([(1, "a", 2, "m"), (1, "b", 7, "z")]))
    table.compact()
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert [step.kind for step in table.explain({"k": 1, "p": "a"}, since=0).steps] == ["set", "+U"]
    assert rows_of(table.what_if("event-time", since=0).to_arrow()) == state_of(path)


@pytest.mark.parametrize("rescaled", [False, True])
def test_a_replay_overwrites_too(rescaled: bool, tmp_path: Path) -> None:
    table = parted(tmp_path / "t")
    if rescaled:
        table.rescale(buckets=8)
    table.replay(into=tmp_path / "early")
    table.overwrite(of([(1, "a", 1, "n")]), "p = 'a'")
    table.upsert(of([(1, "a", 2, "m"), (2, "a", 0, "again")]))
    table.overwrite(of([(1, "c", 1, "n")]), partition_mode="dynamic")
    table.compact()
    for name in ("early", "whole"):
        table.replay(into=tmp_path / name)
        assert state_of(tmp_path / name) == state_of(tmp_path / "t")
        assert table.replay(into=tmp_path / name).commits == 0
    table.replay(into=tmp_path / "some", where="p = 'a'")
    assert state_of(tmp_path / "some") == [(1, "a", 2, "m"), (2, "a", 0, "again")]
    table.overwrite(of([(7, "d", 1, "n")]))
    for name in ("early", "whole"):
        table.replay(into=tmp_path / name)
        assert state_of(tmp_path / name) == [(7, "d", 1, "n")]


def test_a_replay_with_a_transform_does_not_follow_it(tmp_path: Path) -> None:
    table = parted(tmp_path / "t")
    version = table.overwrite(of([(1, "a", 1, "n")])).version
    with pytest.raises(InputError, match=f"overwritten at version {version}"):
        table.replay(into=tmp_path / "r", transform=lambda rows: rows)
    table.replay(into=tmp_path / "s", transform=lambda rows: rows, since=version)
    assert state_of(tmp_path / "s") == [(1, "a", 1, "n")]


def test_an_ingest_job_goes_on(tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    table = LakeTable.create(tmp_path / "t", FEED, key=["k"], ordering=["o"])

    def run() -> int:
        table.ingest("feed", Files(tmp_path / "landing", format="json")).run()
        return table.to_arrow().num_rows

    landed(tmp_path / "landing" / "0.json", b'{"k":1,"o":1,"v":"x"}\n', at=0)
    assert run() == 1
    table.overwrite(table.to_arrow().slice(0, 0))
    assert run() == 0, "its file was taken up"
    landed(tmp_path / "landing" / "1.json", b'{"k":2,"o":1,"v":"x"}\n', at=1)
    assert run() == 1


def test_pandas_frames_keep_their_index_out(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.overwrite(pd.DataFrame({"k": [1], "o": [1], "v": ["a"]}, index=[7]))
    assert state_of(tmp_path / "t") == [(1, 1, "a")]


def test_a_table_at_a_version_is_not_overwritten(tmp_path: Path) -> None:
    table = parted(tmp_path / "t")
    with pytest.raises(InputError, match="read-only"):
        LakeTable.open(tmp_path / "t", version=1).overwrite(of([]))
    assert table.version == 2
