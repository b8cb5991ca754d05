"""Rescale: which buckets there are on the way, what is rewritten and what is not, and what survives."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import CommitConflictError, InputError, LakeTable, Settings, TableDamagedError
from lakemerge.format.keys import BucketId
from lakemerge.layout.bucket_counts import Layout
from lakemerge.layout.xxhash64 import buckets as bucket_numbers
from lakemerge.testing.faults import Call, Fault, Kill
from tests.unit.faults import Row, create, frame, listing, open_over, rows_of, state_of
from tests.unit.layout.test_view import base, block, file_slices

ROWS = [(k, 1, f"base{k}") for k in range(40)]
GROUPWISE = Settings(target_task_bytes=1, threads=1)
"""A commit for each group of buckets."""


def loaded(path: Path, *, buckets: int = 4) -> LakeTable:
    """A base file a bucket, and then a log commit with a change and a delete."""
    table = create(path, buckets=buckets, settings=GROUPWISE)
    assert table.upsert(frame(ROWS)).mode == "load"
    table.upsert(frame([(1, 2, "changed")]))
    table.delete(frame([(2, 5)], ["k", "o"]))
    return table


EXPECTED = sorted([(1, 2, "changed"), *(row for row in ROWS if row[0] not in (1, 2))])


def state(path: Path) -> list[Row]:
    return sorted(state_of(path))


def counts_of(table: LakeTable) -> Counter[int]:
    """Base files by the bucket count that they name; each file's keys are of its bucket."""
    for file in table.opened.view.base_files:
        rows = pq.read_table(Path(table.url.removeprefix("file://")) / file.add.path)
        keys = [rows.column(name) for name in table.key]
        assert set(bucket_numbers(keys, file.buckets).tolist()) <= {file.bucket_id.bucket}
    return Counter(file.buckets for file in table.opened.view.base_files)


@pytest.mark.parametrize(
    ("before", "after", "commits"), [(4, 8, 1 + 4), (4, 16, 1 + 4), (4, 2, 2 + 1), (4, 1, 1 + 1), (1, 4, 1 + 1)]
)
def test_base_files_are_rewritten_and_logs_are_not(before: int, after: int, commits: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path, buckets=before)
    logs = {file: size for file, size in listing(path).items() if "/log/" in file}
    result = table.rescale(buckets=after)
    assert (result.before, result.buckets, result.commits, result.written_buckets) == (before, after, commits, after)
    assert (result.files, result.replaced_files, result.rows, result.skipped) == (after, before, 39, ())
    assert result.bytes == sum(file.add.size_bytes for file in table.opened.view.base_files)
    assert result.version == table.version
    told = dict(result.report())
    assert told["buckets"] == f"{before} before, {after} now"
    plural = "" if after == 1 else "s"
    assert told["written"].startswith(f"{after} bucket{plural}, {after} file{plural}, 39 rows, ")
    assert result.phases.keys() == {"plan", "merge", "commit"}
    entries = [entry for entry in table.history() if entry.operation == "RESCALE"]
    assert sum(int(str(entry.metrics.get("numOutputRows", 0))) for entry in entries) == 39
    assert sum(int(str(entry.metrics.get("numInputBytes", 0))) for entry in entries) == result.bytes_read
    assert repr(result).startswith(f"RescaleResult(version={table.version}, buckets={after}, before={before}, ")
    assert counts_of(table) == {after: after}
    assert {file: size for file, size in listing(path).items() if "/log/" in file} == logs
    assert not table.opened.view.log_commits, "they were merged on the way"
    assert state(path) == EXPECTED
    table.upsert(frame([(2, 4, "too late"), (3, 0, "too late")]))
    assert state(path) == EXPECTED, "tombstones and orderings went along"
    assert {commit.blocks[0].buckets for commit in table.opened.view.log_commits} == {after}


def test_there_and_back_again(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    for count in (16, 2, 2, 64, 4):
        assert table.rescale(buckets=count).buckets == count
        assert state(tmp_path / "t") == EXPECTED
        assert table.get({"k": 1}) == {"k": 1, "o": 2, "v": "changed"}
        assert table.get({"k": 2}) is None
    assert table.rescale(buckets=4).commits == 0
    operations = Counter(entry.operation for entry in table.history())
    assert operations["RESCALE"] == (1 + 4) + (2 + 1) + (1 + 2) + (4 + 1)


def test_before_the_first_write_it_is_the_count_and_nothing_else(tmp_path: Path) -> None:
    table = create(tmp_path / "t", buckets=None)
    result = table.rescale(buckets=8)
    assert (result.before, result.buckets, result.version, result.commits) == (None, 8, 1, 1)
    table.upsert(frame(ROWS))
    assert counts_of(table) == {8: 8}


def test_logs_alone_need_no_rewrite(tmp_path: Path) -> None:
    """A partition that came after the first load has no base file yet."""
    path = tmp_path / "t"
    table = create(path, schema="p STRING, k BIGINT", key=["p", "k"], ordering=[], partition_by=["p"], buckets=4)
    table.upsert(frame([("a", 1)], ["p", "k"], p=pa.string()))
    rows = [("b", k) for k in range(30)]
    table.upsert(frame(rows, ["p", "k"], p=pa.string()))
    for count, files in ((2, 1), (8, 4), (1, 1)):
        table.rescale(buckets=count)
        assert [commit.version for commit in table.opened.view.log_commits] == [2]
        assert table.opened.view.log_commits[0].blocks[0].buckets == 4
        assert len(table.opened.view.base_files) == files
        assert state(path) == [("a", 1), *rows]
        assert table.get({"p": "b", "k": 29}) == {"p": "b", "k": 29}
    table.rescale(buckets=8)
    table.compact()
    assert counts_of(table) == {8: 8 + 8}
    assert state(path) == [("a", 1), *rows]


@pytest.mark.parametrize("after", [8, 2])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_killed_it_is_finished_by_the_next_call(after: int, at: int, tmp_path: Path) -> None:
    """At whichever of its commits: the table is right, and so is what compactions make of it."""
    path = tmp_path / "t"
    loaded(path)
    child = os.fork()
    if not child:
        dying, _ = open_over(path, Fault(action=Kill(), method="put_if_absent", at=at), settings=GROUPWISE)
        dying.rescale(buckets=after)
        os._exit(0)
    died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert died == (at <= (6 if after == 8 else 4))
    table = LakeTable.open(path)
    assert state(path) == EXPECTED
    sizes = set(counts_of(table))
    assert sizes <= {4, after}
    assert [bool(table.get({"k": k})) for k in range(42)] == [k != 2 and k < 40 for k in range(42)]
    table.upsert(frame([(k, 3, "more") for k in range(0, 40, 3)]))
    more = sorted([(k, 3, "more") if k % 3 == 0 else row for row in EXPECTED for k in row[:1]])
    assert state(path) == more
    table.compact(minor=at % 2 == 0)
    assert state(path) == more
    table.compact()
    assert set(counts_of(table)) == sizes, "a compaction keeps a bucket what it is"
    assert table.rescale(buckets=after).buckets == after
    assert set(counts_of(table)) == {after}
    assert state(path) == more


def test_a_writer_of_the_old_count_lands_and_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)
    for count in (16, 1):

        def overtake(call: Call, count: int = count) -> None:
            LakeTable.open(path).rescale(buckets=count)

        late, _ = open_over(path, Fault(action=overtake, method="open_output", path="/log/"))
        late.upsert(frame([(k, 30 - count, f"late{count}") for k in (0, 7)]))
        view = LakeTable.open(path).opened.view
        assert view.config.buckets == count
        assert view.log_commits[-1].blocks[0].buckets != count
        assert [row for row in state(path) if row[0] in (0, 7)] == [(k, 30 - count, f"late{count}") for k in (0, 7)]


def test_a_first_load_of_the_old_count_becomes_logs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path, buckets=4)
    late, _ = open_over(
        path, Fault(action=lambda call: LakeTable.open(path).rescale(buckets=2), method="open_output", path="base/")
    )
    assert late.upsert(frame(ROWS)).mode == "append"
    assert state(path) == ROWS
    assert not any(file.startswith("base/") for file in listing(path))


@pytest.mark.parametrize("minor", [False, True])
def test_a_compaction_in_between_is_taken_up(minor: bool, tmp_path: Path) -> None:
    """It wins its buckets; the rescale reads them again."""
    path = tmp_path / "t"
    loaded(path)

    def overtake(call: Call) -> None:
        LakeTable.open(path).compact(minor=minor)

    table, _ = open_over(path, Fault(action=overtake, method="open_output", path="base/"), settings=GROUPWISE)
    assert table.rescale(buckets=8).written_buckets == 8
    assert set(counts_of(LakeTable.open(path))) == {8}
    assert state(path) == EXPECTED
    named = {
        file.add.path
        for entry in range(table.version + 1)
        for file in LakeTable.open(path, version=entry).opened.view.base_files
    }
    assert {file for file in listing(path) if file.startswith("base/")} == named, "what lost was deleted"


def test_a_compaction_begun_before_it_loses(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)

    def overtake(call: Call) -> None:
        LakeTable.open(path).rescale(buckets=2)

    table, _ = open_over(path, Fault(action=overtake, method="open_output", path="base/"))
    with pytest.raises(CommitConflictError, match="bucket count changed"):
        table.compact()
    assert set(counts_of(LakeTable.open(path))) == {2}
    assert state(path) == EXPECTED


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)

    def overtake(call: Call) -> None:
        LakeTable.open(path).rescale(buckets=8)

    table, _ = open_over(path, Fault(action=overtake, method="put_if_absent"))
    with pytest.raises(CommitConflictError, match="changed meanwhile"):
        table.rescale(buckets=16)
    assert LakeTable.open(path).opened.view.config.buckets == 8
    assert state(path) == EXPECTED


@pytest.mark.parametrize("after", [8, 2])
def test_a_total_that_does_not_fit_keeps_its_slice(after: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(
        path,
        schema="k BIGINT, n TINYINT",
        ordering=[],
        merger="aggregate",
        options={"aggregates": {"n": "sum"}},
        buckets=4,
        settings=GROUPWISE,
    )
    table.upsert(frame([(k, 100) for k in range(40)], ["k", "n"], n=pa.int8()))
    table.upsert(frame([(1, 100)], ["k", "n"], n=pa.int8()))
    result = table.rescale(buckets=after)
    (skipped,) = result.skipped
    assert (skipped.key, skipped.column) == ({"k": 1}, "n")
    assert result.buckets == (8 if after == 8 else 4), "buckets cannot be joined while one of them does not fit"
    assert counts_of(table)[after] == (6 if after == 8 else 1)
    assert "skipped=1" in repr(result)
    for _ in range(2):
        table.upsert(frame([(1, -75)], ["k", "n"], n=pa.int8()))
    assert table.rescale(buckets=after).skipped == ()
    assert counts_of(table) == {after: after}
    assert table.get({"k": 1}) == {"k": 1, "n": 50}
    named = {
        file.add.path
        for v in range(table.version + 1)
        for file in LakeTable.open(path, version=v).opened.view.base_files
    }
    assert {file for file in listing(path) if file.startswith("base/")} == named


@pytest.mark.parametrize("buckets", [0, 3, -4, 2**17, True, "8", None])
def test_counts_that_cannot_be(buckets: object, tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    with pytest.raises(InputError, match=r"buckets must be (a power of two|an integer)"):
        table.rescale(buckets=buckets)  # type: ignore[arg-type]


def test_several_files_a_slice_are_joined_and_split_by_key(tmp_path: Path) -> None:
    """Ranges of one row each: files file slice the keys of every bucket afterwards, and tombstones stand with their
    keys."""
    path = tmp_path / "t"
    tiny = Settings(merge_budget_bytes=1, row_group_rows=2, target_file_bytes=1, target_task_bytes=1, threads=1)
    table = create(path, buckets=4, settings=tiny)
    table.upsert(frame(ROWS))
    table.delete(frame([(k, 9) for k in range(0, 60, 7)], ["k", "o"]))
    table.upsert(frame([(k, 2, "new") for k in (1, 8, 50)]))
    expected = state(path)
    for count in (1, 2, 8):
        table.rescale(buckets=count)
        assert state(path) == expected
        assert len(table.opened.view.base_files) > 2 * count
        tombstones = sorted(
            (row["k"], row["o"], row["_lm_version"])
            for file_slice in table.opened.view.file_slices
            if file_slice.tombstones is not None
            for row in pq.read_table(path / file_slice.tombstones).to_pylist()
            if (file_slice.lower is None or file_slice.lower <= (row["k"],))
            and (file_slice.upper is None or (row["k"],) < file_slice.upper)
        )
        assert tombstones == [(k, 9, 2) for k in range(0, 60, 7)]
    assert rows_of(table.to_arrow(filter="k in (1, 7, 8)")) == [(1, 2, "new"), (8, 2, "new")]


def test_coarse_slices_take_the_place_of_several() -> None:
    """The table has 8 buckets. Buckets 1 and 5 are still the one bucket 1 of 4. Worked out by hand."""
    files = [base(None, bucket=1), base(None, bucket=0, buckets=8)]
    found = file_slices(files, [block(1, 2, bucket=5, buckets=8), block(3, 4, bucket=1, buckets=2)], buckets=8)
    assert {(bucket, file_slice.buckets, len(file_slice.blocks)) for (bucket, _), file_slice in found.items()} == {
        (1, 4, 2), (0, 8, 0), (3, 8, 1), (7, 8, 1),
    }  # fmt: skip
    layout = Layout.of(files, 8)
    assert [layout.bucket_of((), bucket).bucket for bucket in range(8)] == [0, 1, 2, 3, 4, 1, 6, 7]
    assert layout.bucket_of(("x",), 5) == BucketId(("x",), 5)


@pytest.mark.parametrize(
    ("first", "second"), [((1, 4), (5, 8)), ((1, 4), (1, 8)), ((1, 2), (3, 4)), ((0, 1), (6, 8)), ((1, 2), (1, 4))]
)
def test_slices_that_share_keys_are_damage(first: tuple[int, int], second: tuple[int, int]) -> None:
    files = [base(None, bucket=bucket, buckets=buckets) for bucket, buckets in (first, second)]
    with pytest.raises(TableDamagedError, match="hold the same keys"):
        Layout.of(files, 8)
    with pytest.raises(TableDamagedError, match="hold the same keys"):
        Layout.of(files[::-1], 8)
