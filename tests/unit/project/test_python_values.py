"""Rows for people and for JSON: values that Python lacks, columns of one name, decimals."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable
from lakemerge.cli import main
from lakemerge.ingest.casting import fitted
from lakemerge.python_values import python_rows, python_values, told_apart

DAY = dt.date(2024, 10, 4)
FAR, BEFORE = 4_000_000, -800_000
"""Days since 1970: in the year 12921, and in the year -221."""
MICROS = 86_400_000_000
INTERVALS = pa.month_day_nano_interval()


def test_values_that_python_lacks() -> None:
    """The texts are those of Spark 4: CAST(... AS STRING) of such values in a session in UTC."""
    days = pa.array([20_000, FAR, None, BEFORE], pa.int32()).cast(pa.date32())
    assert python_values(days) == [DAY, "+12921-08-18", None, "-0221-09-04"]
    times = pa.array([FAR * MICROS + 1_500_000, 0, None], pa.int64())
    assert python_values(times.cast(pa.timestamp("us"))) == [
        "+12921-08-18 00:00:01.5", dt.datetime(1970, 1, 1), None,  # noqa: DTZ001 - it has no zone
    ]  # fmt: skip
    assert python_values(times.cast(pa.timestamp("us", "UTC")))[0] == "+12921-08-18 00:00:01.5"
    fine = pa.array([1, 1_000], pa.timestamp("ns", "UTC"))
    assert python_values(fine)[0] == "1970-01-01 00:00:00.000000001"
    assert type(python_values(fine)[1]) is dt.datetime
    spans = [(14, 3, 0), (-1, 0, -5_400_000_000_000), (0, 0, 61_500_000_000), (0, 0, 0), None]
    assert python_values(pa.array(spans, INTERVALS)) == [
        "1 years 2 months 3 days", "-1 months -1 hours -30 minutes", "1 minutes 1.5 seconds", "0 seconds", None,
    ]  # fmt: skip


def test_values_inside_of_others() -> None:
    day = pa.array([20_000, FAR, None, FAR], pa.int32()).cast(pa.date32())
    shown = [DAY, "+12921-08-18", None, "+12921-08-18"]
    gone = pa.array([False, False, True, False])
    structs = pa.StructArray.from_arrays([day, pa.array(range(4))], ["day", "n"], mask=gone)
    wanted: list[Any] = [{"day": value, "n": n} for n, value in enumerate(shown)]
    wanted[2] = None
    assert python_values(structs) == wanted
    assert python_values(structs.slice(1, 2)) == wanted[1:3]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, None, 4], pa.int32()), day)
    assert python_values(lists) == [shown[:2], [], shown[2:], None]
    assert python_values(lists.slice(1)) == [[], shown[2:], None]
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 4], pa.int32()), pa.array("abcd".__iter__()), day)
    assert python_values(maps) == [[("a", DAY)], [("b", shown[1]), ("c", None), ("d", shown[3])]]
    assert python_values(maps.slice(1)) == [[("b", shown[1]), ("c", None), ("d", shown[3])]]
    assert python_values(day.dictionary_encode()) == shown


def test_columns_of_one_name_are_told_apart() -> None:
    assert told_apart(["a", "a", "a_1", "b", "a"]) == ["a", "a_2", "a_1", "b", "a_3"]
    rows = pa.table([[1], [2], [3]], names=["id", "id", "n"])
    assert python_rows(rows) == [{"id": 1, "id_1": 2, "n": 3}]
    assert python_rows(pa.table({"n": []})) == []


def test_commands_and_look_ups_show_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = LakeTable.create(tmp_path / "t", "id BIGINT, ends DATE, fee DECIMAL(38,18)", key=["id"])
    ends = pa.array([20_000, FAR], pa.int32()).cast(pa.date32())
    fees = pa.array([Decimal("0.15"), Decimal("1.5e-10")], pa.decimal128(38, 18))
    table.upsert(pa.table({"id": [1, 2], "ends": ends, "fee": fees}))
    table.upsert(pa.table({"id": [2], "ends": ends[:1], "fee": fees[1:]}))
    assert LakeTable.open(tmp_path / "t", version=1).get({"id": 2}, columns=["ends"]) == {"ends": "+12921-08-18"}
    path, tiny = str(tmp_path / "t"), "0.000000000150000000"
    for arguments, found in {
        ("get", path, "id=2", "--version", "1"): ["+12921-08-18", tiny],
        ("query", path, "SELECT * FROM self WHERE id = 2", "--version", "1"): ["+12921-08-18", tiny],
        ("diff", path, "1", "2"): ["+12921-08-18", "2024-10-04"],
        ("explain", path, "id=2", "--since", "0"): [tiny],
        ("query", path, "SELECT INTERVAL 13 MONTH"): ["1 years 1 months"],
        ("what-if", path, "--merger", "commit-time", "--since", "0"): ["2024-10-04"],
    }.items():
        for form in ([], ["--json"]):
            assert main([*arguments, *form]) == 0
            told = capsys.readouterr().out
            assert all(text in told for text in found), (arguments, told)
            assert "E-10" not in told
    assert main(["query", path, "SELECT id, ends, id FROM self WHERE id = 1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"id": 1, "ends": "2024-10-04", "id_1": 1}
    assert main(["changes", path, "--since", "1"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["fee"] == tiny


def test_decimals_become_text_with_all_digits(tmp_path: Path) -> None:
    """In a file that is taken up into a column of text."""
    fees = [Decimal("1.5e-10"), Decimal("-0.15"), Decimal(0), None]
    array = pa.array(fees, pa.decimal128(38, 18))
    wanted = ["0.000000000150000000", "-0.150000000000000000", "0.000000000000000000", None]
    assert fitted(array, pa.string())[0].to_pylist() == wanted
    pq.write_table(pa.table({"id": range(4), "fee": array}), tmp_path / "f.parquet")
    table = LakeTable.create(tmp_path / "t", "id BIGINT, fee STRING", key=["id"])
    assert main(["upsert", str(tmp_path / "t"), str(tmp_path / "f.parquet"), "--quiet"]) == 0
    assert table.to_arrow().sort_by("id")["fee"].to_pylist() == wanted


def test_keys_of_small_decimals_are_apart(tmp_path: Path) -> None:
    """In bounds of keys, which are JSON; through files, look-ups and compactions."""
    steps = [Decimal("1.5e-10"), Decimal("0.15"), Decimal("1e-18")]
    table = LakeTable.create(tmp_path / "t", "step DECIMAL(38,18), n BIGINT", key=["step"], buckets=1)
    for _ in range(2):
        table.upsert(pa.table({"step": pa.array(steps, pa.decimal128(38, 18)), "n": range(3)}))
    log = "".join(path.read_text() for path in (tmp_path / "t" / "_delta_log").glob("*.json"))
    assert "E-" not in log
    assert [table.get({"step": step}) for step in steps] == [{"step": s, "n": n} for n, s in enumerate(steps)]
