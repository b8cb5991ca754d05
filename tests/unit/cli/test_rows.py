"""``lakemerge init``, ``upsert``, ``get``, ``query`` and ``diff``: a table from a file, and its rows, by hand."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable
from lakemerge.cli import main
from tests.unit.faults import rows_of

Captured = pytest.CaptureFixture[str]
CSV = "id,name,price,at\n1,cup,1.5,2026-01-01T00:00:00Z\n2,,2.0,2026-01-02T00:00:00Z\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "o.csv").write_text(CSV)
    return tmp_path


def run(capsys: Captured, *arguments: str) -> str:
    assert main(list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def failed(capsys: Captured, *arguments: str) -> str:
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def json_of(capsys: Captured, *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def json_lines_of(capsys: Captured, *arguments: str) -> list[Any]:
    return [json.loads(line) for line in run(capsys, *arguments, "--json").splitlines()]


def test_a_table_from_a_file_and_back(folder: Path, capsys: Captured) -> None:
    told = run(capsys, "init", "t", "--like", "o.csv", "--key", "id", "--ordering", "at")
    assert "id BIGINT NOT NULL, name STRING, price DOUBLE, at TIMESTAMP" in told
    assert "lakemerge upsert t o.csv" in told
    assert json_of(capsys, "upsert", "t", "o.csv")["rows"] == 2
    table = LakeTable.open("t")
    assert rows_of(table.to_arrow()) == rows_of(pcsv.read_csv("o.csv", convert_options=nulls()).cast(table.schema))
    assert table.history(limit=1)[0].info["file"] == str(folder / "o.csv")
    (folder / "late.jsonl").write_text(
        '{"id": 1, "price": 9, "at": "2025-12-31T00:00:00Z"}\n{"ID": 2, "price": 3, "at": "2026-01-03T00:00:00Z"}\n'
    )
    assert "2 records of late.jsonl" in run(capsys, "upsert", "t", "late.jsonl")
    found = json_lines_of(capsys, "query", "t", "SELECT id, name, price FROM self ORDER BY id")
    assert found == [{"id": 1, "name": "cup", "price": 1.5}, {"id": 2, "name": None, "price": 3.0}]
    assert json_of(capsys, "get", "t", "id=2", "--column", "price") == {"price": 3.0}
    assert json_of(capsys, "get", "t", "id=2", "--column", "price", "--version", "1") == {"price": 2.0}
    assert json_of(capsys, "get", "t", "id=3") is None


GUESSES = {
    "zeros in front": (["0101", "101"], "STRING", "zeros in front"),
    "zeros in front of a fraction": (["007.5", "1.5"], "STRING", "zeros in front"),
    "plus signs": (["+4712", "5"], "STRING", ""),
    "hexadecimal": (["0x1F", "12"], "STRING", ""),
    "whole": (["0", "-7", " 12 "], "BIGINT", ""),
    "beyond BIGINT": (["9223372036854775808", "1"], "STRING", "beyond BIGINT"),
    "fractions": (["0.5", "-1", "1e3", ".25"], "DOUBLE", ""),
    "more digits than a double": (["1234567890.1234567", "1"], "STRING", "more digits"),
    "beyond DOUBLE": (["1e999", "1"], "STRING", "beyond DOUBLE"),
    "booleans": (["true", "False"], "BOOLEAN", ""),
    "dates": (["2026-01-31", "2026-02-28"], "DATE", ""),
    "no date": (["2026-01-31", "2026-02-30"], "STRING", ""),
    "dates and times": (["2026-01-31", "2026-02-28T12:00:00+01:00"], "TIMESTAMP_LTZ", ""),
    "nanoseconds": (["2026-01-31T00:00:00.123456789Z"], "STRING", ""),
    "times of day": (["08:30:00", "21:00"], "STRING", "times of day"),
    "nothing": (["", ""], "STRING", "no value"),
}


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_loses_nothing(folder: Path, capsys: Captured, name: str) -> None:
    """By hand. What a table does not keep as it is written, it keeps as text."""
    values, kind, why = GUESSES[name]
    (folder / "g.csv").write_text("id,v\n" + "".join(f"{n},{value}\n" for n, value in enumerate(values)))
    told = run(capsys, "init", "t", "--like", "g.csv", "--key", "id")
    assert f"  id BIGINT NOT NULL, v {kind}\n" in told
    assert (f"  v is {kind}: " in told) == bool(why)
    assert why in told
    assert "--type NAME=TYPE names another one" in told
    run(capsys, "upsert", "t", "g.csv", "--quiet")
    found = LakeTable.open("t").to_arrow().sort_by("id")["v"].to_pylist()
    assert len(found) == len(values)
    if kind == "STRING":
        assert found == [value or None for value in values]


JSON_GUESSES = {
    '{"id": 1, "v": null}': ("STRING", "no value"),
    '{"id": 1, "v": []}': ("ARRAY<STRING>", "parts of it have no value"),
    '{"id": 1, "v": {}}': ("STRING", ""),
    '{"id": 1, "v": {"a": null, "b": [1]}}': ("STRUCT<`a`: STRING, `b`: ARRAY<BIGINT>>", "parts of it"),
    '{"id": 1, "v": [{"a": []}]}': ("ARRAY<STRUCT<`a`: ARRAY<STRING>>>", "parts of it"),
    '{"id": 1, "v": "08:30:00"}': ("STRING", ""),
}


@pytest.mark.parametrize("line", JSON_GUESSES)
def test_what_json_leaves_open_is_text(folder: Path, capsys: Captured, line: str) -> None:
    kind, why = JSON_GUESSES[line]
    (folder / "g.jsonl").write_text(line + "\n")
    told = run(capsys, "init", "t", "--like", "g.jsonl", "--key", "id")
    assert f"  id BIGINT NOT NULL, v {kind}\n" in told
    assert why in told
    run(capsys, "upsert", "t", "g.jsonl", "--quiet")
    wanted = json.loads(line)
    found = json_lines_of(capsys, "query", "t", "SELECT * FROM self")
    assert found == [wanted if wanted["v"] != {} else wanted | {"v": "{}"}]


def test_types_that_arrow_has_and_tables_lack(folder: Path, capsys: Captured) -> None:
    """Of a file that tells its types."""
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.uint32()),
            "big": pa.array([2**64 - 1, None], pa.uint64()),
            "at": pa.array([1_000_000_000, None], pa.timestamp("ns")),
            "nothing": pa.nulls(2),
        }
    )
    pq.write_table(rows, folder / "g.parquet")
    told = run(capsys, "init", "t", "--like", "g.parquet", "--key", "id")
    assert "  id BIGINT NOT NULL, big DECIMAL(20,0), at TIMESTAMP_NTZ, nothing STRING\n" in told
    run(capsys, "upsert", "t", "g.parquet", "--quiet")
    assert LakeTable.open("t").to_arrow().sort_by("id")["big"].to_pylist() == [2**64 - 1, None]


def test_files_that_no_guess_can_be_made_of(folder: Path, capsys: Captured) -> None:
    (folder / "nested.jsonl").write_text('{"id": {"a": 1}}\n')
    assert "key column 'id' is STRUCT<" in failed(capsys, "init", "t", "--like", "nested.jsonl", "--key", "id")
    (folder / "broken.csv").write_text("id,v\n1,2,3\n4,5,6\n")
    assert "broken.csv" in failed(capsys, "init", "t", "--like", "broken.csv", "--key", "id")
    (folder / "partly.csv").write_text("id,v\n1,2,3\n4,05\n")
    assert "id BIGINT NOT NULL, v STRING" in run(capsys, "init", "t", "--like", "partly.csv", "--key", "id")


def test_types_that_are_named(folder: Path, capsys: Captured) -> None:
    (folder / "g.csv").write_text("code,n,day\n0101,1,2026-01-01\n101,2,2026-01-02\n7,3,2026-01-03\n")
    like = ["init", "t", "--like", "g.csv", "--key", "code"]
    assert "code STRING NOT NULL, n DECIMAL(9,2), day STRING" in run(
        capsys, *like, "--type", "N=DECIMAL(9,2)", "--type", "day=STRING"
    )
    assert main([*like, "--type", "code=BIGINT", "--replace"]) == 0
    told = capsys.readouterr()
    assert "code BIGINT NOT NULL" in told.out
    assert "1 keys of the file become equal to others in the types of the key (code BIGINT)" in told.err
    assert "such as '0101' and '101': of such keys one row stays" in told.err
    assert "(--type code=STRING)" in told.err
    assert json_of(capsys, *like, "--type", "code=BIGINT", "--replace")["warnings"] != []
    assert "names column 'cod', which the file lacks" in failed(capsys, *like, "--type", "cod=BIGINT")
    assert "did you mean 'code'" in failed(capsys, *like, "--type", "cod=BIGINT")
    assert "unknown type 'BIGNIT'" in failed(capsys, *like, "--type", "code=BIGNIT")
    assert "is not NAME=TYPE" in failed(capsys, *like, "--type", "code")
    assert "write the type there" in failed(
        capsys, "init", "u", "--schema", "id BIGINT", "--key", "id", "--type", "id=STRING"
    )


def nulls() -> pcsv.ConvertOptions:
    return pcsv.ConvertOptions(strings_can_be_null=True)


def test_diff_is_net_and_has_an_order(folder: Path, capsys: Captured) -> None:
    table = LakeTable.create("t", "id BIGINT, v STRING", key=["id"])
    for rows in ([(1, "a"), (2, "a")], [(1, "b")], [(1, "c"), (3, "c")]):
        table.upsert(pa.table({"id": [row[0] for row in rows], "v": [row[1] for row in rows]}))
    table.delete(pa.table({"id": [2]}))
    found = json_lines_of(capsys, "diff", "t", "1", "4")
    assert [(row["_row_kind"], row["id"], row["v"]) for row in found] == [
        ("-U", 1, "a"), ("+U", 1, "c"), ("-D", 2, "a"), ("+I", 3, "c"),
    ]  # fmt: skip
    shown = [line.split() for line in run(capsys, "diff", "t", "1", "4").splitlines()]
    assert shown == [["change", "id", "v"], ["-U", "1", "a"], ["+U", "1", "c"], ["-D", "2", "a"], ["+I", "3", "c"]]
    assert run(capsys, "diff", "t", "4", "4") == "the rows of versions 4 and 4 are the same\n"
    assert "name the earlier version first: 1 4, not 4 1" in failed(capsys, "diff", "t", "4", "1")


@pytest.mark.parametrize("name", ["f.csv", "f.tsv", "f.csv.gz", "f.jsonl", "f.parquet", "f.avro", "f.orc"])
def test_every_format_gives_the_same_rows(folder: Path, capsys: Captured, name: str) -> None:
    rows = [{"id": 1, "v": "a", "n": 0.5}, {"id": 2, "v": "ü", "n": -1.0}]
    write(folder / name, rows)
    run(capsys, "init", "t", "--like", name, "--key", "id")
    run(capsys, "upsert", "t", name, "--quiet")
    assert sorted(LakeTable.open("t").to_arrow().to_pylist(), key=str) == rows


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """By other libraries than the readers use, where there are such."""
    match "".join(path.suffixes):
        case ".csv" | ".tsv" | ".csv.gz":
            mark = "\t" if path.suffix == ".tsv" else ","
            text = "\n".join([mark.join(rows[0]), *(mark.join(map(str, row.values())) for row in rows)]).encode()
            path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        case ".jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case ".orc":
            from pyarrow import orc

            orc.write_table(pa.Table.from_pylist(rows), str(path))
        case _:
            import fastavro

            kinds = {"id": "long", "v": "string", "n": "double"}
            schema = {"type": "record", "name": "r", "fields": [{"name": n, "type": k} for n, k in kinds.items()]}
            with path.open("wb") as file:
                fastavro.writer(file, schema, rows)


def test_what_no_record_names_is_left_as_it_is_and_null_is_null(folder: Path, capsys: Captured) -> None:
    table = LakeTable.create("t", "id BIGINT, a STRING, b STRING, c STRING", key=["id"])
    table.upsert(pa.table({"id": [1], "a": ["a"], "b": ["b"], "c": ["c"]}))
    (folder / "f.json").write_text('{"id": 1, "b": null, "c": "C"}\n')
    run(capsys, "upsert", "t", "f.json")
    assert table.get({"id": 1}) == {"id": 1, "a": "a", "b": None, "c": "C"}
    (folder / "mixed.json").write_text('{"id": 1, "b": "B"}\n{"id": 2, "a": "A", "b": "B"}\n')
    run(capsys, "upsert", "t", "mixed.json")
    assert table.get({"id": 1}) == {"id": 1, "a": "a", "b": "B", "c": "C"}
    assert table.get({"id": 2}) == {"id": 2, "a": "A", "b": "B", "c": None}
    (folder / "turns.json").write_text(
        '{"id": 1, "a": "1"}\n{"id": 2, "b": "2"}\n{"id": 1, "B": null}\n{"id": 1, "a": "3"}\n{"id": 2, "b": "4"}\n'
        '{"id": 1, "a": "5", "c": "6"}\n'
    )
    before = table.version
    run(capsys, "upsert", "t", "turns.json")
    assert table.get({"id": 1}) == {"id": 1, "a": "5", "b": None, "c": "6"}
    assert table.get({"id": 2}) == {"id": 2, "a": "A", "b": "4", "c": None}
    table = LakeTable.open("t")
    assert table.version == before + 1
    (folder / "bad.json").write_text('{"id": 1, "a": "9"}\n{"id": 1, "b": "9"}\n{"id": "x", "b": "9"}\n')
    assert "byte 40" in failed(capsys, "upsert", "t", "bad.json")
    assert LakeTable.open("t").version == before + 1, "nothing is written of a file with a bad record"


@pytest.mark.parametrize("seed", range(4))
def test_patches_are_applied_as_python_applies_them(seed: int, folder: Path, capsys: Captured) -> None:
    chosen = random.Random(seed)
    names = "abc"
    patches: list[dict[str, Any]] = [
        {"id": chosen.randint(1, 3)}
        | {name: chosen.choice([None, "x", "y", "z"]) for name in chosen.sample(names, chosen.randint(0, 3))}
        for _ in range(30)
    ]
    rows: dict[int, dict[str, Any]] = {}
    for patch in patches:
        row = rows.setdefault(patch["id"], {"id": patch["id"], **dict.fromkeys(names)})
        row.update(patch)
    LakeTable.create("t", "id BIGINT, a STRING, b STRING, c STRING", key=["id"], merger="commit-time")
    (folder / "p.json").write_text("".join(json.dumps(patch) + "\n" for patch in patches))
    run(capsys, "upsert", "t", "p.json")
    assert sorted(LakeTable.open("t").to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        rows[k] for k in sorted(rows)
    ]


def test_kinds_and_new_columns(folder: Path, capsys: Captured) -> None:
    run(capsys, "init", "t", "--schema", "id BIGINT, v STRING", "--key", "id", "--property", "team=a=b")
    (folder / "f.jsonl").write_text(
        '{"id": 1, "v": "a", "op": "+I"}\n{"id": 2, "v": "b", "op": "+I", "n": 1}\n{"id": 1, "op": "-D"}\n'
    )
    assert "the table has no column 'n'" in failed(capsys, "upsert", "t", "f.jsonl", "--kind-column", "op")
    run(capsys, "upsert", "t", "f.jsonl", "--kind-column", "op", "--merge-schema")
    table = LakeTable.open("t")
    assert table.to_arrow().to_pylist() == [{"id": 2, "v": "b", "n": 1}]
    assert table.opened.view.snapshot.metadata.configuration["team"] == "a=b"
    (folder / "g.csv").write_text("id,v\n1,x\n")
    assert "'op'" in failed(capsys, "upsert", "t", "g.csv", "--kind-column", "op")


def test_init_takes_what_create_takes(folder: Path, capsys: Captured) -> None:
    told = json_of(
        capsys, "init", "t", "--schema", "p STRING, id BIGINT, `a b` INT, n BIGINT", "--key", "p", "--key", "id",
        "--merger", "aggregate", "--options", '{"aggregates": {"n": "sum", "a b": "max"}}', "--partition-by", "p",
        "--buckets", "4",
    )  # fmt: skip
    assert told == {
        "table": str(folder / "t"), "version": 0, "merger": "aggregate", "key": ["p", "id"], "ordering": [],
        "schema": "p STRING NOT NULL, id BIGINT NOT NULL, `a b` INT, n BIGINT",
    }  # fmt: skip
    again = json_of(capsys, "init", "u", "--schema", told["schema"], "--key", "p", "--key", "id")
    assert LakeTable.open("u").schema == LakeTable.open("t").schema
    assert again["merger"] == "commit-time"
    detail = LakeTable.open("t").detail()
    assert (detail.partition_by, detail.buckets) == (("p",), 4)
    replaced = json_of(capsys, "init", "u", "--schema", "k INT", "--key", "k", "--replace")
    assert (replaced["version"], replaced["schema"], replaced["key"]) == (1, "k INT NOT NULL", ["k"])
    assert json_of(capsys, "init", "new", "--schema", "k INT", "--key", "k", "--replace")["version"] == 0


def test_a_query_may_write_a_file(folder: Path, capsys: Captured) -> None:
    LakeTable.create("u", "id BIGINT", key=["id"]).upsert(pa.table({"id": [1, 2]}))
    assert run(capsys, "query", "u", "COPY self TO 'rows.csv'").strip() == "done"
    assert (folder / "rows.csv").read_text() == "id\n1\n2\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["init", "t", "--key", "id"], "either --schema with DDL, or --like with a data file"),
        (["init", "t", "--schema", "id INT"], "--key NAME, once for each key column"),
        (["init", "t", "--schema", "id INT", "--key", "k"], "'k'"),
        (["init", "t", "--schema", "id INT", "--key", "id", "--property", "x"], "'x' is not NAME=VALUE"),
        (["init", "t", "--like", "nothing.csv", "--key", "id"], "there is no file"),
        (["init", "t", "--like", "data", "--key", "id"], "name its format (--format csv)"),
        (["upsert", "u", "nothing.csv"], "there is no file"),
        (["upsert", "nowhere", "o.csv"], "`lakemerge init` makes a table"),
        (
            ["init", "u", "--schema", "id INT", "--key", "id"],
            "; open it, replace it by an empty one (--replace)",
        ),
        (["ingest", "u", "nowhere", "--format", "csv"], "there is no folder or file nowhere: check its spelling"),
        (["ingest", "replay", "u", "nowhere", "--format", "csv"], "there is no folder or file nowhere"),
        (["upsert", "u", "key.csv"], "key column 'id' is missing; the file has idd, v; did you mean 'idd'?"),
        (["upsert", "u", "signs.csv"], "do its columns end with ';'? The format csv has an option delimiter"),
        (["upsert", "u", "array.json"], "which is not an object; in json, each line is an object"),
        (["upsert", "u", "bad.csv"], "(`lakemerge ingest --bad-records 'quarantine'`"),
        (["upsert", "u", "bad.csv"], "bad.csv, byte 5: column 'id'"),
        (["upsert", "u", "bad.jsonl"], "bad.jsonl, byte 10: "),
        (["upsert", "u", "o.csv"], "the table has no column 'name', only id, v: add it (--merge-schema"),
        (["upsert", "u", "o.csv", "--option", "x"], "'x' is not NAME=VALUE"),
        (
            ["upsert", "u", "o.csv", "--option", "limiter=;"],
            "'limiter' is not an option of csv; it has header, delimiter",
        ),
        (["upsert", "u", "o.csv", "--format", "xml"], "not 'xml'"),
        (["get", "u", "7"], "'7' is not NAME=VALUE, such as id=7"),
        (["query", "u", "SELECT x FROM self"], "its columns are id, v"),
    ],
)
def test_what_cannot_be_done_is_told(folder: Path, capsys: Captured, arguments: list[str], words: str) -> None:
    LakeTable.create("u", "id BIGINT, v STRING", key=["id"])
    (folder / "data").write_text(CSV)
    (folder / "bad.csv").write_text("id,v\nx,y\n")
    (folder / "key.csv").write_text("idd,v\n1,y\n")
    (folder / "signs.csv").write_text("id;v\n1;y\n")
    (folder / "array.json").write_text('[{"id": 1, "v": "y"}]\n')
    (folder / "bad.jsonl").write_text('{"id": 1}\nno\n')
    assert words in failed(capsys, *arguments)
    assert LakeTable.open("u").version == 0
