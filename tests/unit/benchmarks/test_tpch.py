"""The benchmark's data and expected rows, against a fold in plain Python over the generated files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.tpch import ENTITIES, KIND_COLUMN, LINEITEM, ORDERS, Entity, Workload, compare, connect

COMMITS = 6
# The cross product of "deletes, updates, inserts, late ones, repeats" needs some hundred records a commit.
SCALE, FRACTION = 0.002, 0.15


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    cache = tmp_path_factory.mktemp("tpch")
    return Workload.prepare(cache, scale=SCALE, commits=COMMITS, fraction=FRACTION, seed=11)


def rows_of(path: Path) -> list[dict[str, object]]:
    return pq.ParquetFile(path).read().to_pylist()


def key_of(entity: Entity, row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in entity.key)


def newer_or_equal(entity: Entity, row: dict[str, object], than: dict[str, object]) -> bool:
    ours: Any = row[entity.ordering]
    return bool(ours >= than[entity.ordering])


@pytest.mark.parametrize("entity", ENTITIES, ids=lambda entity: entity.name)
def test_expected_rows_equal_a_fold_in_plain_python(workload: Workload, entity: Entity) -> None:
    state = {key_of(entity, row): row | {KIND_COLUMN: "+U"} for row in rows_of(workload.initial(entity))}
    for number in range(1, COMMITS + 1):
        for row in rows_of(workload.change(entity, number)):
            held = state.get(key_of(entity, row))
            if held is None or newer_or_equal(entity, row, held):
                state[key_of(entity, row)] = row
    folded = [tuple(row[name] for name in entity.names) for row in state.values() if row[KIND_COLUMN] == "+U"]
    expected = [tuple(row[name] for name in entity.names) for row in rows_of(workload.expected(entity))]
    assert Counter(folded) == Counter(expected)


def test_the_stream_holds_every_kind_of_trap(workload: Workload) -> None:
    """Judged on ``lineitem`` by a fold that counts what each record does to the state it meets."""
    seen: Counter[str] = Counter()
    state = {key_of(LINEITEM, row): row | {KIND_COLUMN: "+U"} for row in rows_of(workload.initial(LINEITEM))}
    for number in range(1, COMMITS + 1):
        in_commit: Counter[tuple[object, ...]] = Counter()
        for row in rows_of(workload.change(LINEITEM, number)):
            key, deletes = key_of(LINEITEM, row), row[KIND_COLUMN] == "-D"
            in_commit[key] += 1
            seen["repeated key in a commit"] += in_commit[key] == 2
            held = state.get(key)
            if held is None:
                seen["delete of an unseen key" if deletes else "new key"] += 1
                state[key] = row
                continue
            tombstone = held[KIND_COLUMN] == "-D"
            seen["exact duplicate"] += row == held
            seen["equal ordering, other values"] += row[LINEITEM.ordering] == held[LINEITEM.ordering] and row != held
            if newer_or_equal(LINEITEM, row, held):
                seen["update"] += not deletes and not tombstone
                seen["delete"] += deletes and not tombstone
                seen["return after a delete"] += not deletes and tombstone
                state[key] = row
            else:
                seen["late after a delete" if tombstone else "late"] += 1
    traps = {
        "delete", "delete of an unseen key", "equal ordering, other values", "exact duplicate", "late",
        "late after a delete", "new key", "repeated key in a commit", "return after a delete", "update",
    }  # fmt: skip
    assert {trap for trap in traps if seen[trap] > 0} == traps


@pytest.mark.parametrize("entity", ENTITIES, ids=lambda entity: entity.name)
def test_one_commit_never_leaves_the_winner_to_the_order_of_its_rows(workload: Workload, entity: Entity) -> None:
    """Spark may read a file's splits in any order, so records that tie inside a commit must be equal."""
    for number in range(1, COMMITS + 1):
        versions: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
        for row in rows_of(workload.change(entity, number)):
            versions.setdefault((*key_of(entity, row), row[entity.ordering]), set()).add(tuple(row.values()))
        assert all(len(found) == 1 for found in versions.values())


def altered(table: pa.Table, change: str) -> pa.Table:
    """``table`` with one defect."""
    comment = table.schema.get_field_index("o_comment")
    rows = len(table)
    match change:
        case "missing":
            return table.slice(1)
        case "extra":
            return pa.concat_tables([table, table.slice(0, 1)])
        case "replaced by a duplicate":
            return pa.concat_tables([table.slice(1), table.slice(rows - 1)])
        case "value":
            texts = ["another", *table["o_comment"].to_pylist()[1:]]
            return table.set_column(comment, "o_comment", pa.array(texts, pa.string()))
        case "swapped":
            texts = table["o_comment"].to_pylist()
            at = next(index for index, text in enumerate(texts) if text != texts[0])
            texts[0], texts[at] = texts[at], texts[0]
            return table.set_column(comment, "o_comment", pa.array(texts, pa.string()))
        case _:
            return table.set_column(comment, "o_comment", table["o_comment"].cast(pa.binary()))


@pytest.fixture
def db(tmp_path: Path) -> duckdb.DuckDBPyConnection:
    return connect(tmp_path)


@pytest.mark.parametrize("change", ["missing", "extra", "replaced by a duplicate", "value", "swapped", "type"])
def test_a_wrong_answer_is_seen(workload: Workload, db: duckdb.DuckDBPyConnection, change: str) -> None:
    expected = pq.ParquetFile(workload.expected(ORDERS)).read()
    db.register("expected", expected)
    db.register("actual", altered(expected, change))
    assert compare(db, ORDERS, "actual", "expected").problems
    assert compare(db, ORDERS, "expected", "expected").problems == ()
