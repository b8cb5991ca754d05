"""Renamed and dropped columns: what the metadata say, who may still write, and what is refused.

That names are no matter of rows is in ``tests/property/test_names_property.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lakemerge import (
    CommitConflictError,
    FrameError,
    LakeTable,
    MergerConfigurationError,
    SchemaError,
    TableDamagedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakemerge.delta import DeltaLog, Snapshot
from lakemerge.merge_source.inputs import PlainTable
from lakemerge.schema.names import MODE, ColumnNames
from lakemerge.storage import LocalStore
from lakemerge.write.start import WriteRequest
from lakemerge.write.upsert import upsert_arrow
from mergers import Groups, Merged
from mergers.builtin.commit_time import CommitTime
from tests.unit.faults import create, frame, rows_of

DDL = "k BIGINT, o BIGINT, v STRING, s STRUCT<x: INT, y: STRING>"


def snapshot_of(path: Path) -> Snapshot:
    return DeltaLog(LocalStore(path)).snapshot()


def fields_of(path: Path) -> dict[str, tuple[str, int]]:
    """Column -> its stored name and its id."""
    metadata = snapshot_of(path).metadata
    found = {}
    for field in json.loads(metadata.schema_string)["fields"]:
        told = field["metadata"]
        found[field["name"]] = told["delta.columnMapping.physicalName"], told["delta.columnMapping.id"]
    return found


def max_id(path: Path) -> int:
    return int(snapshot_of(path).metadata.configuration["delta.columnMapping.maxColumnId"])


def test_what_the_metadata_says(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema=DDL)
    table.upsert(frame([(1, 1, "a")]))
    before = snapshot_of(tmp_path / "t")
    assert before.protocol.min_reader == 1
    table.alter(rename_columns={"v": "title"})
    after = snapshot_of(tmp_path / "t")
    assert (after.protocol.min_reader, after.protocol.min_writer) == (3, 7)
    assert "columnMapping" in after.protocol.reader_features & after.protocol.writer_features
    assert after.metadata.configuration["delta.columnMapping.mode"] == "name"
    assert after.files == before.files
    assert after.domains.keys() == before.domains.keys()
    known = fields_of(tmp_path / "t")
    assert {name: stored for name, (stored, _) in known.items()} == {"k": "k", "o": "o", "title": "v", "s": "s"}
    inner = json.loads(after.metadata.schema_string)["fields"][3]["type"]["fields"]
    assert [field["metadata"]["delta.columnMapping.physicalName"] for field in inner] == ["x", "y"]
    ids = [number for _, number in known.values()]
    ids += [field["metadata"]["delta.columnMapping.id"] for field in inner]
    assert sorted(ids) == [1, 2, 3, 4, 5, 6]
    assert max_id(tmp_path / "t") == 6
    assert table.history(limit=1)[0].operation == "RENAME COLUMN"


def test_a_later_column_has_a_stored_name_of_its_own(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "old")]))
    table.alter(drop_columns=["v"])
    dropped = max_id(tmp_path / "t")
    table.alter(add_columns="v STRING")
    stored, number = fields_of(tmp_path / "t")["v"]
    assert stored.startswith("col-")
    assert number == dropped + 1 == max_id(tmp_path / "t")
    assert table.to_arrow().to_pylist() == [{"k": 1, "o": 1, "v": None}]
    table.upsert(frame([(1, 2, "new"), (2, 2, "b")]))
    table.compact()
    (add,) = snapshot_of(tmp_path / "t").files.values()
    file = pq.ParquetFile(tmp_path / "t" / add.path)
    assert {stored, "k", "o"} < set(file.schema_arrow.names)
    assert file.schema_arrow.field(stored).metadata[b"PARQUET:field_id"] == str(number).encode()
    assert json.loads(add.stats or "")["maxValues"][stored] == "new"
    assert rows_of(table.to_arrow()) == [(1, 2, "new"), (2, 2, "b")]


def test_partition_values_have_stored_names(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "p STRING, k BIGINT, v STRING", key=["p", "k"], partition_by=["p"], buckets=1)
    table.alter(rename_columns={"p": "region", "v": "text"})
    table.upsert(pa.table({"region": ["a", "b"], "k": [1, 1], "text": ["x", "y"]}))
    snapshot = snapshot_of(tmp_path)
    assert snapshot.metadata.partition_columns == ("region",)
    assert sorted(add.partition_values["p"] or "" for add in snapshot.files.values()) == ["a", "b"]
    assert table.to_arrow(filter="region = 'b'").to_pylist() == [{"region": "b", "k": 1, "text": "y"}]


def late(table: LakeTable, begin: Any, rows: pa.Table, **options: Any) -> None:
    """A write that began at an earlier version."""
    upsert_arrow(table.opened.handle, begin, rows, WriteRequest(**options))


def test_what_began_before_lands_under_the_names_of_now(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT, v STRING, w STRING")
    table.upsert(frame([(1, 1, "a", "x")], ("k", "o", "v", "w"), w=pa.string()))
    begin = table.opened.view
    LakeTable.open(tmp_path / "t").alter(rename_columns={"v": "title", "k": "id"}, drop_columns=["w"])
    late(table, begin, frame([(1, 2, "b", "y"), (2, 2, "c", "z")], ("k", "o", "v", "w"), w=pa.string()))
    grown = frame([(3, 3, "d", "n")], ("k", "o", "v", "n"), n=pa.string())
    late(table, begin, grown, merge_schema=True)
    now = LakeTable.open(tmp_path / "t")
    assert now.schema.names == ["id", "o", "title", "n"]
    expected = [(1, 2, "b", None), (2, 2, "c", None), (3, 3, "d", "n")]
    assert rows_of(now.to_arrow()) == expected
    now.compact()
    assert rows_of(now.to_arrow()) == expected
    assert LakeTable.check(tmp_path / "t").findings == ()


def test_writers_that_add_the_same_column_agree_on_its_stored_name(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.alter(rename_columns={"v": "title"})
    begin = table.opened.view
    rows = [frame([(k, 1, str(k))], ("k", "o", "n"), n=pa.string()) for k in (1, 2)]
    late(table, begin, rows[0], merge_schema=True)
    late(table, begin, rows[1], merge_schema=True)
    now = LakeTable.open(tmp_path / "t")
    assert rows_of(now.to_arrow()) == [(1, 1, None, "1"), (2, 1, None, "2")]
    now.alter(drop_columns=["n"])
    now.alter(add_columns="n STRING")
    with pytest.raises(CommitConflictError, match="column 'n' was added meanwhile"):
        late(table, begin, rows[0], merge_schema=True)


@pytest.mark.parametrize("merge_schema", [False, True])
def test_a_frame_with_a_former_name_is_told(tmp_path: Path, merge_schema: bool) -> None:
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT, v STRING, w STRING")
    version = table.alter(rename_columns={"v": "title"})
    table.alter(rename_columns={"TITLE": "label"})
    with pytest.raises(FrameError, match=f"column 'V' was renamed to 'label' in version {version}"):
        table.upsert(pa.table({"k": [1], "o": [1], "V": ["a"]}), merge_schema=merge_schema)
    dropped = table.alter(drop_columns=["w"])
    with pytest.raises(FrameError, match=f"column 'w' was dropped in version {dropped}"):
        table.upsert(pa.table({"k": [1], "o": [1], "w": ["a"]}), merge_schema=merge_schema)
    table.alter(add_columns="v STRING")
    table.upsert(pa.table({"k": [1], "o": [1], "v": ["a"]}), merge_schema=merge_schema)
    assert table.get({"k": 1}) == {"k": 1, "o": 1, "label": None, "v": "a"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop_columns": ["k"]}, "'k' is a key column"),
        ({"drop_columns": ["O"]}, "'o' is a ordering column"),
        ({"drop_columns": ["v"]}, "options of the merger 'event-time' name the column 'v'"),
        ({"drop_columns": ["nope"]}, "unknown column 'nope'"),
        ({"drop_columns": ["w", "W"]}, "names a column twice"),
        ({"drop_columns": ["s.x"]}, "only columns can be dropped"),
        ({"rename_columns": {"s.x": "z"}}, "only columns can be renamed"),
        ({"rename_columns": {"w": "V"}}, "are one name"),
        ({"rename_columns": {"w": "_lm_x"}}, "_lm_"),
        ({"rename_columns": {"w": ""}}, "has no name"),
        ({"rename_columns": {"w": "_row_kind"}}, "_row_kind"),
        ({"rename_columns": {"nope": "x"}}, "unknown column 'nope'"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    table = create(
        tmp_path / "t",
        schema=f"{DDL}, w STRING",
        options={"delete_when": {"column": "v", "values": ["gone"]}},
    )
    with pytest.raises(SchemaError, match=message):
        table.alter(**change)
    assert table.version == 0


class Joined(CommitTime):
    """A user's merger, whose code may know names of columns."""

    id = "0d3c2f1e-51c2-4f0c-8a43-5d8b6b9f0a11"
    name = "joined"

    def merge_groups(self, groups: Groups) -> Merged:
        return super().merge_groups(groups)


def test_a_users_merger_has_to_say_what_a_rename_means(tmp_path: Path) -> None:
    table = create(tmp_path / "t", merger=Joined(), ordering=[])
    for change in ({"rename_columns": {"v": "w"}}, {"drop_columns": ["v"]}):
        with pytest.raises(MergerConfigurationError, match="renamed_options"):
            table.alter(**change)


class Following(Joined):
    id = "5b0ce0b5-6f0c-4f3b-9a0e-0f9f4b1a1c22"
    name = "following"

    @classmethod
    def renamed_options(cls, options: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
        return options


def test_a_users_merger_that_says_so_follows(tmp_path: Path) -> None:
    table = create(tmp_path / "t", merger=Following(), ordering=[])
    table.upsert(frame([(1, 1, "a")]))
    table.alter(rename_columns={"v": "w"})
    assert table.get({"k": 1}) == {"k": 1, "o": 1, "w": "a"}


def test_a_restore_never_takes_the_mapping_back(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT, v STRING, w STRING")
    table.upsert(frame([(1, 1, "a", "x")], ("k", "o", "v", "w"), w=pa.string()))
    plain = table.version
    table.alter(rename_columns={"v": "title"}, drop_columns=["w"])
    table.alter(add_columns="w STRING")
    ids = max_id(tmp_path / "t")
    table.restore(version=plain)
    snapshot = snapshot_of(tmp_path / "t")
    assert snapshot.protocol.min_reader == 3
    assert snapshot.metadata.configuration["delta.columnMapping.mode"] == "name"
    assert max_id(tmp_path / "t") >= ids
    assert table.to_arrow().to_pylist() == [{"k": 1, "o": 1, "v": "a", "w": "x"}]
    table.upsert(frame([(2, 2, "b", "y")], ("k", "o", "v", "w"), w=pa.string()))
    table.compact()
    assert rows_of(table.to_arrow()) == [(1, 1, "a", "x"), (2, 2, "b", "y")]
    assert LakeTable.check(tmp_path / "t").findings == ()


def test_a_restore_over_a_replacement_keeps_all_ids(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT, v STRING, w STRING, x STRING")
    table.upsert(frame([(1, 1, "a")]))
    renamed = table.alter(rename_columns={"v": "title"})
    replaced = create(tmp_path / "t", schema="k BIGINT, v STRING", ordering=[], replace=True)
    replaced.alter(rename_columns={"v": "u"})
    replaced.restore(version=renamed)
    assert max_id(tmp_path / "t") == 5 == max(number for _, number in fields_of(tmp_path / "t").values())
    assert rows_of(replaced.to_arrow(columns=["k", "o", "title"])) == [(1, 1, "a")]


def test_a_feed_stops_where_names_change(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    renamed = table.alter(rename_columns={"v": "title"})
    table.upsert(frame([(1, 2, "b")], ("k", "o", "title"), title=pa.string()))
    told = f"renamed or dropped in version {renamed}"
    for net in (False, True):
        with pytest.raises(SchemaError, match=told):
            table.changes(since=0, net=net).read_all()
    before = LakeTable.open(tmp_path / "t", version=renamed - 1).changes(since=0).read_all()
    assert before["v"].to_pylist() == ["a"]
    after = table.changes(since=renamed).read_all()
    assert after["title"].to_pylist() == ["a", "b"]


def test_the_history_of_a_key_begins_where_names_changed(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    table.upsert(frame([(1, 2, "b")]))
    renamed = table.alter(rename_columns={"v": "title"})
    table.upsert(frame([(1, 3, "c")], ("k", "o", "title"), title=pa.string()))
    assert table.explain({"k": 1}).row == {"k": 1, "o": 3, "title": "c"}
    told = table.explain({"k": 1}, since=0)
    assert told.row == {"k": 1, "o": 3, "title": "c"}
    with pytest.raises(VersionNotFoundError, match=f"renamed or dropped in version {renamed}"):
        table.explain({"k": 1}, since=1)


def test_engines_read_the_names_or_refuse(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    table.alter(rename_columns={"v": "title"})
    with pytest.raises(Exception, match="columnMapping"):
        DeltaTable(tmp_path / "t").to_pyarrow_table()
    with pytest.raises(Exception, match="columnMapping"):
        pl.read_delta(str(tmp_path / "t"))


def test_a_plain_delta_table_with_a_mapping_is_read_by_its_names(tmp_path: Path) -> None:
    """As an input of a merge source, which reads the log as that of any Delta table."""
    table = LakeTable.create(tmp_path, "p STRING, k BIGINT, v STRING", key=["p", "k"], partition_by=["p"], buckets=1)
    table.upsert(pa.table({"p": ["a", "b"], "k": [1, 2], "v": ["x", "y"]}))
    table.alter(rename_columns={"p": "region", "v": "title"})
    found = pa.concat_tables(PlainTable.latest(table.opened.handle).scan(["title", "region"]))
    assert sorted(map(str, found.to_pylist())) == [
        "{'title': 'x', 'region': 'a'}", "{'title': 'y', 'region': 'b'}",
    ]  # fmt: skip


def noted(stored: str, inner: str) -> pa.Schema:
    """A column with a field, as Delta keeps a mapping."""
    names = (("delta.columnMapping.physicalName", stored), ("delta.columnMapping.physicalName", inner))
    outer, within = ({name: text, "json:delta.columnMapping.id": "1"} for name, text in names)
    return pa.schema([pa.field("s", pa.struct([pa.field("x", pa.int32(), metadata=within)]), metadata=outer)])


def test_a_mapping_that_is_not_known_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="mode 'id'"):
        ColumnNames.read(noted("a", "x"), {MODE: "id"}, "t")
    with pytest.raises(UnsupportedFeatureError, match=r"field 's.x' is stored as 'b'"):
        ColumnNames.read(noted("a", "b"), {MODE: "name"}, "t")
    with pytest.raises(TableDamagedError, match="no id or stored name"):
        ColumnNames.read(pa.schema([("s", pa.int32())]), {MODE: "name"}, "t")
    schema, names = ColumnNames.read(noted("a", "x"), {MODE: "name"}, "t")
    assert (dict(schema.field("s").metadata or {}), names.of("s")) == ({}, "a")
