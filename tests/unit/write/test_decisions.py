"""Decisions of one line in writes: each with the input that tells it from its opposite."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import FrameError, InputError, LakeTable, RecordRefusedError, Settings
from lakemerge.delta import Transaction
from lakemerge.errors import MergeOverflowError
from lakemerge.format.keys import BucketId
from lakemerge.read.merge import MergedRange
from lakemerge.schema.names import ColumnNames
from lakemerge.storage import LocalStore
from lakemerge.write.base_file import BaseWriteSpec, write_base_files
from lakemerge.write.parquet.stats import _bound, texts_without_bounds
from lakemerge.write.parquet.tombstones import TombstonesOutput
from lakemerge.write.start import WriteRequest
from lakemerge.write.upsert import upsert_arrow
from mergers.kernel import tombstone_schema
from tests.unit.faults import create, frame, listing, rows_of, state_of

B = pa.struct([("a", pa.int32()), ("b", pa.int32())])
MAP = pa.map_(pa.string(), pa.int32())
QUIET = {"lakemerge.maintenance": "off"}


def test_a_null_key_and_a_frame_without_nulls(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties=QUIET)
    with pytest.raises(FrameError, match="key column 'k' is null in 1 row"):
        table.upsert(frame([(1, 1, "a"), (None, 1, "b")]))
    table.upsert(frame([(1, 1, "a")]))
    assert state_of(tmp_path / "t") == [(1, 1, "a")]


def test_a_frame_that_lacks_what_upserts_need_may_delete(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties=QUIET, ordering=[], schema="k BIGINT, n BIGINT NOT NULL")
    table.upsert(frame([(1, 1), (2, 2)], ["k", "n"], n=pa.int64()))
    kinds = ["k", "op"]
    table.upsert(frame([(1, "-D")], kinds), kind_column="op")
    table.upsert(frame([], kinds), kind_column="op")
    with pytest.raises(FrameError, match="NOT NULL column"):
        table.upsert(frame([(1, "-D"), (2, "+U")], kinds), kind_column="op")
    with pytest.raises(FrameError, match="NOT NULL column"):
        table.upsert(frame([(2, "+I")], kinds), kind_column="op")
    assert state_of(tmp_path / "t") == [(2, 2)]


def test_a_frame_without_the_ordering_may_delete_alone(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties=QUIET)
    table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
    table.upsert(frame([(1, "-D")], ["k", "op"]), kind_column="op")
    with pytest.raises(FrameError, match="upserts need the ordering column"):
        table.upsert(frame([(2, "+U")], ["k", "op"]), kind_column="op")
    with pytest.raises(FrameError, match="upserts need the ordering column"):
        table.upsert(frame([(2, "x")], ["k", "v"]))
    assert state_of(tmp_path / "t") == [(2, 1, "b")]


def test_kinds_that_are_no_records_are_no_upserts(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties=QUIET)
    rows = [(1, 1, "a", "+I"), (2, 1, "b", "-U"), (3, 1, "c", "+U"), (4, 1, "d", "-D")]
    table.upsert(frame(rows, ["k", "o", "v", "op"]), kind_column="op")
    assert state_of(tmp_path / "t") == [(1, 1, "a"), (3, 1, "c")]


def test_a_damaged_column_and_a_key_of_a_map_twice_are_refused(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="k BIGINT, m MAP<STRING, INT>", ordering=[], properties=QUIET)
    kind = pa.map_(pa.string(), pa.int32())
    with pytest.raises(FrameError, match="twice"):
        table.upsert(pa.table({"k": [1], "m": pa.array([[("a", 1), ("a", 2)]], kind)}))
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    with pytest.raises(FrameError, match="UTF-8"):
        create(tmp_path / "u", properties=QUIET).upsert(pa.table({"k": [1], "o": [1], "v": bad}))
    assert table.version == 0


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_load_that_overflows_leaves_logs_and_no_base_file(tmp_path: Path, in_memory: bool) -> None:
    """One bucket overflows, after base files of others were written. A frame that does not fit the budget is packed
    first, and its logs are committed."""
    path = tmp_path / "t"
    small = Settings(threads=1) if in_memory else Settings(threads=1, write_budget_bytes=64)
    table = LakeTable.create(
        path,
        "k BIGINT, n BIGINT",
        key=["k"],
        merger="aggregate",
        options={"aggregates": {"n": "sum"}},
        buckets=8,
        properties=QUIET,
        settings=small,
    )
    rows = [(k, 2**62) for k in range(40)]
    given = frame([*rows, (39, 2**62)], ["k", "n"], n=pa.int64())
    result = table.upsert(given if in_memory else given.to_reader(max_chunksize=4))
    assert result.mode == "append"
    assert not [name for name in listing(path) if name.startswith("base/")]
    assert table.get({"k": 2}) == {"k": 2, "n": 2**62}
    with pytest.raises(MergeOverflowError):
        table.get({"k": 39})


def test_a_load_leaves_no_packed_file(tmp_path: Path) -> None:
    """Also where the frame is not in memory, and is packed first."""
    for number, given in enumerate((frame([(1, 1, "a")]), frame([(1, 1, "a")] * 50).to_reader(max_chunksize=5))):
        path = tmp_path / str(number)
        table = create(path, properties=QUIET, settings=Settings(merge_budget_bytes=256, target_task_bytes=256))
        assert table.upsert(given).mode == "load"
        assert not [name for name in listing(path) if name.startswith("_lakemerge/log/")]
        assert state_of(path) == [(1, 1, "a")]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_load_that_is_second_leaves_no_base_file(tmp_path: Path, in_memory: bool) -> None:
    path = tmp_path / "t"
    first = create(path, properties=QUIET)
    second = LakeTable.open(path, settings=Settings() if in_memory else Settings(write_budget_bytes=64))
    stood = second.opened.standing
    assert first.upsert(frame([(1, 1, "a")])).mode == "load"
    before = {name for name in listing(path) if name.startswith("base/")}
    rows = [(k, 1, "b") for k in range(2, 20)]
    given = frame(rows) if in_memory else frame(rows).to_reader(max_chunksize=4)
    result = upsert_arrow(second.opened.handle, stood, given, WriteRequest())
    assert result.mode == "append"
    assert {name for name in listing(path) if name.startswith("base/")} == before
    assert state_of(path) == rows_of(frame([(1, 1, "a"), *rows]))


def test_a_write_that_was_done_before_reads_nothing(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties=QUIET)
    table.upsert(frame([(1, 1, "a")]), txn=("job", 1))

    def batches() -> Iterator[pa.RecordBatch]:
        assert table.version < 0, "it was read"
        yield from ()

    reader = pa.RecordBatchReader.from_batches(frame([(1, 1, "a")]).schema, batches())
    assert table.upsert(reader, txn=("job", 1)).mode == "repeated"
    assert table.version == 1


def test_tombstones_go_into_row_groups_as_they_come(tmp_path: Path) -> None:
    names = ColumnNames()
    output = TombstonesOutput(LocalStore(tmp_path), "x", 1, Settings(row_group_rows=4), names)
    assert output.size_bytes == 0
    rows = pa.table({"k": pa.array(range(3), pa.int64())})
    output.add(rows.slice(0, 0))
    output.add(rows)
    held = output.size_bytes
    assert held == rows.nbytes
    assert not [*tmp_path.rglob("*.parquet")]
    output.add(pa.table({"k": pa.array(range(3, 6), pa.int64())}))
    path = output.close()
    assert path is not None
    stored = pq.ParquetFile(tmp_path / path)
    assert stored.read()["k"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert stored.num_row_groups == 2
    none = TombstonesOutput(LocalStore(tmp_path), "y", 2, Settings(), names)
    none.add(rows.slice(0, 0))
    assert none.close() is None


def test_bounds_of_times_are_never_too_narrow() -> None:
    """In milliseconds: a least value is rounded down, a greatest one up."""
    exact, between = (dt.datetime(2026, 1, 2, 3, 4, 5, us, tzinfo=dt.UTC) for us in (6000, 6001))
    for value, low, high in ((exact, "05.006", "05.006"), (between, "05.006", "05.007")):
        found: dict[str, object] = {}
        assert _bound(found, "low", value, upper=False)
        assert _bound(found, "high", value, upper=True)
        assert found == {"low": f"2026-01-02T03:04:{low}Z", "high": f"2026-01-02T03:04:{high}Z"}


def test_a_write_that_another_made_meanwhile_leaves_no_file(tmp_path: Path) -> None:
    first = create(tmp_path / "t", properties=QUIET)
    first.upsert(frame([(1, 1, "a")]))
    second = LakeTable.open(tmp_path / "t")
    stood = second.opened.standing
    first.upsert(frame([(1, 2, "b")]), txn=("job", 1))
    before = listing(tmp_path / "t")
    given = WriteRequest(txn=("job", 1))
    assert upsert_arrow(second.opened.handle, stood, frame([(1, 2, "b")]), given).mode == "repeated"
    assert listing(tmp_path / "t") == before


@pytest.mark.parametrize("repeated", [False, True])
def test_keys_of_a_long_map(tmp_path: Path, repeated: bool) -> None:
    """Keys of longer maps are sorted to find one that is there twice."""
    table = create(tmp_path / "t", schema="k BIGINT, m MAP<STRING, INT>", ordering=[], properties=QUIET)
    keys = [f"k{number}" for number in range(40)]
    maps = pa.array([[(key, 1) for key in (*keys, "k3")] if repeated else [], [(key, 2) for key in keys]], MAP)
    given = pa.table({"k": [1, 2], "m": maps})
    if repeated:
        with pytest.raises(FrameError, match="twice"):
            table.upsert(given)
    else:
        table.upsert(given)
        assert table.get({"k": 2}) == {"k": 2, "m": [(key, 2) for key in keys]}


@pytest.mark.parametrize(
    ("ddl", "kind", "value"),
    [
        ("ARRAY<MAP<STRING, INT>>", pa.list_(MAP), [[("a", 1)], [("b", 1), ("b", 2)]]),
        ("STRUCT<m: MAP<STRING, INT>>", pa.struct([("m", MAP)]), {"m": [("b", 1)] * 2}),
        ("MAP<DOUBLE, INT>", pa.map_(pa.float64(), pa.int32()), [(float("nan"), 1), (1.0, 1), (float("nan"), 2)]),
        ("MAP<DOUBLE, INT>", pa.map_(pa.float64(), pa.int32()), [(0.0, 1), (-0.0, 2)]),
    ],
)
def test_a_key_of_a_map_is_found_twice_wherever_the_map_is(
    ddl: str, kind: pa.DataType, value: object, tmp_path: Path
) -> None:
    table = create(tmp_path / "t", schema=f"k BIGINT, m {ddl}", ordering=[], properties=QUIET)
    with pytest.raises(FrameError, match="twice"):
        table.upsert(pa.table({"k": [1], "m": pa.array([value], kind)}))


@pytest.mark.parametrize(
    "txn", [("job", True), ("job", 2**63), ("job", -1), ("job", 1.0), ("", 1), (1, 1), ("job",), "job"]
)
def test_numbers_of_writes_that_no_commit_can_hold(tmp_path: Path, txn: Any) -> None:
    table = create(tmp_path / "t", properties=QUIET)
    with pytest.raises(FrameError, match=r"txn must be \(application id, number from 0 on\)"):
        table.upsert(frame([(1, 1, "a")]), txn=txn)
    with pytest.raises(FrameError, match="cannot be encoded as UTF-8"):
        table.upsert(frame([(1, 1, "a")]), txn=("\ud800", 1))
    assert table.version == 0
    table.upsert(frame([(1, 1, "a")]), txn=("job", 2**63 - 1))
    assert table.version == 1


def test_what_an_overwrite_takes_is_said_once(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="p STRING, k BIGINT", key=["p", "k"], ordering=[], partition_by=["p"])
    given = pa.table({"p": ["a"], "k": [1]})
    with pytest.raises(InputError, match=r"says which partitions are overwritten, .*give one of them"):
        table.overwrite(given, where="p = 'a'", partition_mode="dynamic")
    assert table.version == 0


@pytest.mark.parametrize(
    ("ddl", "values", "remedy"),
    [
        ("TIMESTAMP", pa.array([0], pa.timestamp("us")), "say of which zone its times are"),
        ("TIMESTAMP_NTZ", pa.array([0], pa.timestamp("us", "UTC")), "cast it first"),
        ("INT", pa.array([0.5], pa.float64()), "cast it to integers first"),
        ("STRUCT<a: INT>", pa.array([{"a": 1, "b": 2}]).cast(B), "without 'n.b'; upsert with merge_schema=True"),
        ("STRUCT<a: INT>", pa.array([{"a": "x", "b": 2}]), "cast it first"),
    ],
)
def test_what_to_do_with_a_column_of_another_type(ddl: str, values: pa.Array, remedy: str, tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema=f"k BIGINT, n {ddl}", ordering=[], properties=QUIET)
    with pytest.raises(FrameError) as raised:
        table.upsert(pa.table({"k": [1], "n": values}))
    assert remedy in str(raised.value)


def test_a_record_that_its_merger_refuses_is_not_written(tmp_path: Path) -> None:
    table = create(
        tmp_path / "t",
        schema="k BIGINT, f STRING, p BIGINT, op STRING",
        merger="debezium-mysql",
        ordering=["f", "p"],
        options={"op_column": "op"},
    )
    given = frame([(1, "bin.1", 4, "c"), (2, "bin", 4, "c")], ["k", "f", "p", "op"], f=pa.string(), p=pa.int64())
    with pytest.raises(RecordRefusedError, match="holds 'bin', which has no file number"):
        table.upsert(given)
    assert table.version == 0
    table.upsert(given.slice(0, 1))
    assert table.version == 1


def test_a_frame_that_may_only_delete_may_lack_what_is_required(tmp_path: Path) -> None:
    """A column marks rows as deletes. Only rows without the mark need the NOT NULL column."""
    table = create(
        tmp_path / "t",
        schema="k BIGINT, gone BOOLEAN, n BIGINT NOT NULL",
        ordering=[],
        options={"delete_when": {"column": "gone", "values": [True]}},
        properties=QUIET,
    )
    table.upsert(frame([(1, False, 1), (2, False, 2)], ["k", "gone", "n"], gone=pa.bool_(), n=pa.int64()))
    table.upsert(frame([(1, True)], ["k", "gone"], gone=pa.bool_()))
    with pytest.raises(FrameError, match="NOT NULL column"):
        table.upsert(frame([(1, False)], ["k", "gone"], gone=pa.bool_()))
    assert table.to_arrow()["k"].to_pylist() == [2]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_first_write_of_deletes_alone_is_remembered(tmp_path: Path, in_memory: bool) -> None:
    """No row comes of it, in this bucket or in any. Older records of its keys come later."""
    table = create(
        tmp_path / "t", buckets=4, properties=QUIET, settings=Settings(write_budget_bytes=64 + in_memory * 2**20)
    )
    deletes = frame([(k, 5, "-D") for k in range(8)], ["k", "o", "op"])
    result = table.upsert(deletes if in_memory else deletes.to_reader(max_chunksize=2), kind_column="op")
    assert result.mode == "load"
    table.upsert(frame([(k, 4 + k % 3, "late") for k in range(8)]))
    assert state_of(tmp_path / "t") == [(k, 4 + k % 3, "late") for k in range(8) if k % 3]


def test_texts_whose_bounds_a_footer_lacks(tmp_path: Path) -> None:
    def lacking(values: list[str | None], *, statistics: bool = True) -> list[str]:
        path, table = tmp_path / "f.parquet", pa.table({"v": pa.array(values, pa.string())})
        pq.write_table(table, path, write_statistics=statistics)
        return texts_without_bounds(pq.read_metadata(path), table.schema)

    assert lacking(["a", "b"]) == []
    assert lacking([None, None]) == [], "there is nothing to bound"
    assert lacking([]) == []
    assert lacking(["a"], statistics=False) == ["v"]


def test_the_files_of_an_overwrite_are_counted(tmp_path: Path) -> None:
    """With its commit, as those of every write."""
    table = create(tmp_path / "t", buckets=4, properties=QUIET)
    result = table.overwrite(frame([(k, 1, "a") for k in range(40)]))
    there = [name for name in listing(tmp_path / "t") if name.startswith("base/")]
    assert result.files == len(there) + 1 == 5


def test_a_base_file_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    """Its tombstones have a file of their own, which is begun as soon as they fill a row group."""
    table = create(tmp_path / "t", properties=QUIET, settings=Settings(row_group_rows=2))
    handle, view = table.opened.handle, table.opened.view
    spec = BaseWriteSpec.of(handle, view, Transaction("x"), buckets=1)
    before = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    shape = view.config.shape
    stones = pa.table([[1, 2, 3], [1, 1, 1], [1, 1, 1]], schema=tombstone_schema(shape))

    def ranges() -> Iterator[MergedRange]:
        yield MergedRange(shape.schema.empty_table(), stones)
        begun = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
        assert begun > before, "the file of tombstones is begun"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_base_files(ranges(), spec, BucketId((), 0), lower=None, ordinals=[1], now_ms=0)
    assert {path for path in (tmp_path / "t").rglob("*") if path.is_file()} == before
