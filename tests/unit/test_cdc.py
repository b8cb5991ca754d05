"""Change-capture presets: options and refusals; their rows stand in the conformance cases."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from mergers import RowKind, default_registry
from mergers.errors import MergerConfigurationError, RecordRefusedError
from tests.unit.folds import build, fold_frames, problems_of, shape_of

TEXT, INT = pa.string(), pa.int64()
MYSQL = shape_of({"file": TEXT, "pos": INT, "op": TEXT, "v": TEXT}, ordering=["file", "pos"])
POSTGRES = shape_of({"lsn": INT, "op": TEXT, "v": TEXT}, ordering=["lsn"])
PLAIN = shape_of({"op": TEXT, "v": TEXT})

IDS = {
    "aggregate": "33fd0a4f-d3ed-4372-a9d9-0e5ff7698ff2",
    "aws-dms": "908c97eb-a602-43df-b8be-29892d65fbcb",
    "commit-time": "ce9acb64-bde0-424c-9b91-f6ebba25356d",
    "debezium-mysql": "4962883a-33d3-4a9c-9eff-cc0b25ec8da5",
    "debezium-postgres": "a4b5a0f1-0de3-49d0-a6f2-4c222823594b",
    "event-time": "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
    "first-row": "70a3a575-2f8e-41b5-ab1b-d36342ccc99c",
    "overwrite-non-defaults": "2165fa92-ae80-44ad-bbc0-d9f5fb16194e",
    "partial-update": "9bc70621-7bf9-4615-b262-51c0268ec216",
}
"""Tables name their merger by these; a changed one makes every such table unreadable."""


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
