"""Overwrites beside other writers at each of their calls to the store, and in random histories of partitions."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from lakemerge import CommitConflictError, InputError, LakeTable, VersionNotFoundError
from lakemerge.testing.faults import Call, Fault
from tests.conformance.arrow_engine import ArrowEngine, ArrowHandle
from tests.conformance.model_engine import ModelEngine, ModelHandle
from tests.conformance.runner import COMPACTIONS, Filter, TableCase
from tests.conformance.values import assert_rows
from tests.conformance.values import rows_of as rows_in_order
from tests.property.effort import examples, some, thorough
from tests.unit.faults import create, frame, open_over, rows_of, state_of

PARTS = "k BIGINT, p STRING, o BIGINT, v STRING"
_ORDERED = "k BIGINT, p BIGINT, v BIGINT, o BIGINT, w STRING"
EVERY = float("inf")


def of(*rows: tuple[int, str, int, str]) -> pa.Table:
    return frame(rows, ["k", "p", "o", "v"], p=pa.string())


OVERWRITES: Mapping[str, Callable[[LakeTable], object]] = {
    "whole": lambda table: table.overwrite(of((1, "a", 1, "n"), (9, "c", 1, "n"))),
    "condition": lambda table: table.overwrite(of((1, "a", 1, "n")), "p = 'a'"),
    "dynamic": lambda table: table.overwrite(of((1, "a", 1, "n"), (9, "c", 1, "n")), partition_mode="dynamic"),
    "nothing": lambda table: table.overwrite(of(), "p <= 'b'"),
}
OTHERS: Mapping[str, Callable[[LakeTable], object]] = {
    "upsert": lambda table: table.upsert(of((1, "a", 6, "z"), (2, "a", 0, "z"), (1, "b", 6, "z"), (9, "c", 0, "z"))),
    "update": lambda table: table.update_where("true", {"v": "concat(v, '?')"}),
    "delete": lambda table: table.delete_where("k = 1"),
    "overwrite": lambda table: table.overwrite(of((5, "a", 5, "m"), (5, "b", 5, "m"))),
    "overwrite of a partition": lambda table: table.overwrite(of((5, "a", 5, "m")), partition_mode="dynamic"),
    "compaction": lambda table: table.compact(),
    "minor compaction": lambda table: table.compact(minor=True),
    "log compaction": lambda table: table.compact_logs(size_ratio=EVERY),
    "upsert and compaction": lambda table: (table.upsert(of((1, "a", 6, "z"), (8, "b", 1, "z"))), table.compact()),
    "rescale": lambda table: table.rescale(buckets=4),
    "fewer buckets": lambda table: table.rescale(buckets=1),
    "expiry": lambda table: table.expire_tombstones(retention=dt.timedelta(0)),
}
BOTH = [(name, other) for name in OVERWRITES for other in OTHERS]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitions with base files, minor entries, tombstones and live logs, and one of logs alone."""
    path = tmp_path_factory.mktemp("source") / "t"
    options: dict[str, Any] = {
        "key": ["k", "p"],
        "partition_by": ["p"],
        "buckets": 2,
        "properties": {"lakemerge.maintenance": "off"},
    }
    table = create(path, schema=PARTS, **options)
    table.upsert(of((1, "a", 1, "x"), (2, "a", 5, "x"), (1, "b", 5, "x"), (7, "b", 5, "x")))
    table.delete(of((7, "b", 6, "")).drop_columns(["v"]))
    table.compact()
    table.upsert(of((1, "a", 5, "x")))
    table.compact(minor=True)
    table.upsert(of((3, "a", 5, "x"), (2, "b", 5, "x")))
    table.upsert(of((1, "c", 5, "x"), (2, "b", 6, "x")))
    return path


def outcome(source: Path, folder: Path, *deeds: Callable[[LakeTable], object]) -> list[Any]:
    shutil.copytree(source, folder)
    for deed in deeds:
        deed(LakeTable.open(folder))
    found = state_of(folder)
    shutil.rmtree(folder)
    return found


def at_every_call(
    source: Path, path: Path, mine: Callable[[LakeTable], object], theirs: Callable[[LakeTable], object]
) -> None:
    """The outcome is that of one after the other; of the other alone, where mine is refused."""
    first, last = outcome(source, path, theirs, mine), outcome(source, path, mine, theirs)
    alone = outcome(source, path, theirs)
    shutil.copytree(source, path)
    table, counting = open_over(path)
    mine(table)
    calls = len(counting.calls)
    shutil.rmtree(path)
    for at in some(range(1, calls + 1)):
        shutil.copytree(source, path)

        def interfere(call: Call) -> None:
            theirs(LakeTable.open(path))

        table, _ = open_over(path, Fault(action=interfere, at=at))
        allowed = [first, last]
        try:
            mine(table)
        except CommitConflictError:
            allowed = [alone]
        found = state_of(path)
        assert found in allowed, at
        LakeTable.open(path).compact()
        assert state_of(path) == found
        assert LakeTable.check(path).ok
        shutil.rmtree(path)


@pytest.mark.parametrize(("name", "other"), some(BOTH))
def test_another_writer_at_every_call(name: str, other: str, source: Path, tmp_path: Path) -> None:
    at_every_call(source, tmp_path / "t", OVERWRITES[name], OTHERS[other])


@pytest.mark.parametrize(("name", "other"), some([(n, o) for n, o in BOTH if not o.startswith("overwrite")]))
def test_an_overwrite_at_every_call_of_another(name: str, other: str, source: Path, tmp_path: Path) -> None:
    at_every_call(source, tmp_path / "t", OTHERS[other], OVERWRITES[name])


NOW = dt.timedelta(0)
KEYS = [(k, p) for p in ("a", "b", "c") for k in (1, 2)]
_record = st.tuples(st.sampled_from(KEYS), st.integers(1, 9))
_steps = st.one_of(
    st.lists(_record, min_size=1, max_size=4),
    st.tuples(st.sampled_from(["p = 'a'", "p >= 'b'", "p = 'z'", "dynamic", "all"]), st.lists(_record, max_size=3)),
    st.sampled_from(["full", "minor", "logs", "rescale", "vacuum", "grow", "delete"]),
    st.integers(1, 4),
)
"""Records to write, an overwrite, a service to run, or how many versions to go back."""


def play(table: LakeTable, step: Any, number: int) -> None:
    match step:
        case list():
            table.upsert(of(*((k, p, o, f"{number}") for (k, p), o in step)))
        case (how, rows):
            new = {key: (*key, o, f"{number}") for key, o in rows}
            kept = {"p = 'a'": "a", "p >= 'b'": "bc", "p = 'z'": ""}.get(how, "abc")
            given = of(*(row for row in new.values() if row[1] in kept))
            if how in ("dynamic", "all"):
                table.overwrite(given, partition_mode="dynamic" if how == "dynamic" else "static")
            else:
                table.overwrite(given, how)
        case int():
            with contextlib.suppress(VersionNotFoundError, InputError):
                table.restore(version=max(0, table.version - step))
        case "full" | "minor":
            table.compact(minor=step == "minor")
        case "logs":
            table.compact_logs(size_ratio=EVERY)
        case "rescale":
            table.rescale(buckets=2 if table.detail().buckets == 1 else 1)
        case "grow":
            with contextlib.suppress(InputError):
                table.alter(add_columns=f"x{number} INT")
        case "delete":
            table.delete_where("k = 1")
        case _:
            table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)


@pytest.mark.parametrize("kept", [False, True])
@thorough(examples(40))
@given(steps=st.lists(_steps, min_size=2, max_size=9), since=st.integers(0, 20))
def test_what_is_told_is_the_table(kept: bool, steps: list[Any], since: int) -> None:
    """Changes, explanations, and replays come to the rows that the table has."""
    properties = {"lakemerge.recordRetention": "interval 1 days"} if kept else {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        options: dict[str, Any] = {"key": ["k", "p"], "partition_by": ["p"], "buckets": 2, "properties": properties}
        table = create(path, schema=PARTS, **options)
        copy: dict[Any, Any] = {}
        seen = 0
        for number, step in enumerate(steps):
            if step != "vacuum" or seen == table.version:
                play(table, step, number)
            for row in table.changes(seen).read_all().to_pylist():
                apply(copy, row)
            seen = table.version
            rows = {(row["k"], row["p"]): row for row in table.to_arrow().to_pylist()}
            assert {key: row["v"] for key, row in copy.items()} == {key: row["v"] for key, row in rows.items()}
            if number == len(steps) // 2:
                with contextlib.suppress(VersionNotFoundError):
                    table.replay(Path(folder) / "half")
        check(table, Path(folder), min(since, table.version))


def apply(copy: dict[Any, Any], row: dict[str, Any]) -> None:
    key = row["k"], row["p"]
    if row["_row_kind"] in ("+I", "+U"):
        assert row["_row_kind"] == "+U" or key not in copy
        copy[key] = row
    elif row["_row_kind"] == "-D":
        del copy[key]
    else:
        assert copy[key]["v"] == row["v"]


def check(table: LakeTable, folder: Path, since: int) -> None:
    rows = rows_of(table.to_arrow())
    assert LakeTable.check(folder / "t").ok
    for k, p in KEYS:
        row = table.get({"k": k, "p": p})
        for begin in (None, 0, since):
            with contextlib.suppress(VersionNotFoundError):
                found = table.explain({"k": k, "p": p}, begin)
                assert found.row == row
                assert all(step.version > (begin or 0) for step in found.steps)
    assert rows_of(table.what_if().to_arrow()) == rows
    assert rows_of(table.what_if(since=0).to_arrow()) == rows
    table.replay(folder / "again")
    assert rows_of(LakeTable.open(folder / "again").to_arrow()) == rows
    if (folder / "half").exists():
        with contextlib.suppress(CommitConflictError, VersionNotFoundError):
            table.replay(folder / "half")
            # It keeps a column that a restore takes back.
            assert rows_of(LakeTable.open(folder / "half").to_arrow(columns=table.schema.names)) == rows


MERGERS: Mapping[str, tuple[str, Sequence[str], str, Mapping[str, Any]]] = {
    "event-time": (_ORDERED, ["o"], "event-time", {}),
    "commit-time": (_ORDERED, [], "commit-time", {}),
    "delete marker": (_ORDERED, ["o"], "event-time", {"delete_when": {"column": "w", "values": ["c"]}}),
    "first-row": (_ORDERED, [], "first-row", {}),
    "first-row ordered": (_ORDERED, ["o"], "first-row", {}),
    "partial-update": (_ORDERED, [], "partial-update", {}),
    "partial-update ordered": (_ORDERED, ["o"], "partial-update", {}),
    "sequence groups": (_ORDERED, [], "partial-update", {"sequence_groups": {"o": ["v", "w"]}}),
    "sum": (_ORDERED, [], "aggregate", {"aggregates": {"v": "sum"}, "remove_record_on_delete": True}),
    "ordered maximum": (_ORDERED, ["o"], "aggregate", {"aggregates": {"v": "max", "w": "last_value"}}),
    "user": ("k BIGINT, p BIGINT, counter INT, ts BIGINT", ["ts"], "custom:capped-sum", {}),
}


@pytest.mark.parametrize("seed", range(examples(10)))
@pytest.mark.parametrize("name", MERGERS)
def test_histories_under_every_merger(name: str, seed: int, tmp_path: Path) -> None:
    """Upserts, deletes, overwrites of the table and of partitions, and compactions, against the plain-Python model."""
    random = Random(f"{name}/{seed}")
    ddl, ordering, merger, options = MERGERS[name]
    case = TableCase(ddl, ("k", "p"), tuple(ordering), merger, options, ("p",))
    expected = ModelEngine().create(case, buckets=2, spread=False)
    actual = ArrowEngine(tmp_path).create(case, buckets=random.choice([1, 2]), spread=random.random() < 0.5)
    for number in range(10):
        step = random.choice(["write", "write", "write", "delete", "overwrite", "overwrite", "compact"])
        if step == "compact":
            actual.compact(random.choice(COMPACTIONS))
        elif step == "overwrite":
            scope = random.choice(["all", "dynamic", "p = 1", "p >= 2"])
            where = Filter("p", scope[2:-2], int(scope[-1])) if scope.startswith("p") else None
            rows = drawn(random, case.schema, once=True)
            if where is not None:
                rows = [row for row in rows if where.keeps(row["p"])]
            given = pa.Table.from_pylist(rows, nullable(case.schema))
            for handle in (expected, actual):
                handle.overwrite(given, where, dynamic=scope == "dynamic", spread=seed % 2 == 0)
        else:
            given = pa.Table.from_pylist(drawn(random, case.schema, once=False), nullable(case.schema))
            both(given, expected, actual, delete=step == "delete")
        assert_rows(actual.read(), rows_in_order(expected.read()), case.schema, f"step {number} {step}")


def nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def drawn(random: Random, schema: pa.Schema, *, once: bool) -> list[dict[str, Any]]:
    """Rows of few keys and small values; with ``once`` each key is there once."""
    rows = []
    for _ in range(random.randrange(5)):
        row: dict[str, Any] = {"k": random.randrange(2), "p": random.randrange(1, 4)}
        for field in schema:
            if field.name not in row:
                null = random.random() < 0.2 and field.name not in ("counter", "ts")
                row[field.name] = (
                    None if null else "abc"[random.randrange(3)] if field.name == "w" else random.randrange(4)
                )
        rows.append(row)
    return list({(row["k"], row["p"]): row for row in rows}.values()) if once else rows


def both(given: pa.Table, expected: ModelHandle, actual: ArrowHandle, *, delete: bool) -> None:
    """The same write on both. What the model refuses, the table refuses."""
    try:
        write(given, expected, delete=delete)
    except ModelEngine.errors:
        with pytest.raises(ArrowEngine.errors):
            write(given, actual, delete=delete)
    else:
        write(given, actual, delete=delete)


def write(given: pa.Table, handle: ModelHandle | ArrowHandle, *, delete: bool) -> None:
    if delete:
        handle.delete(given)
    else:
        handle.write(given, kind_column=None, spread=True)
