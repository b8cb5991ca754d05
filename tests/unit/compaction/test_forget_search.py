"""The search of an erasure: in which files and texts a key is found."""

from __future__ import annotations

import bz2
import datetime as dt
import decimal
import gzip
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.forget.search import search_folder
from compaction.forget.sought import Sought
from lakemerge import LakeTable
from lakemerge.storage import LocalStore
from tests.unit.faults import create

PERSON = "ann@example.org"


def sought(tmp_path: Path, keys: list[dict[str, Any]], ddl: str = "k STRING") -> Sought:
    table = create(tmp_path / "keys", schema=ddl, key=list(keys[0]), ordering=[])
    return Sought(keys, table.opened.view.config)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PERSON, True),
        (f"x='{PERSON}';", True),
        (f"<{PERSON}>", True),
        (f"jo{PERSON}", False),
        (f"{PERSON}x", False),
        ("ann@example,org", False),
        ("", False),
    ],
)
def test_a_text_is_found_as_a_word(tmp_path: Path, text: str, found: bool) -> None:
    assert sought(tmp_path, [{"k": "bob"}, {"k": PERSON}]).in_text(text) is found


def test_all_values_of_a_key_have_to_stand_there(tmp_path: Path) -> None:
    keys = [{"n": 7, "k": "ann"}, {"n": 8, "k": "ann lee"}, {"n": 9, "k": "bob"}]
    found = sought(tmp_path, keys, "n INT, k STRING")
    for text, expected in {
        "7,ann": True,
        "ann is 7": True,
        "ann lee,7": True,
        "ann lee,8": True,
        "bob,8": False,
        "77,ann": False,
        "7,bob": False,
        "9;bob;x": True,
    }.items():
        assert found.in_text(text) is expected, text
    assert found.in_values({"x": [7, {"y": "ann"}]})
    assert not found.in_values({"x": [7, {"y": "bob"}]})


@pytest.mark.parametrize(
    ("kind", "value", "texts"),
    [
        ("DATE", dt.date(1931, 7, 13), ["1931-07-13"]),
        ("TIMESTAMP", dt.datetime(1931, 7, 13, 3, 4, 5, tzinfo=dt.UTC), ["1931-07-13T03:04:05", "1931-07-13 03:04:05"]),
        ("DECIMAL(9,2)", decimal.Decimal("12.50"), ["12.50", "12.5"]),
        ("BINARY", b"\x00\xff", ["AP8=", "00ff", "00FF"]),
        ("BIGINT", -5, ["-5"]),
    ],
)
def test_values_are_spelled_in_several_ways(tmp_path: Path, kind: str, value: object, texts: list[str]) -> None:
    found = sought(tmp_path, [{"k": value}], f"k {kind}")
    assert all(found.in_text(f"({text})") for text in texts)
    assert not found.in_text("nothing of it")


def test_each_kind_of_file_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    pq.write_table(pa.table({"x": ["a", PERSON]}), folder / "a.parquet")
    pq.write_table(pa.table({"x": [[{"deep": {"er": PERSON}}]]}), folder / "b.parquet")
    (folder / "c.json").write_text('{"x": "' + PERSON.replace("@", "\\u0040") + '"}\n')
    (folder / "d.csv.gz").write_bytes(gzip.compress(f"1,{PERSON}\n".encode()))
    (folder / "e.csv.bz2").write_bytes(bz2.compress(f"1,{PERSON}\n".encode()))
    (folder / f"f-{PERSON}-.txt").write_text("nothing")
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "string"}]}
    with (folder / "g.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"x": PERSON}], codec="deflate")
    (folder / "h.txt").write_text("nobody")
    pq.write_table(pa.table({"x": ["nobody"]}), folder / "i.parquet")
    (folder / "j.parquet").write_bytes(b"this is no Parquet file")
    found = search_folder(LocalStore(folder), sought(tmp_path, [{"k": PERSON}]))
    assert [path[0] for path in found.hits] == list("abcdefg")
    assert found.unread == ("j.parquet",)
    assert sum(found.files.values()) == 10


def test_a_file_that_cannot_be_read_is_never_called_clean(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="k STRING, o BIGINT", key=["k"])
    table.upsert(pa.table({"k": [PERSON], "o": pa.array([1], pa.int64())}))
    (tmp_path / "t" / "odd.parquet").write_bytes(b"this is no Parquet file")
    told = table.forget([{"k": PERSON}])
    assert [left.path for left in told.left] == ["odd.parquet"]
    assert "could not be read" in told.left[0].reason


def test_other_folders_are_searched_and_not_changed(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema="k STRING, o BIGINT", key=["k"])
    table.upsert(pa.table({"k": ["nobody"], "o": pa.array([1], pa.int64())}))
    other = LakeTable.create(tmp_path / "copy", "id BIGINT, text STRING", key=["id"])
    other.upsert(pa.table({"id": pa.array([1], pa.int64()), "text": [f"about {PERSON}"]}))
    version = other.version
    told = table.forget([{"k": PERSON}], search=[str(tmp_path / "copy")])
    assert {left.path.rpartition("/")[0] for left in told.left} <= {
        str(path.parent) for path in (tmp_path / "copy").rglob("*")
    }
    assert any("/base/" in left.path for left in told.left)
    assert {part.path for part in told.searched} >= {str(tmp_path / "copy"), "_delta_log"}
    assert other.version == version
