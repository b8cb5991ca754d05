"""Frames of every make, and frames that do not fit: named, and nothing committed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemerge import FrameError, LakeTable, RecordRefusedError
from lakemerge.frames import as_reader
from tests.unit.faults import create, frame, listing, rows_of, state_of

ROWS = [(1, 10, "a"), (2, 20, None), (3, None, "ü")]
TABLE = frame(ROWS)


class Capsule:
    """Anything with the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TABLE.__arrow_c_stream__(requested_schema)


def typed(**kinds: pa.DataType) -> pa.Table:
    return pa.table(
        {name: TABLE.column(name).cast(kinds.get(name, TABLE.column(name).type)) for name in TABLE.column_names}
    )


MAKES: dict[str, Callable[[], object]] = {
    "table": lambda: TABLE,
    "sliced, chunked table": lambda: pa.concat_tables([TABLE, TABLE]).slice(1, 4),
    "record batch": lambda: TABLE.to_batches()[0],
    "reader": lambda: TABLE.to_reader(max_chunksize=1),
    "capsule": Capsule,
    "pandas": lambda: pd.DataFrame(
        {"k": [1, 2, 3], "o": pd.array([10, 20, None], dtype="Int64"), "v": ["a", None, "ü"]}, index=[9, 9, 9]
    ),
    "polars": lambda: pl.DataFrame({"k": [1, 2, 3], "o": [10, 20, None], "v": ["a", None, "ü"]}),
    "polars categorical": lambda: pl.DataFrame(
        {"k": [1, 2, 3], "o": [10, 20, None], "v": ["a", None, "ü"]}
    ).with_columns(pl.col("v").cast(pl.Categorical)),
    "large_string": lambda: typed(v=pa.large_string()),
    "string_view": lambda: typed(v=pa.string_view()),
    "dictionary": lambda: typed(v=pa.dictionary(pa.int8(), pa.string())),
    "small integers": lambda: typed(k=pa.int8(), o=pa.uint16()),
    "another case and order": lambda: TABLE.select(["v", "o", "k"]).rename_columns(["V", "O", "K"]),
    "not nullable": lambda: TABLE.slice(0, 1).cast(
        pa.schema([pa.field(f.name, f.type, nullable=False) for f in TABLE.schema])
    ),
}


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("append", [False, True])
def test_frames_of_every_make(make: str, append: bool, tmp_path: Path) -> None:
    table = create(tmp_path, buckets=2)
    if append:
        table.upsert(frame([(99, 0, "base")]))
    table.upsert(MAKES[make]())
    expected = ROWS[:1] if make == "not nullable" else ROWS
    assert state_of(tmp_path) == sorted([*expected, *([(99, 0, "base")] if append else [])], key=repr)


@pytest.mark.parametrize("thing", [[{"k": 1}], {"k": [1]}, None, "k", 5, np.zeros(3)], ids=repr)
def test_what_is_no_frame(thing: Any, tmp_path: Path) -> None:
    table = create(tmp_path)
    for write in (table.upsert, table.delete):
        with pytest.raises(FrameError, match=r"cannot write a .*pyarrow Table.*pandas or polars"):
            write(thing)
    assert table.version == 0


@pytest.mark.parametrize(
    "thing",
    [
        pd.DataFrame({"k": ["x", 1]}),
        pd.DataFrame([[1, 2]], columns=["k", "k"]),
        pl.Series("k", [1]),
        pa.chunked_array([[1]]),
    ],
    ids=["mixed types", "names twice", "polars column", "arrow column"],
)
def test_what_arrow_cannot_read_as_a_frame(thing: Any, tmp_path: Path) -> None:
    table = create(tmp_path)
    with pytest.raises(FrameError, match=r"is not a frame that Arrow can read"):
        table.upsert(thing)
    assert table.version == 0


def test_a_reader_is_handed_through() -> None:
    reader = TABLE.to_reader()
    assert as_reader(reader) is reader


KINDS = ["k", "o", "v", "op"]


@pytest.mark.parametrize(
    ("data", "kind_column", "says"),
    [
        (pa.table({}), None, ["key column 'k' is missing", "ordering column"]),
        (frame([(1,)], ["o"]), None, ["key column 'k' is missing"]),
        (frame([(1,)], ["k"]), None, ["upserts need the ordering column.s. o"]),
        (frame([(None, 1, "x")]), None, ["key column 'k' is null in 1 row"]),
        (frame([(1, 1, "x"), (None, 1, "x"), (None, 2, "x")]), None, ["null in 2 row"]),
        (frame([(1, 1, "x", 5)], ["k", "o", "v", "extra"]), None, ["unknown column 'extra'", "k, o, v"]),
        (frame([(1, 2, 3)], ["k", "K", "o"]), None, ["'k' and 'K' are both 'k'"]),
        (frame([("1", 1)], ["k", "o"], k=pa.string()), None, ["'k' is STRING, the table's is BIGINT; cast it"]),
        (frame([(1.0, 1)], ["k", "o"], k=pa.float64()), None, ["'k' is DOUBLE"]),
        (frame([(2**63, 1)], ["k", "o"], k=pa.decimal128(20)), None, ["'k' is DECIMAL"]),
        (frame([("x", 1.5)], ["k", "o"], k=pa.string(), o=pa.float64()), None, ["'k' is STRING", "'o' is DOUBLE"]),
        (frame([(1, 1, "x")]), "op", ["kind column 'op' is not in the frame"]),
        (frame([(1, 1, 1)], ["k", "o", "op"], op=pa.int8()), "op", ["'op' is TINYINT", r"\+I, -U, \+U, -D"]),
        (frame([(1, 1, "x", "U")], KINDS), "op", [r"holds \['U'\]", r"\+I, -U, \+U, -D"]),
        (frame([(1, 1, "x", None)], KINDS), "op", [r"holds \[None\]"]),
        (frame([(1, "+U")], ["k", "op"]), "op", ["upserts need the ordering"]),
        (frame([(1, "-D"), (1, "+I")], ["k", "op"]), "op", ["upserts need the ordering"]),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, list) else "",
)
def test_frames_that_do_not_fit(data: pa.Table, kind_column: str | None, says: list[str], tmp_path: Path) -> None:
    table = create(tmp_path)
    before = listing(tmp_path)
    with pytest.raises(FrameError) as caught:
        table.upsert(data, kind_column=kind_column)
    for part in says:
        assert caught.match(part)
    assert (table.version, listing(tmp_path)) == (0, before)


def test_a_bad_row_in_the_last_batch_leaves_nothing(tmp_path: Path) -> None:
    """Log files were written before it was seen."""
    from lakemerge import Settings

    create(tmp_path)
    before = listing(tmp_path)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from frame([(1, 1, "x"), (2, 1, "y")]).to_batches(max_chunksize=1)
        yield from frame([(None, 1, "z")]).to_batches()

    table = LakeTable.open(tmp_path, settings=Settings(write_budget_bytes=1))
    with pytest.raises(FrameError, match="null"):
        table.upsert(pa.RecordBatchReader.from_batches(TABLE.schema, batches()))
    assert listing(tmp_path) == before


def test_not_null_columns(tmp_path: Path) -> None:
    """Upserts must carry them, whether the key is there or not; deletes need not."""
    table = create(tmp_path, schema="k BIGINT, o BIGINT, v STRING NOT NULL")
    table.upsert(frame([(1, 1, "x")]))
    with pytest.raises(FrameError, match=r"need the NOT NULL column.s. v"):
        table.upsert(frame([(1, 2)], ["k", "o"]))
    with pytest.raises(FrameError, match="'v' is NOT NULL and null in 1 upsert"):
        table.upsert(frame([(1, 2, None, "+U"), (2, 2, None, "-D")], KINDS), kind_column="op")
    assert table.upsert(frame([(1, 2, None, "-D")], KINDS), kind_column="op").version == 2
    assert table.delete(frame([(1,)], ["k"])).version == 3
    assert state_of(tmp_path) == []


def test_ordering_in_part_is_no_ordering(tmp_path: Path) -> None:
    table = create(tmp_path, schema="k BIGINT, o BIGINT, p BIGINT", ordering=["o", "p"])
    with pytest.raises(FrameError, match=r"ordering column.s. p are missing.*all ordering columns, or none"):
        table.delete(frame([(1, 1)], ["k", "o"]))
    assert table.delete(frame([(1,)], ["k"])).version == 1
    assert table.delete(frame([(1, 1, 1)], ["k", "o", "p"])).version == 2


def test_under_commit_time_ordering_columns_are_data(tmp_path: Path) -> None:
    table = create(tmp_path, merger="commit-time")
    table.upsert(frame([(1,)], ["k"]))
    table.upsert(frame([(1, "x")], ["k", "v"]))
    assert state_of(tmp_path) == [(1, None, "x")]


def test_kinds_as_dictionary_and_in_any_case_of_name(tmp_path: Path) -> None:
    table = create(tmp_path)
    data = frame([(1, 1, "x", "+I"), (2, 1, "y", "-D")], ["k", "o", "v", "Op"])
    table.upsert(data.set_column(3, "Op", data.column(3).dictionary_encode()), kind_column="oP")
    assert state_of(tmp_path) == [(1, 1, "x")]
    polars: Any = pl.DataFrame({"k": [1, 2], "o": [2, 2], "Op": ["-D", "+U"]})
    table.upsert(polars.with_columns(pl.col("Op").cast(pl.Categorical)), kind_column="op")
    assert state_of(tmp_path) == [(2, 2, None)]
    table.upsert(polars.with_columns(pl.lit("-U").alias("Op")), kind_column="op")
    with pytest.raises(FrameError, match=r"holds \['x'\]"):
        table.upsert(polars.with_columns(pl.lit("x").alias("Op")), kind_column="op")
    assert state_of(tmp_path) == [(2, 2, None)]


def test_a_merger_may_refuse_kinds(tmp_path: Path) -> None:
    table = create(tmp_path, merger="first-row", ordering=[])
    before = listing(tmp_path)
    for symbol in ("-D", "-U"):
        with pytest.raises(RecordRefusedError, match="first-row"):
            table.upsert(frame([(1, 1, "x", symbol)], KINDS), kind_column="op")
    with pytest.raises(RecordRefusedError, match="first-row"):
        table.delete(frame([(1,)], ["k"]))
    assert listing(tmp_path) == before
    assert table.delete(frame([], ["k"])).version == 1, "no record, nothing to refuse"


_END = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
VALUES: dict[str, list[Any]] = {
    "BOOLEAN": [True, False],
    "TINYINT": [-128, 127],
    "SMALLINT": [-(2**15), 2**15 - 1],
    "INT": [-(2**31), 2**31 - 1],
    "STRING": ["", "a", "\U0001f600", "é" * 300],
    "BINARY": [b"", b"\x00\xff", b"x" * 300],
    "DATE": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "TIMESTAMP": [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC), _END],
    "DECIMAL(9,2)": [Decimal("-9999999.99"), Decimal("0.01")],
    "DECIMAL(38,0)": [Decimal("-" + "9" * 38), Decimal(1)],
}


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind != "BINARY"])
def test_every_partition_type(kind: str, tmp_path: Path) -> None:
    """Partition values are text in commits; they come back as they went, from base files and from logs."""
    table = LakeTable.create(tmp_path, f"p {kind}, k INT, v INT", key=["k", "p"], partition_by=["p"], buckets=1)
    values = [value for value in VALUES[kind] if value != ""]
    data = pa.table({"p": pa.array(values, table.schema.field("p").type), "k": pa.array([7] * len(values), pa.int32())})
    for number in range(2):
        table.upsert(data.append_column("v", pa.array([number] * len(values), pa.int32())))
        for value in values:
            found = LakeTable.open(tmp_path).to_arrow(
                filter=pa.compute.field("p") == pa.scalar(value, data.schema[0].type)
            )
            assert rows_of(found) == [(value, 7, number)]
        table.compact()
    if kind == "STRING":
        with pytest.raises(FrameError, match="empty string cannot be a partition value"):
            table.upsert(pa.table({"p": [""], "k": pa.array([1], pa.int32()), "v": pa.array([1], pa.int32())}))


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_NTZ", "DATE"])
def test_years_that_no_partition_has(kind: str, tmp_path: Path) -> None:
    """Refused before a file is written; as a key outside of the partition such a value is as good as any."""
    table = LakeTable.create(tmp_path, f"p {kind}, k {kind}", key=["k", "p"], partition_by=["p"], buckets=1)
    arrow_kind = table.schema.field("p").type
    far = pa.array([2**22 if kind == "DATE" else 2**58]).cast(pa.int32() if kind == "DATE" else pa.int64())
    near = pa.array([0]).cast(far.type)
    for values in (far, pc.negate(far)):
        with pytest.raises(FrameError, match="'p' hold a date or time outside of the years 1 to 9999"):
            table.upsert(pa.table({"p": values.cast(arrow_kind), "k": near.cast(arrow_kind)}))
        assert table.version == len(table.opened.view.log_commits) == 0
        assert not list(tmp_path.rglob("*.parquet"))
    table.upsert(pa.table({"p": near.cast(arrow_kind), "k": far.cast(arrow_kind)}))
    table.upsert(pa.table({"p": near.cast(arrow_kind), "k": far.cast(arrow_kind)}))
    assert table.to_arrow().num_rows == 1


@pytest.mark.parametrize("kind", VALUES)
def test_every_key_type_through_files_and_commits(kind: str, tmp_path: Path) -> None:
    """Loaded, appended, compacted, filtered by key; bounds in commits and tags come back as they went."""
    table = LakeTable.create(tmp_path, f"k {kind}, v INT", key=["k"], buckets=2)
    keys = pa.array(VALUES[kind], table.schema.field("k").type)
    numbers = pa.array(range(len(keys)), pa.int32())
    table.upsert(pa.table({"k": keys.take(pa.array([0])), "v": pa.array([-1], pa.int32())}))
    table.upsert(pa.table({"k": keys, "v": numbers}))
    expected = sorted(zip(VALUES[kind], range(len(keys)), strict=True))
    for _ in range(2):
        reopened = LakeTable.open(tmp_path)
        assert sorted(map(tuple, (row.values() for row in reopened.to_arrow().to_pylist()))) == expected
        for key, number in expected:
            found = reopened.to_arrow(filter=pa.compute.field("k") == pa.scalar(key, keys.type))
            assert rows_of(found) == [(key, number)]
        table.compact()
