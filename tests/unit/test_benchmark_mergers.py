"""The merger benchmark at a tiny scale: every case runs and is right, and a wrong row is seen."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyroaring
import pytest
from rich.console import Console

from benchmarks import mergers as benchmark
from benchmarks import mergers_functions, mergers_paimon
from benchmarks.measure import Report
from benchmarks.mergers_cases import CASES, MARKER, ROW_CASE, SCHEMA, Inputs, logs_only, merged, one_table, updates
from benchmarks.mergers_checks import Answers
from benchmarks.mergers_folds import Folds
from mergers import default_registry

pytestmark = pytest.mark.long

SCALE = 0.002


def test_every_builtin_is_timed() -> None:
    builtin = {merger.name for merger in default_registry() if merger.__module__.startswith("mergers.builtin.")}
    assert {case.merger for case in CASES} == builtin
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.target for case in CASES} == {1.0, 2.0}
    untimed = {case.name for case in mergers_functions.CASES if case.target is None}
    assert untimed == {"sketches", "bitmaps"}


def test_inputs_are_as_the_document_says() -> None:
    assert len(SCHEMA) == 12
    stored = updates(SCALE, seed=3)
    assert (stored.base.num_rows, stored.log_rows, len(stored.frames)) == (4000, 400, 4)
    versions = logs_only(SCALE, seed=3)
    counts = Counter(key for frame in versions.frames for key in frame.column("k").to_pylist())
    assert (versions.base.num_rows, versions.rows) == (0, 2000)
    assert counts.pop(0) == 200
    assert set(counts.values()) == {5}
    table = one_table(SCALE, seed=3)
    assert (table.base.num_rows, [frame.num_rows for frame in table.frames]) == (2000, [200] * 5)
    for inputs in (stored, versions, table):
        for frame in (inputs.base, *inputs.frames):
            assert frame.column("k").to_pylist() == sorted(frame.column("k").to_pylist())
    logs = pa.concat_tables(versions.frames)
    assert set(logs.column("op").to_pylist()) == {"u", "d", "D"}
    assert MARKER in logs.column("s0").to_pylist()
    assert stored.base.equals(updates(SCALE, seed=3).base)


def test_answers_by_hand() -> None:
    """Three records of a key: the second is the newest, the last is late."""
    inputs = logs_only(SCALE, seed=3)
    rows: list[dict[str, object]] = [
        {"k": 1, "ts": 5, "i0": 1, "i1": 4, "i2": 7, "f0": 0.5, "f1": 3.0, "d0": 1, "d1": -1, "s0": "a", "op": "u"},
        {"k": 1, "ts": 9, "i0": 2, "i1": 0, "i2": None, "f0": 0.25, "f1": 4.0, "d0": 1, "d1": -1, "s0": MARKER,
         "op": "D"},
        {"k": 1, "ts": 7, "i0": 4, "i1": 5, "i2": 6, "f0": None, "f1": 2.0, "d0": 1, "d1": -1, "s0": None, "op": "d"},
    ]  # fmt: skip
    files = ("mysql-bin.000010", "mysql-bin.000009", "mysql-bin.000010")
    given = [row | {"file": file} for row, file in zip(rows, files, strict=True)]
    inputs = type(inputs)("by hand", SCHEMA.empty_table(), [pa.Table.from_pylist([row], SCHEMA) for row in given])
    answers = Answers(inputs)
    found = {case.name: answers.rows(case.name).to_pylist() for case in (*CASES, ROW_CASE)}
    # The file with the higher number and the higher position is that of the late record, a delete.
    assert (found.pop("debezium-mysql"), found.pop("aws-dms")[0]["op"]) == ([], "d")
    seen = {name: tuple(row[column] for column in ("ts", "i0", "i1", "i2", "s0")) for name, (row,) in found.items()}
    assert seen == {
        "event-time": (9, 2, 0, None, MARKER),
        "row contract": (9, 2, 0, None, MARKER),
        "commit-time": (7, 4, 5, 6, None),
        "first-row": (5, 1, 4, 7, "a"),
        "first-row, ordered": (5, 1, 4, 7, "a"),
        "debezium-postgres": (9, 2, 0, None, "a"),
        "overwrite-non-defaults": (7, 4, 5, 6, MARKER),
        "partial-update": (7, 4, 5, 6, MARKER),
        "partial-update, ordered": (9, 2, 0, 7, MARKER),
        "partial-update, groups": (9, 7, 0, 6, MARKER),
        "aggregate": (7, 7, 3, 7, "a"),
        "aggregate, ordered": (9, 7, 3, 7, None),
    }


@pytest.mark.parametrize("column", SCHEMA.names)
def test_a_wrong_value_is_seen(column: str) -> None:
    inputs = updates(SCALE, seed=3)
    (case,) = (case for case in CASES if case.name == "aggregate, ordered")
    right = merged(case, inputs)
    position = right.schema.get_field_index(column)
    values = right.column(column).combine_chunks()
    other = pc.if_else(pc.equal(values, values.drop_null()[0]).fill_null(False), None, values)
    answers = Answers(inputs)
    assert answers.problems(case.name, right) == []
    assert answers.problems(case.name, right.set_column(position, right.schema.field(position), other))
    assert answers.problems(case.name, right.slice(1))


def test_records_that_are_taken_back() -> None:
    """Half of the second and the fourth commit take back values that were there, also of the one key."""
    changed, versions = (make(SCALE, seed=3) for make in (mergers_functions.changes, mergers_functions.versions))
    assert len(mergers_functions.SCHEMA) == 12
    assert (changed.base.num_rows, changed.log_rows, len(changed.frames)) == (4000, 400, 4)
    assert (versions.base.num_rows, versions.rows) == (0, 2000)
    assert [mask.any() for mask in changed.taken_back] == [False, True, False, True]
    assert [mask.any() for mask in versions.taken_back] == [False, True, False, True, False]
    hot = versions.frames[3].column("k").to_numpy() == 0
    assert 5 < versions.taken_back[3][hot].sum() < hot.sum() - 5
    back = pa.array(versions.taken_back[3])
    for name in ("list", "structs", "wide", "bitmap"):
        now, before = (versions.frames[number].column(name).filter(back).to_pylist() for number in (3, 2))
        assert now == before
    assert changed.frames[1].equals(mergers_functions.changes(SCALE, seed=3).frames[1])


def test_folds_by_hand() -> None:
    """Two rows of a key, one of them twice; then the first is taken back."""
    pool = mergers_functions.changes(SCALE, seed=3).base
    first, second = (pool.filter(pc.equal(pool.column("i"), entry)).slice(0, 1).to_pylist()[0] for entry in (5, 6))
    first |= {"k": 1, "s": 7, "list": [1, 2, 1], "lists": [[1], [2]], "structs": [{"a": 1, "v": 1}, {"a": 2, "v": 2}]}
    second |= {"k": 1, "s": 9, "list": [2, 3], "lists": [[2], []], "structs": [{"a": 2, "v": 3}, {"a": 3, "v": 3}]}
    first |= {"wide": Decimal("1.5"), "whole": -1, "float": 0.5}
    second |= {"wide": Decimal("0.3333333333"), "whole": -1, "float": 3.0}
    frames = [pa.Table.from_pylist([row], mergers_functions.SCHEMA) for row in (first, second, first, first | {"s": 9})]
    taken = [np.array([mask]) for mask in (False, False, False, True)]
    inputs = Inputs("by hand", mergers_functions.SCHEMA.empty_table(), frames, taken)
    folds = Folds(inputs)
    focus: dict[str, dict[str, object]] = {
        "collect": {"list": [1, 2, 1, 2, 3, 1, 2, 1, 1, 2, 1], "lists": [[1], [2], []]},
        "collect, retracted": {"list": [2, 3, 1, 2, 1], "lists": [[]]},
        "nested_update": {"structs": [{"a": 1, "v": 1}, {"a": 2, "v": 2}, {"a": 3, "v": 3}]},
        "nested_update, retracted": {"structs": [{"a": 3, "v": 3}]},
        # A half after rounding; the last two steps make up for each other.
        "product, retracted": {"wide": Decimal("0.5000000000"), "whole": 1, "float": 1.5},
    }
    for case in mergers_functions.CASES:
        found = merged(case, inputs)
        assert folds.problems(case, found) == []
        if case.name == "partial-update, removals":
            assert found.num_rows == 0  # the delete is not older than the row
        for name, value in focus.get(case.name, {}).items():
            assert found.column(name).to_pylist() == [value], (case.name, name)
        for name in mergers_functions.SCHEMA.names if found.num_rows else ():
            position = found.schema.get_field_index(name)
            field = found.schema.field(position)
            # The union of one record's numbers alone, or nothing.
            other = frames[0].column(name) if name in ("hll", "theta", "bitmap") else pa.nulls(1, field.type)
            changed = not found.column(name).equals(frames[0].column(name)) or name not in ("hll", "theta", "bitmap")
            assert bool(folds.problems(case, found.set_column(position, field, other))) == changed, name
        if case.name == "bitmaps":
            numbers = pyroaring.BitMap.deserialize(found.column("bitmap")[0].as_py())
            assert list(numbers) == [15, 16, 17, 18, 19, 20]


def test_all_cases_run_and_are_right(tmp_path: Path) -> None:
    out = tmp_path / "numbers.json"
    arguments = ["--scale", str(SCALE), "--repeat", "1", "--path", str(tmp_path), "--out", str(out)]
    assert benchmark.main(arguments) == 0
    written = json.loads(out.read_text())
    lines = written["lines"]
    assert Counter(line["case"] for line in lines) == {
        "updates": len(CASES), "versions": len(CASES), "functions": 2 * len(mergers_functions.CASES), "row": 1,
        "pypaimon": 2,
    }  # fmt: skip
    assert all(line["value"] > 0 and line["floor"] > 0 for line in lines)
    (row,) = (line for line in lines if line["case"] == "row")
    assert "400 pairs" in row["what"]  # every change is of a stored row
    assert row["detail"]["us_per_pair"].keys() == {"row contract", "event-time"}
    assert written["problems"] == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("run-")]


def test_a_wrong_answer_fails_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(benchmark, "merged", lambda case, inputs: merged(case, inputs).slice(1))
    assert benchmark.main(["--scale", str(SCALE), "--repeat", "1", "--cases", "row", "--path", str(tmp_path)]) == 1


def test_says_that_pypaimon_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mergers_paimon, "PYTHON", tmp_path / "nowhere")
    assert benchmark.main(["--cases", "pypaimon", "--path", str(tmp_path)]) == 0
    assert "NOT RUN: pypaimon, which is not installed" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="make paimon"):
        mergers_paimon.Paimon(tmp_path)


def test_a_wrong_read_of_the_table_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = Report(Console(quiet=True))
    read = mergers_paimon.Paimon.read
    monkeypatch.setattr(mergers_paimon.Paimon, "read", lambda *given, **named: read(*given, **named).slice(1))
    benchmark.against_pypaimon(one_table(SCALE, seed=3), tmp_path, report, rounds=1)
    assert [problem.partition(":")[0] for problem in report.problems] == ["pypaimon, read"]
