"""VARCHAR(n) and CHAR(n): what writers see to, in characters, as Spark's writers do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from lakemerge import FrameError, LakeTable, SchemaError

DDL = "k BIGINT, v VARCHAR(3), c CHAR(4)"


def rows(*given: tuple[int, str | None, str | None]) -> pa.Table:
    names = ("k", "v", "c")
    types = (pa.int64(), pa.string(), pa.string())
    return pa.table({name: pa.array([row[i] for row in given], types[i]) for i, name in enumerate(names)})


def listed(table: LakeTable) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())


def test_texts_are_cut_padded_or_refused(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, DDL, key=["k"], buckets=1)
    table.upsert(rows((1, "abc", "abcd"), (2, "äöü", "ä"), (3, "ab   ", "ab      "), (4, None, None), (5, "", "")))
    wanted = [(1, "abc", "abcd"), (2, "äöü", "ä   "), (3, "ab ", "ab  "), (4, None, None), (5, "", "    ")]
    assert listed(table) == wanted
    with pytest.raises(
        FrameError, match=r"column 'v' is VARCHAR\(3\), and the value 'abcd' in row 1 has 4 char"
    ) as caught:
        table.upsert(rows((1, "x", "x"), (2, "abcd", None)))
    assert (caught.value.column, caught.value.length, caught.value.limit) == ("v", 4, 3)
    with pytest.raises(FrameError, match=r"column 'c' is CHAR\(4\), and the value 'a   b' in row 0 has 5 char"):
        table.upsert(rows((1, None, "a   b")))
    assert listed(table) == wanted
    # The same in logs, after a compaction, and for other engines.
    table.upsert(rows((1, "z  \u2003"[:3], "z")))
    table.compact()
    assert listed(table)[0] == (1, "z  ", "z   ")
    notes = {field.name: field.metadata for field in deltalake.DeltaTable(tmp_path).schema().fields}
    assert notes["v"] == {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}
    theirs = deltalake.DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in theirs) == listed(table)


WRITES: dict[str, Callable[[LakeTable], object]] = {
    "upsert": lambda table: table.upsert(rows((1, "abcd", None))),
    "overwrite": lambda table: table.overwrite(rows((1, "abcd", None))),
    "update": lambda table: table.update_where("k = 1", set={"v": "'abcd'"}),
    "partial": lambda table: table.upsert(rows((1, "abcd", None)).select(["k", "v"])),
}


@pytest.mark.parametrize("name", WRITES)
def test_whatever_writes_is_checked(tmp_path: Path, name: str) -> None:
    table = LakeTable.create(tmp_path, DDL, key=["k"])
    table.upsert(rows((1, "abc", "x")))
    with pytest.raises(FrameError, match=r"VARCHAR\(3\).*'abcd'.*4 characters"):
        WRITES[name](table)
    assert listed(table) == [(1, "abc", "x   ")]


def test_definitions_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"key column 'k' is CHAR\(3\).*take VARCHAR\(3\)"):
        LakeTable.create(tmp_path, "k CHAR(3), v INT", key=["k"])
    with pytest.raises(SchemaError, match=r"'v' cannot be VARCHAR\(3\), because the merger 'aggregate' makes values"):
        LakeTable.create(
            tmp_path, "k INT, v VARCHAR(3)", key=["k"], merger="aggregate", options={"aggregates": {"v": "listagg"}}
        )
    table = LakeTable.create(tmp_path, "k VARCHAR(3), v STRING", key=["k"])
    with pytest.raises(SchemaError, match="may have longer texts"):
        table.alter(widen={"v": "VARCHAR(5)"})
    table.alter(add_columns="w VARCHAR(2)")
    with pytest.raises(FrameError, match=r"column 'w' is VARCHAR\(2\)"):
        table.upsert(pa.table({"k": ["a"], "v": ["b"], "w": ["ccc"]}))
    with pytest.raises(FrameError, match=r"column 'k' is VARCHAR\(3\)"):
        table.upsert(pa.table({"k": ["abcd"], "v": ["b"]}))


def test_a_frame_brings_no_lengths(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "k BIGINT", key=["k"])
    noted = pa.schema(
        [pa.field("k", pa.int64()), pa.field("n", pa.string(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(1)"})]
    )
    table.upsert(pa.table([[1], ["long"]], schema=noted), merge_schema=True)
    assert listed(table) == [(1, "long")]
    assert not table.schema.field("n").metadata
