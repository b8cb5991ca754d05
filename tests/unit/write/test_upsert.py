"""Upserts without Spark: what is committed, races at commit, block indexes, transactions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import CommitConflictError, FrameError, InputError, LakeTable, Settings
from lakemerge.schema.schema import from_delta_json
from lakemerge.testing.faults import Call, Fault
from lakemerge.write.start import choose_buckets
from tests.relink import relink
from tests.unit.faults import create, frame, listing, open_over, rows_of, state_of

MIB = 1 << 20
COMMIT = "put_if_absent"


def during_commit(action: Any, *, at: int = 1) -> Fault:
    """Let ``action`` happen just before this table's ``at``-th attempt to commit."""

    def act(call: Call) -> None:
        action()

    return Fault(action=act, method=COMMIT, at=at)


def data_files(path: Path) -> set[str]:
    return {file for file in listing(path) if not file.startswith("_delta_log/")}


def referred(path: Path) -> set[str]:
    """Every data file that the latest version names."""
    view = LakeTable.open(path).opened.view
    tombstones = {base.tombstones for base in view.base_files if base.tombstones is not None}
    logs = {file for commit in view.log_commits for file in commit.paths}
    return {base.add.path for base in view.base_files} | tombstones | logs


def test_the_first_write_loads_and_the_next_appends(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    first = table.upsert(frame([(1, 1, "a"), (1, 2, "b"), (2, 1, "c")]))
    assert (first.version, first.mode, first.rows, first.files) == (1, "load", 3, 2)
    second = table.upsert(frame([(3, 1, "d")]))
    assert (second.version, second.mode, second.rows, second.files) == (2, "append", 1, 2)
    assert second.bytes == sum(size for file, size in listing(tmp_path / "t").items() if "/log/" in file)
    assert repr(second).startswith("UpsertResult(version=2, mode='append', rows=1, files=2, bytes=")
    assert state_of(tmp_path / "t") == [(1, 2, "b"), (2, 1, "c"), (3, 1, "d")]
    assert data_files(tmp_path / "t") == referred(tmp_path / "t")


def test_writes_decode_a_definition_of_the_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write sees the table when it starts, when it commits and when it has landed. The definition of all three is
    decoded when it is new, and not again."""
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    decoded: list[str] = []

    def counted(text: str) -> pa.Schema:
        decoded.append(text)
        return from_delta_json(text)

    monkeypatch.setattr("lakemerge.format.config.from_delta_json", counted)
    for number in range(3):
        table.upsert(frame([(number, 2, "b")]))
    table.delete(pa.table({"k": pa.array([1], pa.int32())}))
    assert decoded == []
    table.upsert(frame([(1, 3, "c", 1)], ["k", "o", "v", "more"], more=pa.int32()), merge_schema=True)
    table.upsert(frame([(1, 4, "d")]))
    assert len(decoded) == 1
    assert table.to_arrow().select(["k", "v", "more"]).sort_by("k").to_pylist() == [
        {"k": 0, "v": "b", "more": None}, {"k": 1, "v": "d", "more": 1}, {"k": 2, "v": "b", "more": None},
    ]  # fmt: skip


def test_an_empty_frame_is_a_version_and_not_the_first_load(tmp_path: Path) -> None:
    table = create(tmp_path / "t", buckets=None)
    assert table.upsert(frame([])).version == 1
    assert table.opened.view.config.buckets is None
    assert table.upsert(frame([(1, 1, "x")])).mode == "load"
    assert table.upsert(frame([])).files == 1
    assert state_of(tmp_path / "t") == [(1, 1, "x")]
    assert [len(entry.metrics) > 0 for entry in table.history()] == [True, True, True, False]


@pytest.mark.parametrize("deletes", [False, True])
def test_of_two_loads_the_later_becomes_an_append(deletes: bool, tmp_path: Path) -> None:
    """Its base files are gone, those of its tombstones too; its records are all there."""
    path = tmp_path / "t"
    create(path, buckets=2)
    table, _ = open_over(path, during_commit(lambda: LakeTable.open(path).upsert(frame([(1, 1, "a"), (2, 1, "b")]))))
    rows = [(2, 5, "c", "+U"), (1, 5, "", "-D" if deletes else "-U"), (3, 5, "d", "+I")]
    result = table.upsert(frame(rows, ["k", "o", "v", "op"]), kind_column="op")
    assert (result.version, result.mode) == (2, "append")
    expected = [(2, 5, "c"), (3, 5, "d")] if deletes else [(1, 1, "a"), (2, 5, "c"), (3, 5, "d")]
    assert state_of(path) == expected
    assert data_files(path) == referred(path)


@pytest.mark.parametrize(("ours", "theirs"), [(16, 1), (1, 16), (2, 8)])
def test_first_writers_that_chose_other_bucket_counts(ours: int, theirs: int, tmp_path: Path) -> None:
    """A table without a bucket count: the first to commit sets it, the other's blocks keep theirs, and are
    read, filtered and compacted right. Sizes decide the counts, so the sizes are made to differ."""
    path = tmp_path / "t"
    create(path, buckets=None)
    mine = frame([(k, 2, f"mine{k}") for k in range(0, 60, 2)])
    other = frame([(k, 1, f"other{k}") for k in range(0, 60, 3)])
    plan = {id(mine): ours, id(other): theirs}
    with pytest.MonkeyPatch.context() as patch:
        sizes = {mine.nbytes: plan[id(mine)], other.nbytes: plan[id(other)]}
        patch.setattr("lakemerge.write.start.choose_buckets", sizes.__getitem__)
        table, _ = open_over(path, during_commit(lambda: LakeTable.open(path).upsert(other)))
        assert table.upsert(mine).mode == "append"
    assert table.opened.view.config.buckets == theirs
    assert {block.buckets for commit in table.opened.view.log_commits for block in commit.blocks} == {ours}
    expected = sorted({row[0]: row for row in [*rows_of(other), *rows_of(mine)]}.values(), key=repr)
    assert state_of(path) == expected
    assert rows_of(table.to_arrow(filter="k < 10", columns=["k"])) == [(k,) for k in (0, 2, 3, 4, 6, 8, 9)]
    table.compact()
    assert state_of(path) == expected
    assert not LakeTable.open(path).opened.view.log_commits


@pytest.mark.parametrize(
    ("size_bytes", "buckets"),
    [
        (0, 1),
        (16 * MIB, 1),
        (16 * MIB + 1, 2),
        (64 * MIB, 4),
        (512 * MIB, 4),
        (513 * MIB, 8),
        (2048 * MIB, 16),
        (2049 * MIB, 32),
        (None, 16),
    ],
)
def test_the_bucket_count_follows_the_size(size_bytes: int | None, buckets: int) -> None:
    assert choose_buckets(size_bytes) == buckets


def test_a_short_stream_gets_the_buckets_of_its_size(tmp_path: Path) -> None:
    rows = frame([(k, 1, f"v{k}") for k in range(1000)])
    for name, budget, buckets in (("short", 1 << 20, 1), ("long", 1000, 16)):
        create(tmp_path / name, buckets=None)
        table = LakeTable.open(tmp_path / name, settings=Settings(write_budget_bytes=budget))
        table.upsert(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=100)))
        assert table.opened.view.config.buckets == buckets
        assert state_of(tmp_path / name) == sorted(rows_of(rows), key=repr)


def test_many_blocks_go_to_an_index_file(tmp_path: Path) -> None:
    """Inline or in a file, the blocks are the same; a file that is missing or damaged is named."""
    written = []
    for inline in (1, 100):
        path = tmp_path / f"inline {inline}"
        create(path, buckets=8)
        LakeTable.open(path).upsert(frame([(0, 0, "base")]))
        table = LakeTable.open(path, settings=Settings(inline_blocks=inline))
        result = table.upsert(frame([(k, 1, f"v{k}") for k in range(40)]))
        (commit,) = table.opened.view.log_commits
        assert (commit.index is not None) == (inline == 1)
        assert result.files == (3 if commit.index else 2)
        written.append(
            [(b.bucket_id, b.rows, b.key_min, b.key_max, b.data_bytes, b.version, b.buckets) for b in commit.blocks]
        )
        assert state_of(path) == sorted([(k, 1, f"v{k}") for k in range(40)], key=repr)
        table.compact()
        assert state_of(path) == sorted([(k, 1, f"v{k}") for k in range(40)], key=repr)
    assert written[0] == written[1]
    assert len(written[0]) == 8


def test_a_repeated_transaction_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path)
    assert table.upsert(frame([(1, 1, "a")]), txn=("job", 7)).mode == "load"
    before = listing(path)
    for number in (7, 6, 0):
        again = LakeTable.open(path).upsert(frame([(1, 9, "again")]), txn=("job", number))
        assert (again.mode, again.version, again.rows, again.files) == ("repeated", 1, 0, 0)
    assert listing(path) == before
    assert table.upsert(frame([(2, 1, "b")]), txn=("job", 8)).version == 2
    assert table.upsert(frame([(3, 1, "c")]), txn=("other", 1)).version == 3
    assert state_of(path) == [(1, 1, "a"), (2, 1, "b"), (3, 1, "c")]


@pytest.mark.parametrize("loaded", [False, True])
def test_the_same_transaction_twice_at_once_lands_once(loaded: bool, tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path)
    if loaded:
        LakeTable.open(path).upsert(frame([(0, 0, "base")]))
    records = frame([(1, 1, "a")])
    table, _ = open_over(path, during_commit(lambda: LakeTable.open(path).upsert(records, txn=("job", 1))))
    result = table.upsert(records, txn=("job", 1))
    assert result.mode == "repeated"
    assert [entry.operation for entry in table.history()] == ["UPSERT"] * (1 + loaded) + ["CREATE TABLE"]
    assert data_files(path) == referred(path)


@pytest.mark.parametrize("txn", [("", 1), ("a", -1), ("a", "1"), ("a",), "a1", ["a", 1], ("a", 1, 2)])
def test_transactions_that_are_none(txn: Any, tmp_path: Path) -> None:
    with pytest.raises(FrameError, match=r"txn must be .*'nightly-load', 42"):
        create(tmp_path / "t").upsert(frame([]), txn=txn)
    assert LakeTable.open(tmp_path / "t").version == 0


def test_transactions_of_the_library_are_its_own(tmp_path: Path) -> None:
    """The schedule of vacuum is kept as one."""
    with pytest.raises(FrameError, match=r"begin with 'lakemerge\.'.*'lakemerge.vacuum' is not yours"):
        create(tmp_path / "t").upsert(frame([(1, 1, "a")]), txn=("lakemerge.vacuum", 7))
    assert LakeTable.open(tmp_path / "t").version == 0


def test_a_column_added_meanwhile_leaves_an_append_valid(tmp_path: Path) -> None:
    """The frame was full when it was checked; the new column is unset in it."""
    path = tmp_path / "t"
    create(path).upsert(frame([(1, 1, "a")]))

    def alter() -> None:
        other = LakeTable.open(path)
        other.alter(add_columns="w STRING")
        other.upsert(frame([(1, 2, "kept")], ["k", "o", "w"], w=pa.string()))

    table, _ = open_over(path, during_commit(alter))
    assert table.upsert(frame([(1, 3, "b"), (1, 4, "c"), (2, 1, "d")])).version == 4
    assert state_of(path) == [(1, 4, "c", "kept"), (2, 1, "d", None)]


def test_a_column_added_meanwhile_turns_a_load_into_an_append(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path)
    table, _ = open_over(path, during_commit(lambda: LakeTable.open(path).alter(add_columns="w INT")))
    assert table.upsert(frame([(1, 1, "a")])).mode == "append"
    assert state_of(path) == [(1, 1, "a", None)]
    assert data_files(path) == referred(path)


def test_another_merger_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    """Records prepared for one merger may not be folded by another: the epoch in the state says so."""
    path = tmp_path / "t"
    create(path).upsert(frame([(1, 1, "a")]))

    def replace_epoch() -> None:
        log = path / "_delta_log"
        state = json.loads((log / f"{1:020d}.json").read_text().splitlines()[1])["domainMetadata"]
        assert state["domain"] == "lakemerge.state"
        body = json.loads(state["configuration"]) | {"mergerEpoch": 1}
        info = {"commitInfo": {"operation": "ALTER", "timestamp": 0, "inCommitTimestamp": 10**13}}
        action = {"domainMetadata": state | {"configuration": json.dumps(body)}}
        (log / f"{2:020d}.json").write_text(json.dumps(info) + "\n" + json.dumps(action) + "\n")
        relink(path)

    table, _ = open_over(path, during_commit(replace_epoch))
    with pytest.raises(CommitConflictError, match=r"merger or its options changed.*retry"):
        table.upsert(frame([(2, 1, "b")]))
    assert state_of(path) == [(1, 1, "a")]
    assert data_files(path) == referred(path)


def test_info_is_kept(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]), info={"source": ["x.csv"], "job": 7})
    info = table.history(limit=1)[0].info
    assert (info["source"], info["job"]) == (["x.csv"], 7)


@pytest.mark.parametrize(
    "write",
    [
        lambda table, info: table.upsert(frame([(1, 1, "a")]), info=info),
        lambda table, info: table.delete(frame([(1, 1)], ["k", "o"]), info=info),
        lambda table, info: table.delete_where("v = 'a'", info=info),
        lambda table, info: table.update_where("v = 'a'", {"v": "'b'"}, info=info),
        lambda table, info: (
            table.merge(frame([(1, 1, "a")]), "target.k = source.k", info=info).whenNotMatchedInsertAll().execute()
        ),
        lambda table, info: table.overwrite(frame([(1, 1, "a")]), info=info),
        lambda table, info: table.record_send("s3://elsewhere/x", info=info),
        lambda table, info: table.associate("https://example.org/x", info=info),
    ],
    ids=["upsert", "delete", "delete_where", "update_where", "merge", "overwrite", "record_send", "associate"],
)
def test_names_of_the_library_are_refused(tmp_path: Path, write: Callable[[LakeTable, Any], object]) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    table, store = open_over(tmp_path / "t")
    log, ours = ["operation", "timestamp", "txnId"], ["replay", "ingest", "sent", "forget", "predicate", "lakemerge.x"]
    for reserved in (*log, *ours):
        with pytest.raises(InputError, match=reserved):
            write(table, {reserved: "x"})
    for wrong in (["a"], {"a": object()}):
        with pytest.raises(InputError, match=r"'?info'? must be a mapping"):
            write(table, wrong)
    assert not {call.method for call in store.calls} & {"open_output", "put_if_absent"}, "before anything is written"
    write(table, {"mine": "x"})
    assert table.history(limit=1)[0].info["mine"] == "x"


def test_a_frame_that_fails_while_it_is_read_leaves_nothing(tmp_path: Path) -> None:
    """Several log files were written before; the caller's own error comes out."""
    path = tmp_path / "t"
    create(path)
    before = listing(path)
    batches = frame([(k, 1, "x") for k in range(3)]).to_batches(max_chunksize=1)

    def broken() -> Any:
        yield from batches
        raise LookupError("the source went away")

    table = LakeTable.open(path, settings=Settings(write_budget_bytes=1))
    with pytest.raises(LookupError, match="the source went away"):
        table.upsert(pa.RecordBatchReader.from_batches(batches[0].schema, broken()))
    assert listing(path) == before


def test_log_files_hold_blocks_sorted_by_key(tmp_path: Path) -> None:
    """One file a task, a block per bucket, equal keys in arrival order, row groups as told."""
    path = tmp_path / "t"
    table = create(path, buckets=4, merger="event-time")
    table.upsert(frame([(0, 0, "base")]))
    partial = frame([(k % 20, k, "+U") for k in range(40, 0, -1)], ["k", "o", "op"])
    LakeTable.open(path, settings=Settings(row_group_rows=3)).upsert(partial, kind_column="op")
    (commit,) = LakeTable.open(path).opened.view.log_commits
    (log,) = {block.file.path for block in commit.blocks}
    file = pq.ParquetFile(path / log)
    assert file.schema_arrow.names == ["k", "o"], "kinds are left out where all are upserts"
    groups = 0
    for block in commit.blocks:
        assert block.first_row_group == groups
        groups += block.row_groups
        rows = file.read_row_groups(range(block.first_row_group, groups)).to_pylist()
        keys = [row["k"] for row in rows]
        assert keys == sorted(keys)
        for key in set(keys):
            assert [row["o"] for row in rows if row["k"] == key] == [n for n in range(40, 0, -1) if n % 20 == key]
        assert (block.rows, block.key_min, block.key_max) == (len(rows), (keys[0],), (keys[-1],))
        assert block.row_groups == -(-len(rows) // 3)
    assert groups == file.num_row_groups
    assert sum(block.rows for block in commit.blocks) == 40


def test_long_keys_have_no_bounds_and_are_found(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, schema="k STRING, o BIGINT, v STRING")
    long = ["ø" * 130 + str(n) for n in range(5)]  # 261 bytes of UTF-8
    table.upsert(frame([(key, 1, "a") for key in [*long, "short"]], k=pa.string()))
    table.upsert(frame([(long[3], 2, "b")], k=pa.string()))
    (commit,) = table.opened.view.log_commits
    assert [(block.key_min, block.key_max) for block in commit.blocks] == [(None, None)]
    assert rows_of(table.to_arrow(filter=f"k = '{long[3]}'", columns=["v"])) == [("b",)]
    table.compact()
    assert rows_of(table.to_arrow(filter="v = 'b'", columns=["k"])) == [(long[3],)]


@pytest.mark.parametrize("merger", ["event-time", "commit-time", "partial-update"])
@pytest.mark.parametrize("loaded", [False, True])
def test_one_big_batch_is_written_in_portions_of_the_budget(merger: str, loaded: bool, tmp_path: Path) -> None:
    """Records of a key keep their order over the files: each key comes ten times, ties among them, deletes too."""
    path = tmp_path / "t"
    create(path, buckets=2, merger=merger, options={"ignore_delete": True} if merger == "partial-update" else {})
    budget = 10_000
    table = LakeTable.open(path, settings=Settings(write_budget_bytes=budget))
    if loaded:
        table.upsert(frame([(-1, 0, "base")]))
    rows = [(n % 200, n % 7, f"v{n}", "-D" if n % 11 == 5 else "+U") for n in range(2_000)]
    (whole,) = frame(rows, ["k", "o", "v", "op"]).combine_chunks().to_batches()
    result = table.upsert(whole, kind_column="op")
    assert result.rows == 2_000
    expected: dict[int, Any] = {}
    removed: dict[int, int] = {}
    for k, o, v, op in rows:
        if op == "-D" and merger == "partial-update":
            continue
        if merger == "commit-time":
            expected[k] = None if op == "-D" else (k, o, v)
        elif o >= max(removed.get(k, 0), expected[k][1] if expected.get(k) else 0):
            expected[k], removed[k] = (None, o) if op == "-D" else ((k, o, v), 0)
    found = sorted(row for row in expected.values() if row)
    assert sorted(row for row in state_of(path) if row[0] >= 0) == found
    if loaded:
        (commit,) = table.opened.view.log_commits
        logs = {block.file.path for block in commit.blocks}
        assert len(logs) >= whole.nbytes // budget >= 5
        assert all(pq.read_metadata(path / log).num_rows < 2_000 // 3 for log in logs)
