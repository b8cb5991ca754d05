"""Nulls that a merge makes: columns that a configuration may leave null cannot be NOT NULL. And nulls in
the ordering of a delete, which are not checked."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakemerge import LakeTable, Merger, MergerConfigurationError, MergeValueError
from lakemerge.schema.schema import to_arrow_schema
from mergers import TableShape
from mergers.contract import Groups, Merged, Status
from tests.unit.mergers.folds import build, fold_frames, problems_of


@dataclass(frozen=True)
class Case:
    """A table of the key ``k`` and these columns."""

    columns: str
    merger: str = "partial-update"
    options: Mapping[str, Any] = field(default_factory=dict)
    ordering: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("+U", "-U", "-D")

    def shape(self, *, free: bool = False) -> TableShape:
        """``free``: columns outside the key may be null."""
        schema = to_arrow_schema(f"k INT NOT NULL, {self.columns.replace(' NOT NULL', '') if free else self.columns}")
        return TableShape(schema, ("k",), self.ordering)

    def built(self, shape: TableShape) -> Merger:
        return build(self.merger, self.options, shape)


TOAST = "__debezium_unavailable_value"
OP = {"op_column": "op"}
MARKER: Any = {"unset": "marker", "marker": "?"}
GROUP: Any = {"sequence_groups": {"s": ["a"]}}
PAIR: Any = {"sequence_groups": {"s,t": ["a"]}}


def grouped(function: str) -> Any:
    return GROUP | {"aggregates": {"a": function}}


def aggregated(function: str) -> Any:
    return {"default_aggregate": function}


# Each with records that leave null in the column that is said to be NOT NULL, the upserts with no null there.
LEFT_NULL: dict[str, tuple[Case, str, list[tuple[Any, ...]]]] = {
    "toast": (
        Case("o INT, op STRING, a STRING NOT NULL", "debezium-postgres", OP, ("o",)),
        "a",
        [("+U", 1, 1, "u", TOAST)],
    ),
    "toast in the operation": (
        Case("o INT, op STRING NOT NULL", "debezium-postgres", OP, ("o",)),
        "op",
        [("+U", 1, 1, TOAST)],
    ),
    "marker": (Case("a STRING NOT NULL", options=MARKER), "a", [("+U", 1, "?")]),
    "marker, ordering": (
        Case("o STRING NOT NULL, a STRING NOT NULL", options=MARKER, ordering=("o",)),
        "a",
        [("+U", 1, "?", "?")],
    ),
    "marker in a group": (
        Case("s STRING NOT NULL, a STRING NOT NULL", options=MARKER | grouped("min")),
        "a",
        [("+U", 1, "?", "?")],
    ),
    "no sequence": (Case("s INT, a INT NOT NULL", options=GROUP), "a", [("+U", 1, None, 1)]),
    "no sequence, sum": (Case("s INT, a INT NOT NULL", options=grouped("sum")), "a", [("+U", 1, None, 1)]),
    "default in a group": (
        Case("s INT NOT NULL, a INT NOT NULL", options=grouped("sum") | {"unset": "default", "defaults": {"a": 0}}),
        "a",
        [("+U", 1, 1, 0)],
    ),
    "delete in a group": (
        Case("s INT NOT NULL, a INT NOT NULL", options=GROUP),
        "a",
        [("+U", 1, 1, 1), ("-D", 1, 2, 1)],
    ),
    "last_value in a group": (
        Case("s INT NOT NULL, a INT NOT NULL", options=grouped("last_value")),
        "a",
        [("+U", 1, 1, 1), ("-U", 1, 1, 1)],
    ),
    "last_value of a late record": (
        Case("s INT NOT NULL, a INT NOT NULL", options=grouped("last_value") | {"ignore_retract": ["a"]}),
        "a",
        [("-D", 1, 2, None), ("+U", 1, 1, 1)],
    ),
    "listagg in a group": (
        Case("s INT NOT NULL, a STRING NOT NULL", options=grouped("listagg")),
        "a",
        [("+U", 1, 1, " ")],
    ),
    "end of a sequence": (
        Case("s INT NOT NULL, t INT NOT NULL, a INT", options=PAIR),
        "t",
        [("+U", 1, 1, 1, 1), ("-U", 1, 2, None, 1)],
    ),
    "retraction of nothing": (Case("a INT NOT NULL", "aggregate", aggregated("sum")), "a", [("-D", 1, None)]),
    "retraction ignored": (
        Case("a INT NOT NULL", "aggregate", aggregated("max") | {"ignore_retract": ["a"]}),
        "a",
        [("-U", 1, 3)],
    ),
    "last_value": (
        Case("a INT NOT NULL", "aggregate", aggregated("last_value")),
        "a",
        [("+U", 1, 1), ("-U", 1, 1)],
    ),
    "ordering": (
        Case("o INT NOT NULL, a INT", "aggregate", aggregated("sum"), ("o",)),
        "o",
        [("-U", 1, None, 1)],
    ),
    "listagg": (Case("a STRING NOT NULL", "aggregate", aggregated("listagg")), "a", [("+U", 1, "  ")]),
}


@pytest.mark.parametrize("name", LEFT_NULL)
def test_columns_that_may_come_out_null_are_nullable(name: str) -> None:
    case, column, records = LEFT_NULL[name]
    free = case.shape(free=True)
    (row,) = fold_frames(case.built(free), free, *([record] for record in records))
    assert row[free.schema.names.index(column)] is None, "such records do leave null"
    with pytest.raises(MergerConfigurationError) as caught:
        case.built(case.shape())
    (problem,) = problems_of(caught.value)
    assert f"column {column!r} is NOT NULL" in problem
    assert "without NOT NULL" in problem


NEVER_NULL: dict[str, Case] = {
    "event-time": Case("o INT NOT NULL, a INT NOT NULL", "event-time", {}, ("o",)),
    "mysql": Case(
        "f STRING NOT NULL, p INT NOT NULL, op STRING NOT NULL, a STRING NOT NULL", "debezium-mysql", OP, ("f", "p")
    ),
    "postgres": Case("o INT NOT NULL, op STRING, a INT NOT NULL", "debezium-postgres", OP, ("o",)),
    "first-row": Case("o INT NOT NULL, a INT NOT NULL", "first-row", {"ignore_delete": True}, ("o",)),
    "partial-update": Case(
        "o INT NOT NULL, a INT NOT NULL", options={"remove_record_on_delete": True}, ordering=("o",)
    ),
    "defaults": Case(
        "o INT, a INT NOT NULL, b STRING NOT NULL",
        options={"unset": "default", "defaults": {"a": 1, "b": "2"}, "remove_record_on_delete": True},
        ordering=("o",),
    ),
    "no ordering": Case(
        "a INT NOT NULL, b INT NOT NULL", "overwrite-non-defaults", {"defaults": {"a": 1}}, kinds=("+U",)
    ),
    "marker": Case("a INT NOT NULL, b STRING", options={"unset": "marker", "marker": "1"}, kinds=("+U",)),
    "group": Case("s INT NOT NULL, a INT NOT NULL", options=grouped("sum")),
    "group of arrays": Case("s INT NOT NULL, a ARRAY<INT> NOT NULL", options=grouped("collect")),
    "group that ignores": Case(
        "s INT NOT NULL, a INT NOT NULL", options=grouped("last_non_null_value") | {"ignore_retract": ["a"]}
    ),
    "group without deletes": Case(
        "s INT, t INT NOT NULL, a INT NOT NULL", options=PAIR | {"aggregates": {"a": "max"}}, kinds=("+U",)
    ),
    "beside a group": Case("s INT, a INT, c INT NOT NULL", options=GROUP),
    "aggregate": Case(
        "o INT NOT NULL, a INT NOT NULL, b INT NOT NULL",
        "aggregate",
        {"aggregates": {"a": "max", "b": "last_value"}},
        ("o",),
        ("+U",),
    ),
}


@pytest.mark.parametrize("name", NEVER_NULL)
def test_columns_that_never_come_out_null_may_be_required(name: str) -> None:
    """Random records, null wherever a table takes it: the fold would raise where it leaves one."""
    case = NEVER_NULL[name]
    shape, draw = case.shape(), random.Random(name)
    merger = case.built(shape)

    def value(column: str, kind: str) -> Any:
        column_field = shape.schema.field(column)
        if draw.random() < 0.3 and (kind != "+U" or column_field.nullable):
            return None
        number = draw.randint(1, 3)
        if pa.types.is_list(column_field.type):
            return [number]
        return str(number) if pa.types.is_string(column_field.type) else number

    def record() -> tuple[Any, ...]:
        kind = draw.choice(case.kinds)
        return (kind, draw.randint(1, 2), *(value(column, kind) for column in shape.values))

    found = 0
    for _ in range(60):
        commits = [[record() for _ in range(draw.randint(1, 4))] for _ in range(3)]
        found += len(fold_frames(merger, shape, *commits, compact=draw.random() < 0.5))
    assert found > 30


class Nullifying(Merger):
    """A merger that breaks its word: the later of two records of a key leaves null."""

    id = "5bb9fb45-8d1f-4be2-9d6a-2f7f9d3c3a51"
    name = "nullifying"

    def merge_groups(self, groups: Groups) -> Merged:
        first = groups.offsets[:-1]
        values = groups.column("v").take(pa.array(first, mask=groups.sizes > 1))
        status = np.full(len(first), Status.ROW, dtype=np.int8)
        return Merged(status=status, winner=first, columns={"v": values})


def test_a_null_where_none_may_be_names_key_and_column(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path, "k BIGINT, v STRING NOT NULL", key=["k"], merger="nullifying", mergers=[Nullifying], buckets=1
    )
    with pytest.raises(MergeValueError, match="column 'v' is NOT NULL"):
        table.upsert(pa.table({"k": [1, 1], "v": ["a", "b"]}))
    assert table.version == 0, "a first load merges, and refuses"
    table.upsert(pa.table({"k": [1, 2], "v": ["a", "b"]}))
    table.upsert(pa.table({"k": [2, 3], "v": ["c", "d"]}))
    assert table.to_arrow(columns=["k"]).num_rows == 3, "no null in what was asked for"
    with pytest.raises(MergeValueError) as caught:
        table.to_arrow()
    assert (caught.value.facts["key"], caught.value.facts["column"]) == ({"k": 2}, "v")
    [left] = table.compact().skipped
    assert (left.key, left.column) == ({"k": 2}, "v")


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_delete_may_hold_null_in_an_ordering_that_rows_may_not(first: bool, compacted: bool, tmp_path: Path) -> None:
    """Null is below every value: it deletes no row, and keeps no record out."""
    table = LakeTable.create(tmp_path, "k BIGINT, o BIGINT NOT NULL, v BIGINT", key=["k"], ordering=["o"], buckets=1)
    lowest = pa.table({"k": [1, 3], "o": pa.array([None, None], pa.int64())})
    if first:
        assert table.delete(lowest).mode == "load"
    table.upsert(pa.table({"k": [1, 2], "o": [5, 5], "v": [1, 2]}))
    table.delete(lowest)
    if compacted:
        table.compact()
    assert sorted(table.to_arrow(columns=["k"]).column("k").to_pylist()) == [1, 2]
    table.upsert(pa.table({"k": [3], "o": [-(2**63)], "v": [3]}))
    rows = sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())
    assert rows == [(1, 5, 1), (2, 5, 2), (3, -(2**63), 3)]
