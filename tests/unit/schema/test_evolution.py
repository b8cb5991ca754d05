"""Schemas that change under files that stay: nested fields, comments, places, nullability, merge_schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemerge import (
    CommitConflictError,
    FrameError,
    InputError,
    LakeTable,
    MergerConfigurationError,
    Record,
    RowMerger,
    SchemaError,
    UpsertResult,
)
from lakemerge.write.start import WriteRequest
from lakemerge.write.upsert import upsert_arrow
from mergers import TableShape
from tests.unit.faults import create, frame, listing, rows_of, state_of

NESTED = "k BIGINT, o BIGINT, a STRUCT<s: STRING, n: INT>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>"
MORE = "a.zip STRING, l.element.y INT, m.value.y STRUCT<z: INT>, w STRING"
OLD_A = pa.struct([("s", pa.string()), ("n", pa.int32())])
NEW_A = pa.struct([("zip", pa.string()), *OLD_A])
OLD_X = pa.struct([("x", pa.int32())])
NEW_X = pa.struct([("x", pa.int32()), ("y", pa.int32())])
NEW_Z = pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.int32())]))])
OLD = {"k": pa.int64(), "o": pa.int64(), "a": OLD_A, "l": pa.list_(OLD_X), "m": pa.map_(pa.string(), OLD_X)}
NEW = {**OLD, "a": NEW_A, "l": pa.list_(NEW_X), "m": pa.map_(pa.string(), NEW_Z), "w": pa.string()}

Rows = list[dict[str, Any]]


def table_of(rows: Sequence[Mapping[str, Any]], types: Mapping[str, pa.DataType]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()})


def old(k: int, o: int) -> dict[str, Any]:
    return {"k": k, "o": o, "a": {"s": f"s{k}", "n": o}, "l": [{"x": o}, None], "m": [("q", {"x": o})]}


def widened(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the old schema as the new one shows it: what it lacks is null, at the end of its struct."""
    return {
        **row,
        "a": {**row["a"], "zip": None},
        "l": [None if part is None else {**part, "y": None} for part in row["l"]],
        "m": [(name, {**part, "y": None}) for name, part in row["m"]],
        "w": None,
    }


def new(k: int, o: int) -> dict[str, Any]:
    return {
        "k": k,
        "o": o,
        "a": {"s": None, "n": o, "zip": f"z{k}"},
        "l": [{"x": o, "y": k}],
        "m": [("r", {"x": None, "y": {"z": k}})],
        "w": "new",
    }


def found(table: pa.Table) -> Rows:
    return sorted(table.to_pylist(), key=lambda row: int(row["k"]))


@pytest.mark.parametrize("compaction", [None, "minor", "full"])
@pytest.mark.parametrize("merger", ["event-time", "commit-time", "partial-update"])
def test_nested_fields_are_null_in_what_was_written_before(merger: str, compaction: str | None, tmp_path: Path) -> None:
    table = create(tmp_path, schema=NESTED, merger=merger, buckets=2)
    table.upsert(table_of([old(k, 5) for k in range(6)], OLD))
    table.upsert(table_of([old(1, 6), old(7, 6)], OLD))
    before = table.version
    told = found(table.to_arrow())
    table.alter(add_columns=MORE)
    expected = {k: widened(old(k, 5)) for k in range(6)} | {k: widened(old(k, 6)) for k in (1, 7)}
    assert found(table.to_arrow()) == [expected[k] for k in sorted(expected)]

    altered = table.version
    table.upsert(table_of([new(2, 7), new(8, 7)], NEW))
    table.upsert(table_of([old(3, 7), old(9, 7)], OLD))  # a writer that does not know the new fields
    expected |= {2: new(2, 7), 8: new(8, 7), 3: widened(old(3, 7)), 9: widened(old(9, 7))}
    if compaction is not None:
        table.compact(minor=compaction == "minor")
    assert found(table.to_arrow()) == [expected[k] for k in sorted(expected)]
    assert found(table.scan().read_all()) == [expected[k] for k in sorted(expected)]
    assert table.get({"k": 2}) == expected[2]
    assert found(table.get([{"k": 3}, {"k": 4}])) == [expected[3], expected[4]]
    assert table.to_arrow(columns=["a", "k"], filter="k = 8").to_pylist() == [{"a": new(8, 7)["a"], "k": 8}]
    assert table.to_arrow(filter=pc.field("w") == "new").num_rows == 2
    assert found(LakeTable.open(tmp_path, version=before).to_arrow()) == told
    assert LakeTable.check(tmp_path).findings == ()

    changes = table.changes(since=altered - 1).read_all()
    images = {(row["k"], row.pop("_row_kind")): row for row in changes.drop_columns(["_commit_timestamp"]).to_pylist()}
    assert {key: row.pop("_commit_version") - altered for key, row in images.items()} == {
        (2, "-U"): 1, (2, "+U"): 1, (8, "+I"): 1, (3, "-U"): 2, (3, "+U"): 2, (9, "+I"): 2,
    }  # fmt: skip
    assert images[2, "-U"] == widened(old(2, 5))
    assert images[2, "+U"] == new(2, 7)
    assert images[3, "+U"] == widened(old(3, 7))


def test_the_change_feed_passes_over_a_change_of_the_schema(tmp_path: Path) -> None:
    """Rows of versions whose structs and lists differ are compared field by field."""
    table = create(tmp_path, schema=NESTED)
    table.upsert(table_of([old(1, 5), old(2, 5)], OLD))
    table.upsert(table_of([{**new(1, 6), "l": None}], {**NEW, "l": NEW["l"]}), merge_schema=True)
    changes = table.changes(since=1).read_all().to_pylist()
    assert [(row["_row_kind"], row["a"], row["w"]) for row in changes] == [
        ("-U", {"s": "s1", "n": 5, "zip": None}, None),
        ("+U", {"s": None, "n": 6, "zip": "z1"}, "new"),
    ]
    narrow = table.restore(version=1)
    back = table.changes(since=narrow.version - 1).read_all()
    assert [(row["_row_kind"], row["a"], row["w"]) for row in back.to_pylist()] == [
        ("-U", {"s": None, "n": 6, "zip": "z1"}, "new"),
        ("+U", {"s": "s1", "n": 5, "zip": None}, None),
    ], "what only the version before had is told as well"


def test_a_struct_with_further_fields_adds_them(tmp_path: Path) -> None:
    table = create(tmp_path, schema=NESTED)
    table.alter(add_columns="a STRUCT<zip: STRING, n: INT>, w STRUCT<`p.q`: INT>")
    table.alter(add_columns=pa.schema([("a", pa.struct([("t", pa.int64())])), ("x.y", pa.int8())]))
    table.alter(add_columns="w.`r.s` INT COMMENT 'of w'")
    kind = pa.struct([*OLD_A, ("zip", pa.string()), ("t", pa.int64())])
    assert table.schema.field("a").type == kind
    assert table.schema.names == ["k", "o", "a", "l", "m", "w", "x.y"]
    assert [field.name for field in table.schema.field("w").type] == ["p.q", "r.s"]
    assert table.schema.field("w").type.field(1).metadata == {b"comment": b"of w"}
    added = [entry.parameters.get("columns") for entry in table.history(limit=3)]
    assert [json.loads(str(columns)) for columns in added] == [["w.r.s"], ["a.t", "x.y"], ["a.zip", "w"]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"add_columns": "a.zip STRING NOT NULL"}, "must be nullable"),
        ({"add_columns": "a.s STRING"}, "'s' is there already"),
        ({"add_columns": "a STRUCT<s: STRING>"}, "'a' is there already"),
        ({"add_columns": "a STRUCT<s: INT, zip: STRING>"}, "'a' is there already, and what it has is not as in STRUCT"),
        ({"add_columns": "a.t TIMESTAMP_NTZ"}, "higher Delta reader version"),
        ({"add_columns": "b.zip STRING"}, "unknown column 'b': the table has no field 'b'; it has k, o, a, l, m"),
        ({"add_columns": "a.b.c INT"}, "unknown column 'a.b': column 'a' has no field 'b'; it has s, n"),
        ({"add_columns": "l.y INT"}, "'y' cannot be added to 'l', which is ARRAY<STRUCT<x: INT>> and no struct"),
        ({"add_columns": "a. INT"}, "position"),
        ({"add_columns": "_lm_x INT"}, "reserved"),
        ({"comments": {"a.zip": "x"}}, "unknown column 'a.zip'"),
        ({"comments": {"a": 1}}, "comment of column 'a' must be a string"),
        ({"nullable": ["K"]}, "key column 'K' cannot become nullable"),
        ({"nullable": ["z"]}, "unknown column 'z'"),
        ({"order": ["z"]}, "order names unknown column 'z'; the table has k, o, a, l, m"),
        ({"order": ["a", "A"]}, "order names column 'A' twice"),
    ],
)
def test_columns_that_cannot_change(change: Mapping[str, Any], says: str, tmp_path: Path) -> None:
    table = create(tmp_path, schema=NESTED)
    with pytest.raises(SchemaError) as caught:
        table.alter(**change)
    assert says in str(caught.value)
    assert table.version == 0


@pytest.mark.parametrize("ddl", ["k BIGINT, a.b INT", "k BIGINT, a STRUCT<b.c: INT>"])
def test_dotted_names_are_for_alter(ddl: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="put a name with a dot in back quotes at position"):
        create(tmp_path, schema=ddl)


@pytest.mark.parametrize("what", ["order", "nullable"])
def test_names_come_in_a_list(what: str, tmp_path: Path) -> None:
    table = create(tmp_path)
    with pytest.raises(InputError, match=f"{what} must be a list of names"):
        table.alter(**{what: "k"})  # type: ignore[arg-type]


def test_comments_places_and_nullability_change_no_row(tmp_path: Path) -> None:
    ddl = "k BIGINT, o BIGINT, v STRING NOT NULL COMMENT 'old', s STRUCT<x: INT NOT NULL>"
    table = create(tmp_path, schema=ddl)
    kinds = {"k": pa.int64(), "o": pa.int64(), "v": pa.string(), "s": pa.struct([("x", pa.int32())])}
    table.upsert(table_of([{"k": 1, "o": 1, "v": "a", "s": {"x": 1}}, {"k": 2, "o": 1, "v": "b", "s": None}], kinds))
    table.upsert(table_of([{"k": 1, "o": 2, "v": "c", "s": {"x": 2}}], kinds))
    with pytest.raises(FrameError, match="'v' is NOT NULL and null in 1 upsert"):
        table.upsert(table_of([{"k": 3, "o": 1, "v": None, "s": None}], kinds))
    table.alter(
        add_columns="w INT",
        nullable=["V", "s.x"],
        comments={"v": None, "s.x": 'in "s"', "w": "new"},
        order=["w", "s", "k"],
    )
    assert table.schema.names == ["w", "s", "k", "o", "v"]
    assert [field.nullable for field in table.schema] == [True, True, False, True, True]
    assert table.schema.field("v").metadata is None
    assert table.schema.field("w").metadata == {b"comment": b"new"}
    inner = table.schema.field("s").type.field(0)
    assert (inner.nullable, inner.metadata) == (True, {b"comment": b'in "s"'})
    rows = [{"w": None, "s": {"x": 2}, "k": 1, "o": 2, "v": "c"}, {"w": None, "s": None, "k": 2, "o": 1, "v": "b"}]
    assert found(table.to_arrow()) == rows
    assert list(found(table.to_arrow())[0]) == ["w", "s", "k", "o", "v"], "rows come in the new order"
    table.upsert(table_of([{"k": 2, "o": 2, "v": None, "s": {"x": None}}], kinds))
    rows[1] = {"w": None, "s": {"x": None}, "k": 2, "o": 2, "v": None}
    for minor in (True, False):
        assert found(table.to_arrow()) == rows
        table.compact(minor=minor)
    assert found(table.to_arrow()) == rows
    assert found(LakeTable.open(tmp_path, version=1).to_arrow())[0] == {"k": 1, "o": 1, "v": "a", "s": {"x": 1}}
    entry = next(entry for entry in table.history() if "CHANGE COLUMNS" in str(entry.operation))
    assert entry.operation == "ADD COLUMNS, CHANGE COLUMNS"

    version = table.version
    assert table.alter(comments={"w": "new"}, order=["w"], nullable=["v"]) == version, "nothing changes: no commit"
    assert table.alter(comments={"w": "newer"}) == version + 1


def test_a_write_planned_before_a_change_of_columns_lands(tmp_path: Path) -> None:
    table = create(tmp_path, schema=NESTED)
    table.upsert(table_of([old(1, 5), old(2, 5)], OLD))
    stale = table.opened.view
    table.alter(add_columns=MORE, order=["m"], comments={"a.s": "street"})
    upsert_arrow(table.opened.handle, stale, table_of([old(1, 6)], OLD), WriteRequest())
    assert found(LakeTable.open(tmp_path).to_arrow()) == [widened(old(1, 6)), widened(old(2, 5))]


WIDE = frame([(1, 6, "b", "x"), (3, 6, "c", None)], ["k", "o", "v", "w"], w=pa.large_string())


def test_a_frame_adds_its_columns_in_one_commit(tmp_path: Path) -> None:
    table = create(tmp_path, schema="k BIGINT, o BIGINT, v STRING, s STRUCT<x: INT>")
    table.upsert(frame([(1, 5, "a"), (2, 5, "b")]))
    data = WIDE.append_column("S", pa.array([{"Y": 2}, None], pa.struct([pa.field("Y", pa.int8(), nullable=False)])))
    data = data.append_column("op", pa.array(["+U", "-D"]))
    before = listing(tmp_path)
    with pytest.raises(FrameError) as caught:
        table.upsert(data, kind_column="op")
    assert "unknown column 'w'; the table has k, o, v, s; upsert with merge_schema=True to add it" in str(caught.value)
    assert "without 's.Y'; upsert with merge_schema=True to add it" in str(caught.value)
    assert (table.version, listing(tmp_path)) == (1, before)

    result = table.upsert(data, kind_column="op", merge_schema=True)
    assert (result.version, result.rows, table.version) == (2, 2, 2)
    kind = pa.struct([("x", pa.int32()), ("Y", pa.int8())])
    assert table.schema.types == [pa.int64(), pa.int64(), pa.string(), kind, pa.string()]
    assert table.schema.names == ["k", "o", "v", "s", "w"]
    assert table.opened.view.state.schema_epoch == 1
    expected = [(1, 6, "b", {"x": None, "Y": 2}, "x"), (2, 5, "b", None, None)]
    assert state_of(tmp_path) == expected
    table.compact()
    assert state_of(tmp_path) == expected
    assert table.upsert(frame([], ["k", "o", "z"], z=pa.int8()), merge_schema=True).rows == 0
    assert table.schema.names[-1] == "z", "a frame without rows has a schema, too"
    epoch = table.opened.view.state.schema_epoch
    table.upsert(WIDE, merge_schema=True)
    assert table.opened.view.state.schema_epoch == epoch == 2, "a frame that brings no column changes no schema"


def test_the_first_load_adds_columns(tmp_path: Path) -> None:
    table = create(tmp_path, buckets=None)
    result = table.upsert(WIDE, merge_schema=True)
    assert (result.mode, table.opened.view.config.buckets, table.opened.view.state.schema_epoch) == ("load", 1, 1)
    assert state_of(tmp_path) == [(1, 6, "b", "x"), (3, 6, "c", None)]
    assert table.opened.view.is_empty is False
    assert all(file_slice.is_clean for file_slice in table.opened.view.file_slices)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (WIDE.append_column("n", pa.nulls(2)), "n: a table cannot hold VOID: name a type"),
        (WIDE.append_column("u", pa.array([1, 2], pa.uint64())), "cast it to DECIMAL"),
        (WIDE.append_column("_lm_file", pa.array([1, 2])), "reserved"),
        (WIDE.append_column("t", pa.array([1, 2], pa.timestamp("us"))), "TIMESTAMP_NTZ"),
        (WIDE.append_column("W", pa.array([1, 2])), "columns 'w' and 'W' are both 'w'"),
        (WIDE.set_column(2, "v", pa.array([1, 2])), "'v' is BIGINT, the table's is STRING; cast it"),
        (WIDE.set_column(0, "k", pa.array([1, None])), "key column 'k' is null"),
        (WIDE.drop_columns(["o"]), "upserts need the ordering"),
    ],
)
def test_frames_that_cannot_be_merged_change_nothing(data: pa.Table, says: str, tmp_path: Path) -> None:
    table = create(tmp_path)
    before = listing(tmp_path)
    with pytest.raises(FrameError) as caught:
        table.upsert(data, merge_schema=True)
    assert says in str(caught.value)
    assert (LakeTable.open(tmp_path).schema.names, listing(tmp_path)) == (["k", "o", "v"], before)


@dataclass(frozen=True)
class Narrow(RowMerger):
    """The newer row wins, in a table of a few columns."""

    id = "0d7f0c3a-53d4-4d5c-8a2b-1d3f8c1c8c55"
    name = "narrow"

    def problems(self, shape: TableShape) -> Iterable[str]:
        names = shape.schema.names
        return [f"{name!r} is one too many" for name in names[3:] if name == "w" or len(names) > 4]

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return newer


def test_the_merger_has_to_take_the_columns(tmp_path: Path) -> None:
    table = create(tmp_path, merger="narrow", mergers=[Narrow])
    late = writing(table, merge_schema=True)
    with pytest.raises(MergerConfigurationError, match="'w' is one too many"):
        table.upsert(WIDE, merge_schema=True)
    assert table.version == 0
    # Each by itself would be taken, both are not: judged when the second commits.
    table.upsert(frame([(1, 1, "x")], ["k", "o", "x"], x=pa.string()), merge_schema=True)
    with pytest.raises(MergerConfigurationError, match="'y' is one too many"):
        late(frame([(1, 1, "y")], ["k", "o", "y"], y=pa.string()))
    assert table.version == 1
    assert table.schema.names == ["k", "o", "v", "x"]


def writing(table: LakeTable, **options: Any) -> Callable[[pa.Table], UpsertResult]:
    """Upserts as of now, however much later they are called."""
    handle, stale = table.opened.handle, table.opened.view
    return lambda data: upsert_arrow(handle, stale, data, WriteRequest(**options))


def test_writers_that_add_columns_at_once_all_land(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert(frame([(1, 1, "a")]))
    late, twin, plain, repeated = (
        writing(table, merge_schema=True),
        writing(table, merge_schema=True),
        writing(table),
        writing(table, merge_schema=True, txn=("app", 1)),
    )
    table.upsert(frame([(1, 2, "x")], ["k", "o", "w"], w=pa.string()), merge_schema=True, txn=("app", 1))
    late(frame([(2, 2, 7)], ["k", "o", "n"], n=pa.int32()))
    twin(frame([(3, 2, "y", {"p": 1})], ["k", "o", "w", "s"], w=pa.string(), s=pa.struct([("p", pa.int32())])))
    plain(frame([(4, 2, "d")]))
    assert repeated(frame([(9, 9, 9)], ["k", "o", "never"], never=pa.int32())).mode == "repeated"
    table = LakeTable.open(tmp_path)
    assert table.schema.names == ["k", "o", "v", "w", "n", "s"]
    rows = [
        (1, 2, "a", "x", None, None),
        (2, 2, None, None, 7, None),
        (3, 2, None, "y", None, {"p": 1}),
        (4, 2, "d", None, None, None),
    ]
    assert rows_of(table.to_arrow()) == rows
    table.compact()
    assert state_of(tmp_path) == rows


@pytest.mark.parametrize(("name", "kind"), [("w", pa.int32()), ("W", pa.string())])
def test_writers_that_disagree_about_a_column_conflict(name: str, kind: pa.DataType, tmp_path: Path) -> None:
    table = create(tmp_path)
    late = writing(table, merge_schema=True)
    first = writing(table, merge_schema=True)
    first(frame([(1, 2, "x")], ["k", "o", "w"], w=pa.string()))
    with pytest.raises(CommitConflictError, match=f"column '{name}' changed meanwhile; open the table again and retry"):
        late(pa.table({"k": [2], "o": [2], name: pa.nulls(1, kind)}))
    assert rows_of(LakeTable.open(tmp_path).to_arrow()) == [(1, 2, None, "x")]


def test_deletes_say_nothing_of_columns_to_add(tmp_path: Path) -> None:
    with pytest.raises(FrameError) as caught:
        create(tmp_path).delete(WIDE)
    assert "unknown column 'w'" in str(caught.value)
    assert "merge_schema" not in str(caught.value)
