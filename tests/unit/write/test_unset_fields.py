"""Records of JSON that name different fields: what a record does not name is unset, in jobs and upserts of one file.

Expected rows are by hand, from a dictionary that patches update, or from the model, which folds each record with the
columns that it carries.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.logs import logs
from lakemerge import InputError, LakeTable, Settings, TableDamagedError
from lakemerge.ingest import Files, packing
from lakemerge.ingest.formats.base import Piece, WindowSchema
from lakemerge.ingest.formats.json_lines import JsonLines
from lakemerge.ingest.single_file import SingleFile
from lakemerge.ingest.source import SourceFile
from lakemerge.write import pack
from lakemerge.write.carried import MOST_SETS, MOST_TURNS, turns_of
from tests.conformance.model_mergers import ALL_MERGERS
from tests.model import ModelTable
from tests.relink import relink
from tests.unit.ingest.landing import land, landed, states

PATCH = "id BIGINT, a STRING, b STRING, c STRING"
NAMES = ("a", "b", "c")


def patches(seed: int, count: int, keys: int = 3) -> list[dict[str, Any]]:
    """Records of a few keys, each with some of the fields, some of them null."""
    chosen = random.Random(seed)
    return [
        {"id": chosen.randrange(keys)}
        | {name: chosen.choice([None, "x", "y", "z"]) for name in chosen.sample(NAMES, chosen.randint(0, 3))}
        for _ in range(count)
    ]


def updated(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What Python's dictionaries make of patches."""
    found: dict[int, dict[str, Any]] = {}
    for record in records:
        found.setdefault(record["id"], {"id": record["id"], **dict.fromkeys(NAMES)}).update(record)
    return [found[key] for key in sorted(found)]


def by_id(table: LakeTable) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])


def run(table: LakeTable, folder: Path, **more: Any) -> Any:
    options = {name: more.pop(name) for name in list(more) if name in ("options", "columns", "block_bytes")}
    return table.ingest("feed", Files(folder, format="json", **options), **more).run()


def started(path: Path, **more: Any) -> LakeTable:
    """A table with a row, so that what comes is logs."""
    table = LakeTable.create(path / "t", PATCH, key=["id"], **more)
    table.upsert(pa.table({"id": [0], "a": ["A"], "b": ["B"], "c": ["C"]}))
    return table


START = {"id": 0, "a": "A", "b": "B", "c": "C"}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('{"id": 0, "a": null}\n{"id": 1, "b": "1"}\n{"id": 0, "C": "2"}\n{"id": 1, "a": "3"}\n', {}),
        ('{"id":0,"a":null}\n{"id":1,"b":"1"}\n{"id":0,"c":"2"}\n{"id":1,"a":"3"}\n', {}),
        (
            '[{"id": 0, "a": null}, {"id": 1, "b": "1"}, {"id": 0, "c": "2"}, {"id": 1, "a": "3"}]',
            {"multiline": True},
        ),
        (
            '{\n "id": 0,\n "a": null\n}\n{\n "id": 1,\n "b": "1"\n}\n{"id": 0,\n"c": "2"}{"id": 1,\n"a": "3"}',
            {"multiline": True},
        ),
    ],
    ids=["lines", "compact", "array", "pretty"],
)
def test_what_a_record_does_not_name_is_unset(text: str, options: dict[str, Any], tmp_path: Path) -> None:
    table = started(tmp_path)
    landed(tmp_path / "l" / "a.json", text.encode())
    result = run(table, tmp_path / "l", options=options)
    expected = [{"id": 0, "a": None, "b": "B", "c": "2"}, {"id": 1, "a": "3", "b": "1", "c": None}]
    assert (result.windows, result.rows, table.version) == (1, 4, 2)
    assert by_id(table) == expected
    one = started(tmp_path / "one")
    single = SingleFile.found(str(tmp_path / "l" / "a.json"), options=options)
    assert one.upsert(single.rows(one.opened.view.config, one.opened.handle.merger(one.opened.view))).version == 2
    assert by_id(one) == expected


def test_columns_that_are_named_by_the_caller_are_null_where_a_record_lacks_them(tmp_path: Path) -> None:
    table = started(tmp_path)
    land(tmp_path / "l", "a.json", [{"id": 0, "a": "1"}, {"id": 1, "b": "2", "x": 1}])
    run(table, tmp_path / "l", columns=["id", "a", "b"])
    assert by_id(table) == [
        {"id": 0, "a": "1", "b": None, "c": "C"},
        {"id": 1, "a": None, "b": "2", "c": None},
    ]


@pytest.mark.parametrize("portion", ["whole", "pieces"])
@pytest.mark.parametrize("seed", range(3))
def test_patches_are_applied_as_python_applies_them(
    seed: int, portion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several files and windows, whole or in pieces of some records, and then through every service."""
    more: dict[str, Any] = {}
    if portion == "pieces":
        monkeypatch.setattr(packing, "_LEAST_TASK_BYTES", 150)
        more = {"block_bytes": 100, "blocks_per_window": 7}
    records = patches(seed, 90)
    settings = Settings(inline_blocks=2 if seed == 1 else 256)
    table = LakeTable.create(tmp_path / "t", PATCH, key=["id"], merger="commit-time", buckets=2, settings=settings)
    for number in range(3):
        land(tmp_path / "l", f"{number}.json", records[30 * number : 30 * number + 30], at=number)
        run(table, tmp_path / "l", **more)
        assert by_id(table) == updated(records[: 30 * number + 30])
        if number == 1:
            table.compact_logs(size_ratio=math.inf)
            assert by_id(table) == updated(records[:60])
    every = updated(records)
    assert not LakeTable.check(tmp_path / "t").findings
    table.replay(tmp_path / "u")
    assert by_id(LakeTable.open(tmp_path / "u")) == every
    assert sorted(table.what_if("commit-time").to_arrow().to_pylist(), key=lambda row: row["id"]) == every
    fed: dict[int, dict[str, Any]] = {}
    for change in table.changes(since=0).read_all().to_pylist():
        row = {name: change[name] for name in ("id", *NAMES)}
        if change["_row_kind"] in ("+I", "+U"):
            fed[row["id"]] = row
        else:
            assert fed.pop(row["id"]) == row
    assert [fed[key] for key in sorted(fed)] == every
    table.compact_logs(size_ratio=math.inf)
    assert by_id(table) == every
    table.compact_logs(size_ratio=math.inf)
    assert by_id(table) == every
    table.compact()
    assert by_id(table) == every
    assert not LakeTable.check(tmp_path / "t").findings


@pytest.mark.parametrize(
    ("merger", "options", "ordering"),
    [
        ("event-time", {}, ["o"]),
        ("first-row", {}, ["o"]),
        ("partial-update", {"unset": "absent"}, ["o"]),
        ("partial-update", {}, []),
        ("aggregate", {"aggregates": {"n": "sum", "m": "sum"}}, []),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_every_merger_folds_each_record_with_the_columns_that_it_carries(
    merger: str, options: dict[str, Any], ordering: list[str], seed: int, tmp_path: Path
) -> None:
    schema = "k BIGINT, o BIGINT, n BIGINT, m BIGINT, s STRING"
    chosen = random.Random(seed)
    records: list[dict[str, Any]] = []
    for _ in range(60):
        own: dict[str, Any] = {"k": chosen.randrange(3), "o": chosen.randrange(9)}
        own |= {name: chosen.choice([None, 1, 2, 3]) for name in ("n", "m") if chosen.random() < 0.5}
        kind = "-D" if merger in ("event-time", "aggregate") and chosen.random() < 0.2 else "+U"
        records.append(own | ({"s": chosen.choice("xyz")} if chosen.random() < 0.5 else {}) | {"op": kind})
    table = LakeTable.create(
        tmp_path / "t", schema, key=["k"], ordering=ordering, merger=merger, options=options, buckets=1
    )
    model = ModelTable(table.schema, key=["k"], ordering=ordering, merger=merger, options=options, mergers=ALL_MERGERS)
    for number in range(2):
        part = records[30 * number : 30 * number + 30]
        for record in part:
            model.write([name for name in record if name != "op"], [record], [record["op"]])
        land(tmp_path / "l", f"{number}.json", part, at=number)
        assert run(table, tmp_path / "l", kind_column="op").failed == 0
        assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["k"]) == sorted(
            model.rows(), key=lambda row: row["k"]
        )
    table.upsert(pa.table({"k": [9], "o": [1]}))
    table.compact_logs(size_ratio=math.inf)
    expected = [*model.rows(), {"k": 9, "o": 1, "n": None, "m": None, "s": None}]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["k"]) == sorted(expected, key=lambda row: row["k"])


def test_each_set_of_fields_is_a_file_and_keys_stay_in_order(tmp_path: Path) -> None:
    table = started(tmp_path, buckets=1)
    land(
        tmp_path / "l",
        "a.json",
        [{"id": 1, "a": "1"}, {"id": 2, "b": "2"}, {"id": 1, "b": "3"}, {"id": 1, "a": "4"}, {"id": 2, "a": "5"}],
    )
    run(table, tmp_path / "l")
    (commit,) = table.opened.view.log_commits
    files = list(dict.fromkeys(block.file for block in commit.blocks))
    assert [file.columns for file in files] == [("id", "a"), ("id", "b"), ("id", "a")]
    stored = [pq.read_table(tmp_path / "t" / file.path).to_pylist() for file in files]
    assert stored == [
        [{"id": 1, "a": "1"}],
        [{"id": 1, "b": "3"}, {"id": 2, "b": "2"}],
        [{"id": 1, "a": "4"}, {"id": 2, "a": "5"}],
    ]
    assert commit.columns == ("id", "a", "b")
    (entry, *_) = table.history()
    assert json.loads(str(entry.parameters["columns"])) == ["id", "a", "b"]
    assert [(step.values, step.words) for step in table.explain({"id": 1}).steps] == [
        ({"id": 1, "a": "1"}, "applied: a new row; b, c null, unset"),
        ({"id": 1, "b": "3"}, "applied: set b; a, c kept, unset"),
        ({"id": 1, "a": "4"}, "applied: set a; b, c kept, unset"),
    ]
    table.upsert(pa.table({"id": [1], "c": ["6"]}))
    table.compact_logs(size_ratio=math.inf)
    (packed,) = table.opened.view.log_commits
    columns = [block.file.columns for block in packed.blocks]
    assert columns == [("id", "a"), ("id", "b"), ("id", "c"), ("id", "a")]
    assert by_id(table)[1] == {"id": 1, "a": "4", "b": "3", "c": "6"}
    steps = table.explain({"id": 1}).steps
    assert [step.values for step in steps] == [
        {"id": 1, "a": "1"},
        {"id": 1, "b": "3"},
        {"id": 1, "a": "4"},
        {"id": 1, "c": "6"},
    ]


@pytest.mark.parametrize("seed", range(20))
def test_turns_keep_the_order_of_every_key(seed: int) -> None:
    """Whatever keys and sets records have; a key takes no more turns than it goes back to a lower set."""
    chosen = np.random.default_rng(seed)
    keys, codes = chosen.integers(0, 4, 60), chosen.integers(0, 3, 60)
    turns = turns_of((pa.array(keys),), codes)
    for key in range(4):
        own = [(int(turn), int(code)) for k, turn, code in zip(keys, turns, codes, strict=True) if k == key]
        assert own == sorted(own)
        assert max((turn for turn, _ in own), default=0) == sum(
            after < before for (_, before), (_, after) in itertools.pairwise(own)
        )


def test_too_many_turns_are_refused_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_TURNS == 500
    monkeypatch.setattr(pack, "MOST_TURNS", 20)
    table = started(tmp_path)
    flips = [{"id": 7, "ab"[n % 2]: "x"} for n in range(20)]
    land(tmp_path / "l", "a.json", [{"id": 8, "c": "1"}, *flips])
    assert run(table, tmp_path / "l").failed == 1
    (entry,) = table.ingest("feed", Files(tmp_path / "l", format="json")).files()
    assert "of key {'id': 7} carry other columns 9 times in turns" in (entry.reason or "")
    assert not list((tmp_path / "t" / "_lakemerge" / "log").glob("*.parquet"))
    land(tmp_path / "l", "b.json", flips)
    assert run(table, tmp_path / "l").failed == 0
    assert by_id(table)[1] == {"id": 7, "a": "x", "b": "x", "c": None}
    table.upsert(pa.table({"id": [7], "c": ["y"]}))
    table.compact_logs(size_ratio=math.inf)
    assert by_id(table) == [START, {"id": 7, "a": "x", "b": "x", "c": "y"}]


def test_a_commit_of_very_many_turns_waits_for_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_TURNS", 3)
    table = started(tmp_path, properties={"lakemerge.maintenance": "off"})
    for number in range(5):
        flips = [{"id": 7, "ab"[n % 2]: f"{number}.{n}"} for n in range(2 if number != 2 else 4)]
        land(tmp_path / "l", f"{number}.json", flips, at=number)
        run(table, tmp_path / "l")
    assert table.compact_logs(size_ratio=math.inf).commits == 4
    assert [(commit.packed_from, commit.version) for commit in table.opened.view.log_commits] == [
        (2, 3),
        (None, 4),
        (5, 6),
    ]
    expected = [START, {"id": 7, "a": "4.0", "b": "4.1", "c": None}]
    assert by_id(table) == expected
    table.compact()
    assert by_id(table) == expected


def test_a_file_of_too_many_sets_fails_by_name_and_takes_no_other_along(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(MOST_SETS + 1)]
    schema = "id BIGINT, " + ", ".join(f"{name} BIGINT" for name in names)
    table = LakeTable.create(tmp_path / "t", schema, key=["id"])
    every = [{"id": number, name: number} for number, name in enumerate(names)]
    land(tmp_path / "l", "many.json", every, at=0)
    land(tmp_path / "l", "first.json", every[: MOST_SETS // 2], at=1)
    land(tmp_path / "l", "rest.json", every[MOST_SETS // 2 :], at=2)
    result = run(table, tmp_path / "l")
    assert (result.files, result.failed, result.rows) == (2, 1, MOST_SETS + 1)
    feed = table.ingest("feed", Files(tmp_path / "l", format="json"))
    assert states(feed)["many.json"] == "failed"
    (reason,) = [file.reason for file in feed.files() if file.reason]
    assert "many.json cannot be loaded: its records have more than 100 different sets of fields" in reason
    assert [row[f"c{row['id']}"] for row in by_id(table)] == list(range(MOST_SETS + 1))
    single = SingleFile.found(str(tmp_path / "l" / "many.json"))
    with pytest.raises(InputError, match="name the columns to take"):
        table.upsert(single.rows(table.opened.view.config, table.opened.handle.merger(table.opened.view)))
    named = single.rows(table.opened.view.config, table.opened.handle.merger(table.opened.view), columns=["id", "c0"])
    assert named.read_all().num_rows == MOST_SETS + 1


def test_what_every_record_needs_is_judged_record_by_record(tmp_path: Path) -> None:
    """The key, the ordering and NOT NULL columns; kinds; the rescued column; partition folders."""
    schema = "id BIGINT, o BIGINT, must STRING NOT NULL, a BIGINT, day STRING, rest STRING"
    table = LakeTable.create(tmp_path / "t", schema, key=["id"], ordering=["o"])
    land(tmp_path / "l", "day=1/a.json", [{"id": 1, "o": 1, "must": "m", "a": 7, "op": "+I", "x": 1}], at=0)
    more = {"kind_column": "op", "bad_records": "quarantine", "max_bad_records": None, "rescued_column": "rest"}
    run(table, tmp_path / "l", **more)
    assert table.to_arrow().to_pylist() == [{"id": 1, "o": 1, "must": "m", "a": 7, "day": "1", "rest": '{"x":1}'}]
    text = (
        '{"id": 1, "o": 2, "must": "n", "op": "+U"}\n'  # a is kept, what was rescued is gone
        '{"id": 2, "o": 2, "a": 5, "op": "+U"}\n'
        '{"o": 2, "must": "no key", "op": "+U"}\n'
        '{"id": 3, "o": 2, "must": "no kind"}\n'
        '{"id": 4, "o": 2, "must": "m", "a": "no number", "op": "+U"}\n'
        '{"id": 5, "o": 1, "must": "m", "day": "9", "op": "+I"}\n{"id": 6, "o": 1, "must": "m", "op": "+I"}\n'
        '{"id": 6, "o": 2, "op": "-D"}\n'
    )
    landed(tmp_path / "l" / "day=2" / "b.json", text.encode(), at=1)
    result = run(table, tmp_path / "l", **more)
    assert (result.rows, result.rejected) == (5, 3)
    assert by_id(table) == [
        {"id": 1, "o": 2, "must": "n", "a": 7, "day": "2", "rest": None},
        {"id": 4, "o": 2, "must": "m", "a": None, "day": "2", "rest": '{"a":"no number"}'},
        {"id": 5, "o": 1, "must": "m", "a": None, "day": "9", "rest": None},
    ]


def test_ordering_columns_that_a_record_does_not_name(tmp_path: Path) -> None:
    """An upsert has a null there, which is the lowest; a delete is unconditional; for commit-time they are data."""
    schema = "id BIGINT, o BIGINT, v STRING"
    records: list[dict[str, Any]] = [
        {"id": 1, "v": "late", "op": "+U"},
        {"id": 2, "op": "-D"},
        {"id": 3, "o": None, "op": "-D"},
        {"id": 2, "o": 0, "v": "again", "op": "+I"},
    ]
    land(tmp_path / "l", "a.json", records)
    expected = {
        "event-time": [(1, 5, "x"), (2, 0, "again"), (3, 5, "x")],
        "commit-time": [(1, 5, "late"), (2, 0, "again")],
    }
    for merger, answer in expected.items():
        table = LakeTable.create(tmp_path / merger, schema, key=["id"], ordering=["o"], merger=merger)
        table.upsert(pa.table({"id": [1, 2, 3], "o": [5, 5, 5], "v": ["x", "x", "x"]}))
        assert run(table, tmp_path / "l", kind_column="op").failed == 0
        assert [tuple(row.values()) for row in by_id(table)] == answer
        table.compact()
        assert [tuple(row.values()) for row in by_id(table)] == answer


def test_new_columns_are_unset_in_records_that_lack_them(tmp_path: Path) -> None:
    table = started(tmp_path)
    land(tmp_path / "l", "a.json", [{"id": 0, "n": 1}, {"id": 0, "a": "1"}, {"id": 1, "m": 2.5, "n": None}], at=0)
    run(table, tmp_path / "l", merge_schema=True)
    land(tmp_path / "l", "b.json", [{"id": 0, "m": 1}, {"id": 1, "n": 3}], at=1)
    run(table, tmp_path / "l", merge_schema=True)
    assert by_id(table) == [
        {"id": 0, "a": "1", "b": "B", "c": "C", "n": 1, "m": 1.0},
        {"id": 1, "a": None, "b": None, "c": None, "n": 3, "m": 2.5},
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"id":1,"a":"b"}\n{"id":2,"a":"b"}\n',  # a value that reads as the name of a column
        '{"id":1,"a":"\\"b\\":"}\n{"id":2,"a":"b"}\n',
        '{"id":1,"\\u0061":null}\n{"id":2}\n',
        '{"id":1,"b" : null}\n{"id":2,"b" : null}\n',
        '{"id":1,"b":null}\n{"id":2,"b":null}\n',
        '{"id":1,"b":null}\n\n{"id":2}\n',
        '{"id":1,"a":"x","b":"y","c":"z"}\n{"id":2,"c":"z","a":"x","b":"y"}\n',
    ],
)
def test_the_fast_reader_tells_what_records_name(text: str) -> None:
    """As :mod:`json` tells it."""
    schema = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string()), ("c", pa.string())])
    piece = Piece(SourceFile("a.json", len(text), "", 0), 0, 1, 0, len(text), None)
    (parsed,) = JsonLines().parsed(pa.BufferReader(text.encode()), piece, WindowSchema.of(schema, differs=True))
    expected = [frozenset(json.loads(line)) for line in text.splitlines() if line]
    if parsed.named is None:
        found = [frozenset(schema.names)] * len(expected)
    else:
        found = [parsed.named.columns[code] for code in parsed.named.codes]
    assert found == expected


@pytest.mark.parametrize("indexed", [False, True], ids=["inline", "index"])
def test_a_commit_says_the_columns_of_its_files(indexed: bool, tmp_path: Path) -> None:
    settings = Settings(inline_blocks=1 if indexed else 256)
    table = LakeTable.create(tmp_path / "t", PATCH, key=["id"], buckets=2, settings=settings)
    table.upsert(pa.table({"id": [0], "a": ["A"], "b": ["B"], "c": ["C"]}))
    land(tmp_path / "l", "a.json", [{"id": 0, "a": "1", "c": "2"}, {"id": 1, "a": "3"}, {"id": 2, "c": "4", "a": "5"}])
    run(table, tmp_path / "l")
    body = log_body(tmp_path / "t", 2)
    assert body["columns"] == ["id", "a", "c"]
    if indexed:
        index = pq.read_table(tmp_path / "t" / body["index"])
        assert set(index.column("columns").to_pylist()) == {None, "[0,1]"}
    else:
        assert [entry[2:] for entry in body["files"]] == [[], [[0, 1]]]
    alike = LakeTable.open(tmp_path / "t", settings=settings)
    alike.upsert(pa.table({"id": [1, *range(50, 60)], "b": ["6"] * 11}))
    plain = log_body(tmp_path / "t", 3)
    if indexed:
        assert "columns" not in pq.read_schema(tmp_path / "t" / plain["index"]).names
    else:
        assert [len(entry) for entry in plain["files"]] == [2]
    assert by_id(LakeTable.open(tmp_path / "t"))[:3] == [
        {"id": 0, "a": "1", "b": "B", "c": "2"},
        {"id": 1, "a": "3", "b": "6", "c": None},
        {"id": 2, "a": "5", "b": None, "c": "4"},
    ]


def log_body(path: Path, version: int) -> dict[str, Any]:
    lines = (path / "_delta_log" / f"{version:020d}.json").read_bytes().splitlines()
    actions = [orjson.loads(line) for line in lines]
    (domain,) = [
        action["domainMetadata"]
        for action in actions
        if action.get("domainMetadata", {}).get("domain", "").startswith("lakemerge.log.")
    ]
    found: dict[str, Any] = orjson.loads(domain["configuration"])
    return found


@pytest.mark.parametrize("indexed", [False, True], ids=["inline", "index"])
def test_columns_of_files_that_are_damaged(indexed: bool, tmp_path: Path) -> None:
    """Places that are none, places in no order, a file without the key, and one with two lists."""
    settings = Settings(inline_blocks=1 if indexed else 256)
    table = LakeTable.create(tmp_path / "t", PATCH, key=["id"], buckets=1, settings=settings)
    table.upsert(pa.table({"id": [0], "a": ["A"], "b": ["B"], "c": ["C"]}))
    land(tmp_path / "l", "a.json", [{"id": 0, "a": "1", "b": "2"}, {"id": 1, "b": "3"}])
    run(table, tmp_path / "l")
    body = log_body(tmp_path / "t", 2)
    log = tmp_path / "t" / "_delta_log" / f"{2:020d}.json"
    actions = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    lists: list[list[Any]] = [
        ["a"],
        [{}],
        [[True]],
        [[0.0]],
        [[1, 0]],
        [[0, 0]],
        [[-1, 0]],
        [[0, 9]],
        [[None]],
        [["id"]],
    ]
    for third in [*lists, [[1]], [[0, 2]], *([] if indexed else [[[0], [0]]])]:
        if indexed:
            path = tmp_path / "t" / body["index"]
            index = pq.read_table(path)
            column = pa.array([None, json.dumps(third[0])], pa.string())
            pq.write_table(index.set_column(index.column_names.index("columns"), "columns", column), path)
        else:
            files = [body["files"][0], [*body["files"][1][:2], *third]]
            for action in actions:
                domain = action.get("domainMetadata", {})
                if domain.get("domain", "").startswith("lakemerge.log."):
                    domain["configuration"] = json.dumps(body | {"files": files})
            log.write_text("\n".join(map(json.dumps, actions)) + "\n")
            relink(tmp_path / "t")
        if third == [[0, 2]]:  # as it was written
            assert by_id(LakeTable.open(tmp_path / "t"))[1] == {"id": 1, "a": None, "b": "3", "c": None}
            continue
        with pytest.raises(TableDamagedError):
            LakeTable.open(tmp_path / "t").to_arrow()
