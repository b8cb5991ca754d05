"""What no reader could take is refused before the commit: deep types, names that others keep, too many columns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import FrameError, LakeTable, SchemaError, Settings
from lakemerge.ingest import Files
from lakemerge.ingest.single_file import SingleFile
from lakemerge.schema.limits import MAX_LEVELS, leaf_count, levels_of
from tests.packages import needs_newer_arrow

STRUCTS: Callable[[pa.DataType], pa.DataType] = lambda kind: pa.struct([("x", kind)])  # noqa: E731
WRAPS: dict[str, tuple[Callable[[pa.DataType], pa.DataType], int]] = {
    "structs": (STRUCTS, 1),
    "lists": (pa.list_, 2),
    "large lists": (pa.large_list, 2),
    "lists of fixed size": (lambda kind: pa.list_(kind, 1), 2),
    "maps": (lambda kind: pa.map_(pa.string(), kind), 2),
    "keys of maps": (lambda kind: pa.map_(kind, pa.string()), 2),
    "lists of structs": (lambda kind: pa.list_(STRUCTS(kind)), 3),
    "encoded": (lambda kind: STRUCTS(pa.dictionary(pa.int32(), kind)), 1),
}


def nested(wrap: Callable[[pa.DataType], pa.DataType], times: int) -> pa.DataType:
    kind = pa.int64()
    for _ in range(times):
        kind = wrap(kind)
    return kind


def made(path: Path, **settings: Any) -> LakeTable:
    table = LakeTable.create(
        path,
        "id BIGINT, s STRING",
        key=["id"],
        properties={"lakemerge.maintenance": "off"},
        settings=Settings(**settings),
    )
    table.upsert(pa.table({"id": [1, 2], "s": ["a", "b"]}))
    return table


@pytest.mark.parametrize(("wrap", "levels"), WRAPS.values(), ids=WRAPS.keys())
def test_levels_count_as_in_parquet(wrap: Callable[[pa.DataType], pa.DataType], levels: int, tmp_path: Path) -> None:
    for times in (0, 1, 3):
        assert levels_of(nested(wrap, times)) == levels * times
    plain = pa.schema([("v", nested(wrap, 2))])
    if "encoded" in str(wrap) or pa.types.is_dictionary(plain.field(0).type.field(0).type):
        return
    pq.write_table(plain.empty_table(), tmp_path / "file.parquet")
    stored = pq.ParquetFile(tmp_path / "file.parquet").schema
    assert max(stored.column(place).path.count(".") for place in range(len(stored))) == levels * 2


def test_leaves_are_the_columns_of_parquet(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("a", pa.int64()),
            ("b", pa.struct([("c", pa.string()), ("d", pa.list_(pa.struct([("e", pa.int8()), ("f", pa.int8())])))])),
            ("g", pa.map_(pa.string(), pa.list_(pa.int8()))),
        ]
    )
    pq.write_table(schema.empty_table(), tmp_path / "file.parquet")
    assert leaf_count(schema) == pq.ParquetFile(tmp_path / "file.parquet").metadata.num_columns == 6


@pytest.mark.parametrize("name", ["structs", "lists", "maps", "lists of structs"])
def test_what_the_limit_allows_every_reader_reads(name: str, tmp_path: Path) -> None:
    wrap, levels = WRAPS[name]
    times = MAX_LEVELS // levels if name == "structs" else 8
    deep = nested(wrap, times)
    schema = pa.schema([("id", pa.int64()), ("deep", deep)])
    table = LakeTable.create(tmp_path / "t", schema, key=["id"], properties={"lakemerge.maintenance": "off"})
    table.upsert(pa.table({"id": [1, 2], "deep": pa.nulls(2, deep)}))
    table.upsert(pa.table({"id": [2, 3], "deep": pa.nulls(2, deep)}))
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    table.compact()
    files = f"{tmp_path}/t/base/**/*.parquet"
    assert pl.read_delta(str(tmp_path / "t")).height == 3
    assert duckdb.sql(f"SELECT max(id) FROM read_parquet('{files}') WHERE deep IS NULL").fetchall() == [(3,)]


@needs_newer_arrow("takes minutes to make such types")
@pytest.mark.parametrize(("wrap", "levels"), WRAPS.values(), ids=WRAPS.keys())
@pytest.mark.parametrize("much", [1, 30])
def test_deeper_types_are_refused_before_the_commit(
    wrap: Callable[[pa.DataType], pa.DataType], levels: int, much: int, tmp_path: Path
) -> None:
    deep = nested(wrap, MAX_LEVELS // levels + much)
    with pytest.raises(SchemaError, match=r"'deep' nests \d+ levels deep, and readers take 40 .*: flatten it"):
        LakeTable.create(tmp_path / "new", pa.schema([("id", pa.int64()), ("deep", deep)]), key=["id"])
    assert not (tmp_path / "new").exists()
    table = made(tmp_path / "t")
    before = table.version
    with pytest.raises(SchemaError, match="'deep' nests"):
        table.alter(add_columns=pa.schema([("deep", deep)]))
    with pytest.raises(FrameError, match="'deep' nests"):
        table.upsert(pa.table({"id": [9], "deep": pa.nulls(1, deep)}), merge_schema=True)
    with pytest.raises(FrameError, match="unknown column 'deep'"):
        table.upsert(pa.table({"id": [9], "deep": pa.nulls(1, deep)}))
    with pytest.raises(FrameError):
        table.upsert(pa.table({"id": [9], "s": pa.nulls(1, deep)}), merge_schema=True)
    assert LakeTable.open(tmp_path / "t").version == before


def test_fields_within_fields_do_not_get_around_the_limit(tmp_path: Path) -> None:
    half = MAX_LEVELS // 2
    table = LakeTable.create(
        tmp_path / "t", pa.schema([("id", pa.int64()), ("deep", nested(STRUCTS, half))]), key=["id"]
    )
    path = ".".join(["deep", *["x"] * (half - 1)])
    with pytest.raises(SchemaError, match="'deep' nests 41 levels"):
        table.alter(add_columns=f"{path}.y {'STRUCT<x: ' * (MAX_LEVELS + 1 - half)}INT{'>' * (MAX_LEVELS + 1 - half)}")
    wide = pa.struct([("y", nested(STRUCTS, MAX_LEVELS - half + 1))])
    for _ in range(half - 1):
        wide = pa.struct([("x", wide)])
    with pytest.raises(FrameError, match="'deep' nests 41 levels"):
        table.upsert(pa.table({"id": [1], "deep": pa.nulls(1, wide)}), merge_schema=True)
    assert table.version == 0


@pytest.mark.parametrize("times", [100, 5_000])
def test_ddl_that_nests_without_end_is_refused(times: int, tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    for text in ("STRUCT<x: ", "ARRAY<", "MAP<STRING, "):
        deep = text * times + "INT" + ">" * times
        with pytest.raises(SchemaError, match="nest"):
            LakeTable.create(tmp_path / "new", f"id BIGINT, deep {deep}", key=["id"])
        with pytest.raises(SchemaError, match="nest"):
            table.alter(add_columns=f"deep {deep}")
        with pytest.raises(SchemaError, match="nest"):
            table.alter(widen={"s": deep})


@pytest.mark.parametrize("name", ["_tmp_metadata_row_index", "_TMP_Metadata_Row_Index", "_lm_x", "_LM_file"])
def test_names_that_others_keep_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=f"'{name}': .*, rename the column"):
        LakeTable.create(tmp_path / "new", f"id BIGINT, {name} BIGINT", key=["id"])
    table = made(tmp_path / "t")
    with pytest.raises(SchemaError, match="rename the column"):
        table.alter(add_columns=f"{name} BIGINT")
    with pytest.raises(FrameError, match="rename the column"):
        table.upsert(pa.table({"id": [9], name: [1]}), merge_schema=True)
    assert table.version == 1
    table.alter(add_columns=f"part STRUCT<{name}: BIGINT>")  # Spark keeps the names of columns only


@pytest.mark.parametrize("name", ["_row_kind", "_change_type", "_Commit_Version", "_commit_timestamp"])
def test_a_merge_of_schemas_does_not_end_the_change_feed(name: str, tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    with pytest.raises(FrameError, match=f"'{name}': the changes of a table use that name for commits"):
        table.upsert(pa.table({"id": [9], name: [1]}), merge_schema=True)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(f'{{"id": 3, "{name}": 7}}\n{{"id": 4, "n": 7}}\n')
    result = ingested(table, tmp_path / "in")
    assert (result.rows, result.rejected) == (1, 1)
    assert table.changes(since=1).read_all()["id"].to_pylist() == [4]
    table.alter(add_columns=f"{name} BIGINT")  # by hand it may be wanted


def ingested(table: LakeTable, folder: Path, **how: Any) -> Any:
    job = table.ingest(
        "job", Files(folder, format="json"), merge_schema=True, bad_records="quarantine", max_bad_records=None, **how
    )
    return job.run()


HOSTILE = {
    "lists": "[" * 60 + "1" + "]" * 60,
    "objects": '{"x": ' * 60 + "1" + "}" * 60,
    "lists of objects": '[{"x": ' * 20 + "1" + "}]" * 20,
    "beyond Python": "[" * 1000 + "1" + "]" * 1000,
    "beyond every parser": "[" * 200_000 + "1" + "]" * 200_000,
    "one name twice": '{"a": 1, "A": 2}',
    "a field without a name": '{"": 1}',
    "wide": json.dumps({f"x{number}": number for number in range(200)}),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_record_is_set_aside_and_the_rest_goes_in(hostile: str, tmp_path: Path) -> None:
    table = made(tmp_path / "t", max_columns=100)
    (tmp_path / "in").mkdir()
    lines = ['{"id": 3, "n": 1}', '{"id": 4, "x": ' + hostile + ', "other": 1}', '{"id": 5, "m": "y"}']
    (tmp_path / "in" / "a.json").write_text("\n".join(lines) + "\n")
    result = ingested(table, tmp_path / "in")
    assert (result.rows, result.rejected, result.failed) == (2, 1, 0)
    assert table.schema.names == ["id", "s", "n", "m"]
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3, 5]
    table.compact()
    assert table.get({"id": 5}) == {"id": 5, "s": None, "n": None, "m": "y"}


@pytest.mark.parametrize("name", ["", "_lm_kind", "_tmp_metadata_row_index"])
def test_a_record_with_a_name_that_no_column_has_is_set_aside(name: str, tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(f'{{"id": 3, "n": 1}}\n{{"id": 4, "{name}": 1}}\n')
    result = ingested(table, tmp_path / "in")
    assert (result.rows, result.rejected, result.failed) == (1, 1, 0)


@pytest.mark.parametrize("where", ["s", "rescued", "id", "top"])
def test_deep_values_that_stay_text_do_not_stop_the_job(where: str, tmp_path: Path) -> None:
    """Values of columns that the table has, of the rescued column, and a line that is no object."""
    table = made(tmp_path / "t")
    table.alter(add_columns="rest STRING")
    (tmp_path / "in").mkdir()
    deep = {depth: "[" * depth + "1" + "]" * depth for depth in (60, 150, 300, 999)}
    lines = [text if where == "top" else f'{{"id": {depth}, "{where}": {text}}}' for depth, text in deep.items()]
    (tmp_path / "in" / "a.json").write_text("\n".join(['{"id": 7}', *lines]) + "\n")
    job = table.ingest(
        "job",
        Files(tmp_path / "in", format="json"),
        rescued_column="rest",
        bad_records="quarantine",
        max_bad_records=None,
    )
    result = job.run()
    taken = [] if where in ("id", "top") else [60, 150]
    assert (result.rows, result.rejected, result.failed) == (1 + len(taken), 4 - len(taken), 0)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 7, *taken]


def test_a_bad_record_fails_its_file_by_name_where_the_job_says_so(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 4, "deep": ' + HOSTILE["lists"] + "}\n")
    result = table.ingest("job", Files(tmp_path / "in", format="json"), merge_schema=True).run()
    assert (result.rows, result.failed) == (0, 1)
    (tmp_path / "in" / "b.json").write_text('{"id": 5, "n": 1}\n')
    assert table.ingest("job", Files(tmp_path / "in", format="json"), merge_schema=True).run().rows == 1


def test_a_merge_of_schemas_has_a_cap(tmp_path: Path) -> None:
    table = made(tmp_path / "t", max_columns=5)
    fits = pa.table({"id": [3], "p": [{"a": 1, "b": 2}], "c": [3]})
    wide = pa.table({"id": [3], "p": [{"a": 1, "b": 2}], "c": [3], "d": [4]})
    with pytest.raises(FrameError, match=r"would have 6 columns .* at most 5: .*Settings.max_columns"):
        table.upsert(wide, merge_schema=True)
    assert table.version == 1
    table.upsert(fits, merge_schema=True)
    with pytest.raises(FrameError, match="would have 6 columns"):
        table.upsert(pa.table({"id": [3], "p": [{"z": 1}]}), merge_schema=True)
    table.alter(add_columns="d INT, e INT")  # by hand
    table.upsert(pa.table({"id": [3], "d": [4]}), merge_schema=True)
    assert len(table.schema) == 6


def test_the_columns_of_two_writers_count_together(tmp_path: Path) -> None:
    made(tmp_path / "t")
    first, second = (LakeTable.open(tmp_path / "t", settings=Settings(max_columns=5)) for _ in range(2))
    names = [[f"{writer}{number}" for number in range(2)] for writer in "ab"]
    first.opened.view, second.opened.view  # noqa: B018 - both stand at the version before
    first.upsert(pa.table({"id": [3], **{name: [1] for name in names[0]}}), merge_schema=True)
    with pytest.raises((FrameError, SchemaError), match="would have 6 columns"):
        second.upsert(pa.table({"id": [3], **{name: [1] for name in names[1]}}), merge_schema=True)


def test_records_bring_columns_in_their_order_until_the_table_is_full(tmp_path: Path) -> None:
    table = made(tmp_path / "t", max_columns=6)
    (tmp_path / "in").mkdir()
    records = [{"id": 10 + number, f"x{number}": number} for number in range(10)]
    records += [{"id": 30, "x0": 5}, {"id": 31, **{f"y{number}": 1 for number in range(9)}}]
    (tmp_path / "in" / "a.json").write_text("".join(json.dumps(record) + "\n" for record in records))
    result = ingested(table, tmp_path / "in")
    assert table.schema.names == ["id", "s", "x0", "x1", "x2", "x3"]
    assert (result.rows, result.rejected, result.failed) == (5, 7, 0)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 10, 11, 12, 13, 30]


def test_a_refused_record_brings_no_column(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": "no number", "junk": 1}\n{"id": 4, "good": 1}\n')
    assert ingested(table, tmp_path / "in").rejected == 1
    assert table.schema.names == ["id", "s", "good"]


@pytest.mark.parametrize("times", [60, 300, 50_000])
def test_a_single_file_with_a_deep_value_is_refused(times: int, tmp_path: Path) -> None:
    """Arrow's guess of types ends the process at some thousand levels, so this runs in another one."""
    file = tmp_path / "a.json"
    file.write_text('{"id": 1, "x": ' + "[" * times + "1" + "]" * times + "}\n")
    program = (
        "import sys\nfrom lakemerge import SchemaError\nfrom lakemerge.ingest.single_file import SingleFile\n"
        "try:\n    SingleFile.found(sys.argv[1]).schema()\nexcept SchemaError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "nest" in done.stdout
    table = made(tmp_path / "t")
    rows = SingleFile.found(str(file))
    with pytest.raises(FrameError, match=r"byte 0: .*(nests|depth limit|recursion depth)"):
        rows.rows(table.opened.view.config, table.opened.handle.merger(table.opened.view), merge_schema=True).read_all()
