"""Change-capture presets: options and refusals; their rows stand in the conformance cases."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from mergers import RowKind, default_registry
from mergers.errors import MergerConfigurationError, RecordRefusedError
from tests.merger_ids import IDS
from tests.unit.mergers.folds import build, fold_frames, problems_of, shape_of

TEXT, INT = pa.string(), pa.int64()
MYSQL = shape_of({"file": TEXT, "pos": INT, "op": TEXT, "v": TEXT}, ordering=["file", "pos"])
POSTGRES = shape_of({"lsn": INT, "op": TEXT, "v": TEXT}, ordering=["lsn"])
PLAIN = shape_of({"op": TEXT, "v": TEXT})


def test_ids_never_change() -> None:
    builtin = {m.name: m.id for m in default_registry() if m.__module__.startswith("mergers.builtin.")}
    assert builtin == IDS


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("debezium-mysql", MYSQL, {"op_column": "op"}),
        ("debezium-postgres", POSTGRES, {"op_column": "op"}),
        ("aws-dms", PLAIN, {"op_column": "op"}),
        ("overwrite-non-defaults", PLAIN, {"defaults": {"v": ""}}),
    ],
)
def test_options_make_a_round_trip(name: str, shape: Any, options: dict[str, Any]) -> None:
    merger = build(name, options, shape)
    assert merger.options() == options
    assert pickle.loads(pickle.dumps(merger)) == merger


@pytest.mark.parametrize(
    ("name", "shape", "options", "problems"),
    [
        ("debezium-mysql", POSTGRES, {}, 2),
        ("debezium-mysql", MYSQL, {"op_column": "pos", "x": 1}, 2),
        ("debezium-postgres", MYSQL, {"op_column": "nope"}, 2),
        ("debezium-postgres", shape_of({"lsn": TEXT, "op": TEXT}, ordering=["lsn"]), {"op_column": "op"}, 1),
        ("aws-dms", PLAIN, {"op_column": 3}, 2),
        ("overwrite-non-defaults", POSTGRES, {"defaults": {"lsn": "x"}}, 2),
    ],
)
def test_every_problem_is_reported(name: str, shape: Any, options: dict[str, Any], problems: int) -> None:
    with pytest.raises(MergerConfigurationError) as caught:
        build(name, options, shape)
    assert len(problems_of(caught.value)) == problems


def test_binlog_file_without_a_number_is_refused() -> None:
    merger = build("debezium-mysql", {"op_column": "op"}, MYSQL)
    rows = {"k": [1, 2], "file": ["mysql-bin.000003", None], "pos": [1, 1], "op": ["c", "c"], "v": ["a", "a"]}
    merger.check_records(MYSQL, pa.RecordBatch.from_pydict(rows), None)
    for bad in ("mysql-bin", "7.x", "", "\u0663"):
        with pytest.raises(RecordRefusedError, match="file number"):
            merger.check_records(MYSQL, pa.RecordBatch.from_pydict(rows | {"file": ["1", bad]}), None)


def test_binlog_numbers_have_any_length() -> None:
    merger = build("debezium-mysql", {"op_column": "op"}, MYSQL)
    long = "9" * 30
    commits = [("+U", 1, f"b.{long}", 1, "c", "high")], [("+U", 1, f"b.000{long[1:]}", 9, "u", "low")]
    assert fold_frames(merger, MYSQL, *commits) == [(1, f"b.{long}", 1, "c", "high")]


def test_marker_in_a_new_row_is_null() -> None:
    merger = build("debezium-postgres", {"op_column": "op"}, POSTGRES)
    assert fold_frames(merger, POSTGRES, [("+U", 1, 5, "c", "__debezium_unavailable_value")]) == [(1, 5, "c", None)]
    assert not merger.laws(POSTGRES, full_frames=True).associative


def test_non_defaults_take_no_deletes() -> None:
    merger = build("overwrite-non-defaults", {}, PLAIN)
    with pytest.raises(RecordRefusedError, match="-D"):
        merger.check_kinds(PLAIN, frozenset({RowKind.DELETE}))
