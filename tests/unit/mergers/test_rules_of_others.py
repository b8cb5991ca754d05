"""The rules of other systems, written as expressions, give the rows of the built-ins on the conformance histories.

docs/guides/rules.md shows them. Histories of upserts are played, and of deletes where the built-in takes them as
``event-time`` and ``commit-time`` do; retractions stay with the built-ins.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mergers import Frame, Merger, RowKind, TableShape, default_registry, fold
from mergers.kernel import overlay_rows, tombstone_schema
from tests.conformance.runner import Case, Compact, Expect, Write, load_cases
from tests.conformance.values import assert_rows, frame_of, from_json

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "rules.md"
KINDS = {kind.symbol: int(kind) for kind in RowKind}


def test_the_guide_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert sum("assert found ==" in block for block in blocks) == 5
    exec(compile("\n".join(blocks), str(GUIDE), "exec"), {"folder": tmp_path})  # noqa: S102 - our own page


def options_in_the_guide(name: str) -> dict[str, Any]:
    found = re.search(rf"^{name} = (\{{.*?^\}})", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    options: dict[str, Any] = ast.literal_eval(found[1])
    return options


def auto_cdc(state: dict[str, Any] | None, record: dict[str, Any]) -> dict[str, Any] | None:
    """One event, as ``AUTO CDC`` takes it with ``IGNORE NULL UPDATES``: a late one is ignored, also after a delete."""
    if state is not None and record["sequence"] < state["sequence"]:
        return state
    gone = record["operation"] == "DELETE"
    before = None if state is None or state["gone"] else state["city"]
    return {**record, "gone": gone, "city": before if record["city"] is None else record["city"]}


def conditional_merge(state: dict[str, Any] | None, record: dict[str, Any]) -> dict[str, Any] | None:
    """One row of the source, clause by clause."""
    if state is None:
        return None if record["gone"] else record
    if record["version"] <= state["version"]:
        return state
    return None if record["gone"] else {**record, "pieces": state["pieces"] + record["pieces"]}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rule", ["auto_cdc", "merge"])
def test_a_plain_model_gives_the_rows_of_the_guides_rule(rule: str, seed: int) -> None:
    """Random histories, with compactions, of the rules of the guide that no built-in merger has."""
    rng = random.Random(seed)
    ordering: tuple[str, ...] = ("sequence",) if rule == "auto_cdc" else ()
    if rule == "auto_cdc":
        fields = {"city": pa.string(), "operation": pa.string(), "sequence": pa.int64()}
    else:
        fields = {"pieces": pa.int32(), "version": pa.int32(), "gone": pa.bool_()}
    schema = pa.schema([("id", pa.int64()), *fields.items()])
    shape = TableShape(schema, ("id",), ordering)
    merger = default_registry().resolve("expression").from_options(options_in_the_guide(rule), shape)
    base, tombstones = schema.empty_table(), tombstone_schema(shape).empty_table()
    states: dict[int, dict[str, Any] | None] = {}
    frames: list[Frame] = []
    for commit in range(6):
        records = [drawn(rule, rng) for _ in range(12)]
        for record in records:
            step = auto_cdc if rule == "auto_cdc" else conditional_merge
            states[record["id"]] = step(states.get(record["id"]), record)
        frames.append(Frame(pa.Table.from_pylist(records, schema), None, commit + 1))
        if rng.random() < 0.4:
            base, tombstones = merged(merger, shape, base, tombstones, frames)
            frames = []
        rows, _ = merged(merger, shape, base, tombstones, frames)
        there = [state for state in states.values() if state is not None and not state.get("gone")]
        assert rows.to_pylist() == sorted(
            ({name: state[name] for name in schema.names} for state in there), key=lambda row: int(row["id"])
        )


def drawn(rule: str, rng: random.Random) -> dict[str, Any]:
    key = {"id": rng.randrange(4)}
    if rule == "auto_cdc":
        operation = rng.choice(["INSERT", "UPDATE", "UPDATE", "DELETE"])
        return {**key, "city": rng.choice(["a", "b", None]), "operation": operation, "sequence": rng.randrange(12)}
    return {**key, "pieces": rng.randrange(5), "version": rng.randrange(12), "gone": rng.random() < 0.2}


def older(ordering: Sequence[str]) -> str:
    """That the record is older than the row: tuples, null lowest."""
    told, equal = [], ""
    for name in ordering:
        below = f"(new.{name} < old.{name} OR (new.{name} IS NULL AND old.{name} IS NOT NULL))"
        told.append(f"({equal}{below})")
        equal += f"new.{name} <=> old.{name} AND "
    return " OR ".join(told)


def literal(value: object, kind: pa.DataType) -> str:
    if isinstance(value, str):
        text = "'" + value.replace("'", "\\'") + "'"
        return text if pa.types.is_string(kind) else f"CAST({text} AS {str(kind).replace('decimal128', 'DECIMAL')})"
    return str(value)


def removal(case: Case, marker: Mapping[str, Any] | None) -> dict[str, Any]:
    if marker is None:
        return {}
    column = marker["column"]
    kind = case.table.schema.field(column).type
    values = ", ".join(literal(value, kind) for value in marker["values"] if value is not None)
    return {"remove_when": f"new.{column} IN ({values})"}


def latest(case: Case) -> dict[str, Any]:
    """``event-time`` and ``commit-time``."""
    found = removal(case, case.table.options.get("delete_when"))
    if case.table.merger == "commit-time":
        return found
    return found | ({"ignore_when": older(case.table.ordering)} if found else {})


def partial(case: Case) -> dict[str, Any] | None:
    """``partial-update``, where null or absence means unset."""
    table = case.table
    if table.options.keys() - {"unset", "sequence_groups"} or table.options.get("unset", "null") not in (
        "null",
        "absent",
    ):
        return None
    by_null = table.options.get("unset", "null") == "null"
    groups: Mapping[str, Sequence[str]] = table.options.get("sequence_groups", {})
    columns: dict[str, str] = {}
    first: dict[str, str] = {}
    grouped = {name for key, members in groups.items() for name in (*key.split(","), *members)}
    for name in table.schema.names:
        if name in (*table.key, *table.ordering, *grouped):
            continue
        last, kept = f"coalesce(new.{name}, old.{name})", f"coalesce(old.{name}, new.{name})"
        if table.ordering:
            newer = last if by_null else f"new.{name}"
            columns[name] = f"CASE WHEN {older(table.ordering)} THEN {kept} ELSE {newer} END"
        elif by_null:
            columns[name] = last
    for key, members in groups.items():
        sequence = key.split(",")
        silent = " AND ".join(f"new.{name} IS NULL" for name in sequence)
        for name in (*sequence, *members):
            columns[name] = f"CASE WHEN ({silent}) OR {older(sequence)} THEN old.{name} ELSE new.{name} END"
        first |= {name: f"CASE WHEN NOT ({silent}) THEN new.{name} END" for name in members}
    return {"columns": columns, "first": first} if first else {"columns": columns}


FUNCTIONS = {
    "sum": "coalesce(old.{0} + new.{0}, old.{0}, new.{0})",
    "product": "coalesce(old.{0} * new.{0}, old.{0}, new.{0})",
    "min": "least(old.{0}, new.{0})",
    "max": "greatest(old.{0}, new.{0})",
    "bool_and": "least(old.{0}, new.{0})",
    "bool_or": "greatest(old.{0}, new.{0})",
    "last_value": "new.{0}",
    "last_non_null_value": "coalesce(new.{0}, old.{0})",
    "first_value": "old.{0}",
    "first_non_null_value": "coalesce(old.{0}, new.{0})",
    "count": "CASE WHEN new.{0} IS NULL THEN old.{0} ELSE coalesce(old.{0}, 0) + 1 END",
}
IN_FRONT = {
    "last_value": "old.{0}",
    "last_non_null_value": "coalesce(old.{0}, new.{0})",
    "first_value": "new.{0}",
    "first_non_null_value": "coalesce(new.{0}, old.{0})",
}
"""The functions for which it matters that a late record is folded in front."""


def aggregation(case: Case) -> dict[str, Any] | None:
    """``aggregate`` with functions that are named alone."""
    table = case.table
    columns: dict[str, str] = {}
    first: dict[str, str] = {}
    default = table.options.get("default_aggregate", "last_non_null_value")
    for name in table.schema.names:
        if name in (*table.key, *table.ordering):
            continue
        function = table.options.get("aggregates", {}).get(name, default)
        if str(function) not in FUNCTIONS or table.options.keys() - {
            "aggregates",
            "default_aggregate",
            "ignore_retract",
        }:
            return None
        rule = FUNCTIONS[function].format(name)
        if table.ordering and function in IN_FRONT:
            rule = f"CASE WHEN {older(table.ordering)} THEN {IN_FRONT[function].format(name)} ELSE {rule} END"
        columns[name] = rule
        if function == "count":
            first[name] = f"CASE WHEN new.{name} IS NOT NULL THEN 1 END"
    return {"columns": columns, "first": first} if first else {"columns": columns}


FITS_IN_THE_END = frozenset({"partial-sums-that-do-not-fit"})
"""The built-in looks at the last total alone; an expression fails at the first sum that does not fit."""


def played() -> Iterator[tuple[Case, dict[str, Any]]]:
    makers = {"event-time": latest, "commit-time": latest, "partial-update": partial, "aggregate": aggregation}
    for cases in load_cases().values():
        for given in cases:
            if given.name in FITS_IN_THE_END:
                continue
            name = given.table.merger or ("event-time" if given.table.ordering else "commit-time")
            case = replace(given, table=replace(given.table, merger=name))
            if name not in makers or case.create_error:
                continue
            if not all(isinstance(step, Write | Compact | Expect) for step in case.steps):
                continue
            writes = [step for step in case.steps if isinstance(step, Write)]
            kinds = {row[0] for step in writes for row in step.rows}
            taken = {"+U", "+I"} | ({"-U", "-D"} if makers[name] is latest else set())
            if not kinds <= taken or any(step.refused != "no" or step.types for step in writes):
                continue
            options = makers[name](case)
            if options is not None:
                yield case, options


PLAYED = list(played())


def test_histories_of_each_merger_are_played() -> None:
    counts: dict[str, int] = {}
    for case, _ in PLAYED:
        counts[str(case.table.merger)] = counts.get(str(case.table.merger), 0) + 1
    assert counts["event-time"] >= 20
    assert counts["commit-time"] >= 4
    assert counts["partial-update"] >= 5
    assert counts["aggregate"] >= 5


@pytest.mark.parametrize(("case", "options"), PLAYED, ids=[case.name for case, _ in PLAYED])
def test_an_expression_gives_the_rows_of_the_built_in(case: Case, options: dict[str, Any]) -> None:
    table = case.table
    # Where only arrival decides, ordering columns are data.
    ordering = () if table.merger == "commit-time" else table.ordering
    shape = TableShape(table.schema, table.key, ordering)
    merger = default_registry().resolve("expression").from_options(options, shape)
    base, tombstones = table.schema.empty_table(), tombstone_schema(shape).empty_table()
    frames: list[Frame] = []
    for step in case.steps:
        if isinstance(step, Write):
            frames.append(frame(shape, step, len(frames) + 1))
        elif isinstance(step, Compact):
            base, tombstones = merged(merger, shape, base, tombstones, frames)
            frames = []
        elif isinstance(step, Expect) and step.as_of is None and step.filter is None and step.columns is None:
            rows, _ = merged(merger, shape, base, tombstones, frames)
            kinds = [field.type for field in table.schema]
            wanted = [tuple(from_json(v, kind) for v, kind in zip(row, kinds, strict=True)) for row in step.rows]
            assert_rows(rows, wanted, table.schema, f"{case.name}, by {options}")


def frame(shape: TableShape, step: Write, version: int) -> Frame:
    rows = frame_of(shape.schema, step.columns, [row[1:] for row in step.rows])
    names = [name for name in shape.schema.names if name in step.columns]
    return Frame(rows.select(names), np.array([KINDS[row[0]] for row in step.rows], dtype=np.int8), version)


def merged(
    merger: Merger, shape: TableShape, base: pa.Table, tombstones: pa.Table, frames: Sequence[Frame]
) -> tuple[pa.Table, pa.Table]:
    names = shape.schema.names
    folded = fold(merger, shape, base=base, tombstones=tombstones, frames=frames, columns=names)
    return overlay_rows(base, folded, names, sort=True), folded.tombstones
