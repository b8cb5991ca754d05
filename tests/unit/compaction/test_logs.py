"""Log compaction: what packed logs hold, which logs are merged, and how it lives with everything else.

Expected rows are written by hand; what is in a file is read with pyarrow alone.
"""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.logs.logs import choose_runs
from lakemerge import CommitConflictError, InputError, LakeTable, Settings
from lakemerge.format.block_index import LogCommit
from lakemerge.storage import LocalStore
from lakemerge.testing.counting import CountingStore
from lakemerge.testing.faults import Call, Fault, Kill
from tests.unit.faults import Row, create, frame, listing, open_over, rows_of, state_of

TINY = Settings(merge_budget_bytes=1, row_group_rows=2, write_budget_bytes=1, inline_blocks=1, threads=1)
BY_HAND = {"lakemerge.maintenance": "off"}
"""For tests that count logs."""


def packed_rows(path: Path, table: LakeTable) -> list[list[Row]]:
    """The rows of each consolidated log in the order of the file, with kinds and versions."""
    found = []
    for commit in table.opened.view.log_commits:
        assert commit.packed_from is not None
        (file,) = {block.file.path for block in commit.blocks}
        rows = pq.read_table(path / file)
        assert rows.column_names == [*commit.blocks[0].file.columns, "_lm_kind", "_lm_version"]
        found.append([tuple(row.values()) for row in rows.to_pylist()])
    return found


def test_one_sorted_run_with_the_version_of_each_record(tmp_path: Path) -> None:
    """Where no law lets records go (``last_non_null_value`` by ordering) all of them stay, in commit order."""
    path = tmp_path / "t"
    table = create(path, merger="aggregate")
    table.upsert(frame([(1, 1, "base")]))
    table.upsert(frame([(2, 5, "a"), (1, 5, "b"), (1, 4, "c")]))
    table.upsert(frame([(2, 3, "d")]))
    table.upsert(frame([(1, 5, "e")]))
    before = state_of(path)
    assert before == [(1, 5, "e"), (2, 5, "a")]
    result = table.compact_logs(size_ratio=math.inf)
    assert packed_rows(path, table) == [
        [(1, 5, "b", 2, 2), (1, 4, "c", 2, 2), (1, 5, "e", 2, 4), (2, 5, "a", 2, 2), (2, 3, "d", 2, 3)]
    ]
    (commit,) = table.opened.view.log_commits
    assert (commit.packed_from, commit.version) == (2, 4)
    assert (result.version, result.commits, result.records, result.rows) == (5, 3, 5, 5)
    assert (result.blocks, result.files, result.replaced_files) == (1, 1, 3)
    assert result.bytes == (path / commit.blocks[0].file.path).stat().st_size
    assert result.phases.keys() == {"plan", "merge", "commit"}
    told = dict(result.report())
    assert told["merged"] == "3 commits, 3 files, 5 records"
    assert told["written"].startswith("1 file, 5 records, ")
    assert repr(result).startswith("LogCompactionResult(version=5, commits=3, records=5, rows=5, ")
    assert state_of(path) == before
    entry = table.history(limit=1)[0]
    assert (entry.operation, entry.parameters) == ("COMPACT LOGS", {"readVersion": "4", "commits": "3"})
    assert (entry.metrics["numSourceRows"], entry.metrics["numLogFiles"]) == ("5", "1")


def test_only_deciding_records_stay_where_the_laws_allow(tmp_path: Path) -> None:
    """``event-time`` and full frames: of each key the newest, an ordered delete included; a bare delete in the
    middle keeps its key's records."""
    path = tmp_path / "t"
    table = create(path)
    table.upsert(frame([(k, 1, "base") for k in range(5)]))
    names = ["k", "o", "v", "op"]
    table.upsert(frame([(1, 7, "late wins", "+U"), (2, 7, "gone", "+U"), (3, 7, "x", "+U")], names), kind_column="op")
    table.upsert(frame([(1, 6, "loses", "+U"), (2, 8, None, "-D"), (4, 2, "y", "+U")], names), kind_column="op")
    table.upsert(frame([(4, 2, "tie", "+U"), (3, 3, "loses", "+U")], names), kind_column="op")
    table.compact_logs(size_ratio=math.inf)
    assert packed_rows(path, table) == [
        [(1, 7, "late wins", 2, 2), (2, 8, None, 3, 3), (3, 7, "x", 2, 2), (4, 2, "tie", 2, 4)]
    ]
    expected = [(0, 1, "base"), (1, 7, "late wins"), (3, 7, "x"), (4, 2, "tie")]
    assert state_of(path) == expected
    table.compact()
    assert state_of(path) == expected
    tombstones = pq.read_table(path / str(next(iter(table.opened.view.file_slices)).tombstones)).to_pylist()
    assert tombstones == [{"k": 2, "o": 8, "_lm_version": 3}], "the version of the delete, not of the log compaction"


def test_frames_of_other_columns_stay_in_order(tmp_path: Path) -> None:
    """Two sets of columns make two files whose versions interleave; the order of a key's records is told by them."""
    path = tmp_path / "t"
    table = create(path, schema="k BIGINT, a STRING, b STRING", ordering=[], merger="commit-time")
    table.upsert(frame([(0, "0", "0")], ["k", "a", "b"], a=pa.string(), b=pa.string()))
    for number, (names, row) in enumerate([("ab", "xx"), ("a", "y"), ("ab", "zz"), ("b", "w"), ("a", "v")]):
        data = {"k": pa.array([1], pa.int64())} | {
            n: pa.array([f"{v}{number}"]) for n, v in zip(names, row, strict=True)
        }
        table.upsert(pa.table(data))
        if number == 3:
            table.delete(frame([(2,)], ["k"]))
    assert state_of(path) == [(0, "0", "0"), (1, "v4", "w3")]
    table.compact_logs(size_ratio=math.inf)
    (log,) = table.opened.view.log_commits
    assert (log.packed_from, log.version, log.columns) == (2, 7, ("k", "a", "b"))
    assert {block.file.columns: block.rows for block in log.blocks} == {
        ("k", "a", "b"): 2,
        ("k", "a"): 2,
        ("k", "b"): 1,
        ("k",): 1,
    }
    assert state_of(path) == [(0, "0", "0"), (1, "v4", "w3")]
    assert table.compact_logs(size_ratio=math.inf).commits == 0
    table.upsert(pa.table({"k": pa.array([1], pa.int64()), "b": ["last"]}))
    assert table.compact_logs(size_ratio=math.inf).commits == 2
    assert state_of(path) == [(0, "0", "0"), (1, "v4", "last")]
    table.compact()
    assert state_of(path) == [(0, "0", "0"), (1, "v4", "last")]


def log(version: int) -> LogCommit:
    return LogCommit(f"log {version}", version, 0, ("k",), (), None)


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([1, 1, 1, 1], [[0, 1, 2, 3]]),
        ([1], []),
        ([], []),
        ([100, 1, 1, 1], [[1, 2, 3]]),
        ([100, 1, 50, 60], [[0, 1, 2, 3]]),
        ([1, 1, 100, 1, 1], [[3, 4], [0, 1, 2]]),
        ([8, 4, 2, 1], []),
        ([4, 2, 1, 1], [[0, 1, 2, 3]]),
    ],
)
def test_which_logs_are_merged(sizes: Sequence[int], runs: list[list[int]]) -> None:
    """An older log joins unless it is larger than all newer ones of the run; by hand."""
    found = choose_runs([log(v) for v in range(len(sizes))], dict(enumerate(sizes)), 1)
    assert [[commit.version for commit in run] for run in found] == runs


def test_a_record_is_rewritten_few_times(tmp_path: Path) -> None:
    """64 equal commits with a log compaction after each: a log that is merged becomes half as large again at least,
    so a record is rewritten at most log(64) / log(1.5) times."""
    table = create(tmp_path / "t", merger="aggregate", settings=Settings(threads=1))
    table.upsert(frame([(0, 1, "base")]))
    rewritten = 0
    for number in range(64):
        table.upsert(frame([(k + 1000 * number, number, f"{number}") for k in range(50)]))
        rewritten += table.compact_logs().rows
    assert rewritten <= 64 * 50 * 10
    assert len(table.opened.view.log_commits) <= 4
    assert table.to_arrow().num_rows == 64 * 50


def test_earlier_versions_read_the_original_logs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path)
    seen = {}
    for number in range(6):
        table.upsert(frame([(number % 3, 10 - number, f"{number}")]))
        seen[table.version] = state_of(path)
    files = listing(path).keys()
    changes = table.changes(0).read_all().to_pylist()
    table.compact_logs(size_ratio=math.inf)
    assert files <= listing(path).keys()
    for version, rows in seen.items():
        assert rows_of(LakeTable.open(path, version=version).to_arrow()) == rows
    assert table.changes(0).read_all().to_pylist() == changes
    assert table.changes(5, 7).read_all().to_pylist() == [c for c in changes if c["_commit_version"] > 5]


def test_reads_open_one_file_for_hundreds_of_commits(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, buckets=4, properties=BY_HAND)
    table.upsert(frame([(k, 1, "base") for k in range(20)]))
    for number in range(30):
        table.upsert(frame([(number * 7 % 20, 5, f"{number}"), (number * 11 % 20, 5, f"{number}")]))
    expected = state_of(path)
    opened = []
    for _ in range(2):
        store = CountingStore(LocalStore(path))
        counted = LakeTable(
            replace(table.opened.handle, store=store), table.opened.view.snapshot, pinned=True, spark=None
        )
        assert rows_of(counted.to_arrow()) == expected
        opened.append(store.counts().calls["open_input"])
        table.compact_logs()
    # Each of the four file slices opens its base file, and each log file it has blocks in.
    assert (opened[0] > 34, opened[1]) == (True, 8)


@pytest.mark.parametrize("merger", ["event-time", "aggregate"])
def test_tiny_budgets_change_no_answer(merger: str, tmp_path: Path) -> None:
    """Streams of single rows, one block index a log, several files a commit."""
    answers = []
    for settings in (TINY, Settings()):
        path = tmp_path / f"{settings.merge_budget_bytes}"
        table = create(path, buckets=4, settings=settings, merger=merger)
        table.upsert(frame([(k, 3, "base") for k in range(13)]))
        for n in range(5):
            table.upsert(frame([(k * 7 % 17, (k * 3 + n) % 7, f"{n}.{k}") for k in range(12)]))
        result = table.compact_logs(size_ratio=math.inf)
        (commit,) = table.opened.view.log_commits
        assert (commit.index is None) == (settings is not TINY)
        assert settings is not TINY or max(block.row_groups for block in commit.blocks) > 1
        answers.append((rows_of(table.to_arrow()), rows_of(table.to_arrow(filter="k in (3, 16)")), result.rows))
        assert commit.paths <= listing(path).keys()
    assert answers[0] == answers[1]


def test_appends_do_not_disturb_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    several(path)

    def append(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(1, 50, "meanwhile")]))
        LakeTable.open(path).alter(add_columns="w INT")

    table, _ = open_over(path, Fault(action=append, method="open_output", path="_lakemerge/log/"))
    assert table.compact_logs().commits == 4
    assert sorted(c.version for c in table.opened.view.log_commits) == [5, 6]
    assert (1, 50, "meanwhile", None) in state_of(path)
    assert len(state_of(path)) == 5


@pytest.mark.parametrize("minor", [False, True])
def test_a_compaction_that_took_logs_up_wins(minor: bool, tmp_path: Path) -> None:
    path = tmp_path / "t"
    several(path)
    before = state_of(path)
    logs = {file for file in listing(path) if "/log/" in file}

    def overtake(call: Call) -> None:
        LakeTable.open(path).compact(minor=minor)

    table, _ = open_over(path, Fault(action=overtake, method="put_if_absent"))
    with pytest.raises(CommitConflictError, match="compacted by somebody else"):
        table.compact_logs()
    assert {file for file in listing(path) if "/log/" in file} == logs, "its own files are gone"
    assert state_of(path) == before


@pytest.mark.parametrize("minor", [False, True])
@pytest.mark.parametrize("merger", ["event-time", "aggregate"])
def test_a_compaction_that_began_before_lands_after_it(merger: str, minor: bool, tmp_path: Path) -> None:
    """The watermark then stands in the middle of the packed log: its records up to there are merged, those
    after it are live, also where only deciding records were kept."""
    path = tmp_path / "t"
    several(path, merger=merger)
    before = state_of(path)

    def overtake(call: Call) -> None:
        table = LakeTable.open(path)
        for number in range(6):
            table.upsert(frame([(number % 4, 6 - number, f"after {number}")]))
        assert table.compact_logs(size_ratio=math.inf).commits == 10
        expected[:] = state_of(path)

    expected: list[Row] = []
    table, _ = open_over(path, Fault(action=overtake, method="put_if_absent", at=2))
    assert table.compact(minor=minor).file_slices == 1
    assert before != expected == state_of(path)
    (file_slice,) = LakeTable.open(path).opened.view.file_slices
    (block,) = file_slice.blocks
    assert block.packed_from is not None
    assert block.packed_from <= file_slice.merged_through < block.version
    assert rows_of(LakeTable.open(path).to_arrow(columns=["v"], filter="k = 1")) == [
        (row[2],) for row in expected if row[0] == 1
    ]
    for _ in range(2):
        assert LakeTable.open(path).compact(minor=minor).file_slices in (0, 1)
        assert state_of(path) == expected


def test_of_two_log_compactions_the_later_loses(tmp_path: Path) -> None:
    path = tmp_path / "t"
    several(path)
    before = state_of(path)

    def overtake(call: Call) -> None:
        LakeTable.open(path).compact_logs()

    table, _ = open_over(path, Fault(action=overtake, method="put_if_absent"))
    with pytest.raises(CommitConflictError):
        table.compact_logs()
    referred = {p for c in LakeTable.open(path).opened.view.log_commits for p in c.paths}
    assert len(referred) == 1
    assert len([file for file in listing(path) if "/log/" in file]) == 4 + 1
    assert state_of(path) == before


@pytest.mark.parametrize(
    ("method", "part"), [("open_output", "/log/"), ("publish", "/log/"), ("put_if_absent", "_delta_log")]
)
@pytest.mark.parametrize("after", [False, True])
def test_killed_it_leaves_the_table_as_it_was(method: str, part: str, after: bool, tmp_path: Path) -> None:
    path = tmp_path / "t"
    several(path)
    before = state_of(path)
    child = os.fork()
    if not child:
        open_over(path, Fault(action=Kill(), method=method, path=part, after=after))[0].compact_logs()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert state_of(path) == before
    landed = method == "put_if_absent" and after
    assert LakeTable.open(path).compact_logs().commits == (0 if landed else 4)
    assert state_of(path) == before


def test_nothing_is_combined_across_an_expiry(tmp_path: Path) -> None:
    """A record that lost against a tombstone loses for good; one after the expiry does not, although it is older
    than that."""
    path = tmp_path / "t"
    table = create(path)
    table.upsert(frame([(k, 1, "base") for k in range(2)]))
    table.delete(frame([(1, 10)], ["k", "o"]))
    table.compact()
    table.upsert(frame([(1, 8, "loses")]))
    table.upsert(frame([(0, 8, "x")]))
    table.expire_tombstones(retention=dt.timedelta(0))
    table.upsert(frame([(1, 5, "new")]))
    table.upsert(frame([(0, 9, "y")]))
    expected = [(0, 9, "y"), (1, 5, "new")]
    assert state_of(path) == expected
    assert table.compact_logs(size_ratio=math.inf).commits == 4
    assert len(table.opened.view.log_commits) == 2
    assert state_of(path) == expected
    table.compact()
    assert state_of(path) == expected


def test_what_it_refuses_and_what_is_nothing_to_do(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    assert (table.compact_logs().commits, table.version) == (0, 0)
    table.upsert(frame([(1, 1, "x")]))
    table.upsert(frame([(1, 2, "y")]))
    assert (table.compact_logs().commits, table.version) == (0, 2)
    with pytest.raises(InputError, match="size_ratio must be a number from 0 on, not -1"):
        table.compact_logs(size_ratio=-1)
    for odd in ("a", None, True):
        with pytest.raises(InputError, match="size_ratio must be a number"):
            table.compact_logs(size_ratio=cast("float", odd))
    with pytest.raises(InputError, match="read-only"):
        LakeTable.open(tmp_path / "t", version=1).compact_logs()


def several(path: Path, **options: Any) -> LakeTable:
    """A base file and four log commits, versions 2 to 5."""
    table = create(path, properties=BY_HAND, **options)
    table.upsert(frame([(k, 1, "base") for k in range(5)]))
    for number in range(4):
        table.upsert(frame([(number, 3 + number % 2, f"log {number}"), (1, 9 - number, f"log {number}")]))
    return table


@pytest.mark.parametrize("between", ["explain", "restore"])
def test_logs_that_are_decoded_again_lose_no_records(tmp_path: Path, between: str) -> None:
    """File slices that stay from an earlier version hold blocks that equal those of the logs, and are other objects if
    something decoded the logs of another version meanwhile."""
    path = tmp_path / "t"
    table = LakeTable.create(
        path, "k BIGINT, v BIGINT", key=["k"], buckets=4, properties={"lakemerge.maintenance": "off"}
    )
    for v in range(5):
        table.upsert(pa.table({"k": range(100), "v": [v] * 100}))
    table.compact_logs(size_ratio=math.inf)
    assert table.to_arrow().num_rows == 100
    if between == "explain":
        assert table.explain({"k": 0}).row == {"k": 0, "v": 4}
    else:
        last = table.version
        table.restore(version=last - 2)
        table.restore(version=last)
    table.upsert(pa.table({"k": [0], "v": [9]}))
    expected = table.to_arrow().sort_by("k")
    assert expected.column("v").to_pylist() == [9] + [4] * 99
    table.compact_logs(size_ratio=math.inf)
    assert LakeTable.open(path).to_arrow().sort_by("k").equals(expected)
